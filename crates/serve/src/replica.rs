//! A replica: the tables of a served model follow those of running parameter servers.
//!
//! One thread per server asks for pages of changes and applies them to the tables that requests read. Rows are replaced
//! one by one, whole, so a reader sees each row before or after a change. An export that begins anew, after a restart or
//! a long cut, replaces rows in place; keys that it lacks are removed after its end, so that rows are served throughout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_client::{ChangedRows, ClientError, Cluster, FollowedTable, Follower};
use sanderling_observe::Exposition;
use sanderling_store::{StoreError, Table, WholeRows};

use crate::models::ServedModel;
use crate::publisher::Publisher;

/// Pause after a failure, before the server is asked again.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// Pause after rows that do not fit.
const FULL_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Interval between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How a replica follows.
#[derive(Debug, Clone)]
pub struct ReplicaConfig {
    /// The servers with the tables `RUN/TABLE`.
    pub cluster: Arc<Cluster>,
    /// Interval of drains.
    pub fresh: Duration,
    /// Lag from which the replica is reported as stale.
    pub stale_after: Duration,
    /// Memory limit of all tables together.
    pub memory_bytes_max: Option<u64>,
}

/// Why a page was not applied.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(
        "table {table:?} does not fit: {bytes} bytes with {rows} rows are needed, the limit of all tables is {bytes_max}; raise \
         --memory or use --rows f16"
    )]
    Memory { table: String, bytes: u64, rows: usize, bytes_max: u64 },
    #[error("stopped")]
    Stopped,
}

/// The state of one followed server.
#[derive(Debug, Default)]
struct Progress {
    /// All changes that are older are applied; `None` before the first export has ended.
    whole_since: Option<Instant>,
    exports: u64,
    rows: u64,
    removed: u64,
    error: Option<String>,
}

/// A followed server.
#[derive(Debug)]
struct Source {
    address: String,
    progress: Mutex<Progress>,
}

impl Source {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state that the threads of a replica share.
struct Shared {
    config: ReplicaConfig,
    model: Arc<ServedModel>,
    sources: Vec<Source>,
    publisher: Publisher,
    is_published: AtomicBool,
    stops: AtomicBool,
    note: Box<dyn Fn(&str) + Send + Sync>,
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
        let source = |server: &sanderling_client::Server| Source {
            address: server.address.to_string(),
            progress: Mutex::default(),
        };
        let shared = Arc::new(Shared {
            sources: config.cluster.servers().iter().map(source).collect(),
            config,
            model,
            publisher,
            is_published: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            note: Box::new(note),
        });
        let replica = Replica { shared, threads: Mutex::default() };
        for server in 0..replica.shared.sources.len() {
            let shared = Arc::clone(&replica.shared);
            let thread = std::thread::Builder::new().name(format!("follow-{server}"));
            let thread = thread.spawn(move || follow(&shared, server))?;
            replica.threads().push(thread);
        }
        Ok(replica)
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends following. Rows stay as they are.
    pub(crate) fn stop(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        for thread in self.threads().drain(..) {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }

    /// Time since all changes of then were applied, over all servers; `None` before all rows are here.
    fn lag(&self) -> Option<Duration> {
        let lags = self.shared.sources.iter().map(|source| source.progress().whole_since);
        lags.map(|since| since.map(|since| since.elapsed()))
            .try_fold(Duration::ZERO, |lag, next| Some(lag.max(next?)))
    }

    fn is_stale(&self) -> bool {
        self.lag().is_none_or(|lag| lag > self.shared.config.stale_after)
    }

    /// The entry for health.
    pub(crate) fn health(&self) -> serde_json::Value {
        let server = |source: &Source| {
            let progress = source.progress();
            serde_json::json!({
                "address": source.address,
                "lag_s": progress.whole_since.map(|since| since.elapsed().as_secs_f64()),
                "error": progress.error,
            })
        };
        serde_json::json!({
            "stale": self.is_stale(),
            "lag_s": self.lag().map(|lag| lag.as_secs_f64()),
            "servers": self.shared.sources.iter().map(server).collect::<Vec<_>>(),
        })
    }

    /// The metrics of the replica.
    pub(crate) fn metrics(&self) -> String {
        let mut text = Exposition::default();
        let help = "1 if changes older than --stale-after are not here.";
        text.single("sanderling_replica_stale", "gauge", help, u8::from(self.is_stale()));
        let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Progress) -> Option<f64>| {
            text.family(name, kind, help);
            for source in &self.shared.sources {
                if let Some(value) = value(&source.progress()) {
                    text.sample(name, &[("server", &source.address)], value);
                }
            }
        };
        let help = "Age of the oldest change of a server that may not be here.";
        family("sanderling_replica_lag_seconds", "gauge", help, &|progress| {
            progress.whole_since.map(|since| since.elapsed().as_secs_f64())
        });
        let help = "Exports of all rows that were begun.";
        family("sanderling_replica_exports_total", "counter", help, &|progress| {
            Some(progress.exports as f64)
        });
        let help = "Rows that were written.";
        family("sanderling_replica_rows_total", "counter", help, &|progress| Some(progress.rows as f64));
        let help = "Keys that were removed.";
        family("sanderling_replica_removed_total", "counter", help, &|progress| {
            Some(progress.removed as f64)
        });
        let help = "1 while a server cannot be followed.";
        family("sanderling_replica_failing", "gauge", help, &|progress| {
            Some(f64::from(u8::from(progress.error.is_some())))
        });
        text.finish()
    }
}

/// A table and its place in the stream of one server.
struct Followed<'a> {
    table: &'a Arc<Table>,
    stream: FollowedTable,
    /// Number of the present export, which each row has that came with or after it.
    export: u32,
    whole_since: Option<Instant>,
    columns: Columns,
}

