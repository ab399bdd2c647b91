//! The control plane as a thread: starts beside a running server, reports its draining, and ends after it.

use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_http::status_pages::PageOptions;
use sanderling_http::{TlsAcceptor, acceptor, serve};
use sanderling_server::{Control, PortListener};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::limit::{PORT, THREADS_MAX};
use crate::pages;
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
    pub fn start(
        listening: PortListener,
        control: Control,
        options: PageOptions,
    ) -> Result<ControlPlane, ControlPlaneError> {
        let tls = listening.tls.as_ref().map(acceptor).transpose().map_err(ControlPlaneError::Tls)?;
        let url = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, listening.address);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let is_reached = !listening.listener.local_addr()?.ip().is_loopback();
        let pages = pages::pages(&control, options, is_reached)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listening.listener)?
        };
        let service = Service::new(control, ThreadPool::start("control-work", THREADS_MAX)?);
        let (reporter, health) = health_reporter();
        let router = router(&service, pages, health)
            .map_err(|error| ControlPlaneError::Description(error.to_string()))?;
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
    tls: Option<TlsAcceptor>,
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
        serve(listener, tls, routes, PORT, async {
            // A dropped handle means no waiting.
            let within = stopped.await.unwrap_or_default();
            service.finish(within).await;
        })
        .await;
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use sanderling_server::{Config, Server, listen_for_control};
    use sanderling_transport::Address;

    use crate::limit::CONNECTIONS_MAX;
    use crate::{Client, ClientOptions, ControlPlane, PageOptions};

    /// Longer than any operation of a passing test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Takes all slots with connections whose first bytes do not tell the protocol.
    fn silent(slots: usize, address: &str) -> Vec<TcpStream> {
        let connect = |at: usize| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"[..at % 24]).expect("sent");
            stream
        };
        (0..slots).map(connect).collect()
    }

    fn port(address: &str) -> Address {
        address.parse().expect("an address")
    }

    #[test]
    fn who_says_nothing_keeps_no_place_from_others() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let config = Config { listen, local: false, ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");

        let listening = listen_for_control(&config, &port("127.0.0.1:0")).expect("a port");
        let address = listening.address.clone();
        let plane =
            ControlPlane::start(listening, server.control(), PageOptions::default()).expect("it starts");
        let accepted = silent(CONNECTIONS_MAX, &address);
        let mut stream = TcpStream::connect(&address).expect("it listens");
        stream.set_read_timeout(Some(LONG)).expect("set");
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("in time");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        drop((plane, accepted));
    }

    /// Opens more connections than there are slots, and waits for the first bytes of each answer.
    fn unauthenticated(slots: usize, address: &str, said: &[u8], answer: &[u8]) -> Vec<TcpStream> {
        let connect = |_| {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_read_timeout(Some(LONG)).expect("set");
            stream.write_all(said).expect("sent");
            let mut found = vec![0; answer.len()];
            stream.read_exact(&mut found).expect("in time");
            assert_eq!(found, answer);
            stream
        };
        (0..slots + 3).map(connect).collect()
    }

    #[test]
    fn who_is_not_admitted_makes_room() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let token = Some("secret".to_owned());
        let config = Config { listen, local: false, token: token.clone(), ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");

        let listening = listen_for_control(&config, &port("127.0.0.1:0")).expect("a port");
        let address = listening.address.clone();
        let plane =
            ControlPlane::start(listening, server.control(), PageOptions::default()).expect("it starts");
        let connect_with_token = || {
            Client::connect(&address, &ClientOptions { token: token.clone(), ca: None }).expect("it listens")
        };
        let mut first = connect_with_token();
        first.status().expect("an answer");
        let probe = b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n";
        let accepted = unauthenticated(CONNECTIONS_MAX, &address, probe, b"HTTP/1.1 200");
        connect_with_token().status().expect("an answer");
        first.status().expect("it has kept its slot");
        drop((plane, accepted));
    }
}
