//! A whole server: starts listeners, workers and background threads, and ends them in order. It knows no signal and no
//! terminal.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sanderling_store::{Durability, LogReader, Maintenance, Table};
use sanderling_transport::{Address, Error, Listener, NotAccepted, Stopper};
use sanderling_wire::{Fault, Features, Restored, Saved};

use crate::Config;
use crate::background::{self, JobQueues, JobReceivers, SaveIntervals};
use crate::checkpoints::{Checkpoints, LATEST, SaveMode};
use crate::control::{Control, REMOTE_FEATURES, ShutdownRequest};
use crate::delta_log::DeltaLog;
use crate::event::{Event, Log};
use crate::folder_lock::FolderLock;
use crate::history::Origin;
use crate::listen;
use crate::log_thread;
use crate::refusal::Refusal;
use crate::state::{State, WakeWorkers};
use crate::worker::{Worker, WorkerHandle, WorkerMsg};

/// Why a server does not start, or does not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The folder for checkpoints is unusable.
    #[error("{0}")]
    Data(String),
    /// A listener failed, or the system lacks resources.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The first checkpoint could not be restored.
    #[error("restoring: {0}")]
    Restore(Refusal),
    /// The first checkpoint of a shard without rows could not be saved.
    #[error("saving at the start: {0}")]
    Start(Refusal),
    /// The last checkpoint could not be saved.
    #[error("saving at the end: {0}")]
    Save(Refusal),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// A worker failed, so some requests have no reply.
    #[error("{0}")]
    Worker(String),
}

impl ServerError {
    /// Whether the configuration is wrong, whatever the state of the system.
    #[must_use]
    pub fn is_of_options(&self) -> bool {
        match self {
            ServerError::Config(_) => true,
            ServerError::Transport(error) => error.is_of_options(),
            // No checkpoint can have this name.
            ServerError::Restore(refusal) => refusal.fault == Fault::BadRequest,
            _ => false,
        }
    }
}

/// A running server. Dropping it ends it at once, without saving.
#[derive(Debug)]
pub struct Server {
    control: Control,
    addresses: Vec<Address>,
    log: Log,
    data: bool,
    /// The mode of the save at the end.
    last_save: SaveMode,
    drain_within: Duration,
    stoppers: Vec<Stopper>,
    acceptors: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    jobs: Option<(JobQueues, [JoinHandle<()>; 3])>,
    maintenance: Option<Maintenance>,
    log_writer: Option<JoinHandle<()>>,
    /// Held until all other parts have ended.
    _folder_locks: [Option<FolderLock>; 2],
}

