//! The hub's server: makes minibatches and leases each to one trainer.
//!
//! [`Service::start`] reads input and answers trainers on threads of its own. A state machine without I/O (`leases`)
//! decides the answers; `docs/hub.md` says what trainers may rely on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_formats::BadRows;
use sanderling_observe::{Latency, Stages};
use sanderling_transport::{
    Address, ListenOptions, Listener, NotAccepted, Poller, Stopper, TlsServer, Waker,
};
use sanderling_wire::Features;

use crate::lock::lock;

pub mod limit;

mod config;
pub use config::ServiceConfig;

mod error;
pub use error::ServiceError;

mod event;
pub use event::Event;

mod ack_set;

mod leases;
pub use leases::TrainerCounts;
use leases::{Completion, LeaseTable};

mod lease_queue;
use lease_queue::LeaseQueue;

mod journal;
use journal::Journal;

mod position;
use position::Position;

mod units;

mod feeding;
pub use feeding::{FedColumns, Feeding, KeyFeeder};

mod making;
pub use making::SERVICE_STAGES;

mod status;
pub use status::{Status, TrainerStatus};

mod batch_reply;

mod session;

mod traced;

mod serving;
use serving::{Accepted, Serving};

/// Interval at which [`Service::run`] checks for the end.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Shortest pause before a position that could not be saved is saved again.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

type OnEvent = Arc<dyn Fn(Event) + Send + Sync>;

/// A running hub. Dropping it ends it at once, without saving its position.
pub struct Service {
    addresses: Vec<Address>,
    lease_queue: Arc<LeaseQueue>,
    watch: Arc<Watch>,
    journal: Option<Arc<Journal>>,
    save_every: Duration,
    linger: Duration,
    trainer_timeout: Duration,
    on_event: OnEvent,
    stopped: Arc<AtomicBool>,
    stoppers: Vec<Stopper>,
    waker: Waker,
    acceptors: Vec<JoinHandle<()>>,
    serving: Option<JoinHandle<Result<(), sanderling_transport::Error>>>,
    making: Option<JoinHandle<Result<(), ServiceError>>>,
    feeding: Option<JoinHandle<Result<(), ServiceError>>>,
    writing: Option<JoinHandle<()>>,
    /// The error that ends the hub.
    failure: Option<ServiceError>,
}

/// The sources of a [`Status`].
struct Watch {
    lease_queue: Arc<LeaseQueue>,
    stages: Stages,
    latency: Arc<Mutex<Latency>>,
    bad_rows: Arc<BadRows>,
    started: Instant,
}

impl Watch {
    fn status(&self) -> Status {
        let leases = self.lease_queue.leases();
        let trainer = |(name, here, counts): (&str, bool, &TrainerCounts)| TrainerStatus {
            name: name.to_owned(),
            here,
            counts: *counts,
        };
        let (depth, trainers) = (leases.depth(), leases.trainers().map(trainer).collect());
        drop(leases);
        Status {
            uptime: self.started.elapsed(),
            ready: depth.ready,
            ready_bytes: depth.ready_bytes,
            unacknowledged: depth.unacknowledged,
            unacknowledged_bytes: depth.unacknowledged_bytes,
            ready_max: depth.ready_max,
            ready_bytes_max: depth.ready_bytes_max,
            acknowledged: depth.acknowledged,
            bad_rows: self.bad_rows.count(),
            stages: self.stages.totals(),
            next: lock(&self.latency).summary(),
            trainers,
        }
    }
}

/// How a hub ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every minibatch was acknowledged, and the trainers have been told.
    Over,
    /// The hub was stopped.
    Stopped,
}