/// Buffers of a page.
#[derive(Default)]
struct Columns {
    weights: Vec<f32>,
    zeros: Vec<u32>,
    exports: Vec<u32>,
}

/// Follows one server until the replica is stopped.
fn follow(shared: &Shared, server: usize) {
    let run = shared.model.model.name();
    let mut tables: Vec<Followed<'_>> = shared
        .model
        .all_tables()
        .map(|table| Followed {
            table,
            stream: FollowedTable::new(&format!("{run}/{}", table.name()), table.dim()),
            export: 0,
            whole_since: None,
            columns: Columns::default(),
        })
        .collect();
    let source = &shared.sources[server];
    let mut follower = None;
    while !shared.stops.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let round = match &mut follower {
            Some(follower) => drain_all(shared, source, follower, &mut tables),
            None => Follower::new(&shared.config.cluster, server)
                .map(|made| _ = follower.insert(made))
                .map_err(FollowError::from),
        };
        let (failed, pause) = match round {
            Ok(()) => (None, shared.config.fresh),
            Err(FollowError::Stopped) => return,
            // An export would begin anew, which is work for the server, too.
            Err(error @ (FollowError::Memory { .. } | FollowError::Store(_))) => {
                (Some(error.to_string()), FULL_RETRY_AFTER)
            }
            Err(error) => (Some(error.to_string()), RETRY_AFTER.max(shared.config.fresh)),
        };
        note_round(shared, source, failed);
        publish_if_whole(shared);
        while begun.elapsed() < pause && !shared.stops.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_EVERY.min(pause.saturating_sub(begun.elapsed())));
        }
    }
}

/// Notes the outcome of a round; a line says when a server is lost and found.
fn note_round(shared: &Shared, source: &Source, failed: Option<String>) {
    let mut progress = source.progress();
    let line = match (&progress.error, &failed) {
        (None, Some(error)) => Some(format!("{}: not followed: {error}", source.address)),
        (Some(_), None) => Some(format!("{}: followed again", source.address)),
        _ => None,
    };
    progress.error = failed;
    drop(progress);
    if let Some(line) = line {
        (shared.note)(&line);
    }
}

