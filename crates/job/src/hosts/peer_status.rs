//! The state of the other workers: losses, finished passes, why the job ends. The thread that talks to rank 0 writes
//! it, the worker's own thread reads it. Knows no connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_transport::Waker;

use super::control_msg::{ControlMsg, JOB, Loss};
use crate::error::JobError;

/// How often a worker that waits looks again.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Default)]
struct State {
    group: Option<u64>,
    losses: Vec<Loss>,
    /// Losses whose consequences this worker has drawn for its group.
    regrouped: usize,
    turns: u64,
    is_over: bool,
    failure: Option<Failure>,
    /// Messages to be sent.
    says: VecDeque<ControlMsg>,
    /// Some of that, or on rank 0 why the job ends, is not sent yet.
    is_unsent: bool,
    /// Its position: the pass, and its done units.
    turn: u64,
    settled: u64,
    /// Steps of its own that this worker has finished, and in which turn; and whether they are to be told.
    pace: (u64, u64),
    is_pace_news: bool,
    /// How far the others are, as rank 0 said last.
    others: Others,
    /// The thread that talks has ended.
    is_deaf: bool,
}

/// How far others are in a turn.
#[derive(Debug, Clone, Copy, Default)]
struct Others {
    turn: u64,
    slowest: u32,
    least: u64,
    /// Steps of all others together.
    sum: u64,
}

/// Why the job ends before its time.
#[derive(Debug, Clone)]
struct Failure {
    worker: u32,
    /// None: it was asked to stop.
    reason: Option<String>,
}

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct PeerStatus {
    pub(super) rank: u32,
    names: Vec<String>,
    state: Mutex<State>,
    changed: Condvar,
    called_off: Arc<AtomicBool>,
    /// This process is asked to stop.
    stop: Arc<AtomicBool>,
    waker: Waker,
}

impl PeerStatus {
    /// For a worker of those with these addresses; whoever waits for others in its group looks at `called_off` and `stop`.
    pub(super) fn new(
        rank: u32,
        names: Vec<String>,
        waker: Waker,
        stop: &Arc<AtomicBool>,
    ) -> Arc<PeerStatus> {
        let (state, changed, called_off) = (Mutex::default(), Condvar::new(), Arc::default());
        Arc::new(PeerStatus { rank, names, state, changed, called_off, stop: Arc::clone(stop), waker })
    }

    pub(super) fn called_off(&self) -> &Arc<AtomicBool> {
        &self.called_off
    }

