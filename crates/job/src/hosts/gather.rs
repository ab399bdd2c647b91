//! Connects the workers of a job: a worker connects to each one of lower rank, again and again until it is there.
//! Ends when all are connected, names missing workers on time-out, and stops on request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, Framing, Received, connect};
use sanderling_wire::{Agreed, HEADER_BYTES, Way, body_bytes, limit};

use super::acceptor::Acceptor;
use super::handshake::{HandshakeError, introduce};
use crate::error::JobError;
use crate::event::{JobEvent, Observer};
use crate::options::Options;
use crate::worker_hosts::Hosts;

/// First and longest time between two attempts to reach a worker.
pub(super) const AGAIN_MIN: Duration = Duration::from_millis(20);
pub(super) const AGAIN_MAX: Duration = Duration::from_millis(500);
/// Why a worker is not reached is said after so long, and again when it has taken this many times as long.
const UNREACHED: Duration = Duration::from_secs(5);
const UNREACHED_AGAIN: u32 = 10;
/// A peer must finish its handshake within this time.
pub(super) const HELLO_WITHIN: Duration = Duration::from_secs(60);
/// Whether a worker is dead is decided by its signs of life; rows may wait for as long as it has no time for them.
pub(super) const ROWS_WAIT: Duration = Duration::from_secs(24 * 3600);
/// How often a worker that waits for others looks whether it is to stop, and whether those that have come are still there.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// A failed attempt to connect may report its reason for this long after the deadline.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection to another worker.
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) agreed: Agreed,
    /// A frame that came before this worker had found all others: one that had may have begun.
    pub(super) early: Option<Vec<u8>>,
}

impl Peer {
    /// Whether the other side has neither gone nor died; whoever has said something may do so, having begun.
    fn is_there(&mut self) -> bool {
        // The first attempt may tell what the system said when the greeting was received.
        for _ in 0..2 {
            if self.early.is_some() {
                return true;
            }
            match self.connection.receiver.try_receive() {
                Ok(Received::Nothing) => {}
                Ok(Received::Frame(bytes)) => self.early = Some(bytes.to_vec()),
                Ok(Received::End) | Err(_) => return false,
            }
        }
        true
    }
}

/// All connections of a worker.
pub(super) struct Party {
    /// By rank.
    pub(super) rows: BTreeMap<u32, Peer>,
    /// On rank 0, to all others; on the others, to rank 0.
    pub(super) control: BTreeMap<u32, Peer>,
}

/// A connection's worker and purpose.
pub(super) type Who = (u32, Way);
/// A finished handshake, or the reason why it cannot succeed.
pub(super) type Handshake = Result<(Who, Peer), JobError>;

pub(super) fn framing() -> Framing {
    let body = |header: &[u8]| {
        let header = header.try_into().map_err(|_| "not a whole header".to_owned())?;
        body_bytes(header).map_err(|error| error.to_string())
    };
    Framing { header_bytes: HEADER_BYTES, body_bytes: body, frame_bytes_max: limit::FRAME_BYTES_MAX }
}

/// Connects to all others; says whom it cannot reach for long, and whom it turns away.
pub(super) fn gather(hosts: &Hosts, options: &Options, until: Instant) -> Result<Party, JobError> {
    let (rank, workers) = (hosts.rank, hosts.hosts.len() as u32);
    let (handshakes, came) = channel();
    // No worker connects to the last one.
    let is_last = rank + 1 == workers;
    let observer = options.observer.clone();
    let acceptor = if is_last { None } else { Some(Acceptor::open(hosts, observer, handshakes.clone())?) };
    let mut gathering = Gathering {
        hosts,
        options,
        acceptor,
        reach: Reach::start(hosts, options, handshakes, until)?,
        awaited: BTreeSet::new(),
        found: BTreeMap::new(),
    };
    for other in (0..workers).filter(|&other| other != rank) {
        gathering.expect((other, Way::Rows));
        if other == 0 || rank == 0 {
            gathering.expect((other, Way::Control));
        }
    }
    gathering.await_all(&came, until)?;
    let (mut rows, mut control) = (BTreeMap::new(), BTreeMap::new());
    for ((other, way), peer) in gathering.found {
        let of_way = if way == Way::Rows { &mut rows } else { &mut control };
        of_way.insert(other, peer);
    }
    Ok(Party { rows, control })
}

/// The workers that are connected, and those still missing.
struct Gathering<'a> {
    hosts: &'a Hosts,
    options: &'a Options,
    acceptor: Option<Acceptor>,
    reach: Reach,
    awaited: BTreeSet<Who>,
    found: BTreeMap<Who, Peer>,
}

