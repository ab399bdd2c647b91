//! Accepts workers of higher rank: identifies each peer and rejects it if it does not belong to the job, which is
//! logged once per host and cause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_transport::{Connection, Error, ListenOptions, Listener, NotAccepted, Stopper};
use sanderling_wire::{Join, Joined, Way};

use super::gather::{
    AGAIN_MAX, AGAIN_MIN, HELLO_WITHIN, Handshake, LOOK, Peer, ROWS_WAIT, Who, framing, spawn, tell,
};
use super::handshake::{HandshakeError, welcome};
use crate::error::JobError;
use crate::event::{JobEvent, Observer};
use crate::worker_hosts::Hosts;

/// Connections that have not said who they are yet; further ones are closed.
const STRANGERS_MAX: usize = 256;
/// Hosts whose rejected connections are logged, and causes per host. The bound keeps a port scan from filling the
/// log.
const HOSTS_TOLD_MAX: usize = 64;
const CAUSES_TOLD_MAX: usize = 8;
/// A worker that waits for this one retries every [`AGAIN_MAX`] or sooner. If no connection comes within this time,
/// no worker is waiting.
const FIRST_COMES_WITHIN: Duration = AGAIN_MAX.saturating_mul(8);
/// A second connection for a rank waits this long: the first one may have ended unnoticed, because the thread that
/// checks got no processor time.
const TWIN_WAIT: Duration = LOOK.saturating_mul(50);

/// Adds the options that allow it to an error about safety.
fn unopened(error: Error) -> JobError {
    match error {
        Error::NotLoopback { address } => JobError::Options(format!(
            "{address}: not a loopback address; --worker-expose lets workers of other machines connect, with TLS and \
             a token"
        )),
        Error::Insecure { address } => JobError::Options(format!(
            "{address}: exposed without TLS and a token; give --worker-token-file, --worker-ca-file, --worker-cert-file and \
             --worker-key-file, or --worker-insecure if the network is trusted"
        )),
        error => error.into(),
    }
}