impl Server {
    /// Starts a server: listens, restores a checkpoint and serves. Its threads call `on_event`.
    ///
    /// # Errors
    /// The configuration is invalid, an address is taken, or the checkpoint is missing or damaged.
    pub fn start(
        config: &Config,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Server, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let folder_lock = |root: &PathBuf| FolderLock::new(root, config.shard, config.shards);
        let (data_folder, log_folder) = (config.data.clone(), config.log_folder());
        let data_lock = data_folder.as_ref().map(folder_lock).transpose().map_err(ServerError::Data)?;
        let log_lock = log_folder.as_ref().map(folder_lock).transpose().map_err(ServerError::Data)?;
        let log = Log(Arc::new(on_event));
        let listeners = listen::listen(config, &log)?;
        let state = Arc::new(State::new(config));
        let addresses: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
        if let Some(fastest) = listen::fastest(&addresses) {
            state.local_url.set(fastest.to_string()).expect("set once");
        }
        restore(&state, config, &log)?;
        let count = if config.workers > 0 { config.workers } else { processors().max(1) };
        let (job_queues, JobReceivers { checkpoints, exports, changes }) = JobQueues::new();
        let ending = Arc::new(ShutdownRequest::default());
        let mut workers = Vec::new();
        let mut handles = Vec::new();
        for number in 0..count {
            let (worker, handle) = Worker::new(&state, config.spin_us, job_queues.clone(), log.clone())?;
            handles.push(handle);
            let (log, ending) = (log.clone(), Arc::clone(&ending));
            let pin = config.pin.then_some(number);
            workers.push(spawn(format!("worker-{number}"), move || {
                if let Some(reason) = pin.and_then(|number| pin_to(number).err()) {
                    log.report(Event::NotPinned { worker: number, reason });
                }
                // Clients of a lost worker would wait forever, so the server shuts down.
                let asked = RequestOnDrop(&ending);
                let result = worker.run();
                if let Err(error) = &result {
                    log.report(Event::WorkerFailed { worker: number, reason: error.to_string() });
                }
                drop(asked);
                result
            })?);
        }
        let handles: Arc<[WorkerHandle]> = handles.into();
        let all = Arc::clone(&handles);
        let wake = move || all.iter().for_each(|worker| worker.send(WorkerMsg::RefreshTables));
        state.wake_workers.set(WakeWorkers(Box::new(wake))).expect("set once");
        let control = Control {
            state: Arc::clone(&state),
            workers: handles,
            ending,
            log: log.clone(),
            addresses: addresses.iter().map(Address::to_string).collect(),
            hosts: listen::hosts(config).into(),
            next: Arc::default(),
        };
        let run = |name: &str, queued, intervals| {
            let (state, log) = (Arc::clone(&state), log.clone());
            spawn(name.to_owned(), move || background::run(&state, &queued, intervals, &log))
        };
        let intervals = SaveIntervals { full: config.save_every, delta: config.delta_every };
        let runners = [
            run("checkpoints", checkpoints, intervals)?,
            run("exports", exports, SaveIntervals::default())?,
            run("changes", changes, SaveIntervals::default())?,
        ];
        let stoppers = listeners.iter().map(Listener::stopper).collect();
        let mut acceptors = Vec::new();
        for listener in listeners {
            let (control, log) = (control.clone(), log.clone());
            acceptors.push(spawn("accept".to_owned(), move || accept(&listener, &control, &log))?);
        }
        let (data, drain_within) = (config.data.is_some(), config.drain_within);
        let last_save = if config.delta_every.is_some() { SaveMode::Delta } else { SaveMode::Full };
        let jobs = Some((job_queues, runners));
        let log_writer = state.log.is_some().then(|| {
            let (state, log) = (Arc::clone(&state), log.clone());
            let write = move || {
                state.log.iter().for_each(|delta_log| log_thread::run(delta_log, &state, &log));
            };
            spawn("log".to_owned(), write)
        });
        let log_writer = log_writer.transpose()?;
        let maintenance = Some(Maintenance::start(every_table(state)).map_err(ServerError::Thread)?);
        Ok(Server {
            control,
            addresses,
            log,
            data,
            last_save,
            drain_within,
            stoppers,
            acceptors,
            workers,
            jobs,
            maintenance,
            log_writer,
            _folder_locks: [data_lock, log_lock],
        })
    }

    /// Addresses of the data plane, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A handle on the server.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits until [`Control::drain`] is called or a worker fails.
    pub fn wait(&self) {
        self.control.ending.wait();
    }

    /// Shuts down: refuses new connections, answers pending requests, saves if configured, and ends.
    ///
    /// # Errors
    /// The last save or a worker failed.
    pub fn finish(mut self) -> Result<Option<Saved>, ServerError> {
        let within_ms = self.drain_within.as_millis() as u64;
        let connections = self.control.state.connections.len();
        self.log.report(Event::Draining { connections, within_ms });
        let failed = self.stop(Instant::now() + self.drain_within);
        let saved = match self.data {
            true => {
                let saved = self.control.state.save_last(LATEST, self.last_save);
                self.log.report(background::saved(LATEST, saved.clone()));
                if let (Err(_), Some(log)) = (&saved, &self.control.state.log) {
                    // The failure of the save is reported.
                    let state = &self.control.state;
                    let _ = log.write(&state.tables, &state.push_dedup, None);
                }
                if let (Ok(_), None, Some(checkpoints)) = (&saved, &failed, &self.control.state.checkpoints) {
                    // Without the note the next server begins another history, which clients bear.
                    let _ = self.control.state.tables.history.end(checkpoints.latest_unix_ms());
                }
                Some(saved.map_err(ServerError::Save)?.saved)
            }
            false => None,
        };
        match failed {
            Some(reason) => Err(ServerError::Worker(reason)),
            None => Ok(saved),
        }
    }

