//! A server as a thread: starts without models, gets them later, drains at the end.

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use sanderling_http::{Limits, TlsAcceptor, acceptor, serve};
use sanderling_transport::{Address, Error, ListenOptions, Listener, TlsServer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

use crate::access_log::AccessLog;
use crate::catalog::Models;
use crate::config::Config;
use crate::limit::{PORT, QUEUE_TIME_PART};
use crate::lookup_proto::lookup_server;
use crate::models::ServedModel;
use crate::pages;
use crate::proto::grpc_inference_service_server;
use crate::publisher::Publisher;
use crate::replica::{Replica, ReplicaConfig};
use crate::repository::{Repository, RepositoryConfig};
use crate::resp;
use crate::router::router;
use crate::scores;
use crate::scoring::ScoringThreads;
use crate::service::Service;
use crate::shadow::Shadow;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The address cannot be listened at, or may not be exposed.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The certificate or the key is invalid.
    #[error("{0}")]
    Tls(String),
    /// The system lacks resources.
    #[error("the server cannot start: {0}")]
    Io(#[from] std::io::Error),
    /// The service descriptor is invalid, which is a bug.
    #[error("the server cannot describe itself: {0}")]
    Description(String),
}

/// A running server. Dropping it drains it.
pub struct Server {
    url: String,
    resp: Option<String>,
    service: Arc<Service>,
    ready: Arc<watch::Sender<bool>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at the address. Until models are published, the server is live and not ready.
    ///
    /// # Errors
    /// The address is taken or may not be exposed, certificate and key do not fit, or the system lacks resources.
    pub fn start(config: &Config) -> Result<Server, StartError> {
        config.check().map_err(StartError::Config)?;
        let tls = config.tls.as_ref().map(acceptor).transpose().map_err(StartError::Tls)?;
        let (listener, address) = listen(config, &config.listen, config.tls.as_ref())?;
        let is_reached = !listener.local_addr()?.ip().is_loopback();
        // Clients of Redis seldom talk TLS, so the address is for this host, or for a network that is trusted.
        let resp = config.resp.as_ref().map(|at| listen(config, at, None)).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (listener, resp_listener, resp) = {
            let _inside = runtime.enter();
            let (listener, resp) = (TcpListener::from_std(listener)?, resp.unzip());
            (listener, resp.0.map(TcpListener::from_std).transpose()?, resp.1)
        };
        let queue_time = config.queue_time.unwrap_or(config.timeout / QUEUE_TIME_PART);
        let threads = ScoringThreads::start(config.threads, config.queue, config.timeout, queue_time)?;
        let access_log = config.access_log.as_deref().map(AccessLog::start).transpose()?;
        let service = Arc::new(Service::new(config, threads, access_log, Shadow::start()?));
        let (reporter, health) = health_reporter();
        let pages = pages::pages(&service, config, is_reached)?;
        let router =
            router(&service, pages, health).map_err(|error| StartError::Description(error.to_string()))?;
        let url = format!("{}://{address}", if tls.is_some() { "https" } else { "http" });
        let (ready, readiness) = watch::channel(false);
        let ready = Arc::new(ready);
        let (stop, stopped) = oneshot::channel();
        let limits = Limits { linger: config.drain_timeout, ..PORT };
        let (draining, drains) = watch::channel(false);
        let resp_front =
            resp_listener.map(|listener| RespFront { listener, service: Arc::clone(&service), drains });
        let port = Port {
            listener,
            tls,
            routes: Routes::from(router),
            limits,
            reporter,
            readiness,
            stopped,
            resp: resp_front,
            draining,
        };
        let thread = std::thread::Builder::new().name("serve".to_owned());
        let thread = thread.spawn(move || port.run(runtime))?;
        Ok(Server { url, resp, service, ready, stop: Some(stop), thread: Some(thread) })
    }

    /// The URL, such as `http://127.0.0.1:8500`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address of the RESP front, such as `127.0.0.1:6379`.
    #[must_use]
    pub fn resp_address(&self) -> Option<&str> {
        self.resp.as_deref()
    }

    /// Replaces all models in one step. Requests under way keep the models that they began with.
    pub fn publish(&self, models: Models) {
        self.publisher().publish(models);
    }

    /// Prepares a version for its first requests, and scores a row of missing values.
    ///
    /// # Errors
    /// The score is no finite number, or there is no memory.
    pub fn warm(&self, model: &ServedModel) -> Result<(), String> {
        scores::warm(model, self.service.threads.count())
    }

    /// Serves what a folder of models says, from now on. Returns when its models are loaded; `note` gets a line for
    /// each event, such as a version that does not load.
    ///
    /// # Errors
    /// The folder cannot be read, or the system has no thread left.
    pub fn follow(
        &self,
        config: RepositoryConfig,
        note: impl FnMut(&str) + Send + 'static,
    ) -> std::io::Result<()> {
        self.service.set_loading(true);
        let started = Repository::start(config, self.publisher(), note);
        self.service.set_loading(false);
        // A server follows one folder; another one would be a bug of the caller, and changes nothing.
        let _ = self.service.repository.set(started?);
        self.ready.send_replace(self.service.is_ready());
        Ok(())
    }

    /// Has the rows of a model follow servers or checkpoints from now on. The model is served when it has all rows; `note`
    /// gets a line when a source is lost and found.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn follow_source(
        &self,
        config: ReplicaConfig,
        model: Arc<ServedModel>,
        note: impl Fn(&str) + Send + Sync + 'static,
    ) -> std::io::Result<()> {
        let replica = Replica::start(config, model, self.publisher(), note)?;
        // A server is one replica; another one would be a bug of the caller, and changes nothing.
        let _ = self.service.replica.set(replica);
        Ok(())
    }

    /// Whether requests are answered.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.service.is_ready()
    }

    fn publisher(&self) -> Publisher {
        let (service, ready) = (Arc::clone(&self.service), Arc::clone(&self.ready));
        Publisher {
            models: Arc::clone(&service.models),
            metrics: Arc::clone(&service.metrics),
            threads: service.threads.count(),
            engines: service.engines.clone(),
            published: Arc::new(move || _ = ready.send_replace(service.is_ready())),
        }
    }

    /// Takes no further request, and answers those under way within the drain timeout.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.service.drain();
        if let Some(repository) = self.service.repository.get() {
            repository.stop();
        }
        if let Some(replica) = self.service.replica.get() {
            replica.stop();
        }
        self.ready.send_replace(false);
        // A dropped sender is the signal, too.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Listens by the exposure rules of all servers.
