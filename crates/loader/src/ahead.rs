//! Decoding ahead: threads read and decode units ahead of the worker, which gets them in the order of the input. Knows
//! nothing of shuffling or minibatches.
//!
//! A thread takes the number of its unit under the lock of the source and decodes outside of it. The worker takes the
//! units by number, so their order does not depend on the number of threads. A thread counts bad rows apart; they enter
//! the account of the run with their unit, so which ones are counted and told does not depend on it either.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sanderling_formats::{BadRowsOfUnit, Decoded, Decoder, Unit};
use sanderling_observe::StageTimer;
use sanderling_sample::SampleError;

use crate::decoding::{Decoding, Shared, lock};

/// Decoded units that may wait for the worker, besides one per thread and the one in use. It bounds memory, and how far
/// a thread may be ahead of a slower one.
const UNITS_AHEAD: usize = 4;

/// Interval at which a waiting worker checks whether the pass was stopped.
const POLL: Duration = Duration::from_millis(50);

/// The threads and what they hand over. Dropping it ends each thread at its next unit without waiting, since one of
/// them may be reading a silent stream.
pub(crate) struct Ahead {
    shared: Arc<Shared>,
    window: Arc<Window>,
    threads: Vec<JoinHandle<()>>,
}

/// The result of waiting for the threads.
pub(crate) enum Received {
    /// The rows of a unit.
    Rows(Box<Decoded>),
    /// The end of the input.
    End,
    /// The pass was stopped before its end.
    Stopped,
}

/// The units between the threads and the worker.
struct Window {
    state: Mutex<State>,
    changed: Condvar,
    /// Units that may be begun and not yet handed over.
    units_max: usize,
}

#[derive(Default)]
struct State {
    ready: BTreeMap<u64, Handover>,
    /// The number of the unit that the worker gets next.
    next: u64,
    /// Units that were begun and not yet handed over.
    begun: usize,
    /// Threads that have not ended.
    running: usize,
    /// The thread that has panicked.
    panicked: Option<usize>,
    /// The worker wants no more.
    closed: bool,
    /// Used rows, kept to reuse their memory.
    #[expect(clippy::vec_box, reason = "they come and go as boxes")]
    empty: Vec<Box<Decoded>>,
}

/// A unit's rows, or the error that ends the input.
struct Handover {
    decoded: Result<Box<Decoded>, SampleError>,
    /// Bad rows of the unit, and the unit itself in case they are too many.
    bad: Option<(BadRowsOfUnit, Unit)>,
}

/// Why a short wait for the next unit brought none.
enum Missing {
    NotYet,
    /// No thread brings it.
    Over,
}

impl Window {
    /// Waits for room for one more unit; its memory, or none if no more units are wanted.
    fn begin(&self, shared: &Shared) -> Option<Box<Decoded>> {
        let mut state = lock(&self.state);
        while !state.closed && state.panicked.is_none() && state.begun == self.units_max {
            state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        if state.closed || state.panicked.is_some() {
            return None;
        }
        state.begun += 1;
        let empty = state.empty.pop();
        drop(state);
        Some(empty.unwrap_or_else(|| Box::new(Decoded::new(&shared.encoder))))
    }

    fn put(&self, number: u64, unit: Handover) {
        lock(&self.state).ready.insert(number, unit);
        self.changed.notify_all();
    }

    fn take(&self, wait: Duration) -> Result<Handover, Missing> {
        let deadline = Instant::now() + wait;
        let mut state = lock(&self.state);
        loop {
            let next = state.next;
            if let Some(unit) = state.ready.remove(&next) {
                state.next += 1;
                state.begun -= 1;
                drop(state);
                self.changed.notify_all();
                return Ok(unit);
            }
            if state.running == 0 || state.panicked.is_some() {
                return Err(Missing::Over);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Missing::NotYet);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

/// A thread that has not ended.
struct Running {
    window: Arc<Window>,
    thread: usize,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = lock(&self.window.state);
        state.running -= 1;
        if std::thread::panicking() {
            state.panicked = Some(self.thread);
        }
        drop(state);
        self.window.changed.notify_all();
    }
}

impl Ahead {
    /// Starts one thread per timer.
    pub(crate) fn start(shared: &Arc<Shared>, timers: impl IntoIterator<Item = StageTimer>) -> Self {
        let timers: Vec<StageTimer> = timers.into_iter().collect();
        let state = State { running: timers.len(), ..State::default() };
        let units_max = UNITS_AHEAD + timers.len();
        let window = Arc::new(Window { state: Mutex::new(state), changed: Condvar::new(), units_max });
        let start = |(thread, timer)| {
            let (shared, running) = (Arc::clone(shared), Running { window: Arc::clone(&window), thread });
            std::thread::spawn(move || decode(&shared, &running.window, timer))
        };
        let threads = timers.into_iter().enumerate().map(start).collect();
        Ahead { shared: Arc::clone(shared), window, threads }
    }

    /// The next decoded unit. Returns within moments after the pass is stopped, even if the input is silent.
    pub(crate) fn receive(&mut self) -> Result<Received, SampleError> {
        loop {
            let stopped = self.shared.stopped.load(Ordering::Relaxed);
            match self.window.take(POLL) {
                Ok(unit) => return self.account(unit),
                Err(Missing::NotYet) if !stopped => {}
                Err(Missing::NotYet) => return Ok(Received::Stopped),
                Err(Missing::Over) => break,
            }
        }
        let panicked = lock(&self.window.state).panicked.take();
        if let Some(thread) = panicked
            && let Err(panic) = self.threads.swap_remove(thread).join()
        {
            std::panic::resume_unwind(panic);
        }
        let stopped = self.shared.stopped.load(Ordering::Relaxed);
        Ok(if stopped { Received::Stopped } else { Received::End })
    }

    /// Adds a unit's bad rows to the account of the run.
    fn account(&self, unit: Handover) -> Result<Received, SampleError> {
        if let Some((bad_rows, unit)) = unit.bad
            && !self.shared.bad_rows.add(&bad_rows)
        {
            // The row that is one too many is found with the account itself.
            let (encoder, account) = (Arc::clone(&self.shared.encoder), Arc::clone(&self.shared.bad_rows));
            let mut decoded = Box::new(Decoded::new(&encoder));
            Decoder::new(encoder, account).decode_in_place(&unit, &mut decoded)?;
            return Ok(Received::Rows(decoded));
        }
        unit.decoded.map(Received::Rows)
    }

    /// Returns used rows to be replaced.
    pub(crate) fn give_back(&self, used: Box<Decoded>) {
        let mut state = lock(&self.window.state);
        if state.empty.len() <= self.window.units_max {
            state.empty.push(used);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        lock(&self.window.state).closed = true;
        self.window.changed.notify_all();
    }
}

/// One thread: reads and decodes units until the end, an error, or until no more are wanted.
fn decode(shared: &Shared, window: &Window, mut timer: StageTimer) {
    let account = Arc::new(shared.bad_rows.apart());
    let mut decoding = Decoding::new(shared, Arc::clone(&account));
    while let Some(mut decoded) = window.begin(shared) {
        let (number, read) = decoding.read(shared, &mut timer);
        let decoded = match read {
            Ok(true) => decoding.decode_in_place(&mut decoded).map(|()| decoded),
            Ok(false) => return,
            Err(error) => Err(error),
        };
        timer.stop();
        let is_last = decoded.is_err();
        let bad = account.take_unit().map(|bad_rows| (bad_rows, decoding.take_unit()));
        window.put(number, Handover { decoded, bad });
        if is_last {
            return;
        }
    }
}
