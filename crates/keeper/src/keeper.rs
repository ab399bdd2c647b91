//! A keeper as two threads: opens its folder, listens, and ends when it is told to.

use std::fs::{File, TryLockError};
use std::net::TcpListener as StdListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use sanderling_http::status_pages::PageOptions;
use sanderling_http::{TlsAcceptor, acceptor, serve};
use sanderling_observe::unique;
use sanderling_transport::{Address, Error, ListenOptions, Listener, TlsServer};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::service::Routes;

use crate::committer::Committer;
use crate::disk::Folder;
use crate::journal::{JOURNAL, Journal};
use crate::limit::PORT;
use crate::pages;
use crate::router::{Service, router};

/// Name of the file that a keeper locks.
const LOCK: &str = "lock";
/// How long to retry a lock that another process holds: one that was just ended may still have it.
const LOCK_WITHIN: Duration = Duration::from_secs(1);
const LOCK_EVERY: Duration = Duration::from_millis(10);

/// The settings of a keeper.
#[derive(Debug, Clone)]
pub struct KeeperConfig {
    /// The folder of its records, which is created if its parent is there.
    pub data: PathBuf,
    /// The address to listen at.
    pub listen: Address,
    /// Whether other machines may reach it.
    pub expose: bool,
    /// Whether that may be so without TLS and token.
    pub insecure: bool,
    /// The token that clients must give.
    pub token: Option<String>,
    /// Certificate and key (PEM), for TLS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Host names that a keeper without a token also accepts.
    pub hosts: Vec<String>,
    /// Settings of its status pages.
    pub pages: PageOptions,
}

/// Why a keeper does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// The folder cannot be used.
    #[error("{path}: {reason}")]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The journal is damaged.
    #[error(
        "{path}: {reason}; no record can be trusted: bring back a copy of the folder, or start with an empty one and all \
         servers anew"
    )]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The address cannot be listened at, or may not be exposed.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The certificate or the key is invalid.
    #[error("{0}")]
    Tls(String),
    /// The system lacks resources.
    #[error("the keeper cannot start: {0}")]
    Io(#[from] std::io::Error),
}

/// A running keeper. Dropping it ends it as [`Keeper::stop`] does.
#[derive(Debug)]
pub struct Keeper {
    url: String,
    records: usize,
    service: Arc<Service>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    committer: Option<Committer>,
    _lock: File,
}

impl Keeper {
    /// Opens the folder and listens. `note` gets a line for each event: a torn change that was cut off, a disk that takes
    /// no changes.
    ///
    /// # Errors
    /// The folder is another keeper's, cannot be written to, or is damaged; the address is taken or may not be exposed;
    /// certificate and key do not fit; the system lacks resources.
    pub fn start(
        config: &KeeperConfig,
        mut note: impl FnMut(&str) + Send + 'static,
    ) -> Result<Keeper, KeeperError> {
        let tls = config.tls.as_ref().map(acceptor).transpose().map_err(KeeperError::Tls)?;
        let lock = lock(&config.data)?;
        let (listener, address) = listen(config)?;
        let is_reached = !listener.local_addr()?.ip().is_loopback();
        let path = config.data.join(JOURNAL);
        let disk = Box::new(Folder(config.data.clone()));
        let opened = Journal::open(disk, format!("{:016x}", unique()));
        let (journal, found) = opened.map_err(|error| KeeperError::of(&path, &error))?;
        if found.torn_bytes > 0 {
            let bytes = found.torn_bytes;
            note(&format!("{}: cut {bytes} bytes of a change that was never answered", path.display()));
        }
        let (keeper, records) = (found.keeper.clone(), found.machine.len());
        let committer = Committer::start(journal, found, note)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let url = format!("{}://{address}", if tls.is_some() { "https" } else { "http" });
        let mut hosts = config.hosts.clone();
        hosts.push("localhost".to_owned());
        let shared = Arc::clone(&committer.shared);
        let service = Service::new(shared, committer.requests(), keeper, config.token.clone(), hosts);
        let service = Arc::new(service);
        let pages = pages::pages(&service, config, is_reached)?;
        let (stop, stopped) = oneshot::channel();
        let port = Port { listener, tls, router: router(&service, pages), stopped };
        let thread = std::thread::Builder::new().name("keeper".to_owned());
        let thread = thread.spawn(move || port.run(runtime))?;
        Ok(Keeper {
            url,
            records,
            service,
            stop: Some(stop),
            thread: Some(thread),
            committer: Some(committer),
            _lock: lock,
        })
    }

    /// The URL, such as `http://127.0.0.1:7400`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The number of the keeper's folder, drawn when it was new.
    #[must_use]
    pub fn number(&self) -> &str {
        &self.service.keeper
    }

    /// Records that the folder had at the start.
    #[must_use]
    pub fn records_at_start(&self) -> usize {
        self.records
    }

    /// Takes no further request, answers those under way, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.service.drain();
        // A dropped sender is the signal, too.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
        if let Some(committer) = self.committer.take() {
            committer.stop();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

impl KeeperError {
    fn of(path: &Path, error: &crate::journal::ReadError) -> KeeperError {
        let (path, reason) = (path.to_path_buf(), error.to_string());
        match error {
            crate::journal::ReadError::Io(_) => KeeperError::Folder { path, reason },
            crate::journal::ReadError::Damaged { .. } => KeeperError::Damaged { path, reason },
        }
    }
}

/// Creates the folder if necessary and locks it.
fn lock(folder: &Path) -> Result<File, KeeperError> {
    let failed = |path: &Path, reason: String| KeeperError::Folder { path: path.to_path_buf(), reason };
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed(folder, format!("it cannot be created: {error}")));
        }
        _ => {}
    }
    let path = folder.join(LOCK);
    let open = File::options().create(true).truncate(false).write(true).open(&path);
    let file = open.map_err(|error| failed(&path, error.to_string()))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < LOCK_WITHIN => std::thread::sleep(LOCK_EVERY),
            Err(TryLockError::WouldBlock) => {
                let reason = "another keeper uses this folder; end it, or name another folder";
                return Err(failed(folder, reason.to_owned()));
            }
            Err(TryLockError::Error(error)) => {
                return Err(failed(
                    &path,
                    format!("it cannot be locked, as two keepers would need: {error}"),
                ));
            }
        }
    }
}

/// Listens by the exposure rules of all servers.
fn listen(config: &KeeperConfig) -> Result<(StdListener, String), KeeperError> {
    let mut options = ListenOptions::for_http();
    (options.expose, options.insecure) = (config.expose, config.insecure);
    options.token = config.token.is_some();
    options.tls = match &config.tls {
        Some((certificate, key)) => Some(TlsServer::from_files(certificate, key)?),
        None => None,
    };
    Ok(Listener::bind(&config.listen, &options)?.port()?)
}

/// The resources of the port's thread.
struct Port {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    stopped: oneshot::Receiver<()>,
}

impl Port {
    fn run(self, runtime: Runtime) {
        let Port { listener, tls, router, stopped } = self;
        runtime.block_on(serve(listener, tls, Routes::from(router), PORT, async {
            // Nothing is ever sent. The wait ends when the other side is dropped.
            let _ = stopped.await;
        }));
        runtime.shutdown_background();
    }
}
