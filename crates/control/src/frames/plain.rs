//! A client's line without TLS, which notes whether the server answers as TLS does: the library above would only say that
//! this is no HTTP/2.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use sanderling_transport::is_tls_alert;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::guest::Stream;

/// The socket, until the first answer with the note.
pub(super) struct Plain {
    socket: TcpStream,
    talks_tls: Option<Arc<AtomicBool>>,
}

impl Plain {
    /// The line, and whether its other side talks TLS as far as is known.
    pub(super) fn new(socket: TcpStream) -> (Plain, Arc<AtomicBool>) {
        let talks_tls = Arc::new(AtomicBool::new(false));
        (Plain { socket, talks_tls: Some(Arc::clone(&talks_tls)) }, talks_tls)
    }
}

impl Stream for Plain {}

impl AsyncRead for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(cx, into);
        if let Some(answer) = into.filled().get(before..).filter(|answer| !answer.is_empty())
            && let Some(talks_tls) = self.talks_tls.take()
        {
            talks_tls.store(is_tls_alert(answer), Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Plain {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
