//! Workers that are threads of one process, over tables of this process. Knows no server.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::{PushClock, PushScale, Table};
use sanderling_sync::limit::BYTES_MAX;
use sanderling_sync::{Budget, Complete, Group, Met, OfTable, Progress, Refused, Said, Sums, Uneven, Who};
use sanderling_wire::StepGradients;

use super::shards::Shards;
use super::{CalledOff, POLL};
use crate::error::ClientError;

/// The place, in messages.
pub(super) const PLACE: &str = "this process";

/// Where the workers of one process meet; each joins with [`SyncGroup::join_here`](crate::SyncGroup::join_here).
#[derive(Debug)]
pub struct Meeting {
    tables: Vec<Arc<Table>>,
    workers: u32,
    shards: Shards,
    desk: Mutex<Desk>,
    /// Somebody has said something, come, or applied.
    changed: Condvar,
}

/// What the workers say and hand in, and the step that they apply.
#[derive(Debug)]
struct Desk {
    group: Group<Failed>,
    applying: Option<Applying>,
}

/// A step whose shards are applied by all who wait for it.
#[derive(Debug)]
struct Applying {
    left: Complete,
    /// Who has taken a shard and not brought it back.
    busy: u32,
    /// Of each table that the step has gradients for; it is one push, however many shards there are.
    clocks: Vec<Option<PushClock>>,
    result: Result<(), Failed>,
}

/// Why a step could not be applied, for all who wait for it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failed(String);

impl std::fmt::Display for Failed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<Refused<Failed>> for ClientError {
    fn from(refused: Refused<Failed>) -> ClientError {
        ClientError::Group { place: PLACE.to_owned(), reason: refused.to_string() }
    }
}

impl Meeting {
    /// For so many workers, who push to these tables in step.
    pub fn new(tables: Vec<Arc<Table>>, workers: u32) -> Result<Arc<Meeting>, ClientError> {
        let group = Group::new(workers, Budget::new(BYTES_MAX))?;
        let (shards, desk) = (Shards::new(workers), Mutex::new(Desk { group, applying: None }));
        Ok(Arc::new(Meeting { tables, workers, shards, desk, changed: Condvar::new() }))
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

    // It changes in single steps, so it is whole even if somebody panicked meanwhile.
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker hands in a message of its part of a step.
    pub(super) fn take(
        &self,
        who: Who,
        (step, number): (u64, u32),
        table: usize,
        message: (&[u64], &[u32]),
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let parts = self.shards.cut(table as u32, self.tables[table].dim(), message, gradients, scale);
        let mut desk = self.desk();
        for (number, part) in (self.shards.parts_of(number)..).zip(parts) {
            desk.group.take(who, step, number, part)?;
        }
        Ok(())
    }

    /// What a worker says that has handed in so many messages, and these are all.
    pub(super) fn whole(&self, messages: u32) -> Said {
        Said::Whole { messages: self.shards.parts_of(messages) }
    }

    /// Whoever comes in the place of another learns how far it was.
    pub(super) fn recover(&self, who: Who, timeout: Duration) -> Result<Progress, ClientError> {
        let progress = self.desk().group.say(who, 0, Said::Nothing)?;
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

    /// Says something of a step, and waits until what there is suffices, or until then. Whoever waits helps to apply what is
    /// decided.
    pub(super) fn say_until(
        &self,
        who: Who,
        step: u64,
        said: Said,
        until: Instant,
        called_off: &CalledOff,
        is_enough: impl Fn(&Progress) -> bool,
    ) -> Result<Progress, ClientError> {
        let mut desk = self.desk();
        desk.group.say(who, step, said)?;
        // Who is whole wakes nobody before all are: the others would look, and sleep again.
        let mut is_news = !matches!(said, Said::Whole { .. });
        loop {
            if let Some(complete) = desk.group.begin() {
                desk.applying = Some(self.begin(complete));
                is_news = true;
            }
            while let Some((mut shard, clock)) = desk.take_shard(self) {
                // Not under the lock: others apply other shards, or hand something in.
                drop(desk);
                if std::mem::take(&mut is_news) {
                    self.changed.notify_all();
                }
                let applied = self.apply(&shard.sums(), clock);
                desk = self.desk();
                desk.give_back(self, shard, applied);
            }
            if desk.end() || is_news {
                is_news = false;
                self.changed.notify_all();
            }
            desk.group.check()?;
            let progress = desk.group.progress(who, step, said);
            let left = until.saturating_duration_since(Instant::now());
            if is_enough(&progress) || left.is_zero() {
                return Ok(progress);
            }
            called_off.check(|| PLACE.to_owned(), || format!("step {step}"))?;
            desk = self.changed.wait_timeout(desk, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin(&self, mut complete: Complete) -> Applying {
        let result = complete.check().map_err(|uneven| {
            let table = self.shards.table_of(uneven.table);
            Failed(Uneven { table, ..uneven }.to_string())
        });
        Applying { left: complete, busy: 0, clocks: vec![None; self.tables.len()], result }
    }

    fn apply(&self, sums: &Sums<'_>, clock: PushClock) -> Result<(), Failed> {
        let table = &self.tables[self.shards.table_of(sums.table) as usize];
        let scale = PushScale { lr_scale: sums.lr_scale };
        let applied = table.push_part(sums.keys, sums.counts, sums.gradients, scale, clock);
        applied.map_err(|error| Failed(error.to_string()))
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
        let mut desk = self.desk();
        loop {
            let missing = match desk.group.meet(who, round, name, bytes)? {
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
            desk = self.changed.wait_timeout(desk, left.min(POLL)).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Desk {
    /// A shard of the step that is decided which nobody has taken, and when its table was pushed to. After a failure nothing
    /// is begun any more.
    fn take_shard(&mut self, meeting: &Meeting) -> Option<(OfTable, PushClock)> {
        let applying = self.applying.as_mut().filter(|applying| applying.result.is_ok())?;
        let shard = applying.left.take_table()?;
        applying.busy += 1;
        // It was looked up when it was handed in.
        let table = meeting.shards.table_of(shard.table()) as usize;
        let clock = *applying.clocks[table].get_or_insert_with(|| meeting.tables[table].count_push());
        Some((shard, clock))
    }

    fn give_back(&mut self, meeting: &Meeting, shard: OfTable, applied: Result<(), Failed>) {
        if let Some(applying) = &mut self.applying {
            applying.busy -= 1;
            applying.result = std::mem::replace(&mut applying.result, Ok(())).and(applied);
            meeting.shards.keep(applying.left.give_back(shard));
        }
    }

    /// Ends the step if nobody is to do anything for it any more.
    fn end(&mut self) -> bool {
        let is_done = |applying: &mut Applying| {
            applying.busy == 0 && (applying.result.is_err() || applying.left.is_empty())
        };
        let Some(applying) = self.applying.take_if(is_done) else { return false };
        self.group.end(applying.left, applying.result);
        true
    }
}
