//! Frames of the data plane over gRPC: each connection is one bidirectional stream, on an HTTP/2 connection of its own when
//! the client is ours. Both sides are here, with what they share. It looks into no frame, and holds no more of them than
//! the queues of a [`Relay`](sanderling_transport::Relay).

mod connector;
mod plain;
mod server;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use sanderling_transport::{Incoming, Outgoing};
use tokio::runtime::Runtime;
use tokio_stream::{Stream, StreamExt};
use tonic::{Status, Streaming};

use crate::client::{on_one_line, root_cause};
use crate::frames_proto::Piece;
use crate::limit::{FRAME_LINGER, FRAME_THREADS_MAX};
use crate::line::LineStream;

pub use connector::connector;
pub use server::FrameServer;

/// A runtime that ends without waiting for anybody.
#[derive(Debug)]
struct Carriers(Option<Runtime>);

impl Carriers {
    fn start() -> std::io::Result<Carriers> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(FRAME_THREADS_MAX);
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime =
            builder.worker_threads(threads).enable_io().enable_time().thread_name("grpc").build()?;
        Ok(Carriers(Some(runtime)))
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Carriers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a connection sends, as messages, over a stream that goes on until all of it is sent.
struct Pieces(Outgoing, #[expect(dead_code, reason = "it is there")] Option<Arc<LineStream>>);

impl Stream for Pieces {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.0.poll_next(cx).map(|bytes| bytes.map(|bytes| Piece { bytes }))
    }
}

/// Hands on what the peer sends, for as long as somebody takes it; then waits for the peer to go, but not for ever.
async fn receive(mut pieces: Streaming<Piece>, mut incoming: Incoming, stream: Option<Arc<LineStream>>) {
    while poll_fn(|cx| incoming.poll_room(cx)).await {
        let next = poll_fn(|cx| match incoming.poll_abandoned(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut pieces).poll_next(cx).map(Some),
        });
        match next.await {
            Some(Some(Ok(piece))) => incoming.put(piece.bytes),
            Some(None) => return incoming.end(),
            Some(Some(Err(status))) if std::error::Error::source(&status).is_none() => {
                return incoming.fail(words(&status));
            }
            // As with a socket, a connection that is reset is an end too: whether it cut a frame is seen by who knows frames.
            Some(Some(Err(_))) => return incoming.end(),
            None => break,
        }
    }
    drop(incoming);
    let gone = async { while let Some(Ok(_)) = pieces.next().await {} };
    if tokio::time::timeout(FRAME_LINGER, gone).await.is_err()
        && let Some(stream) = stream
    {
        stream.give_up();
    }
}

/// What a status says, for a person.
fn words(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => format!("the connection failed: {}", root_cause(source)),
        None => format!("the gRPC stream ended: {}: {}", status.code(), on_one_line(status.message())),
    }
}
