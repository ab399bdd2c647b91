//! The whole of a server: listeners, workers and the threads for errands are started here, and ended in the right order.
//! Knows no signal and no terminal.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sanderling_store::{Maintenance, Table};
use sanderling_transport::{Address, Error, Listener, NotAccepted, Stopper};
use sanderling_wire::{Fault, Features, Saved};

use crate::Config;
use crate::checkpoints::{Checkpoints, LATEST};
use crate::claim::Claim;
use crate::control::{Control, Ending, REMOTE_FEATURES};
use crate::errand::{self, Inboxes, Postbox};
use crate::event::{Event, Log};
use crate::listen;
use crate::refusal::Refusal;
use crate::state::{Look, State};
use crate::worker::{Letter, Mailbox, Worker};

/// Why a server does not start, or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(String),
    /// The folder for checkpoints cannot be used.
    #[error("{0}")]
    Data(String),
    /// A listener, or the system's resources.
    #[error(transparent)]
    Transport(#[from] Error),
    /// The checkpoint to start from.
    #[error("restoring: {0}")]
    Restore(Refusal),
    /// The first checkpoint, of a shard that has no rows yet.
    #[error("saving at the start: {0}")]
    Start(Refusal),
    /// The checkpoint at the end.
    #[error("saving at the end: {0}")]
    Save(Refusal),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// Some requests were not answered.
    #[error("{0}")]
    Worker(String),
}

