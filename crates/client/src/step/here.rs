//! Workers that are threads of one process, over tables of this process. Knows no server.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_meet::limit::BYTES_MAX;
use sanderling_meet::{Budget, Complete, Gradients, Group, Met, Part, Progress, Refused, Said, Uneven, Who};
use sanderling_store::{PushScale, StoreError, Table};
use sanderling_wire::StepGradients;

use super::{CalledOff, POLL};
use crate::error::ClientError;

/// Messages that are kept for their memory.
const SPARE_MAX: usize = 256;
/// The place, in messages.
pub(super) const PLACE: &str = "this process";

/// Where the workers of one process meet; each joins with [`SyncGroup::join_here`](crate::SyncGroup::join_here).
#[derive(Debug)]
pub struct Meeting {
    tables: Vec<Arc<Table>>,
    workers: u32,
    group: Mutex<Group<Failed>>,
    /// Messages of steps that are applied. What one thread allocates and another frees, step by step, the allocator gives back
    /// to the system and takes again.
    spare: Mutex<Vec<Part>>,
    /// Somebody has said something, come, or applied.
    changed: Condvar,
}

/// Why a step could not be applied, for all who wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<Uneven> for Failed {
    fn from(uneven: Uneven) -> Failed {
        Failed(uneven.to_string())
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed(error.to_string())
    }
}

impl From<Refused<Failed>> for ClientError {
    fn from(refused: Refused<Failed>) -> ClientError {
        ClientError::Group { place: PLACE.to_owned(), reason: refused.to_string() }
    }
}

/// Puts a message for a group of this process into the memory of another.
fn fill(
    spare: Part,
    table: u32,
    dim: usize,
    (keys, counts): (&[u64], &[u32]),
    gradients: StepGradients<'_>,
    scale: PushScale,
) -> Part {
    fn refill<T: Copy>(mut into: Vec<T>, from: &[T]) -> Vec<T> {
        into.clear();
        into.extend_from_slice(from);
        into
    }
    let gradients = match (gradients, spare.gradients) {
        (StepGradients::Single(values), Gradients::Single(into)) => Gradients::Single(refill(into, values)),
        (StepGradients::Single(values), Gradients::Fixed { .. }) => Gradients::Single(values.into()),
        (StepGradients::Fixed { unit_log2, sums }, Gradients::Fixed { sums: into, .. }) => {
            Gradients::Fixed { unit_log2, sums: refill(into, sums) }
        }
        (StepGradients::Fixed { unit_log2, sums }, Gradients::Single(_)) => {
            Gradients::Fixed { unit_log2, sums: sums.into() }
        }
    };
    let (keys, counts) = (refill(spare.keys, keys), refill(spare.counts, counts));
    Part { table, lr: scale.lr, dim, keys, counts, gradients }
}

impl Meeting {
    /// For so many workers, who push to these tables in step.
    pub fn new(tables: Vec<Arc<Table>>, workers: u32) -> Result<Arc<Meeting>, ClientError> {
        let group = Mutex::new(Group::new(workers, Budget::new(BYTES_MAX))?);
        Ok(Arc::new(Meeting { tables, workers, group, spare: Mutex::default(), changed: Condvar::new() }))
    }

    /// How many workers there are.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    pub(super) fn table(&self, at: usize) -> Option<&Table> {
        self.tables.get(at).map(|table| &**table)
    }

    pub(super) fn place_of(&self, table: &Table) -> Option<usize> {
        self.tables.iter().position(|other| std::ptr::eq(&**other, table))
    }

    // A group changes in single steps, so it is whole even if somebody panicked meanwhile.
    fn group(&self) -> MutexGuard<'_, Group<Failed>> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Part>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker hands in a message of its part of a step.
    pub(super) fn take(
        &self,
        who: Who,
        (step, number): (u64, u32),
        table: usize,
        (keys, counts): (&[u64], &[u32]),
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let dim = self.tables[table].dim();
        let spare = self.spare().pop().unwrap_or_else(|| Part {
            table: 0,
            lr: 0.0,
            dim,
            keys: Vec::new(),
            counts: Vec::new(),
            gradients: Gradients::Single(Vec::new()),
        });
        let part = fill(spare, table as u32, dim, (keys, counts), gradients, scale);
        Ok(self.group().take(who, step, number, part)?)
    }

    /// Whoever comes in the place of another learns how far it was.
    pub(super) fn recover(&self, who: Who, timeout: Duration) -> Result<Progress, ClientError> {
        let progress = self.group().say(who, 0, Said::Nothing)?;
        self.wait(who, progress.decided, Said::Nothing, timeout, &CalledOff::default())
    }

    /// Says something of a step, and waits until it is applied.
    pub(super) fn wait(
        &self,
        who: Who,
        step: u64,
        said: Said,
        timeout: Duration,
        called_off: &CalledOff,
    ) -> Result<Progress, ClientError> {
        let is_applied = |progress: &Progress| progress.applied >= step;
        let progress = self.say_until(who, step, said, Instant::now() + timeout, called_off, is_applied)?;
        if is_applied(&progress) {
            return Ok(progress);
        }
        let (place, what, workers) = (PLACE.to_owned(), format!("step {step}"), progress.missing);
        Err(ClientError::Awaited { place, what, workers, timeout })
    }

    /// Says something of a step, and waits until what there is suffices, or until then.
    pub(super) fn say_until(
        &self,
        who: Who,
        step: u64,
        said: Said,
        until: Instant,
        called_off: &CalledOff,
        is_enough: impl Fn(&Progress) -> bool,
    ) -> Result<Progress, ClientError> {
        let mut group = self.group();
        group.say(who, step, said)?;
        self.changed.notify_all();
        loop {
            if let Some(mut complete) = group.begin() {
                // Not under the lock: others may hand something in meanwhile.
                drop(group);
                let applied = self.apply(&mut complete);
                let mut spare = self.spare();
                let room = SPARE_MAX.saturating_sub(spare.len());
                spare.extend(complete.take_parts().take(room));
                drop(spare);
                group = self.group();
                group.end(complete, applied);
                self.changed.notify_all();
            }
            group.check()?;
            let progress = group.progress(who, step, said);
            let left = until.saturating_duration_since(Instant::now());
            if is_enough(&progress) || left.is_zero() {
                return Ok(progress);
            }
            called_off.check(|| PLACE.to_owned(), || format!("step {step}"))?;
            group =
                self.changed.wait_timeout(group, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn apply(&self, complete: &mut Complete) -> Result<(), Failed> {
        complete.each(|sums| {
            // It was looked up when it was handed in.
            let table = &self.tables[sums.table as usize];
            let scale = PushScale { lr: sums.lr };
            Ok(table.push_unique(sums.keys, sums.counts, sums.gradients, scale)?)
        })
    }

    /// Comes to a meeting and waits for all; who is missing then.
    pub(super) fn meet(
        &self,
        who: Who,
        round: u64,
        name: &str,
        bytes: &[u8],
        until: Instant,
        called_off: &CalledOff,
    ) -> Result<Result<Vec<Vec<u8>>, Vec<u32>>, ClientError> {
        let mut group = self.group();
        loop {
            let missing = match group.meet(who, round, name, bytes)? {
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
            called_off.check(|| PLACE.to_owned(), || format!("meeting {name:?}"))?;
            group =
                self.changed.wait_timeout(group, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
