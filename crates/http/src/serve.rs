//! Answers at a port until its caller ends it.

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::incoming::{self, Incoming};

/// Age at which a connection is closed.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(3600);
/// Interval of HTTP/2 keepalive pings.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
/// Time to answer a keepalive ping.
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of all headers of a request. A larger request is refused.
const HEADERS_BYTES_MAX: u32 = 16 << 10;

/// The limits of a port.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open connections. A further one takes the slot of the oldest connection that never authenticated, see
    /// `slot_kept`. If all have authenticated, it waits.
    pub connections: usize,
    /// Concurrent requests per connection. Further ones wait.
    pub streams: u32,
    /// Time for which a connection keeps its slot in any case.
    pub slot_kept: Duration,
    /// Time for the TLS handshake, and again for the first bytes of HTTP. A silent connection is closed.
    pub handshake: Duration,
    /// Time for requests under way at the end.
    pub linger: Duration,
}

/// Answers until `ended` is ready; then takes no further connection, and lets requests under way finish.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Routes,
    limits: Limits,
    ended: impl Future<Output = ()>,
) {
    let (accepted, incoming) = mpsc::channel::<std::io::Result<Incoming>>(1);
    let accepting = tokio::spawn(incoming::accept(listener, tls, limits, accepted));
    let (end, draining) = oneshot::channel::<()>();
    let serving = tokio::spawn(
        Server::builder()
            .accept_http1(true)
            .max_concurrent_streams(limits.streams)
            .max_connection_age(CONNECTION_AGE_MAX)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
            .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
            .add_routes(routes)
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async {
                // Dropped or sent, it is the end.
                let _ = draining.await;
            }),
    );
    ended.await;
    drop(end);
    accepting.abort();
    // A client that watches the health service would stay forever.
    let _ = tokio::time::timeout(limits.linger, serving).await;
}