fn listen(
    config: &Config,
    address: &Address,
    tls: Option<&(PathBuf, PathBuf)>,
) -> Result<(StdListener, String), StartError> {
    let mut options = ListenOptions::for_http();
    (options.expose, options.insecure) = (config.expose, config.insecure);
    options.token = config.token.is_some();
    options.tls = match tls {
        Some((certificate, key)) => Some(TlsServer::from_files(certificate, key)?),
        None => None,
    };
    Ok(Listener::bind(address, &options)?.port()?)
}

/// The resources of the thread.
struct Port {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    routes: Routes,
    limits: Limits,
    reporter: HealthReporter,
    readiness: watch::Receiver<bool>,
    stopped: oneshot::Receiver<()>,
    resp: Option<RespFront>,
    /// Ends the RESP front.
    draining: watch::Sender<bool>,
}

/// The resources of the RESP front.
struct RespFront {
    listener: TcpListener,
    service: Arc<Service>,
    drains: watch::Receiver<bool>,
}

impl Port {
    fn run(self, runtime: Runtime) {
        let Port { listener, tls, routes, limits, reporter, readiness, stopped, resp, draining } = self;
        runtime.block_on(async {
            let reporting = tokio::spawn(report(reporter, readiness));
            let resp =
                resp.map(|front| tokio::spawn(resp::serve(front.listener, front.service, front.drains)));
            serve(listener, tls, routes, limits, async {
                // Nothing is ever sent. The wait ends when the other side is dropped.
                let _ = stopped.await;
                draining.send_replace(true);
            })
            .await;
            if let Some(resp) = resp {
                let _ = tokio::time::timeout(limits.linger, resp).await;
            }
            reporting.abort();
        });
        runtime.shutdown_background();
    }
}

/// Reports readiness to the gRPC health service, for the whole server and for each of its services.
async fn report(reporter: HealthReporter, mut readiness: watch::Receiver<bool>) {
    loop {
        let is_ready = *readiness.borrow_and_update();
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", grpc_inference_service_server::SERVICE_NAME, lookup_server::SERVICE_NAME] {
            reporter.set_service_status(name, status).await;
        }
        if readiness.changed().await.is_err() {
            return;
        }
    }
}
