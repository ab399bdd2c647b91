//! Incoming connections of an HTTP port: TCP or TLS, a bounded number at once.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::serve::Limits;
use crate::sockets::{ConnectionSlots, SocketHandle};

/// ALPN protocols: gRPC needs the first, scrapers often know only the second.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// Pause after a failed `accept`, such as one for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);
/// Length of the HTTP/2 preface (RFC 9113, section 3.4). A request of HTTP/1.1 is longer.
const PREFACE_BYTES: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();

/// A byte stream in both directions.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl Stream for TcpStream {}
impl Stream for tokio_rustls::server::TlsStream<TcpStream> {}

/// One connection. It returns its slot on drop.
pub(crate) struct Incoming {
    stream: Box<dyn Stream>,
    socket: SocketHandle,
    preface: Option<Preface>,
    _slot: OwnedSemaphorePermit,
}

/// The first bytes of a connection. Before they arrive, the library cannot tell HTTP/2 from HTTP/1 and would wait
/// forever. After them it has limits of its own.
struct Preface {
    bytes_missing: usize,
    late: Pin<Box<Sleep>>,
}

impl Incoming {
    fn new(
        stream: Box<dyn Stream>,
        socket: SocketHandle,
        slot: OwnedSemaphorePermit,
        within: Duration,
    ) -> Incoming {
        let late = Box::pin(tokio::time::sleep(within));
        let preface = Some(Preface { bytes_missing: PREFACE_BYTES, late });
        Incoming { stream, socket, preface, _slot: slot }
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, into);
        let Some(preface) = &mut self.preface else { return read };
        if read.is_pending() {
            return preface.late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()));
        }
        preface.bytes_missing = preface.bytes_missing.saturating_sub(into.filled().len() - before);
        if preface.bytes_missing == 0 {
            self.preface = None;
        }
        read
    }
}

impl AsyncWrite for Incoming {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Incoming {
    type ConnectInfo = SocketHandle;

    fn connect_info(&self) -> SocketHandle {
        self.socket.clone()
    }
}

/// Reads the server's certificate and key from PEM files.
///
/// # Errors
/// The files are unreadable or do not fit; the error names the file.
pub fn acceptor((certificate, key): &(PathBuf, PathBuf)) -> Result<TlsAcceptor, String> {
    let failed = |path: &Path, reason: &dyn std::fmt::Display| format!("{}: {reason}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(certificate, &error))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| failed(certificate, &error))?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts a bounded number of connections while the receiver exists. A handshake delays no other
/// connection.
pub(crate) async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    connections: mpsc::Sender<io::Result<Incoming>>,
) {
    let mut slots = ConnectionSlots::new(limits.connections, limits.slot_kept);
    loop {
        let accepted =
            listener.accept().await.and_then(|(stream, _)| Ok((SocketHandle::of(&stream)?, stream)));
        let Ok((socket, stream)) = accepted else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        let slot = slots.take(&socket).await;
        // Without it, replies are late at worst.
        let _ = stream.set_nodelay(true);
        let (tls, connections) = (tls.clone(), connections.clone());
        tokio::spawn(async move {
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(stream),
                Some(tls) => match tokio::time::timeout(limits.handshake, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Box::new(stream),
                    // A client without TLS gets no answer.
                    Ok(Err(_)) | Err(_) => return,
                },
            };
            let _ = connections.send(Ok(Incoming::new(stream, socket, slot, limits.handshake))).await;
        });
    }
}
