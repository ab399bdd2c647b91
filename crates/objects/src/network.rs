//! The async runtime of the requests, behind blocking calls: a few threads of this process, started with the first
//! url. It knows no store.

use std::collections::HashMap;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::error::ObjectError;
use crate::store::Store;
use crate::{RETRIES_MAX, RETRY_S_MAX};

/// Threads of the runtime: one can receive while the other decrypts.
const THREADS: usize = 2;

/// Everything that outlives a file: the runtime, settings and open stores.
pub(crate) struct Network {
    runtime: Runtime,
    /// Variables of the environment.
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) retry: RetryConfig,
    pub(crate) stores: Mutex<HashMap<String, Store>>,
}

/// The network of this process, with the process id: after a fork the runtime's threads are missing in the child,
/// where a wait for them would never end.
static OF_PROCESS: Mutex<Option<(u32, Arc<Network>)>> = Mutex::new(None);

pub(crate) fn of_process() -> Result<Arc<Network>, ObjectError> {
    let mut held = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((process, network)) = &*held
        && *process == std::process::id()
    {
        return Ok(Arc::clone(network));
    }
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES_MAX,
        retry_timeout: Duration::from_secs(RETRY_S_MAX),
    };
    let settings = std::env::vars_os();
    let settings =
        settings.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let network = Arc::new(Network::new(settings.collect(), retry)?);
    // The parent's runtime is leaked: dropping it would wait for threads that do not exist in this process.
    std::mem::forget(held.replace((std::process::id(), Arc::clone(&network))));
    Ok(network)
}

impl Network {
    pub(crate) fn new(settings: Vec<(String, String)>, retry: RetryConfig) -> Result<Network, ObjectError> {
        // The HTTP client needs a process-wide provider; one that is installed already stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("objects").enable_all().build();
        let runtime = runtime.map_err(|error| {
            ObjectError::new(
                "requests",
                ErrorKind::Other,
                format!("the threads for them do not start: {error}"),
            )
        })?;
        Ok(Network { runtime, settings, retry, stores: Mutex::default() })
    }

    /// Starts a task in the background.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ObjectError>> + Send + 'static,
    ) -> Started<T> {
        let (send, result) = sync_channel(1);
        let task = self.runtime.spawn(async move {
            // The channel has room for the one result, so this does not wait; the receiver may be gone.
            let _ = send.send(work.await);
        });
        Started { result, task: task.abort_handle() }
    }
}

/// A task in the runtime; it is aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct Started<T> {
    result: Receiver<Result<T, ObjectError>>,
    task: AbortHandle,
}

impl<T> Started<T> {
    /// Waits for the result, at most as long as the time-outs of its requests.
    pub(crate) fn wait(&self, url: &str) -> Result<T, ObjectError> {
        let lost = |_| ObjectError::new(url, ErrorKind::Other, "the request for it failed an internal check");
        self.result.recv().map_err(lost)?
    }
}

impl<T> Drop for Started<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}