impl Service {
    /// Starts a hub: resumes from its position if there is one, listens and serves.
    ///
    /// `on_event` is called by any of its threads.
    ///
    /// # Errors
    /// The configuration contradicts itself, an address is taken, an input is missing, or the position belongs to
    /// another input or is in use by another hub.
    pub fn start(
        config: &ServiceConfig,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Service, ServiceError> {
        Service::start_feeding(config, None, on_event)
    }

    /// Starts a hub that feeds keys: `feeder` gets the keys of the features that the configuration names, and
    /// trainers get minibatches without those keys.
    ///
    /// # Errors
    /// As [`Service::start`]. Also features without a feeder, or a feeder without features.
    pub fn start_feeding(
        config: &ServiceConfig,
        feeder: Option<Box<dyn KeyFeeder>>,
        on_event: impl Fn(Event) + Send + Sync + 'static,
    ) -> Result<Service, ServiceError> {
        config.check()?;
        if config.feeds.is_empty() == feeder.is_some() {
            let reason = "name features, and the servers that their keys are fed to".to_owned();
            return Err(ServiceError::Feed { reason });
        }
        let plan = config.plan()?;
        let fingerprint = config.fingerprint(&plan)?;
        let claim = config.position.as_deref().map(position::claim).transpose()?;
        let position = match &config.position {
            Some(path) => Position::read(path, &fingerprint)?,
            None => None,
        };
        let position = position.unwrap_or_else(|| Position::new(sanderling_observe::unique() | 1));
        let listeners = listen(config)?;
        let tail = match &config.position {
            // Written now, so that a file that cannot be written fails the start, and no stale position is left.
            Some(path) => {
                let position = Position { is_last: false, ..position.clone() };
                Some((path.clone(), position.write(path, &fingerprint)?))
            }
            None => None,
        };
        let on_event: OnEvent = Arc::new(on_event);
        let from = (position.start, position.acked.prefix());
        let mut leases =
            LeaseTable::new(config.lease_limits(), position.stream, position.acked, position.start);
        leases.restore(0, &position.holders, position.is_last);
        let lease_queue = LeaseQueue::new(leases);
        let journal = tail.zip(claim).map(|((path, tail), claim)| {
            Arc::new(Journal::new(path, fingerprint, Arc::clone(&lease_queue), tail, claim))
        });
        let watch = Arc::new(Watch {
            lease_queue: Arc::clone(&lease_queue),
            stages: Stages::new(&SERVICE_STAGES),
            latency: Arc::default(),
            bad_rows: Arc::clone(&plan.bad_rows),
            started: Instant::now(),
        });
        let poller = Poller::new(config.spin_us)?;
        let (waker, (joining, joined)) = (poller.waker(), channel());
        let of_watch = Arc::clone(&watch);
        let serving = Serving {
            poller,
            joining: joined,
            lease_queue: Arc::clone(&lease_queue),
            journal: journal.clone(),
            facts: config.facts(&plan, listeners[0].address())?,
            started: watch.started,
            latency: Arc::clone(&watch.latency),
            status: Box::new(move || of_watch.status()),
            on_event: Arc::clone(&on_event),
        };
        let mut service = Service {
            addresses: listeners.iter().map(|listener| listener.address().clone()).collect(),
            lease_queue: Arc::clone(&lease_queue),
            journal,
            save_every: config.save_every,
            linger: config.linger,
            trainer_timeout: config.trainer_timeout,
            stopped: Arc::default(),
            stoppers: listeners.iter().map(Listener::stopper).collect(),
            waker: waker.clone(),
            acceptors: Vec::new(),
            serving: Some(spawn("serve", move || serving.run())?),
            making: None,
            feeding: None,
            writing: None,
            failure: None,
            watch,
            on_event,
        };
        for listener in listeners {
            let (joining, waker, on_event) = (joining.clone(), waker.clone(), Arc::clone(&service.on_event));
            service.acceptors.push(spawn("accept", move || accept(&listener, &joining, &waker, &on_event))?);
        }
        if let Some(journal) = service.journal.clone() {
            let (lease_queue, stopped) = (Arc::clone(&lease_queue), Arc::clone(&service.stopped));
            let on_event = Arc::clone(&service.on_event);
            service.writing = Some(spawn("position", move || {
                write_down(&journal, &lease_queue, &waker, &stopped, &on_event);
            })?);
        }
        if let Some(feeder) = feeder {
            let table = feeding::Table {
                feeder,
                lease_queue: Arc::clone(&lease_queue),
                started: service.watch.started,
                payload_bytes_max: plan.payload_bytes_max,
                stopped: Arc::clone(&service.stopped),
            };
            let (lease_queue, on_event) = (Arc::clone(&lease_queue), Arc::clone(&service.on_event));
            service.feeding = Some(spawn("feed", move || told(table.run(), &lease_queue, &on_event))?);
        }
        let (stages, stopped) = (service.watch.stages.clone(), Arc::clone(&service.stopped));
        let on_event = Arc::clone(&service.on_event);
        service.making = Some(spawn("make", move || {
            told(
                making::make(&plan, from, &lease_queue, &stages, &stopped, &*on_event),
                &lease_queue,
                &on_event,
            )
        })?);
        Ok(service)
    }

    /// The addresses on which it listens, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// A snapshot of its counters.
    pub fn status(&self) -> Status {
        self.watch.status()
    }

    /// A function that returns the status from any thread, also after the hub has ended.
    pub fn watch(&self) -> impl Fn() -> Status + Send + Sync + 'static {
        let watch = Arc::clone(&self.watch);
        move || watch.status()
    }

    /// Serves until every minibatch is acknowledged or `stop` is set, and saves the position now and then.
    ///
    /// `on_look` is called many times a second. Returns how the hub ended, or its error, once the trainers have been
    /// told, and the final status.
    pub fn run(
        mut self,
        stop: &AtomicBool,
        mut on_look: impl FnMut(&Service),
    ) -> (Result<Ended, ServiceError>, Status) {
        let (mut save_at, mut settled_since) = (Instant::now() + self.save_every, None::<Instant>);
        let mut again_at = Instant::now();
        let ended = loop {
            if stop.load(Ordering::Relaxed) {
                break Ended::Stopped;
            }
            let completion = self.lease_queue.leases().completion();
            let wait = match completion {
                Completion::No => None,
                // A trainer may be about to subscribe.
                Completion::Unasked => Some(self.trainer_timeout),
                Completion::Told => Some(self.linger),
                Completion::Left => Some(Duration::ZERO),
            };
            if wait.is_none() {
                settled_since = None;
            }
            if let Some(wait) = wait
                && settled_since.get_or_insert_with(Instant::now).elapsed() >= wait
            {
                break Ended::Over;
            }
            if self.serving.as_ref().is_some_and(JoinHandle::is_finished) {
                break Ended::Stopped;
            }
            self.finish_threads(false);
            let is_broken = self.journal.as_ref().is_some_and(|journal| journal.is_broken());
            if Instant::now() >= save_at || is_broken && Instant::now() >= again_at {
                save_at = Instant::now() + self.save_every;
                if let Err(error) = self.save(false) {
                    again_at = Instant::now() + SAVE_AGAIN;
                    (self.on_event)(Event::NotSaved { reason: error.to_string() });
                }
            }
            on_look(&self);
            std::thread::sleep(LOOK_EVERY);
        };
        let finished = self.finish(ended);
        (finished, self.status())
    }
}