/// Publishes the model when all servers' rows are here for the first time.
fn publish_if_whole(shared: &Shared) {
    let is_whole = shared.sources.iter().all(|source| source.progress().whole_since.is_some());
    if is_whole && !shared.is_published.swap(true, Ordering::Relaxed) {
        let mut models = (*shared.publisher.models()).clone();
        models.insert(Arc::clone(&shared.model));
        shared.publisher.publish(models);
    }
}

/// Drains all tables once.
fn drain_all(
    shared: &Shared,
    source: &Source,
    follower: &mut Follower,
    tables: &mut [Followed<'_>],
) -> Result<(), FollowError> {
    for followed in &mut *tables {
        drain(shared, source, follower, followed)?;
    }
    let oldest = tables.iter().map(|followed| followed.whole_since).min().flatten();
    if oldest.is_some() {
        source.progress().whole_since = oldest;
    }
    Ok(())
}

/// Takes pages of one table until a drain has ended.
fn drain(
    shared: &Shared,
    source: &Source,
    follower: &mut Follower,
    followed: &mut Followed<'_>,
) -> Result<(), FollowError> {
    loop {
        if shared.stops.load(Ordering::Relaxed) {
            return Err(FollowError::Stopped);
        }
        if followed.stream.begins_export() {
            followed.export += 1;
            source.progress().exports += 1;
        }
        let mut applied = Ok(());
        let Followed { table, stream, export, columns, .. } = &mut *followed;
        // Half of the interval, so that each round of one follower has a drain of its own.
        let page = follower.page(stream, shared.config.fresh / 2, |rows| {
            applied = apply(shared, table, *export, columns, rows);
            let mut progress = source.progress();
            progress.rows += rows.keys.len() as u64;
            progress.removed += rows.removed.len() as u64;
        })?;
        if let Err(error) = applied {
            // The stream has gone on without these rows.
            followed.stream.restart();
            return Err(error);
        }
        if page.is_export && page.is_last {
            remove_older(follower, followed);
        }
        if page.whole_since.is_some() {
            followed.whole_since = page.whole_since;
        }
        if page.is_last && !page.has_more {
            return Ok(());
        }
    }
}

/// Writes the rows of a page, and removes keys.
fn apply(
    shared: &Shared,
    table: &Table,
    export: u32,
    columns: &mut Columns,
    rows: &ChangedRows<'_>,
) -> Result<(), FollowError> {
    for &key in rows.removed {
        table.remove(key);
    }
    if rows.keys.is_empty() {
        return Ok(());
    }
    if let Some(bytes_max) = shared.config.memory_bytes_max {
        let bytes = shared.model.all_tables().map(|table| table.bytes()).sum();
        if bytes > bytes_max {
            return Err(FollowError::Memory {
                table: table.name().to_owned(),
                bytes,
                rows: table.len(),
                bytes_max,
            });
        }
    }
    columns.weights.resize(rows.values.len(), 0.0);
    rows.values.copy_to(&mut columns.weights);
    columns.zeros.resize(rows.keys.len(), 0);
    columns.exports.clear();
    columns.exports.resize(rows.keys.len(), export);
    table.import(WholeRows {
        keys: rows.keys,
        frequencies: &columns.zeros,
        last_uses: &columns.zeros,
        versions: &columns.exports,
        weights: &columns.weights,
        states: &[],
    })?;
    Ok(())
}

/// Removes the server's keys that an export, which has ended, did not have.
fn remove_older(follower: &Follower, followed: &Followed<'_>) {
    if followed.export == 1 {
        return;
    }
    let mut older = Vec::new();
    followed.table.for_each_row(|row| {
        if row.version != followed.export && follower.has(&followed.stream, row.key) {
            older.push(row.key);
        }
    });
    for key in older {
        followed.table.remove(key);
    }
}
