//! A replica: the tables of a served model follow those of running parameter servers, or published checkpoints.
//!
//! Rows are replaced one by one, whole, so a reader sees each row before or after a change. All rows anew, after a restart
//! or a long cut or with a new full checkpoint, replace rows in place; keys that are gone are removed at the end, so that
//! rows are served throughout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use sanderling_client::{ClientError, Cluster};
use sanderling_observe::Exposition;
use sanderling_store::StoreError;

use crate::models::ServedModel;
use crate::publisher::Publisher;

mod checkpoints;
mod dense;
mod homes;
mod place;
mod rows;
mod servers;

pub use place::CheckpointPlace;

/// Pause after a failure, before it is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Interval between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The source of a replica's rows.
#[derive(Debug, Clone)]
pub enum ReplicaSource {
    /// Running servers with the tables `RUN/TABLE`.
    Servers {
        /// The servers.
        cluster: Arc<Cluster>,
        /// A checkpoint of them whose rows are served until all of theirs are here.
        start: Option<CheckpointPlace>,
    },
    /// Checkpoints with their deltas.
    Checkpoints(CheckpointPlace),
}

/// How a replica follows.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// The source of the rows.
    pub source: ReplicaSource,
    /// Interval of drains, or of looks for a newer manifest.
    pub fresh: Duration,
    /// Lag from which the replica is reported as stale.
    pub stale_after: Duration,
    /// Memory limit of all tables together.
    pub memory_bytes_max: Option<u64>,
}

/// Why changes were not applied.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{0}")]
    Checkpoint(String),
    #[error(
        "table {table:?} does not fit: {bytes} bytes with {rows} rows are needed, the limit of all tables is {bytes_max}; raise \
         --memory or use --rows f16"
    )]
    Memory { table: String, bytes: u64, rows: usize, bytes_max: u64 },
    #[error("stopped")]
    Stopped,
}

/// A time up to which all changes are here.
#[derive(Debug, Clone, Copy)]
enum Moment {
    /// By this process.
    Here(Instant),
    /// By the clock of the machine that saved a checkpoint.
    Saved(SystemTime),
}

impl Moment {
    fn age(self) -> Duration {
        match self {
            Moment::Here(at) => at.elapsed(),
            // Clocks that differ make a checkpoint of the future.
            Moment::Saved(at) => SystemTime::now().duration_since(at).unwrap_or_default(),
        }
    }
}

/// The state of what is followed.
#[derive(Debug, Default)]
struct Progress {
    /// All changes that are older are applied; `None` before all rows are here.
    whole_since: Option<Moment>,
    exports: u64,
    deltas: u64,
    rows: u64,
    removed: u64,
    /// Rounds that failed.
    errors: u64,
    error: Option<String>,
    /// Of checkpoints: the parts, each with the generation of its full checkpoint and the number of its deltas.
    parts: Vec<(String, u64, usize)>,
}

/// A followed server, or the place of checkpoints.
#[derive(Debug)]
struct Source {
    /// Number of the server.
    server: usize,
    address: String,
    progress: Mutex<Progress>,
}

impl Source {
    fn new(server: usize, address: String) -> Source {
        Source { server, address, progress: Mutex::default() }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn json(&self) -> serde_json::Value {
        let progress = self.progress();
        let mut json = serde_json::json!({
            "address": self.address,
            "lag_s": progress.whole_since.map(|since| since.age().as_secs_f64()),
            "error": progress.error,
        });
        let part = |(part, generation, deltas): &(String, u64, usize)| serde_json::json!({ "part": part, "generation": generation, "deltas": deltas });
        if !progress.parts.is_empty() {
            json["parts"] = progress.parts.iter().map(part).collect();
        }
        json
    }
}

/// The state that the threads of a replica share.
struct Shared {
    config: ReplicaConfig,
    /// The model whose tables follow.
    model: Arc<ServedModel>,
    /// The model with its newest dense part.
    newest: Mutex<Arc<ServedModel>>,
    /// Servers of a cluster come and go.
    sources: Mutex<Vec<Arc<Source>>>,
    publisher: Publisher,
    is_published: AtomicBool,
    stops: AtomicBool,
    note: Box<dyn Fn(&str) + Send + Sync>,
}

impl Shared {
    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    fn sources(&self) -> Vec<Arc<Source>> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The source of a server. That of a server which has joined the others is as fresh as they are.
    fn source_of(&self, server: usize, address: &str) -> Arc<Source> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = sources.iter().find(|source| source.server == server) {
            return Arc::clone(source);
        }
        let source = Arc::new(Source::new(server, address.to_owned()));
        let wholes = sources.iter().map(|source| source.progress().whole_since);
        let oldest = wholes.collect::<Option<Vec<Moment>>>();
        source.progress().whole_since =
            oldest.and_then(|all| all.into_iter().max_by_key(|since| since.age()));
        sources.push(Arc::clone(&source));
        source
    }

