//! Workers that are threads of one process, over tables of this process.
//!
//! Every worker that waits for a step helps to apply it. Knows no server.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::{PushClock, PushScale, Table};

use crate::budget::Budget;
use crate::cancel::CancelFlags;
use crate::error::StepError;
use crate::group::{Group, Participant, Progress, StepReport};
use crate::limit::BYTES_MAX;
use crate::meetings::Met;
use crate::part::GradientsRef;
use crate::shards::Shards;
use crate::sum::{Complete, Mismatch, Sums, TableShare};

/// Interval at which a waiting worker checks its cancel flags.
const POLL: Duration = Duration::from_millis(50);

/// Why a call of a [`Meeting`] failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeetingError {
    /// The group refused the call, or a step could not be applied.
    #[error("{0}")]
    Refused(String),
    /// Other workers did not come in time, or a step took too long to apply.
    #[error("{what}: workers {workers:?} are missing after {timeout:?}")]
    Awaited {
        /// The step, or the name of the meeting.
        what: String,
        /// Workers that did not come; empty if all did.
        workers: Vec<u32>,
        /// The time-out.
        timeout: Duration,
    },
    /// A cancel flag of the worker was set while it waited.
    #[error("{what}: the wait was cancelled")]
    Cancelled {
        /// The step, or the name of the meeting.
        what: String,
    },
}

/// The place where the workers of one process meet, with the tables that they push to in step.
#[derive(Debug)]
pub struct Meeting {
    tables: Vec<Arc<Table>>,
    workers: u32,
    shards: Shards,
    state: Mutex<State>,
    /// Signalled after each report, arrival and applied shard.
    changed: Condvar,
}

/// The group, and the step that its workers apply now.
#[derive(Debug)]
struct State {
    group: Group<Failed>,
    applying: Option<Applying>,
}

/// A step whose shards are applied by all waiting workers.
#[derive(Debug)]
struct Applying {
    left: Complete,
    /// Shards that workers have taken and not given back.
    busy: u32,
    /// One push clock per table of the step, shared by all shards of the table.
    clocks: Vec<Option<PushClock>>,
    result: Result<(), Failed>,
}

/// Why a step could not be applied; all waiting workers get it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<StepError<Failed>> for MeetingError {
    fn from(refused: StepError<Failed>) -> MeetingError {
        MeetingError::Refused(refused.to_string())
    }
}

fn check(cancel: &CancelFlags, what: impl FnOnce() -> String) -> Result<(), MeetingError> {
    if cancel.is_set() { Err(MeetingError::Cancelled { what: what() }) } else { Ok(()) }
}

impl Meeting {
    /// A meeting of this many workers, which push to these tables in step.
    pub fn new(tables: Vec<Arc<Table>>, workers: u32) -> Result<Arc<Meeting>, MeetingError> {
        let group = Group::new(workers, Budget::new(BYTES_MAX))?;
        let (shards, state) = (Shards::new(workers), Mutex::new(State { group, applying: None }));
        Ok(Arc::new(Meeting { tables, workers, shards, state, changed: Condvar::new() }))
    }

    /// Number of workers.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The table at this position of the list.
    #[must_use]
    pub fn table(&self, at: usize) -> Option<&Table> {
        self.tables.get(at).map(|table| &**table)
    }

    /// The position of a table in the list; `None` if it is not in the list.
    #[must_use]
    pub fn place_of(&self, table: &Table) -> Option<usize> {
        self.tables.iter().position(|other| std::ptr::eq(&**other, table))
    }

    // Each change is one step, so the state is consistent even after a panic of another thread.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one message of a worker's part of a step.
    pub fn take(
        &self,
        participant: Participant,
        (step, number): (u64, u32),
        table: usize,
        message: (&[u64], &[u32]),
        gradients: GradientsRef<'_>,
        scale: PushScale,
    ) -> Result<(), MeetingError> {
        let parts = self.shards.cut(table as u32, self.tables[table].dim(), message, gradients, scale);
        let mut state = self.state();
        for (number, part) in (self.shards.parts_of(number)..).zip(parts) {
            state.group.take(participant, step, number, part)?;
        }
        Ok(())
    }

    /// The report of a worker that has handed in all of its messages, this many.
    #[must_use]
    pub fn whole(&self, messages: u32) -> StepReport {
        StepReport::Whole { messages: self.shards.parts_of(messages) }
    }

    /// The progress of a worker that replaces another one; waits until the decided step is applied.
    pub fn recover(&self, participant: Participant, timeout: Duration) -> Result<Progress, MeetingError> {
        let progress = self.state().group.say(participant, 0, StepReport::Nothing)?;
        self.wait(participant, progress.decided, StepReport::Nothing, timeout, &CancelFlags::default())
    }