/// Where workers of higher rank come in. Closed when it is dropped.
pub(super) struct Acceptor {
    stopper: Stopper,
    state: Arc<AcceptorState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Acceptor {
    pub(super) fn open(
        hosts: &Hosts,
        observer: Option<Observer>,
        handshakes: Sender<Handshake>,
    ) -> Result<Acceptor, JobError> {
        Self::of(hosts, observer, handshakes, None)
    }

    /// An acceptor that tells every worker of the job why this worker does not start.
    pub(super) fn shut(hosts: &Hosts, reason: &str) -> Result<Acceptor, JobError> {
        Self::of(hosts, None, channel().0, Some(reason.to_owned()))
    }

    fn of(
        hosts: &Hosts,
        observer: Option<Observer>,
        handshakes: Sender<Handshake>,
        shut: Option<String>,
    ) -> Result<Acceptor, JobError> {
        let mut options = ListenOptions::new(framing());
        (options.expose, options.insecure) = (hosts.expose, hosts.insecure);
        options.token = !hosts.token.is_empty();
        options.tls.clone_from(&hosts.tls);
        options.write_timeout = ROWS_WAIT;
        options.spin_us = 0;
        let listener = Listener::bind(&hosts.hosts[hosts.rank as usize], &options).map_err(unopened)?;
        let stopper = listener.stopper();
        let shared = Arc::new(AcceptorState {
            join: hosts.join(Way::Rows),
            token: (!hosts.token.is_empty()).then(|| hosts.token.clone()),
            shut,
            told: Mutex::default(),
            here: Mutex::default(),
            gone: Condvar::new(),
            strangers: AtomicUsize::new(0),
            observer,
            turned_away: Mutex::default(),
        });
        let state = Arc::clone(&shared);
        let thread = spawn("join", move || shared.keep(&listener, &handshakes))?;
        Ok(Acceptor { stopper, state, thread: Some(thread) })
    }

    /// A connection that came in here has ended; whose it was may come again.
    pub(super) fn forget(&self, who: Who) {
        self.state.forget(who);
    }

    /// Waits until all workers of higher rank know why this one does not start, or `stop` is set.
    ///
    /// Ends early if no connection comes, since waiting workers retry often.
    pub(super) fn wait_until_told(&self, until: Instant, stop: &AtomicBool) {
        let Join { rank, workers, .. } = self.state.join;
        let all = workers.saturating_sub(rank + 1) as usize;
        let first_until = until.min(Instant::now() + FIRST_COMES_WITHIN);
        while !stop.load(Ordering::Relaxed) {
            let (told, now) = (self.state.told().len(), Instant::now());
            if told >= all || now >= until || (told == 0 && now >= first_until) {
                return;
            }
            std::thread::sleep(AGAIN_MIN);
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.stopper.stop();
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

struct AcceptorState {
    /// Of this worker.
    join: Join,
    token: Option<String>,
    /// The reason to reject every worker.
    shut: Option<String>,
    /// Workers that were told the reason.
    told: Mutex<BTreeSet<u32>>,
    here: Mutex<BTreeSet<Who>>,
    /// One of those that were here is not any more.
    gone: Condvar,
    strangers: AtomicUsize,
    observer: Option<Observer>,
    turned_away: Mutex<TurnedAway>,
}

impl AcceptorState {
    fn keep(self: &Arc<AcceptorState>, listener: &Listener, handshakes: &Sender<Handshake>) {
        let mut not_accepted = NotAccepted::default();
        loop {
            match listener.accept() {
                Ok(Some(connection)) => {
                    if self.strangers.fetch_add(1, Ordering::AcqRel) >= STRANGERS_MAX {
                        self.strangers.fetch_sub(1, Ordering::AcqRel);
                        let reason =
                            format!("{STRANGERS_MAX} others have not said who they are yet; try again later");
                        self.tell(connection.peer(), None, &reason);
                        continue;
                    }
                    let (state, handshakes) = (Arc::clone(self), handshakes.clone());
                    let greeted = spawn("greet", move || {
                        state.greet(connection, &handshakes);
                        state.strangers.fetch_sub(1, Ordering::AcqRel);
                    });
                    if greeted.is_err() {
                        self.strangers.fetch_sub(1, Ordering::AcqRel);
                    }
                }
                Ok(None) => return,
                // The peer will connect again.
                Err(error) => not_accepted.note(&error, |_| ()),
            }
        }
    }

    fn greet(&self, mut connection: Connection, handshakes: &Sender<Handshake>) {
        let ours = Joined { rank: self.join.rank, attempt: self.join.attempt };
        let (until, mut admitted, mut claimed) = (Instant::now() + HELLO_WITHIN, None, None);
        let mut shut_out = None;
        let welcomed = welcome(&mut connection, self.token.as_deref(), ours, until, &mut claimed, |join| {
            self.check(join)?;
            if let Some(reason) = &self.shut {
                shut_out = Some(join.rank);
                return Err(reason.clone());
            }
            self.admit(join)?;
            admitted = Some((join.rank, join.way));
            Ok(())
        });
        match (welcomed, admitted) {
            (Ok((agreed, join)), _) => {
                let _ =
                    handshakes.send(Ok(((join.rank, join.way), Peer { connection, agreed, early: None })));
            }
            // It was cut off, and comes again.
            (Err(_), Some(who)) => self.forget(who),
            (Err(HandshakeError::Refused(reason) | HandshakeError::Unheard(reason)), None) => {
                // Not whoever only says to be one of the job.
                self.told().extend(shut_out);
                self.tell(connection.peer(), claimed, &reason);
            }
            // The peer closed the connection: it only checked whether the port is open.
            (Err(HandshakeError::Broken(_)), None) => {}
        }
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, who: Who) {
        self.here.lock().unwrap_or_else(PoisonError::into_inner).remove(&who);
        self.gone.notify_all();
    }

    /// Tells the observer who was turned away, if that is not known yet. It was told the reason itself, if it understands it.
    fn tell(&self, peer: &str, worker: Option<u32>, reason: &str) {
        let reason = reason.strip_prefix(&format!("{peer}: ")).unwrap_or(reason);
        let mut turned_away = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
        let event = turned_away.note(host_of(peer), worker, reason);
        drop(turned_away);
        if let Some(event) = event {
            tell(self.observer.as_ref(), &event);
        }
    }

    /// Whether it is one of this job that comes to this worker.
    fn check(&self, theirs: &Join) -> Result<(), String> {
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
        Ok(())
    }

    fn admit(&self, theirs: &Join) -> Result<(), String> {
        let who = (theirs.rank, theirs.way);
        let here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.gone.wait_timeout_while(here, TWIN_WAIT, |here| here.contains(&who));
        let (mut here, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match here.insert(who) {
            true => Ok(()),
            false => {
                Err(format!("there is a worker {} already: every one has a --rank of its own", theirs.rank))
            }
        }
    }
}

/// Rejected peers, and the reasons.
#[derive(Default)]
struct TurnedAway {
    /// Causes by host.
    told: BTreeMap<String, BTreeSet<(Option<u32>, String)>>,
}

impl TurnedAway {
    /// The event to log; `None` if it was logged before, or the log has too many.
    fn note(&mut self, host: &str, worker: Option<u32>, reason: &str) -> Option<JobEvent> {
        let is_known = self.told.contains_key(host);
        if !is_known && self.told.len() == HOSTS_TOLD_MAX {
            return None;
        }
        let causes = self.told.entry(host.to_owned()).or_default();
        if causes.len() == CAUSES_TOLD_MAX || !causes.insert((worker, reason.to_owned())) {
            return None;
        }
        let mut reason = reason.to_owned();
        if causes.len() == CAUSES_TOLD_MAX {
            reason.push_str("; whoever else comes from there is not told any more");
        }
        if !is_known && self.told.len() == HOSTS_TOLD_MAX {
            reason.push_str("; whoever comes from elsewhere is not told any more");
        }
        Some(JobEvent::TurnedAway { worker, address: host.to_owned(), reason })
    }
}

/// A peer without what differs from one connection to the next: the port, or the number of the process.
fn host_of(peer: &str) -> &str {
    let peer = peer.split(" (").next().unwrap_or(peer);
    match peer.strip_prefix("tcp://").and_then(|_| peer.rfind(':')) {
        Some(colon) => &peer[..colon],
        None => peer,
    }
}

#[cfg(test)]
mod tests {
    use super::super::handshake::introduce;
    use super::super::test_hosts;
    use super::*;

    #[test]
    fn only_those_of_the_job_count_as_told_why_nobody_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let hosts = |rank| Hosts { token: "right".to_owned(), ..test_hosts::hosts(dir.path(), rank, 3) };
        let acceptor = Acceptor::shut(&hosts(0), "its disk is full").unwrap();
        let check = |token: &str, join: Join, expected: &str, told: &[u32]| {
            let options = sanderling_transport::ConnectOptions::new(framing());
            let mut connection = sanderling_transport::connect(&hosts(0).hosts[0], &options).unwrap();
            let until = Instant::now() + HELLO_WITHIN;
            match introduce(&mut connection, token, &join, until) {
                Err(HandshakeError::Refused(reason)) => assert!(reason.contains(expected), "{reason}"),
                other => panic!("{other:?}"),
            }
            // The acceptor may record the worker until it has closed the connection.
            drop(connection.receiver.receive(Some(until)));
            assert!(acceptor.state.told().iter().eq(told), "{join:?}: {:?}", acceptor.state.told());
        };
        let join = |rank| hosts(rank).join(Way::Rows);
        check("wrong", join(1), "the token is missing or wrong", &[]);
        check("", join(2), "the token is missing or wrong", &[]);
        check("right", Join { job: 8, ..join(1) }, "it has another configuration", &[]);
        check("right", Join { attempt: 1, ..join(1) }, "this is attempt 0", &[]);
        check("right", Join { workers: 2, ..join(1) }, "not of 2", &[]);
        check("right", join(0), "is --rank of both right?", &[]);
        check("right", join(2), "its disk is full", &[2]);
        check("right", join(2), "its disk is full", &[2]);
        check("right", join(1), "its disk is full", &[1, 2]);
    }

    #[test]
    fn whoever_comes_again_for_the_same_reason_is_told_once_and_the_log_has_an_end() {
        for (peer, host) in [
            ("tcp://10.0.0.2:4711", "tcp://10.0.0.2"),
            ("tcp://[::1]:4711", "tcp://[::1]"),
            ("unix:/run/a:1 (process 7)", "unix:/run/a:1"),
        ] {
            assert_eq!(host_of(peer), host);
        }
        let mut turned_away = TurnedAway::default();
        let mut is_told = |host: &str, worker, reason: &str| turned_away.note(host, worker, reason).is_some();
        let told = [
            is_told("tcp://a", Some(1), "token"),
            is_told("tcp://a", Some(1), "token"),
            is_told("tcp://a", Some(2), "token"),
            is_told("tcp://a", None, "token"),
            is_told("tcp://b", Some(1), "token"),
        ];
        assert_eq!(told, [true, false, true, true, true]);
        let mut events: Vec<JobEvent> = Vec::new();
        for host in 0..2 * HOSTS_TOLD_MAX {
            for cause in 0..2 * CAUSES_TOLD_MAX {
                events.extend(turned_away.note(&format!("tcp://10.0.0.{host}"), None, &cause.to_string()));
            }
        }
        assert_eq!(events.len(), (HOSTS_TOLD_MAX - 2) * CAUSES_TOLD_MAX);
        let last = |event: &&JobEvent| event.to_string().contains("not told any more");
        // The last one of each host, and the first one of the last host.
        assert_eq!(events.iter().filter(last).count(), HOSTS_TOLD_MAX - 2 + 1);
    }
}
