//! Finding the other workers of a job: the one of higher rank connects to the one of lower rank, again and again until it is
//! there. Ends when all are connected, or names who is not. Knows nothing of what they do then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, Framing, ListenOptions, Listener, Stopper, connect};
use sanderling_wire::{Agreed, HEADER_BYTES, Join, Joined, Way, body_bytes, limit};

use super::greet::{Ungreeted, introduce, welcome};
use super::{Hosts, JobEvent, Observer};
use crate::error::JobError;

/// First and longest time between two attempts to reach a worker.
const AGAIN_MIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(500);
/// Why a worker is not reached is said after so long, and again when it has taken this many times as long.
const UNREACHED: Duration = Duration::from_secs(5);
const UNREACHED_AGAIN: u32 = 10;
/// Who connects must have said who it is within this time.
const HELLO_WITHIN: Duration = Duration::from_secs(60);
/// Connections that have not said who they are yet; further ones are closed.
const STRANGERS_MAX: usize = 256;
/// Whether a worker is dead is decided by its signs of life; rows may wait for as long as it has no time for them.
const ROWS_WAIT: Duration = Duration::from_secs(24 * 3600);

/// A connection to another worker.
pub(super) struct Joint {
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
}

/// All connections of a worker.
pub(super) struct Party {
    /// By rank.
    pub(super) rows: BTreeMap<u32, Joint>,
    /// On rank 0, to all others; on the others, to rank 0.
    pub(super) control: BTreeMap<u32, Joint>,
}

type Comer = ((u32, Way), Joint);

fn framing() -> Framing {
    let body = |header: &[u8]| {
        let header = header.try_into().map_err(|_| "not a whole header".to_owned())?;
        body_bytes(header).map_err(|error| error.to_string())
    };
    Framing { header_bytes: HEADER_BYTES, body_bytes: body, frame_bytes_max: limit::FRAME_BYTES_MAX }
}

/// Connects to all others; says whom it cannot reach for long.
pub(super) fn gather(hosts: &Hosts, observer: Option<&Observer>, until: Instant) -> Result<Party, JobError> {
    let (rank, workers) = (hosts.rank, hosts.hosts.len() as u32);
    let (comers, came) = channel();
    // Nobody connects to the last one.
    let door = if rank + 1 < workers { Some(Door::open(hosts, comers)?) } else { None };
    let mut found: BTreeMap<(u32, Way), Joint> = BTreeMap::new();
    for other in 0..rank {
        let ways: &[Way] = if other == 0 { &[Way::Control, Way::Rows] } else { &[Way::Rows] };
        for &way in ways {
            found.insert((other, way), reach(hosts, other, way, observer, until)?);
        }
    }
    let mut awaited: BTreeSet<(u32, Way)> = (rank + 1..workers).map(|other| (other, Way::Rows)).collect();
    if rank == 0 {
        awaited.extend((1..workers).map(|other| (other, Way::Control)));
    }
    await_all(hosts, &came, &mut awaited, &mut found, until)?;
    drop(door);
    let (mut rows, mut control) = (BTreeMap::new(), BTreeMap::new());
    for ((other, way), joint) in found {
        let of_way = if way == Way::Rows { &mut rows } else { &mut control };
        of_way.insert(other, joint);
    }
    Ok(Party { rows, control })
}

fn await_all(
    hosts: &Hosts,
    came: &Receiver<Comer>,
    awaited: &mut BTreeSet<(u32, Way)>,
    found: &mut BTreeMap<(u32, Way), Joint>,
    until: Instant,
) -> Result<(), JobError> {
    while let Some(&(first, _)) = awaited.first() {
        match came.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((who, joint)) => {
                awaited.remove(&who);
                found.insert(who, joint);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let missing: BTreeSet<u32> = awaited.iter().map(|&(other, _)| other).collect();
                let reason = format!(
                    "it did not come in time; workers {missing:?} of {} are missing: start one per host, each with its --rank",
                    hosts.hosts.len()
                );
                return Err(hosts.error(first, reason));
            }
        }
    }
    Ok(())
}

/// Connects to a worker of lower rank, which may not have been started yet.
fn reach(
    hosts: &Hosts,
    other: u32,
    way: Way,
    observer: Option<&Observer>,
    until: Instant,
) -> Result<Joint, JobError> {
    let mut options = sanderling_transport::ConnectOptions::new(framing());
    options.tls.clone_from(&hosts.trust);
    options.spin_us = 0;
    options.write_timeout = if way == Way::Rows { ROWS_WAIT } else { hosts.silence };
    let join = hosts.join(way);
    let (mut again, mut say_after, start) = (AGAIN_MIN, UNREACHED, Instant::now());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        options.timeout = options.timeout.min(left.max(AGAIN_MIN));
        let reached = connect(&hosts.hosts[other as usize], &options);
        let hello_until = until.min(Instant::now() + HELLO_WITHIN);
        let greeted = reached.map_err(unreached).and_then(|mut connection| {
            let (agreed, joined) = introduce(&mut connection, &hosts.token, &join, hello_until)?;
            if joined.rank == other {
                return Ok(Joint { connection, agreed });
            }
            let found = joined.rank;
            Err(Ungreeted::Refused(format!(
                "worker {found} answers there; is --hosts the same for all workers?"
            )))
        });
        match greeted {
            Ok(joint) => return Ok(joint),
            Err(Ungreeted::Refused(reason)) => return Err(hosts.error(other, reason)),
            Err(Ungreeted::Broken(reason)) if left.is_zero() => {
                return Err(hosts.error(other, format!("it cannot be reached: {reason}")));
            }
            Err(Ungreeted::Broken(reason)) => {
                if start.elapsed() >= say_after {
                    say_after = start.elapsed() * UNREACHED_AGAIN;
                    let address = hosts.hosts[other as usize].to_string();
                    let event = JobEvent::Unreached { worker: other, address, reason };
                    observer.inspect(|Observer(observer)| observer(&event));
                }
                std::thread::sleep(again.min(left));
            }
        }
        again = (again * 2).min(AGAIN_MAX);
    }
}