    /// Ends all threads. Returns the failure of a worker, if any.
    fn stop(&mut self, until: Instant) -> Option<String> {
        self.control.state.drain();
        self.stoppers.iter().for_each(Stopper::stop);
        self.acceptors.drain(..).for_each(|acceptor| drop(acceptor.join()));
        self.control.workers.iter().for_each(|worker| worker.send(WorkerMsg::Drain { until }));
        let mut failed = None;
        for (number, worker) in self.workers.drain(..).enumerate() {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(format!("worker {number} failed: {error}")),
                Err(_) => failed = Some(format!("worker {number} panicked, which is a bug; see above")),
            }
        }
        drop(self.maintenance.take());
        if let (Some(writer), Some(log)) = (self.log_writer.take(), &self.control.state.log) {
            log.end();
            if writer.join().is_err() {
                failed = Some("the thread of the log panicked, which is a bug; see above".to_owned());
            }
        }
        if let Some((job_queues, runners)) = self.jobs.take() {
            drop(job_queues);
            if runners.map(JoinHandle::join).iter().any(Result::is_err) {
                let reason = "a thread for saves, exports or changes panicked, which is a bug; see above";
                failed = Some(reason.to_owned());
            }
        }
        failed
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Instant::now());
    }
}

/// Requests a shutdown when its thread ends, even by a panic.
struct RequestOnDrop<'a>(&'a ShutdownRequest);

impl Drop for RequestOnDrop<'_> {
    fn drop(&mut self) {
        self.0.ask();
    }
}

fn spawn<T: Send + 'static>(
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ServerError> {
    std::thread::Builder::new().name(name).spawn(run).map_err(ServerError::Thread)
}

/// Calls a function for every table, for the maintenance thread.
fn every_table(state: Arc<State>) -> impl Fn(&mut dyn FnMut(&Table)) {
    move |maintain| state.tables.directory().entries.iter().for_each(|entry| maintain(&entry.table))
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Pins this thread to one of its allowed processors.
fn pin_to(number: usize) -> Result<(), String> {
    let failed = |error: rustix::io::Errno| error.to_string();
    let usable = sched_getaffinity(None).map_err(failed)?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| usable.is_set(cpu)).collect();
    let cpu = *all.get(number % all.len().max(1)).ok_or("no processor is usable")?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).map_err(failed)
}

fn restore(state: &State, config: &Config, log: &Log) -> Result<(), ServerError> {
    if let Some(checkpoints) = &state.checkpoints {
        checkpoints.tell(log);
    }
    let origin = restore_tables(state, config, log)?;
    state.tables.history.start(origin).map_err(|refusal| ServerError::Data(refusal.reason))?;
    // The log follows a checkpoint, and clients may push from here on.
    if state.log.as_ref().is_some_and(DeltaLog::has_no_base) {
        let saved = state.save(LATEST, 0, SaveMode::Full);
        log.report(background::saved(LATEST, saved.clone()));
        saved.map_err(ServerError::Start)?;
    }
    Ok(())
}

/// Gets the tables of an earlier server; returns what they are.
fn restore_tables(state: &State, config: &Config, log: &Log) -> Result<Origin, ServerError> {
    if attach(state, config, log)? {
        return Ok(Origin::Attached);
    }
    let has_latest = || state.checkpoints.as_ref().is_some_and(|all| all.has(LATEST));
    match &config.restore {
        None if !has_latest() => {
            check_no_log(config)?;
            begin(state, config, log)?;
        }
        None => {
            let log_folder = config.log_folder();
            let restored = state.restore_latest(log_folder.as_deref(), config.cut_log);
            let (restored, end) = restored.map_err(ServerError::Restore)?;
            tell_restored(state, log, LATEST, restored);
            if let (Some(end), Some(folder)) = (end, log_folder) {
                log.report(Event::LogReplayed { folder: folder.display().to_string(), groups: end.groups });
                if let Some((file, offset, bytes)) = end.cut {
                    log.report(Event::LogCut { file: file.display().to_string(), offset, bytes });
                }
            }
            let saved_unix_ms = state.checkpoints.as_ref().map_or(0, Checkpoints::latest_unix_ms);
            // A start that cuts the log may lose groups. Kept tables were newer than any checkpoint.
            if saved_unix_ms > 0 && !config.cut_log && config.kept.is_none() {
                return Ok(Origin::Latest { saved_unix_ms });
            }
        }
        Some(name) => {
            let restored = state.restore(name).map_err(ServerError::Restore)?;
            tell_restored(state, log, name, restored);
        }
    }
    Ok(Origin::Other)
}