    /// Reports on a step and waits until the step is applied.
    pub fn wait(
        &self,
        participant: Participant,
        step: u64,
        said: StepReport,
        timeout: Duration,
        cancel: &CancelFlags,
    ) -> Result<Progress, MeetingError> {
        let is_applied = |progress: &Progress| progress.applied >= step;
        let progress =
            self.say_until(participant, step, said, Instant::now() + timeout, cancel, is_applied)?;
        if is_applied(&progress) {
            return Ok(progress);
        }
        let (what, workers) = (format!("step {step}"), progress.missing);
        Err(MeetingError::Awaited { what, workers, timeout })
    }

    /// Reports on a step and waits until the progress is enough or the time is over.
    ///
    /// A waiting worker helps to apply the decided step.
    pub fn say_until(
        &self,
        participant: Participant,
        step: u64,
        said: StepReport,
        until: Instant,
        cancel: &CancelFlags,
        is_enough: impl Fn(&Progress) -> bool,
    ) -> Result<Progress, MeetingError> {
        let mut state = self.state();
        state.group.say(participant, step, said)?;
        // A complete part wakes the others only when it was the last one: before, they would check and sleep again.
        let mut is_news = !matches!(said, StepReport::Whole { .. });
        loop {
            if let Some(complete) = state.group.begin() {
                state.applying = Some(self.begin(complete));
                is_news = true;
            }
            while let Some((mut shard, clock)) = state.take_shard(self) {
                // Without the lock, so that other workers can apply other shards or hand in messages.
                drop(state);
                if std::mem::take(&mut is_news) {
                    self.changed.notify_all();
                }
                let applied = self.apply(&shard.sums(), clock);
                state = self.state();
                state.give_back(self, shard, applied);
            }
            if state.end() || is_news {
                is_news = false;
                self.changed.notify_all();
            }
            state.group.check()?;
            let progress = state.group.progress(participant, step, said);
            let left = until.saturating_duration_since(Instant::now());
            if is_enough(&progress) || left.is_zero() {
                return Ok(progress);
            }
            check(cancel, || format!("step {step}"))?;
            state =
                self.changed.wait_timeout(state, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin(&self, mut complete: Complete) -> Applying {
        let result = complete.check().map_err(|uneven| {
            let table = self.shards.table_of(uneven.table);
            Failed(Mismatch { table, ..uneven }.to_string())
        });
        Applying { left: complete, busy: 0, clocks: vec![None; self.tables.len()], result }
    }

    fn apply(&self, sums: &Sums<'_>, clock: PushClock) -> Result<(), Failed> {
        let table = &self.tables[self.shards.table_of(sums.table) as usize];
        let scale = PushScale { lr_scale: sums.lr_scale };
        let applied = table.push_part(sums.keys, sums.counts, sums.gradients, scale, clock);
        applied.map_err(|error| Failed(error.to_string()))
    }

    /// Brings bytes to a meeting and waits for all workers; the workers that are missing at the end.
    pub fn meet(
        &self,
        participant: Participant,
        round: u64,
        name: &str,
        bytes: &[u8],
        until: Instant,
        cancel: &CancelFlags,
    ) -> Result<Result<Vec<Vec<u8>>, Vec<u32>>, MeetingError> {
        let mut state = self.state();
        loop {
            let missing = match state.group.meet(participant, round, name, bytes)? {
                Met::All(parts) => {
                    let parts = parts.into_iter().map(<[u8]>::to_vec).collect();
                    self.changed.notify_all();
                    return Ok(Ok(parts));
                }
                Met::Waiting(missing) => missing,
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Err(missing));
            }
            check(cancel, || format!("meeting {name:?}"))?;
            state =
                self.changed.wait_timeout(state, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Takes a shard of the decided step, with the push clock of its table. Nothing is taken after a failure.
    fn take_shard(&mut self, meeting: &Meeting) -> Option<(TableShare, PushClock)> {
        let applying = self.applying.as_mut().filter(|applying| applying.result.is_ok())?;
        let shard = applying.left.take_table()?;
        applying.busy += 1;
        // The position was checked when the message was handed in.
        let table = meeting.shards.table_of(shard.table()) as usize;
        let clock = *applying.clocks[table].get_or_insert_with(|| meeting.tables[table].count_push());
        Some((shard, clock))
    }

    fn give_back(&mut self, meeting: &Meeting, shard: TableShare, applied: Result<(), Failed>) {
        if let Some(applying) = &mut self.applying {
            applying.busy -= 1;
            applying.result = std::mem::replace(&mut applying.result, Ok(())).and(applied);
            meeting.shards.keep(applying.left.give_back(shard));
        }
    }

    /// Ends the step if no shard is left or in work.
    fn end(&mut self) -> bool {
        let is_done = |applying: &mut Applying| {
            applying.busy == 0 && (applying.result.is_err() || applying.left.is_empty())
        };
        let Some(applying) = self.applying.take_if(is_done) else { return false };
        self.group.end(applying.left, applying.result);
        true
    }
}
