//! Pushes in the background: a thread applies the gradients of one lookup after the other. The number of outstanding
//! pushes is bounded, and the next push or wait reports failures. Does not know pooling.

use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::Instant;

use sanderling_client::{Client, ClientError, Lookup, LostFed, Origin, Session, Stop};
use sanderling_observe::{Latency, spans};
use sanderling_store::PushScale;

use crate::error::FeedError;
use crate::features::Features;
use crate::fed::Ways;
use crate::minibatch::Minibatch;
use crate::recycle::Recycled;
use crate::ticket::Ticket;
use crate::wait::wait_or_stop;

/// Threads that push together to tables in this process.
const SHARING_THREADS_MAX: usize = 4;

const AT: &str = "pushes were waited for that the servers have not answered";

/// The scales of a push, by table.
#[derive(Debug, Clone)]
pub enum Scales {
    /// All tables alike.
    All(PushScale),
    /// Each table, by its number; tables beyond the list are not scaled.
    Each(Arc<[PushScale]>),
}

impl Scales {
    /// The scale for a table.
    #[must_use]
    pub fn of(&self, table: usize) -> PushScale {
        match self {
            Scales::All(scale) => *scale,
            Scales::Each(scales) => scales.get(table).copied().unwrap_or_default(),
        }
    }
}

impl From<PushScale> for Scales {
    fn from(scale: PushScale) -> Scales {
        Scales::All(scale)
    }
}

/// Gradients on their way.
struct Job {
    lookup: Recycled<Lookup>,
    scales: Scales,
    /// Whether keys that had no row are to stay without one.
    forget_missing: bool,
    since: Instant,
    /// The minibatch is not used up before this.
    ticket: Option<Arc<Ticket>>,
    /// The keys of fed features, if there are any.
    fed: Option<Minibatch>,
}

/// Gradients that were sent, and not yet answered.
struct UnderWay {
    mark: u64,
    since: Instant,
    ticket: Option<Arc<Ticket>>,
    failed: Option<Arc<ClientError>>,
    /// For a push by keys, if servers have forgotten the fed batch.
    fed: Option<Fed>,
}

/// Gradients of fed features.
struct Fed {
    minibatch: Minibatch,
    lookup: Recycled<Lookup>,
    scales: Scales,
    is_spread: bool,
}

/// The thread and what is known of its work.
#[derive(Debug)]
pub(crate) struct Pushes {
    jobs: Option<SyncSender<Job>>,
    most: usize,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
    stop: Option<Stop>,
    /// Where the thread is.
    origin: Origin,
}