    /// Forgets a server that has no rows any more.
    fn forget_source(&self, server: usize) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.server != server);
    }

    /// Waits until so long after a time, or until the replica is stopped.
    fn pause(&self, begun: Instant, pause: Duration) {
        while begun.elapsed() < pause && !self.stops() {
            std::thread::sleep(LOOK_EVERY.min(pause.saturating_sub(begun.elapsed())));
        }
    }

    /// Notes the outcome of a round; a line says when a source is lost and found.
    fn note_round(&self, source: &Source, failed: Option<String>) {
        let mut progress = source.progress();
        let line = match (&progress.error, &failed) {
            (None, Some(error)) => Some(format!("{}: not followed: {error}", source.address)),
            (Some(_), None) => Some(format!("{}: followed again", source.address)),
            _ => None,
        };
        progress.errors += u64::from(failed.is_some());
        progress.error = failed;
        drop(progress);
        if let Some(line) = line {
            (self.note)(&line);
        }
    }

    /// Publishes the model when all rows of all sources are here for the first time.
    fn publish_if_whole(&self) {
        if self.sources().iter().all(|source| source.progress().whole_since.is_some()) {
            self.publish();
        }
    }

    fn publish(&self) {
        if !self.is_published.swap(true, Ordering::Relaxed) {
            self.publish_newest(&self.newest());
        }
    }

    fn publish_newest(&self, newest: &Arc<ServedModel>) {
        let mut models = (*self.publisher.models()).clone();
        models.insert(Arc::clone(newest));
        self.publisher.publish(models);
    }

    /// Takes a model with the same tables in place of the one that is served, or will be.
    fn replace(&self, model: Arc<ServedModel>) {
        let mut newest = self.newest();
        *newest = model;
        if self.is_published.load(Ordering::Relaxed) {
            self.publish_newest(&newest);
        }
    }

    fn newest(&self) -> MutexGuard<'_, Arc<ServedModel>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A replica that follows until it is stopped.
pub(crate) struct Replica {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Replica {
    /// Begins to follow. The model is published when it has all rows.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(
        config: ReplicaConfig,
        model: Arc<ServedModel>,
        publisher: Publisher,
        note: impl Fn(&str) + Send + Sync + 'static,
    ) -> std::io::Result<Replica> {
        let sources = match &config.source {
            ReplicaSource::Servers { cluster, .. } => {
                let source = |shard| Arc::new(Source::new(shard, cluster.shard_name(shard)));
                cluster.shards().into_iter().map(source).collect()
            }
            ReplicaSource::Checkpoints(place) => vec![Arc::new(Source::new(0, place.to_string()))],
        };
        let shared = Arc::new(Shared {
            sources: Mutex::new(sources),
            config,
            newest: Mutex::new(Arc::clone(&model)),
            model,
            publisher,
            is_published: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            note: Box::new(note),
        });
        let replica = Replica { shared, threads: Mutex::default() };
        if replica.shared.model.directory.is_some() {
            replica.spawn("follow-dense", dense::follow)?;
        }
        replica.spawn("follow", |shared| match &shared.config.source {
            ReplicaSource::Servers { cluster, start } => servers::follow(shared, cluster, start.as_ref()),
            ReplicaSource::Checkpoints(place) => checkpoints::follow(shared, place),
        })?;
        Ok(replica)
    }

    fn spawn(&self, name: &str, follow: fn(&Shared)) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || follow(&shared))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Ends following. Rows stay as they are.
    pub(crate) fn stop(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        for thread in self.threads.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }

    /// Time since all changes of then were applied, over all sources; `None` before all rows are here.
    fn lag(&self) -> Option<Duration> {
        let sources = self.shared.sources();
        let lags = sources.iter().map(|source| source.progress().whole_since);
        lags.map(|since| since.map(Moment::age)).try_fold(Duration::ZERO, |lag, next| Some(lag.max(next?)))
    }

    fn is_stale(&self) -> bool {
        let config = &self.shared.config;
        // A checkpoint that cannot be followed may be newer than the rows that are here.
        let is_held_up = matches!(config.source, ReplicaSource::Checkpoints(_))
            && self.shared.sources().iter().any(|source| source.progress().error.is_some());
        is_held_up || self.lag().is_none_or(|lag| lag > config.stale_after)
    }

    /// The entry for health.
    pub(crate) fn health(&self) -> serde_json::Value {
        let follows = match self.shared.config.source {
            ReplicaSource::Servers { .. } => "servers",
            ReplicaSource::Checkpoints(_) => "checkpoints",
        };
        serde_json::json!({
            "follows": follows,
            "stale": self.is_stale(),
            "lag_s": self.lag().map(|lag| lag.as_secs_f64()),
            "sources": self.shared.sources().iter().map(|source| source.json()).collect::<Vec<_>>(),
        })
    }

    /// The metrics of the replica.
    pub(crate) fn metrics(&self) -> String {
        let (mut text, sources) = (Exposition::default(), self.shared.sources());
        let help = "1 if changes older than --stale-after are not here, or a checkpoint cannot be followed.";
        text.single("sanderling_replica_stale", "gauge", help, u8::from(self.is_stale()));
        let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Progress) -> Option<f64>| {
            let name = format!("sanderling_replica_{name}");
            text.family(&name, kind, help);
            for source in &sources {
                if let Some(value) = value(&source.progress()) {
                    text.sample(&name, &[("source", &source.address)], value);
                }
            }
        };
        let help =
            "Age of the oldest change that may not be here; of checkpoints, of the newest one that is.";
        family("lag_seconds", "gauge", help, &|progress| {
            progress.whole_since.map(|since| since.age().as_secs_f64())
        });
        let help = "Exports of all rows, and loads of whole checkpoints, that were begun.";
        family("exports_total", "counter", help, &|progress| Some(progress.exports as f64));
        let help = "Delta checkpoints that were applied.";
        family("deltas_total", "counter", help, &|progress| Some(progress.deltas as f64));
        let help = "Rows that were written.";
        family("rows_total", "counter", help, &|progress| Some(progress.rows as f64));
        let help = "Keys that were removed.";
        family("removed_total", "counter", help, &|progress| Some(progress.removed as f64));
        let help = "Rounds that failed.";
        family("errors_total", "counter", help, &|progress| Some(progress.errors as f64));
        let help = "1 while a source cannot be followed.";
        family("failing", "gauge", help, &|progress| Some(f64::from(u8::from(progress.error.is_some()))));
        text.finish()
    }
}
