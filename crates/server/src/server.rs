//! A whole server: starts listeners, workers and background threads, and ends them in order. It knows no signal and no
//! terminal.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use sanderling_replica::{Config as MachineConfig, Member, Node};
use sanderling_store::{Maintenance, Table};
use sanderling_transport::{Address, Error, Listener, NotAccepted, Stopper, TlsClient};
use sanderling_wire::{Features, Saved};

use crate::Config;
use crate::background::{self, JobQueues, JobReceivers, SaveIntervals};
use crate::checkpoints::{LATEST, SaveMode};
use crate::control::{Control, REMOTE_FEATURES, ShutdownRequest};
use crate::event::{Event, Log};
use crate::first_tables;
use crate::folder_lock::FolderLock;
use crate::gather::Cards;
use crate::listen;
use crate::log_thread;
use crate::replication::{
    Around, Driver, GroupRecords, Input, MoveThread, PeerOptions, PlacementRecords, Replication, Spoken,
};
use crate::server_error::ServerError;
use crate::state::{State, WakeWorkers};
use crate::tables::TableNote;
use crate::worker::{Worker, WorkerHandle, WorkerMsg};

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
    /// The thread of replication, and the way to it.
    replication: Option<(Sender<Input>, JoinHandle<()>)>,
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
        Server::start_with(config, None, Log(Arc::new(on_event)))
    }

    /// Starts a server that is a replica, whose group has its record in this registry. With a placement, the group has
    /// the slots that it says; without one, it has an even share of them.
    ///
    /// # Errors
    /// As [`Server::start`]; or the configuration does not say which replica it is.
    pub fn start_replica(
        config: &Config,
        registry: Box<dyn GroupRecords>,
        placement: Option<Box<dyn PlacementRecords>>,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Server, ServerError> {
        Server::start_with(config, Some(Registered { registry, placement }), Log(Arc::new(on_event)))
    }

    fn start_with(config: &Config, registered: Option<Registered>, log: Log) -> Result<Server, ServerError> {
        config.check().map_err(ServerError::Config)?;
        if registered.is_some() != config.replica.is_some() {
            return Err(ServerError::Config("a replica needs a registry, and only a replica".to_owned()));
        }
        let folder_lock = |root: &PathBuf| FolderLock::new(root, config.shard, config.shards);
        let (data_folder, log_folder) = (config.data.clone(), config.log_folder());
        // Replicas of a group may share a folder: they lock it while they save.
        let own_data = data_folder.as_ref().filter(|_| config.replica.is_none());
        let data_lock = own_data.map(folder_lock).transpose().map_err(ServerError::Data)?;
        let log_lock = log_folder.as_ref().map(folder_lock).transpose().map_err(ServerError::Data)?;
        let cards = Cards::of(config);
        let listeners = listen::listen(config, &cards, &log)?;
        let count = if config.workers > 0 { config.workers } else { processors().max(1) };
        let (inputs, taken) = channel();
        let mut state = State::new(config);
        state.cards = cards;
        if let Some(replica) = &config.replica {
            let replication = Replication::new(
                count,
                inputs.clone(),
                Spoken::up_to(replica.speaks),
                replica.acknowledge_local,
            );
            state.replication = Some(Arc::new(replication));
        }
        let state = Arc::new(state);
        let addresses: Vec<Address> = listeners.iter().map(|listener| listener.address().clone()).collect();
        if let Some(fastest) = listen::fastest(&addresses) {
            state.local_url.set(fastest.to_string()).expect("set once");
        }
        if config.replica.is_none() {
            first_tables::restore(&state, config, &log)?;
        }
        let to_replication = config.replica.is_some().then(|| inputs.clone());
        let (job_queues, JobReceivers { checkpoints, exports, changes }) = JobQueues::new(to_replication);
        let ending = Arc::new(ShutdownRequest::default());
        let mut workers = Vec::new();
        let mut handles = Vec::new();
        for number in 0..count {
            let (worker, handle) =
                Worker::new(number, &state, config.spin_us, job_queues.clone(), log.clone())?;
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
        let replication = match registered {
            Some(Registered { registry, placement }) => {
                let driver =
                    driver(config, &state, &addresses, taken, (registry, placement.is_some()), &log)?;
                if let Some(records) = placement {
                    let moves = moves(config, &state, driver.peer_options(), records, &log)?;
                    let inputs = inputs.clone();
                    // It ends by itself when the server is gone.
                    spawn("moves".to_owned(), move || moves.run(&inputs))?;
                }
                Some((inputs, spawn("replication".to_owned(), move || driver.run())?))
            }
            None => None,
        };
        let maintenance =
            Some(Maintenance::start(every_table(state, log.clone())).map_err(ServerError::Thread)?);
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
            replication,
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
        // Without another replica in sync, the group ends with this server.
        let _ = self.control.hand_over_and_wait();
        let failed = self.stop(Instant::now() + self.drain_within);
        let saved = match self.data && self.control.state.is_saving() {
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
        if let Some((inputs, thread)) = self.replication.take() {
            let _ = inputs.send(Input::End);
            if thread.join().is_err() {
                failed = Some("the thread of replication panicked, which is a bug; see above".to_owned());
            }
        }
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

/// The records of a replica.
struct Registered {
    registry: Box<dyn GroupRecords>,
    placement: Option<Box<dyn PlacementRecords>>,
}

/// The thread of replication of a server that listens at these addresses.
fn driver(
    config: &Config,
    state: &Arc<State>,
    addresses: &[Address],
    inputs: Receiver<Input>,
    (registry, slots): (Box<dyn GroupRecords>, bool),
    log: &Log,
) -> Result<Driver, ServerError> {
    let (Some(replica), Some(shared)) = (&config.replica, &state.replication) else {
        return Err(ServerError::Config("it is no replica".to_owned()));
    };
    let tcp = addresses.iter().find(|address| matches!(address, Address::Tcp(_)));
    let url = match (&replica.advertise, tcp) {
        (advertise, Some(address)) if advertise.is_empty() => address.to_string(),
        (advertise, _) => advertise.clone(),
    };
    let tls = replica.authorities.as_deref().map(TlsClient::from_ca_file).transpose()?;
    let me = Member { server: replica.server, boot: state.boot_id() };
    let history = sanderling_observe::unique();
    let min_in_sync = replica.min_in_sync;
    // A token that this server made for itself is not that of the others.
    let token = config.token.clone().filter(|_| !config.admit_this_user);
    let group = slots.then_some(u32::from(config.shard));
    let (streams, home_of) = (shared.workers(), TableNote::home_of);
    let machine = MachineConfig { me, streams, min_in_sync, group, home_of, history };
    let node = Node::new(machine, Arc::clone(&state.push_dedup));
    let around = Around {
        state: Arc::clone(state),
        shared: Arc::clone(shared),
        inputs,
        me,
        min_in_sync,
        pull_staleness: replica.pull_staleness,
        peers: PeerOptions { url, token, tls, name: config.name.clone() },
        log: log.clone(),
    };
    Driver::new(node, around, registry).map_err(ServerError::Thread)
}

/// The thread that gives and receives slots.
fn moves(
    config: &Config,
    state: &Arc<State>,
    peers: PeerOptions,
    records: Box<dyn PlacementRecords>,
    log: &Log,
) -> Result<MoveThread, ServerError> {
    let (Some(replica), Some(shared)) = (&config.replica, &state.replication) else {
        return Err(ServerError::Config("it is no replica".to_owned()));
    };
    Ok(MoveThread {
        state: Arc::downgrade(state),
        shared: Arc::clone(shared),
        records,
        peers,
        bytes_per_s: replica.move_bytes_per_s,
        log: log.clone(),
    })
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
fn every_table(state: Arc<State>, log: Log) -> impl Fn(&mut dyn FnMut(&Table)) {
    move |maintain| {
        for entry in &state.tables.directory().entries {
            maintain(&entry.table);
            if let Some(event) = entry.gather.look(&entry.table, &state.cards) {
                log.report(event);
            }
        }
    }
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

/// Hands connections to the workers until the listener is stopped.
fn accept(listener: &Listener, control: &Control, log: &Log) {
    let features = match listener.address().in_memory() {
        true => Features::F16_ROWS | Features::NO_CHECKSUM,
        // The checksums of RDMA are the card's.
        false if matches!(listener.address(), Address::Rdma(_)) => REMOTE_FEATURES | Features::UNSUMMED_ROWS,
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