#[derive(Debug)]
struct Progress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct State {
    begun: u64,
    applied: u64,
    /// The first failure since the last report.
    failed: Option<Arc<ClientError>>,
    ended: bool,
    /// From the call to the answer.
    latency: Latency,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says that the thread has ended, even by a panic.
struct End(Arc<Progress>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Pushes {
    /// Starts the thread; at most `most` pushes, of which there is at least one, are outstanding. Large ones to tables in this
    /// process are shared with others: one of four processors, since the rest of a trainer wants some, too.
    pub(crate) fn start(
        client: Arc<Client>,
        most: usize,
        features: Arc<Features>,
        ways: Arc<Ways>,
    ) -> Pushes {
        let most = most.max(1);
        let (jobs, waiting) = sync_channel(most);
        let state = State { begun: 0, applied: 0, failed: None, ended: false, latency: Latency::new() };
        let progress = Arc::new(Progress { state: Mutex::new(state), changed: Condvar::new() });
        let (end, stop) = (End(Arc::clone(&progress)), client.stop().cloned());
        // So that others can be sent while some are waited for.
        let together = most.div_ceil(2);
        let threads = available_parallelism().map_or(1, |processors| processors.get() / 4);
        let threads = threads.clamp(1, SHARING_THREADS_MAX);
        let work = Work { client, features, ways, together, threads };
        let thread = std::thread::spawn(move || work.run(&waiting, &end.0));
        Pushes { jobs: Some(jobs), most, progress, thread: Some(thread), stop, origin: Origin::here() }
    }

    /// Hands gradients over; waits while too many are outstanding. An error may be that of an earlier push.
    pub(crate) fn push(
        &self,
        lookup: Recycled<Lookup>,
        scales: Scales,
        forget_missing: bool,
        ticket: Option<Arc<Ticket>>,
        fed: Option<Minibatch>,
    ) -> Result<(), FeedError> {
        let since = Instant::now();
        self.begin().inspect_err(|error| ticket.iter().for_each(|ticket| ticket.lose(error)))?;
        if let Some(ticket) = &ticket {
            ticket.owe();
        }
        let job = Job { lookup, scales, forget_missing, since, ticket, fed };
        // There is room for all that are outstanding.
        let is_sent = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        is_sent.then_some(()).ok_or(FeedError::Died("push"))
    }

    /// Counts a push as outstanding, when it may be.
    fn begin(&self) -> Result<(), FeedError> {
        self.check_process()?;
        let mut state = self.progress.lock();
        loop {
            if let Some(error) = state.failed.take() {
                return Err(FeedError::Push(error));
            }
            if state.ended {
                return Err(FeedError::Died("push"));
            }
            if state.begun - state.applied < self.most as u64 {
                state.begun += 1;
                return Ok(());
            }
            state = self.look(state)?;
        }
    }

    /// Waits for news, or until it is time to look whether to stop.
    fn look<'a>(&'a self, state: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, FeedError> {
        let Progress { state: of, changed } = &*self.progress;
        wait_or_stop(of, changed, state, self.stop.as_ref(), AT)
    }

    /// Refuses to wait for a thread that is in the parent of this process.
    pub(crate) fn check_process(&self) -> Result<(), FeedError> {
        self.origin.is_here().then_some(()).ok_or(FeedError::Forked)
    }

    /// Waits until everything that was pushed has been applied.
    pub(crate) fn finish(&self) -> Result<(), FeedError> {
        self.check_process()?;
        let mut state = self.progress.lock();
        while state.applied < state.begun && !state.ended {
            state = self.look(state)?;
        }
        match state.failed.take() {
            Some(error) => Err(FeedError::Push(error)),
            None if state.applied < state.begun => Err(FeedError::Died("push")),
            None => Ok(()),
        }
    }

    /// The first failure of a push since the last report; does not wait.
    pub(crate) fn check(&self) -> Result<(), FeedError> {
        self.progress.lock().failed.take().map_or(Ok(()), |error| Err(FeedError::Push(error)))
    }

    /// Waits until everything that was pushed has been applied or has failed.
    pub(crate) fn wait(&self) -> MutexGuard<'_, State> {
        let mut state = self.progress.lock();
        while state.applied < state.begun && !state.ended {
            state = self.progress.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// How many have been applied.
    pub(crate) fn applied(&self) -> u64 {
        self.progress.lock().applied
    }

    /// How many have been handed over.
    pub(crate) fn begun(&self) -> u64 {
        self.progress.lock().begun
    }

    /// Durations from the call to the answer.
    pub(crate) fn latency(&self) -> Latency {
        self.progress.lock().latency.clone()
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        // All pushes are applied before the tables go.
        self.jobs = None;
        let Some(thread) = self.thread.take().filter(|_| self.origin.is_here()) else { return };
        // A wait here also checks for a stop; the pushing thread then gives up silent servers.
        let mut state = self.progress.lock();
        while !state.ended {
            state = match self.look(state) {
                Ok(state) => state,
                Err(_) => break,
            };
        }
        let _ = thread.join();
    }
}

/// The thread's part.
struct Work {
    client: Arc<Client>,
    features: Arc<Features>,
    ways: Arc<Ways>,
    /// So many answers of servers, or those of all that there is, are waited for at once.
    together: usize,
    /// Up to so many threads push to tables in this process.
    threads: usize,
}

impl Work {
    /// Applies what comes.
    fn run(&self, jobs: &Receiver<Job>, progress: &Progress) {
        let mut session: Option<Session> = None;
        // Sent to servers and not yet answered.
        let mut under_way: Vec<UnderWay> = Vec::new();
        for mark in 0.. {
            let job = match jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    self.settle(&mut session, &mut under_way, progress);
                    let Ok(job) = jobs.recv() else { break };
                    job
                }
            };
            let Job { mut lookup, scales, forget_missing, since, ticket, fed } = job;
            let (client, threads) = (&self.client, self.threads);
            let span = ticket.as_ref().and_then(|ticket| ticket.span());
            let failed = spans::within(span, || {
                push(client, threads, &mut session, mark, &mut lookup, &scales, forget_missing)
            });
            let failed = failed.err().map(Arc::new);
            let fed = fed.map(|minibatch| Fed { minibatch, lookup, scales, is_spread: false });
            under_way.push(UnderWay { mark, since, ticket, failed, fed });
            if session.is_none() || under_way.len() >= self.together {
                self.settle(&mut session, &mut under_way, progress);
            }
        }
        self.settle(&mut session, &mut under_way, progress);
    }

    /// Waits for the answers.
    fn settle(&self, session: &mut Option<Session>, under_way: &mut Vec<UnderWay>, progress: &Progress) {
        if under_way.is_empty() {
            return;
        }
        if let Some(session) = session {
            for lost in session.take_lost() {
                if let Some(at) = under_way.iter_mut().find(|at| at.mark == lost.mark)
                    && let Err(error) = self.push_lost(session, at, &lost)
                {
                    at.failed.get_or_insert(Arc::new(error));
                }
            }
        }
        let finished = session.as_mut().map_or(Ok(()), Session::finish).map_err(Arc::new);
        let marks = session.as_mut().map(Session::take_failed).unwrap_or_default();
        let now = Instant::now();
        let mut state = progress.lock();
        for UnderWay { mark, since, ticket, failed, .. } in under_way.drain(..) {
            let of_answer = finished.as_ref().err().filter(|_| marks.contains(&mark)).cloned();
            if let Some(ticket) = &ticket {
                // The failure is recorded first, because a waiting thread then looks it up.
                match failed.as_ref().or(of_answer.as_ref()) {
                    Some(error) => ticket.lose(&FeedError::Push(Arc::clone(error))),
                    None => ticket.settle(),
                }
            }
            if let Some(error) = failed.or(of_answer) {
                state.failed.get_or_insert(error);
            }
            state.applied += 1;
            state.latency.record(now - since);
        }
        if let Err(error) = finished {
            state.failed.get_or_insert(error);
        }
        drop(state);
        progress.changed.notify_all();
    }

    /// Pushes by its keys what a server has forgotten, unless the minibatch is another trainer's by now.
    fn push_lost(&self, session: &mut Session, at: &mut UnderWay, lost: &LostFed) -> Result<(), ClientError> {
        let Some(Fed { minibatch, lookup, scales, is_spread }) = &mut at.fed else { return Ok(()) };
        if !std::mem::replace(is_spread, true) {
            match minibatch.spread_fed(&self.features, lookup) {
                Ok(()) => {}
                Err(FeedError::Late { .. }) => {
                    self.ways.late(lookup.fed().len());
                    at.fed = None;
                    return Ok(());
                }
                Err(error) => return Err(ClientError::Cluster { reason: error.to_string() }),
            }
        }
        session.mark_pushes(lost.mark);
        self.client.push_lost(session, lookup, lost, &|table| scales.of(table))
    }
}

fn push(
    client: &Client,
    threads: usize,
    session: &mut Option<Session>,
    mark: u64,
    lookup: &mut Lookup,
    scales: &Scales,
    forget_missing: bool,
) -> Result<(), ClientError> {
    if session.is_none() {
        *session = client.session()?;
    }
    if let Some(session) = session {
        session.mark_pushes(mark);
    }
    lookup.swap_session(session);
    if forget_missing {
        lookup.forget_missing();
    }
    let pushed = client.push_each(threads, lookup, &|table| scales.of(table));
    lookup.swap_session(session);
    pushed
}