impl Service {
    /// Collects the results of the making and feeding threads that have ended, or that must end. Trainers are told of
    /// an error.
    fn finish_threads(&mut self, wait_for_making: bool) {
        let making = self.making.take_if(|thread| wait_for_making || thread.is_finished());
        let feeding = self.feeding.take_if(|thread| thread.is_finished());
        let making = making.map(|thread| (thread, "the thread that makes minibatches"));
        let feeding = feeding.map(|thread| (thread, "the thread that feeds keys"));
        for (thread, what) in making.into_iter().chain(feeding) {
            let error = match thread.join() {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error,
                Err(_) => {
                    let error = ServiceError::Panicked(what);
                    self.lease_queue.leases().fail(&error.to_string());
                    error
                }
            };
            self.failure.get_or_insert(error);
        }
    }

    fn save(&self, is_last: bool) -> Result<(), ServiceError> {
        let saved = self.journal.as_ref().map_or(Ok(()), |journal| journal.save(is_last));
        // Wakes answers that waited for it.
        self.waker.wake();
        saved
    }

    fn finish(&mut self, ended: Ended) -> Result<Ended, ServiceError> {
        let served = self.stop();
        // From here on nothing can be acknowledged.
        self.save(true)?;
        served?;
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(ended),
        }
    }

    /// Ends all threads except the reading and feeding ones, which may block on a silent stream or a server.
    fn stop(&mut self) -> Result<(), ServiceError> {
        self.stopped.store(true, Ordering::Relaxed);
        self.stoppers.iter().for_each(Stopper::stop);
        self.acceptors.drain(..).for_each(|acceptor| drop(acceptor.join()));
        self.waker.wake();
        let served = match self.serving.take().map(JoinHandle::join) {
            Some(Ok(served)) => served.map_err(ServiceError::Transport),
            Some(Err(_)) => Err(ServiceError::Panicked("the thread that answers")),
            None => Ok(()),
        };
        self.writing.take().map(JoinHandle::join);
        self.finish_threads(true);
        served
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// Reports the failure of a thread to the trainers and to `on_event`.
fn told(
    result: Result<(), ServiceError>,
    lease_queue: &LeaseQueue,
    on_event: &OnEvent,
) -> Result<(), ServiceError> {
    if let Err(error) = &result {
        let reason = error.to_string();
        lease_queue.leases().fail(&reason);
        on_event(Event::Failed { reason });
    }
    result
}

/// Writes changes to the journal until it is stopped; trainers hear of them afterwards.
fn write_down(
    journal: &Journal,
    lease_queue: &LeaseQueue,
    waker: &Waker,
    stopped: &AtomicBool,
    on_event: &OnEvent,
) {
    while lease_queue.to_write(stopped) {
        if let Err(error) = journal.commit() {
            on_event(Event::NotSaved { reason: error.to_string() });
        }
        waker.wake();
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, ServiceError> {
    std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(ServiceError::Thread)
}

fn listen(config: &ServiceConfig) -> Result<Vec<Listener>, ServiceError> {
    let mut options = ListenOptions::new(crate::framing::framing(config.frame_bytes_max as usize));
    (options.expose, options.insecure) = (config.expose, config.insecure);
    (options.write_timeout, options.spin_us) = (config.write_timeout, config.spin_us);
    options.token = config.token.is_some();
    options.tls = match &config.tls {
        Some((certificate, key)) => Some(TlsServer::from_files(certificate, key)?),
        None => None,
    };
    let bind = |address: &Address| Listener::bind(address, &options).map_err(ServiceError::Transport);
    config.listen.iter().map(bind).collect()
}

/// Passes new connections to the serving thread until it is stopped.
fn accept(listener: &Listener, joining: &Sender<Accepted>, waker: &Waker, on_event: &OnEvent) {
    let features = match listener.address().in_memory() {
        true => Features::NO_CHECKSUM,
        false => Features::LZ4 | Features::ZSTD,
    };
    let mut not_accepted = NotAccepted::default();
    loop {
        match listener.accept() {
            Ok(Some(connection)) => {
                if joining.send((Box::new(connection), features)).is_err() {
                    return;
                }
                waker.wake();
            }
            Ok(None) => return,
            Err(error) => not_accepted.note(&error, |reason| on_event(Event::NotAccepted { reason })),
        }
    }
}