impl Gathering<'_> {
    /// This worker connects to workers of lower rank and accepts workers of higher rank.
    fn expect(&mut self, who: Who) {
        self.awaited.insert(who);
        if who.0 < self.hosts.rank {
            self.reach.ask(who);
        }
    }

    fn await_all(&mut self, came: &Receiver<Handshake>, until: Instant) -> Result<(), JobError> {
        let until = until + LAST_WORDS;
        let mut look_at = Instant::now() + LOOK;
        loop {
            let now = Instant::now();
            // Also when all have come: of one that went and came again, a connection of the first time may be among them.
            if self.awaited.is_empty() || now >= look_at {
                self.look_around();
                look_at = now + LOOK;
                if self.awaited.is_empty() {
                    return Ok(());
                }
            }
            match came.recv_timeout(until.min(look_at).saturating_duration_since(now)) {
                Ok(comer) => {
                    let (who, peer) = comer?;
                    self.awaited.remove(&who);
                    self.found.insert(who, peer);
                }
                Err(RecvTimeoutError::Timeout) if now < until => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let missing = self.missing();
                    let reason = format!(
                        "it did not come in time; workers {missing:?} of {} are missing: start one per host, each with \
                         its --rank",
                        self.hosts.hosts.len()
                    );
                    return Err(self.hosts.error(missing[0], reason));
                }
            }
            if self.options.stop.load(Ordering::Relaxed) {
                let (worker, workers) = (self.hosts.rank, self.hosts.hosts.len() as u32);
                return Err(JobError::Interrupted { worker, missing: self.missing(), workers });
            }
        }
    }

    fn missing(&self) -> Vec<u32> {
        let missing: BTreeSet<u32> = self.awaited.iter().map(|&(other, _)| other).collect();
        missing.into_iter().collect()
    }

    /// Expects a worker anew whose connection has ended: it may be started again.
    fn look_around(&mut self) {
        let mut gone: Vec<Who> = Vec::new();
        for (&who, peer) in &mut self.found {
            if !peer.is_there() {
                gone.push(who);
            }
        }
        for who in gone {
            self.found.remove(&who);
            if let Some(acceptor) = &self.acceptor {
                acceptor.forget(who);
            }
            self.expect(who);
            if who.1 == Way::Rows {
                let address = self.hosts.hosts[who.0 as usize].to_string();
                let reason = "it was there and has gone; it is waited for".to_owned();
                tell(self.options.observer.as_ref(), &JobEvent::Unreached { worker: who.0, address, reason });
            }
        }
    }
}

pub(super) fn tell(observer: Option<&Observer>, event: &JobEvent) {
    if let Some(Observer(observer)) = observer {
        observer(event);
    }
}

/// The thread that connects to workers of lower rank, one after the other. It ends some time after this is dropped: an attempt
/// that is under way is not waited for.
struct Reach {
    ask: Sender<Who>,
    is_over: Arc<AtomicBool>,
}

impl Reach {
    fn start(
        hosts: &Hosts,
        options: &Options,
        handshakes: Sender<Handshake>,
        until: Instant,
    ) -> Result<Reach, JobError> {
        let (ask, asked) = channel::<Who>();
        let is_over = Arc::new(AtomicBool::new(false));
        let reaching = Reaching {
            hosts: hosts.clone(),
            observer: options.observer.clone(),
            until,
            is_over: Arc::clone(&is_over),
        };
        spawn("reach", move || {
            for (other, way) in asked {
                let Some(reached) = reaching.reach(other, way).transpose() else { return };
                let is_reached = reached.is_ok();
                let sent = handshakes.send(reached.map(|peer| ((other, way), peer)));
                if sent.is_err() || !is_reached {
                    return;
                }
            }
        })?;
        Ok(Reach { ask, is_over })
    }

    /// Connects to a worker when those that were asked for before are reached.
    fn ask(&self, who: Who) {
        // Should the thread have ended, it has said why.
        let _ = self.ask.send(who);
    }
}