    pub(super) fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what rank 0 has said to all.
    pub(crate) fn note(&self, said: &ControlMsg) {
        let mut state = self.state();
        match said {
            ControlMsg::Start { group } => state.group = Some(*group),
            ControlMsg::TurnOver { turn: JOB, .. } => state.is_over = true,
            ControlMsg::TurnOver { turn, .. } => state.turns = turn + 1,
            ControlMsg::Lost { losses, loss, .. } => {
                // They come in order, over one connection.
                if *losses as usize == state.losses.len() + 1 {
                    state.losses.push(*loss);
                }
                self.called_off.store(true, Ordering::Release);
                if loss.worker == self.rank {
                    let reason = "the others have taken this worker for dead and go on without it";
                    self.fail(&mut state, self.rank, Some(reason));
                }
            }
            ControlMsg::Fail { worker, reason } => self.fail(&mut state, *worker, Some(reason)),
            ControlMsg::Stop { worker } => self.fail(&mut state, *worker, None),
            ControlMsg::Pace { worker, turn, steps, others } => {
                state.others = Others { turn: *turn, slowest: *worker, least: *steps, sum: *others };
            }
            ControlMsg::Alive { .. } => return,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// This worker learns that a job cannot go on, but not from rank 0.
    pub(super) fn note_failure(&self, worker: u32, reason: &str) {
        self.fail(&mut self.state(), worker, Some(reason));
        self.changed.notify_all();
    }

    fn fail(&self, state: &mut State, worker: u32, reason: Option<&str>) {
        if state.failure.is_none() && !state.is_over {
            state.failure = Some(Failure { worker, reason: reason.map(str::to_owned) });
            // On rank 0 it is known here before it is sent to the others.
            state.is_unsent = true;
            self.called_off.store(true, Ordering::Release);
            if reason.is_none() {
                // Also what this process does beside the job's waits is to end.
                self.stop.store(true, Ordering::Release);
            }
        }
    }

    /// The thread that talks has ended, and nothing more will be heard.
    pub(super) fn note_deaf(&self) {
        self.state().is_deaf = true;
        self.changed.notify_all();
    }

    /// Sends a message to rank 0, or on rank 0 to its coordinator.
    pub(super) fn say(&self, said: ControlMsg) {
        let mut state = self.state();
        state.says.push_back(said);
        state.is_unsent = true;
        drop(state);
        self.waker.wake();
    }

    /// The thread that talks has sent all that it took.
    pub(super) fn note_sent(&self) {
        let mut state = self.state();
        if state.is_unsent && state.says.is_empty() {
            state.is_unsent = false;
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(super) fn take_says(&self) -> VecDeque<ControlMsg> {
        let mut state = self.state();
        let mut says = std::mem::take(&mut state.says);
        if std::mem::take(&mut state.is_pace_news) {
            let ((turn, steps), worker) = (state.pace, self.rank);
            says.push_back(ControlMsg::Pace { worker, turn, steps, others: 0 });
        }
        says
    }

    /// This worker has finished so many steps of its own in a turn.
    pub(crate) fn set_pace(&self, turn: u64, steps: u64) {
        let mut state = self.state();
        state.pace = (turn, steps);
        let is_told = std::mem::replace(&mut state.is_pace_news, true);
        drop(state);
        if !is_told {
            self.waker.wake();
        }
    }

    /// Steps of a turn that the slowest of the others has finished, and those of all others together; as far as is known here.
    pub(crate) fn others(&self, turn: u64) -> (u64, u64) {
        let others = self.state().others;
        if others.turn == turn { (others.least, others.sum) } else { (0, 0) }
    }

    /// Waits while the slowest worker is more than `bound` steps behind; returns how far it is then. `None`: a worker
    /// is lost. On time-out the error names the slowest worker.
    pub(crate) fn await_pace(
        &self,
        (turn, steps): (u64, u64),
        bound: u64,
        until: Instant,
    ) -> Result<Result<Option<u64>, u32>, JobError> {
        let found = self.wait(
            |state| {
                let least = if state.others.turn == turn { state.others.least } else { 0 };
                match steps <= least.saturating_add(bound) {
                    true => Some(Some(steps.saturating_sub(least))),
                    false => (state.losses.len() > state.regrouped).then_some(None),
                }
            },
            until,
        )?;
        Ok(found.ok_or_else(|| self.state().others.slowest))
    }

    /// The turn that this worker is in, and how far in it.
    pub(super) fn position(&self) -> (u64, u64) {
        let state = self.state();
        (state.turn, state.settled)
    }

    /// This worker is in this turn, and of its own units in it those before this one are done.
    pub(super) fn set_position(&self, turn: u64, settled: u64) {
        let mut state = self.state();
        (state.turn, state.settled) = (turn, settled);
    }

    pub(super) fn is_over(&self) -> bool {
        self.state().is_over
    }

    pub(super) fn has_failed(&self) -> bool {
        self.state().failure.is_some()
    }

    /// Why the job ends, if it does.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        match &self.state().failure {
            Some(failure) => Err(self.of_failure(failure)),
            None => Ok(()),
        }
    }

    /// Whether this process, or that of another worker, was asked to stop.
    pub(crate) fn check_halt(&self) -> Result<(), JobError> {
        if !self.is_told() {
            return Ok(());
        }
        self.check()?;
        Err(JobError::Halted { worker: self.rank })
    }

    pub(super) fn is_told(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn of_failure(&self, failure: &Failure) -> JobError {
        match failure {
            Failure { worker, reason: Some(reason) } => self.error(*worker, reason),
            Failure { worker, .. } if *worker == self.rank => JobError::Halted { worker: *worker },
            Failure { worker, .. } => {
                let address = self.names.get(*worker as usize).cloned().unwrap_or_default();
                JobError::HaltedBy { worker: *worker, address }
            }
        }
    }

    fn error(&self, worker: u32, reason: &str) -> JobError {
        let address = self.names.get(worker as usize).cloned().unwrap_or_default();
        JobError::Worker { worker, address, reason: reason.to_owned() }
    }

    /// The losses so far.
    pub(crate) fn losses(&self) -> Vec<Loss> {
        self.state().losses.clone()
    }

    /// A loss at a moment when the others cannot go on without it, as an error.
    pub(crate) fn check_losses(&self, doing: &str) -> Result<(), JobError> {
        let state = self.state();
        match state.losses.get(state.regrouped) {
            Some(loss) => Err(self.error(
                loss.worker,
                &format!("it is lost in the middle of {doing}, which the others cannot do without it"),
            )),
            None => Ok(()),
        }
    }

    /// Marks all losses as handled by a new group; returns them and the number of the first group. Workers may wait
    /// again afterwards.
    pub(crate) fn regroup(&self) -> (u64, Vec<Loss>) {
        let mut state = self.state();
        state.regrouped = state.losses.len();
        if state.failure.is_none() {
            self.called_off.store(false, Ordering::Release);
        }
        (state.group.unwrap_or_default(), state.losses.clone())
    }

    /// Losses that the group was made anew for.
    pub(crate) fn regrouped(&self) -> usize {
        self.state().regrouped
    }

    /// The number of the group, once rank 0 has said it. Ends when it is to stop.
    pub(super) fn await_group(&self, until: Instant) -> Result<u64, JobError> {
        match self.wait(|state| state.group, until) {
            Ok(Some(group)) => Ok(group),
            Ok(None) => Err(self.error(0, "it did not say in time that all workers are there")),
            Err(JobError::Halted { worker }) => {
                let workers = self.names.len() as u32;
                Err(JobError::Interrupted { worker, missing: vec![0], workers })
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until all have done a turn, or the job, or there are more losses than this. `true`: the turn is over.
    pub(crate) fn await_turn(&self, turn: u64, losses: usize) -> Result<bool, JobError> {
        loop {
            let until = Instant::now() + LOOK;
            let found = self.wait(
                |state| match if turn == JOB { state.is_over } else { state.turns > turn } {
                    true => Some(true),
                    false => (state.losses.len() > losses).then_some(false),
                },
                until,
            )?;
            if let Some(is_over) = found {
                return Ok(is_over);
            }
        }
    }

    /// Waits until all that was said before is sent.
    pub(super) fn await_sent(&self, until: Instant) {
        let mut state = self.state();
        while state.is_unsent && !state.is_deaf && Instant::now() < until {
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the thread that talks has ended.
    pub(super) fn await_silence(&self, until: Instant) {
        let mut state = self.state();
        while !state.is_deaf && Instant::now() < until {
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// `None`: the time came first.
    fn wait<T>(&self, found: impl Fn(&State) -> Option<T>, until: Instant) -> Result<Option<T>, JobError> {
        let mut state = self.state();
        loop {
            if let Some(found) = found(&state) {
                return Ok(Some(found));
            }
            if let Some(failure) = &state.failure {
                return Err(self.of_failure(failure));
            }
            if self.is_told() {
                return Err(JobError::Halted { worker: self.rank });
            }
            if state.is_deaf {
                return Err(self.error(0, "nothing more is heard of the other workers"));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let look = left.min(LOOK);
            state = self.changed.wait_timeout(state, look).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
