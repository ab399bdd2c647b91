//! The control plane as a thread: started beside a running server, told when that drains, and ended after it. Knows no
//! signal.

use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_server::{Control, PortListener};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::guest::{self, Guest};
use crate::limit::{
    CONNECTION_AGE_MAX, CONNECTIONS_MAX, HEADERS_BYTES_MAX, KEEPALIVE_EVERY, KEEPALIVE_WITHIN, LINGER,
    STREAMS_MAX, THREADS_MAX,
};
use crate::proto::control_server;
use crate::router::router;
use crate::service::Service;
use crate::work::Work;

/// Why a control plane does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaneError {
    /// A thread, the runtime or the listener.
    #[error("the control plane cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// Certificate or key.
    #[error("the control plane cannot talk TLS: {0}")]
    Tls(String),
    /// The service's own description, which is a bug.
    #[error("the control plane cannot describe itself: {0}")]
    Description(String),
}

/// A running control plane. Dropping it ends it without waiting for what is under way.
#[derive(Debug)]
pub struct Plane {
    url: String,
    draining: watch::Sender<bool>,
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl Plane {
    /// Answers at a listener for a server from now on.
    ///
    /// # Errors
    /// Certificate and key do not fit, or the system has no resources.
    pub fn start(listening: PortListener, control: Control) -> Result<Plane, PlaneError> {
        let tls = listening.tls.as_ref().map(guest::acceptor).transpose().map_err(PlaneError::Tls)?;
        let url = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, listening.address);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listening.listener)?
        };
        let service = Service::new(control, Work::start("control-work", THREADS_MAX)?);
        let (reporter, health) = health_reporter();
        let router = router(&service, health).map_err(|error| PlaneError::Description(error.to_string()))?;
        let (draining, drains) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let serving =
            Serving { listener, tls, routes: Routes::from(router), service, reporter, drains, stopped };
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || serving.run(runtime))?;
        Ok(Plane { url, draining, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it answers, such as `http://127.0.0.1:7100`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on the health service says that the server does not serve.
    pub fn draining(&self) {
        self.draining.send_replace(true);
    }

    /// Ends it, after saves and restores that are under way if they are done by then.
    pub fn stop(mut self, within: Duration) {
        self.end(within);
    }

    fn end(&mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            // It fails when the thread has ended by itself.
            let _ = stop.send(within);
        }
        if let Some(thread) = self.thread.take() {
            // One that has panicked has said so itself.
            let _ = thread.join();
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// What the thread needs.
struct Serving {
    listener: TcpListener,
    tls: Option<tokio_rustls::TlsAcceptor>,
    routes: Routes,
    service: Service,
    reporter: HealthReporter,
    drains: watch::Receiver<bool>,
    stopped: oneshot::Receiver<Duration>,
}

impl Serving {
    fn run(self, runtime: Runtime) {
        runtime.block_on(self.serve());
        // What blocks still, such as a save that took too long, must not hold up the end of the process.
        runtime.shutdown_background();
    }

    async fn serve(self) {
        let Serving { listener, tls, routes, service, reporter, drains, stopped } = self;
        report(&reporter, ServingStatus::Serving).await;
        let reporting = tokio::spawn(report_draining(reporter, drains));
        let (guests, incoming) = mpsc::channel::<std::io::Result<Guest>>(1);
        let accepting = tokio::spawn(guest::accept(listener, tls, CONNECTIONS_MAX, guests));
        let (end, ended) = oneshot::channel::<()>();
        let serving = tokio::spawn(
            Server::builder()
                .accept_http1(true)
                .max_concurrent_streams(STREAMS_MAX)
                .max_connection_age(CONNECTION_AGE_MAX)
                .http2_max_header_list_size(HEADERS_BYTES_MAX)
                .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
                .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
                .add_routes(routes)
                .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async {
                    // Dropped or sent, it is the end.
                    let _ = ended.await;
                }),
        );
        // A handle that is dropped is one that wants no waiting.
        let within = stopped.await.unwrap_or_default();
        service.finish(within).await;
        let _ = end.send(());
        accepting.abort();
        // Somebody who watches the health service would stay for ever.
        let _ = tokio::time::timeout(LINGER, serving).await;
        reporting.abort();
    }
}

/// Tells how the server is, for the server as a whole and for our service.
async fn report(reporter: &HealthReporter, status: ServingStatus) {
    for name in ["", control_server::SERVICE_NAME] {
        reporter.set_service_status(name, status).await;
    }
}

async fn report_draining(reporter: HealthReporter, mut drains: watch::Receiver<bool>) {
    if drains.wait_for(|drains| *drains).await.is_ok() {
        report(&reporter, ServingStatus::NotServing).await;
    }
}