/// Refuses to start a log anew where one is whose checkpoint is gone.
fn check_no_log(config: &Config) -> Result<(), ServerError> {
    let Some(folder) = config.log_folder() else { return Ok(()) };
    let logs = LogReader::logs(&folder).map_err(|error| ServerError::Data(error.to_string()))?;
    if logs.is_empty() {
        return Ok(());
    }
    Err(ServerError::Data(format!(
        "{}: it has a log, but there is no checkpoint {LATEST} that it follows: put that back, or move the log away",
        folder.display()
    )))
}

fn tell_restored(state: &State, log: &Log, name: &str, restored: Restored) {
    log.report(Event::Restored { name: name.to_owned(), rows: restored.rows });
    let (bytes, unbounded) = state.budgets();
    if restored.tables > 0 {
        log.report(Event::Budgets { tables: restored.tables, bytes, unbounded });
    }
}

/// Attaches the tables that an earlier server kept; returns whether there were any.
fn attach(state: &State, config: &Config, log: &Log) -> Result<bool, ServerError> {
    let Some(folder) = config.kept_folder() else { return Ok(false) };
    let failed = |refusal: Refusal| ServerError::Data(refusal.reason);
    sanderling_store::create_kept_folder(&folder).map_err(|error| failed(error.into()))?;
    if config.forget {
        state
            .tables
            .forget()
            .map_err(failed)?
            .into_iter()
            .for_each(|table| log.report(Event::Forgotten { table }));
    }
    let survives_power = sanderling_store::can_survive_power(&folder);
    if config.durability == Durability::Power && !survives_power {
        return Err(ServerError::Data(format!(
            "{}: cannot survive the loss of power; name a folder on persistent memory that is mounted with dax=always, or a /dev/dax device",
            folder.display()
        )));
    }
    state.tables.history.keep(&folder.join("history"), config.durability).map_err(failed)?;
    let found = state.tables.attach().map_err(failed)?;
    let pushes = folder.join("pushes");
    state.push_dedup.keep(&pushes, config.durability).map_err(|error| failed(error.into()))?;
    log.report(Event::KeptIn { folder: folder.display().to_string(), survives_power });
    let pages = found.iter().find_map(|(_, attached)| attached.pages);
    if let Some(cost) = pages.or_else(|| sanderling_store::pages_cost(&folder).filter(|_| !survives_power)) {
        log.report(Event::SmallPages { folder: folder.display().to_string(), cost });
    }
    if let (Some(name), false) = (&config.restore, found.is_empty()) {
        return Err(ServerError::Data(format!(
            "{} has {} tables of an earlier server: --forget drops them for {name}, and without --restore they are used",
            folder.display(),
            found.len()
        )));
    }
    for (table, attached) in &found {
        log.report(Event::Attached { table: table.clone(), found: attached.summary() });
    }
    Ok(!found.is_empty())
}

/// Saves an empty checkpoint for a shard without rows, before any shard has rows: all shards are needed for training.
///
/// From then on a missing part of a checkpoint is a lost one.
fn begin(state: &State, config: &Config, log: &Log) -> Result<(), ServerError> {
    let others = state.checkpoints.as_ref().map(Checkpoints::list).unwrap_or_default();
    if let (Some(root), Some(first)) = (&config.data, others.first()) {
        let others = match others.len() {
            1 => first.name.clone(),
            count => format!("{} and {} more", first.name, count - 1),
        };
        log.report(Event::StartsEmpty { folder: root.display().to_string(), others });
    }
    if config.data.is_none() || config.shards == 1 {
        return Ok(());
    }
    let saved = state.save(LATEST, 0, SaveMode::Full);
    log.report(background::saved(LATEST, saved.clone()));
    saved.map(|_| ()).map_err(ServerError::Start)
}

/// Hands connections to the workers until the listener is stopped.
fn accept(listener: &Listener, control: &Control, log: &Log) {
    let features = match listener.address().in_memory() {
        true => Features::F16_ROWS | Features::NO_CHECKSUM,
        false => REMOTE_FEATURES,
    };
    let mut not_accepted = NotAccepted::default();
    loop {
        match listener.accept() {
            Ok(Some(connection)) => {
                if !control.join(connection, features) {
                    let reason = "there are as many connections as the server takes";
                    not_accepted.note_stranger(reason, |reason| log.report(Event::NotAccepted { reason }));
                }
            }
            Ok(None) => return,
            Err(error) => not_accepted.note(&error, |reason| log.report(Event::NotAccepted { reason })),
        }
    }
}
