//! The control plane as a thread: starts beside a running server, reports its draining, and ends after it.

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

use crate::incoming::{self, Incoming};
use crate::limit::{
    CONNECTION_AGE_MAX, CONNECTIONS_MAX, HEADERS_BYTES_MAX, KEEPALIVE_EVERY, KEEPALIVE_WITHIN, LINGER,
    STREAMS_MAX, THREADS_MAX,
};
use crate::proto::control_server;
use crate::router::router;
use crate::service::Service;
use crate::thread_pool::ThreadPool;

/// Why a control plane does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlPlaneError {
    /// The system lacks resources.
    #[error("the control plane cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// The certificate or the key is invalid.
    #[error("the control plane cannot talk TLS: {0}")]
    Tls(String),
    /// The service descriptor is invalid, which is a bug.
    #[error("the control plane cannot describe itself: {0}")]
    Description(String),
}

/// A running control plane. Dropping it ends it at once.
#[derive(Debug)]
pub struct ControlPlane {
    url: String,
    draining: watch::Sender<bool>,
    stop: Option<oneshot::Sender<Duration>>,
    thread: Option<JoinHandle<()>>,
}

impl ControlPlane {
    /// Starts the control plane of a server at a listener.
    ///
    /// # Errors
    /// Certificate and key do not fit, or the system lacks resources.
    pub fn start(listening: PortListener, control: Control) -> Result<ControlPlane, ControlPlaneError> {
        let tls =
            listening.tls.as_ref().map(incoming::acceptor).transpose().map_err(ControlPlaneError::Tls)?;
        let url = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, listening.address);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listening.listener)?
        };
        let service = Service::new(control, ThreadPool::start("control-work", THREADS_MAX)?);
        let (reporter, health) = health_reporter();
        let router =
            router(&service, health).map_err(|error| ControlPlaneError::Description(error.to_string()))?;
        let (draining, drains) = watch::channel(false);
        let (stop, stopped) = oneshot::channel();
        let serving =
            Serving { listener, tls, routes: Routes::from(router), service, reporter, drains, stopped };
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = thread.spawn(move || serving.run(runtime))?;
        Ok(ControlPlane { url, draining, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL, such as `http://127.0.0.1:7100`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Makes the health service report "not serving".
    pub fn draining(&self) {
        self.draining.send_replace(true);
    }

    /// Ends the control plane. Saves and restores under way get this long to finish.
    pub fn stop(mut self, within: Duration) {
        self.end(within);
    }

    fn end(&mut self, within: Duration) {
        if let Some(stop) = self.stop.take() {
            // It fails when the thread has ended already.
            let _ = stop.send(within);
        }
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The resources of the thread.
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
        // A slow save must not delay the end of the process.
        runtime.shutdown_background();
    }

    async fn serve(self) {
        let Serving { listener, tls, routes, service, reporter, drains, stopped } = self;
        report(&reporter, ServingStatus::Serving).await;
        let reporting = tokio::spawn(report_draining(reporter, drains));
        let (accepted, incoming) = mpsc::channel::<std::io::Result<Incoming>>(1);
        let accepting = tokio::spawn(incoming::accept(listener, tls, CONNECTIONS_MAX, accepted));
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
        // A dropped handle means no waiting.
        let within = stopped.await.unwrap_or_default();
        service.finish(within).await;
        let _ = end.send(());
        accepting.abort();
        // A client that watches the health service would stay forever.
        let _ = tokio::time::timeout(LINGER, serving).await;
        reporting.abort();
    }
}

/// Reports the status for the whole server and for the control service.
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