/// What is worth another attempt, and what is not.
fn unreached(error: Error) -> Ungreeted {
    match error {
        Error::Tls { .. } | Error::Options { .. } | Error::NoServer { .. } | Error::SeveralServers { .. } => {
            Ungreeted::Refused(error.to_string())
        }
        // In the middle of the greeting of TLS. It may also have died just then.
        Error::Closed { .. } => {
            Ungreeted::Broken(format!("{error}; do all workers talk TLS (--worker-tls-cert)?"))
        }
        error => Ungreeted::Broken(error.to_string()),
    }
}

/// What is refused for safety, with the options that say otherwise.
fn unopened(error: Error) -> JobError {
    match error {
        Error::NotLoopback { address } => JobError::Options(format!(
            "{address}: not a loopback address; --worker-expose lets workers of other machines connect, with TLS and \
             a token"
        )),
        Error::Insecure { address } => JobError::Options(format!(
            "{address}: exposed without TLS and a token; give --worker-token-file, --worker-ca, --worker-tls-cert and \
             --worker-tls-key, or --worker-insecure if the network is trusted"
        )),
        error => error.into(),
    }
}

/// Where workers of higher rank come in. Closed when it is dropped.
struct Door {
    stopper: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Door {
    fn open(hosts: &Hosts, comers: Sender<Comer>) -> Result<Door, JobError> {
        let mut options = ListenOptions::new(framing());
        (options.expose, options.insecure) = (hosts.expose, hosts.insecure);
        options.token = !hosts.token.is_empty();
        options.tls.clone_from(&hosts.tls);
        options.write_timeout = ROWS_WAIT;
        options.spin_us = 0;
        let listener = Listener::bind(&hosts.hosts[hosts.rank as usize], &options).map_err(unopened)?;
        let stopper = listener.stopper();
        let doorkeeper = Arc::new(Doorkeeper {
            join: hosts.join(Way::Rows),
            token: (!hosts.token.is_empty()).then(|| hosts.token.clone()),
            here: Mutex::default(),
            strangers: AtomicUsize::new(0),
        });
        let thread = spawn("join", move || doorkeeper.keep(&listener, &comers))?;
        Ok(Door { stopper, thread: Some(thread) })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

struct Doorkeeper {
    /// Of this worker.
    join: Join,
    token: Option<String>,
    here: Mutex<BTreeSet<(u32, Way)>>,
    strangers: AtomicUsize,
}

impl Doorkeeper {
    fn keep(self: &Arc<Doorkeeper>, listener: &Listener, comers: &Sender<Comer>) {
        loop {
            match listener.accept() {
                Ok(Some(connection)) => {
                    if self.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS_MAX {
                        self.strangers.fetch_sub(1, Ordering::AcqRel);
                        continue;
                    }
                    let (keeper, comers) = (Arc::clone(self), comers.clone());
                    let greeted = spawn("greet", move || {
                        keeper.greet(connection, &comers);
                        keeper.strangers.fetch_sub(1, Ordering::AcqRel);
                    });
                    if greeted.is_err() {
                        self.strangers.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Ok(None) => return,
                // It concerns one connection, or there are no descriptors now.
                Err(_) => std::thread::sleep(AGAIN_MIN),
            }
        }
    }

    fn greet(&self, mut connection: Connection, comers: &Sender<Comer>) {
        let ours = Joined { rank: self.join.rank, attempt: self.join.attempt };
        let (until, mut admitted) = (Instant::now() + HELLO_WITHIN, None);
        let welcomed = welcome(&mut connection, self.token.as_deref(), ours, until, |join| {
            self.admit(join)?;
            admitted = Some((join.rank, join.way));
            Ok(())
        });
        match (welcomed, admitted) {
            (Ok((agreed, join)), _) => {
                let _ = comers.send(((join.rank, join.way), Joint { connection, agreed }));
            }
            // It was cut off, and comes again.
            (Err(_), Some(who)) => {
                self.here.lock().unwrap_or_else(PoisonError::into_inner).remove(&who);
            }
            // It was told why not.
            (Err(_), None) => {}
        }
    }

    fn admit(&self, theirs: &Join) -> Result<(), String> {
        let ours = &self.join;
        if theirs.workers != ours.workers {
            let (theirs, ours) = (theirs.workers, ours.workers);
            return Err(format!(
                "this is a job of {ours} workers, not of {theirs}: --hosts must be the same for all"
            ));
        }
        if theirs.job != ours.job {
            return Err(
                "it has another configuration, input or set of options: these must be the same for all \
                        workers of a job"
                    .to_owned(),
            );
        }
        if theirs.attempt != ours.attempt {
            let (theirs, ours) = (theirs.attempt, ours.attempt);
            return Err(format!("this is attempt {ours} of the job, not {theirs} (--attempt)"));
        }
        if theirs.rank <= ours.rank {
            let (theirs, ours) = (theirs.rank, ours.rank);
            return Err(format!("worker {theirs} does not come to worker {ours}: is --rank of both right?"));
        }
        let is_new =
            self.here.lock().unwrap_or_else(PoisonError::into_inner).insert((theirs.rank, theirs.way));
        match is_new {
            true => Ok(()),
            false => {
                Err(format!("there is a worker {} already: every one has a --rank of its own", theirs.rank))
            }
        }
    }
}

pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, JobError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(|source| JobError::Io { what: format!("a thread to {name}"), source })
}