impl ServerError {
    /// Does the configuration ask for what cannot be, whatever else the system is doing?
    #[must_use]
    pub fn is_of_options(&self) -> bool {
        match self {
            ServerError::Config(_) => true,
            ServerError::Transport(error) => error.is_of_options(),
            // A name that no checkpoint can have.
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
    drain_within: Duration,
    stoppers: Vec<Stopper>,
    acceptors: Vec<JoinHandle<()>>,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    errands: Option<(Postbox, [JoinHandle<()>; 2])>,
    maintenance: Option<Maintenance>,
    /// Until everything else has ended.
    _claim: Option<Claim>,
}

impl Server {
    /// Listens, restores, and serves from then on. `on_event` is called by any of its threads.
    ///
    /// # Errors
    /// The configuration makes no sense, an address is taken, or the checkpoint is not there or damaged.
    pub fn start(
        config: &Config,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Server, ServerError> {
        config.check().map_err(ServerError::Config)?;
        let claim = |root: &PathBuf| Claim::new(root, config.shard, config.shards);
        let claim = config.data.as_ref().map(claim).transpose().map_err(ServerError::Data)?;
        let log = Log(Arc::new(on_event));
        let listeners = listen::listen(config, &log)?;
        let state = Arc::new(State::new(config));
        let addresses: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
        if let Some(fastest) = listen::fastest(&addresses) {
            state.local_url.set(fastest.to_string()).expect("set once");
        }
        restore(&state, config, &log)?;
        let count = if config.workers > 0 { config.workers } else { processors().max(1) };
        let (postbox, Inboxes { checkpoints, exports }) = Postbox::new();
        let ending = Arc::new(Ending::default());
        let mut workers = Vec::new();
        let mut mailboxes = Vec::new();
        for number in 0..count {
            let (worker, mailbox) = Worker::new(&state, config.spin_us, postbox.clone(), log.clone())?;
            mailboxes.push(mailbox);
            let (log, ending) = (log.clone(), Arc::clone(&ending));
            let pin = config.pin.then_some(number);
            workers.push(spawn(format!("worker-{number}"), move || {
                if let Some(reason) = pin.and_then(|number| pin_to(number).err()) {
                    log.say(Event::NotPinned { worker: number, reason });
                }
                // A server that has lost a worker would leave its clients waiting: it ends, and says so.
                let asked = AskAtEnd(&ending);
                let result = worker.run();
                if let Err(error) = &result {
                    log.say(Event::WorkerFailed { worker: number, reason: error.to_string() });
                }
                drop(asked);
                result
            })?);
        }
        let mailboxes: Arc<[Mailbox]> = mailboxes.into();
        let all = Arc::clone(&mailboxes);
        let look = move || all.iter().for_each(|worker| worker.post(Letter::Look));
        state.look.set(Look(Box::new(look))).expect("set once");
        let control = Control {
            state: Arc::clone(&state),
            workers: mailboxes,
            ending,
            log: log.clone(),
            addresses: addresses.iter().map(Address::to_string).collect(),
            hosts: listen::hosts(config).into(),
            next: Arc::default(),
        };
        let run = |name: &str, posted, save_every| {
            let (state, log) = (Arc::clone(&state), log.clone());
            spawn(name.to_owned(), move || errand::run(&state, &posted, save_every, &log))
        };
        let runners = [run("checkpoints", checkpoints, config.save_every)?, run("exports", exports, None)?];
        let stoppers = listeners.iter().map(Listener::stopper).collect();
        let mut acceptors = Vec::new();
        for listener in listeners {
            let (control, log) = (control.clone(), log.clone());
            acceptors.push(spawn("accept".to_owned(), move || accept(&listener, &control, &log))?);
        }
        let (data, drain_within) = (config.data.is_some(), config.drain_within);
        let errands = Some((postbox, runners));
        let maintenance = Some(Maintenance::start(every_table(state)).map_err(ServerError::Thread)?);
        Ok(Server {
            control,
            addresses,
            log,
            data,
            drain_within,
            stoppers,
            acceptors,
            workers,
            errands,
            maintenance,
            _claim: claim,
        })
    }

    /// Where it listens, with the real ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A handle on it.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Waits until it is asked to end, by [`Control::drain`], or a worker has failed.
    pub fn wait(&self) {
        self.control.ending.wait();
    }

    /// Takes no new connections, tells clients to go, answers what is under way within the time configured, saves if it
    /// has where to, and ends. What was saved, if anything.
    ///
    /// # Errors
    /// Saving failed, or a worker did.
    pub fn finish(mut self) -> Result<Option<Saved>, ServerError> {
        let within_ms = self.drain_within.as_millis() as u64;
        let connections = self.control.state.connections.len();
        self.log.say(Event::Draining { connections, within_ms });
        let failed = self.stop(Instant::now() + self.drain_within);
        let saved = match self.data {
            true => {
                let saved = self.control.state.save(LATEST, 0);
                self.log.say(errand::saved(LATEST, saved.clone()));
                Some(saved.map_err(ServerError::Save)?)
            }
            false => None,
        };
        match failed {
            Some(reason) => Err(ServerError::Worker(reason)),
            None => Ok(saved),
        }
    }

    /// Ends all threads; says which worker failed.
    fn stop(&mut self, until: Instant) -> Option<String> {
        self.control.state.drain();
        self.stoppers.iter().for_each(Stopper::stop);
        self.acceptors.drain(..).for_each(|acceptor| drop(acceptor.join()));
        self.control.workers.iter().for_each(|worker| worker.post(Letter::Drain { until }));
        let mut failed = None;
        for (number, worker) in self.workers.drain(..).enumerate() {
            match worker.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(format!("worker {number} failed: {error}")),
                Err(_) => failed = Some(format!("worker {number} panicked, which is a bug; see above")),
            }
        }
        drop(self.maintenance.take());
        if let Some((postbox, runners)) = self.errands.take() {
            drop(postbox);
            if runners.map(JoinHandle::join).iter().any(Result::is_err) {
                let reason = "the thread for saving or that for exports panicked, which is a bug; see above";
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

/// Asks the server to end, however the thread does.
struct AskAtEnd<'a>(&'a Ending);

impl Drop for AskAtEnd<'_> {
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

/// All tables of the moment, for who maintains them.
fn every_table(state: Arc<State>) -> impl Fn(&mut dyn FnMut(&Table)) {
    move |maintain| state.tables.directory().entries.iter().for_each(|entry| maintain(&entry.table))
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Binds this thread to one of the processors that it may use.
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
    let latest = || state.checkpoints.as_ref().is_some_and(|all| all.has(LATEST)).then_some(LATEST);
    let Some(name) = config.restore.as_deref().or_else(latest) else { return begin(state, config, log) };
    let restored = state.restore(name).map_err(ServerError::Restore)?;
    log.say(Event::Restored { name: name.to_owned(), rows: restored.rows });
    let (bytes, unbounded) = state.budgets();
    if restored.tables > 0 {
        log.say(Event::Budgets { tables: restored.tables, bytes, unbounded });
    }
    Ok(())
}

/// A shard that starts without rows says so on disk, before any shard can have some: clients need all of them. From then on
/// a part that is not there is one that was lost.
fn begin(state: &State, config: &Config, log: &Log) -> Result<(), ServerError> {
    let others = state.checkpoints.as_ref().map(Checkpoints::list).unwrap_or_default();
    if let (Some(root), Some(first)) = (&config.data, others.first()) {
        let others = match others.len() {
            1 => first.name.clone(),
            count => format!("{} and {} more", first.name, count - 1),
        };
        log.say(Event::StartsEmpty { folder: root.display().to_string(), others });
    }
    if config.data.is_none() || config.shards == 1 {
        return Ok(());
    }
    let saved = state.save(LATEST, 0);
    log.say(errand::saved(LATEST, saved.clone()));
    saved.map(|_| ()).map_err(ServerError::Start)
}

/// Hands connections to the workers in turn until it is stopped.
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
                    not_accepted.note_stranger(reason, |reason| log.say(Event::NotAccepted { reason }));
                }
            }
            Ok(None) => return,
            Err(error) => not_accepted.note(&error, |reason| log.say(Event::NotAccepted { reason })),
        }
    }
}