impl Drop for Reach {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

struct Reaching {
    hosts: Hosts,
    observer: Option<Observer>,
    until: Instant,
    is_over: Arc<AtomicBool>,
}

impl Reaching {
    /// Connects to a worker of lower rank, which may not be running yet; `None`: the attempt is not needed any more.
    fn reach(&self, other: u32, way: Way) -> Result<Option<Peer>, JobError> {
        let (hosts, until) = (&self.hosts, self.until);
        let mut options = sanderling_transport::ConnectOptions::new(framing());
        options.tls.clone_from(&hosts.trust);
        options.spin_us = 0;
        options.write_timeout = if way == Way::Rows { ROWS_WAIT } else { hosts.silence };
        let join = hosts.join(way);
        let (mut again, mut say_after, start) = (AGAIN_MIN, UNREACHED, Instant::now());
        while !self.is_over.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            options.timeout = options.timeout.min(left.max(AGAIN_MIN));
            let reached = connect(&hosts.hosts[other as usize], &options);
            let hello_until = until.min(Instant::now() + HELLO_WITHIN);
            let greeted = reached.map_err(unreached).and_then(|mut connection| {
                let (agreed, joined) = introduce(&mut connection, &hosts.token, &join, hello_until)?;
                if joined.rank == other {
                    return Ok(Peer { connection, agreed, early: None });
                }
                let found = joined.rank;
                Err(HandshakeError::Refused(format!(
                    "worker {found} answers there; is --hosts the same for all workers?"
                )))
            });
            match greeted {
                Ok(peer) => return Ok(Some(peer)),
                Err(HandshakeError::Refused(reason)) => return Err(hosts.error(other, reason)),
                Err(HandshakeError::Broken(reason) | HandshakeError::Unheard(reason)) if left.is_zero() => {
                    return Err(hosts.error(other, format!("it cannot be reached: {reason}")));
                }
                Err(HandshakeError::Broken(reason) | HandshakeError::Unheard(reason)) => {
                    if start.elapsed() >= say_after {
                        say_after = start.elapsed() * UNREACHED_AGAIN;
                        let address = hosts.hosts[other as usize].to_string();
                        tell(self.observer.as_ref(), &JobEvent::Unreached { worker: other, address, reason });
                    }
                    std::thread::sleep(again.min(left));
                }
            }
            again = (again * 2).min(AGAIN_MAX);
        }
        Ok(None)
    }
}

/// Decides whether a failed connection is worth another attempt.
fn unreached(error: Error) -> HandshakeError {
    match error {
        Error::Tls { .. } | Error::Options { .. } | Error::NoServer { .. } | Error::SeveralServers { .. } => {
            HandshakeError::Refused(error.to_string())
        }
        Error::TalksNoTls { .. } => {
            HandshakeError::Refused(format!("{error}; do all workers talk TLS (--worker-cert-file)?"))
        }
        // In the middle of the greeting of TLS. It may also have died just then.
        Error::Closed { .. } => {
            HandshakeError::Broken(format!("{error}; do all workers talk TLS (--worker-cert-file)?"))
        }
        error => HandshakeError::Broken(error.to_string()),
    }
}

pub(super) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>, JobError> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.spawn(run).map_err(|source| JobError::Io { what: format!("a thread to {name}"), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knock(hosts: &Hosts, way: Way) -> Connection {
        let mut connection =
            connect(&hosts.hosts[0], &sanderling_transport::ConnectOptions::new(framing())).unwrap();
        let until = Instant::now() + HELLO_WITHIN;
        introduce(&mut connection, "", &hosts.join(way), until).unwrap();
        connection
    }

    #[test]
    fn whoever_comes_again_before_all_of_it_is_seen_to_have_gone_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let socket = |rank: u32| folder.path().join(rank.to_string());
        let address = |rank| format!("unix:{}", socket(rank).display()).parse().unwrap();
        let hosts = |rank| Hosts::new(rank, (0..3).map(address).collect(), 7);
        let until = Instant::now() + Duration::from_secs(60);
        let gathered = |rank| gather(&hosts(rank), &Options::default(), until);
        for (first_gone, between) in
            [(Way::Rows, Duration::ZERO), (Way::Rows, 2 * LOOK), (Way::Control, 2 * LOOK)]
        {
            std::thread::scope(|scope| {
                let first = scope.spawn(|| gathered(0));
                while !socket(0).exists() {
                    std::thread::sleep(AGAIN_MIN);
                }
                let mut old = [Way::Rows, Way::Control].map(|way| (way, knock(&hosts(2), way)));
                old.sort_by_key(|&(way, _)| way != first_gone);
                let [one, other] = old;
                drop(one);
                std::thread::sleep(between);
                drop(other);
                let others = [1, 2].map(|rank| scope.spawn(move || gathered(rank)));
                let [one, two] = others.map(|other| other.join().unwrap());
                let first = first.join().unwrap();
                let failed = [&first, &one, &two].map(|party| party.as_ref().err());
                assert!(failed.iter().all(Option::is_none), "{first_gone:?}, {between:?}: {failed:?}");
                let mut first = first.unwrap();
                assert_eq!((first.rows.len(), first.control.len()), (2, 2));
                for peer in first.rows.values_mut().chain(first.control.values_mut()) {
                    assert!(peer.is_there(), "{first_gone:?}, {between:?}");
                }
            });
        }
    }
}
