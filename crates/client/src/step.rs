//! Workers that go in step: each hands in its gradients of a step, and when all have, their sums are applied once; or each
//! goes ahead of the slowest by a bounded number of steps; and whatever else they need to agree on. Knows no model.
//!
//! They meet at the servers of a cluster, or, as threads of one process, at a [`Meeting`]. Every wait is bounded: when it ends
//! the error names who did not come.

mod collective;
mod here;
mod servers;
mod shards;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sanderling_store::{PushScale, StoreError, Table, bad_gradient};
use sanderling_sync::{Progress, Said, Who};
use sanderling_wire::StepGradients;

use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::remote::RemoteTable;
use servers::Servers;

pub use collective::Reduce;
pub use here::Meeting;

/// Who waits for less than this stays awake.
const AWAKE: Duration = Duration::from_micros(100);
/// Who waits for longer sleeps for an eighth of the time that it has waited, and at most for this.
const NAP_MAX: Duration = Duration::from_millis(1);

/// How often a worker that sleeps looks whether its wait was called off.
const POLL: Duration = Duration::from_millis(50);

/// How a worker takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncOptions {
    /// Higher for each process that takes the place of a worker that died; 0 for the first.
    pub attempt: u32,
    /// How long the others are waited for, each time.
    pub timeout: Duration,
}

impl Default for SyncOptions {
    /// The first attempt; a minute.
    fn default() -> SyncOptions {
        SyncOptions { attempt: 0, timeout: Duration::from_secs(60) }
    }
}

/// One of the workers of a group, for one thread.
///
/// A step is handed in with [`SyncGroup::push_step`], once or several times, and ends with [`SyncGroup::wait_applied`]. Steps
/// are numbered from 1 without gaps; a new group begins anew. Meetings ([`SyncGroup::barrier`] and such) must be
/// called by all workers in the same order.
#[derive(Debug)]
pub struct SyncGroup {
    way: Way,
    who: Who,
    timeout: Duration,
    called_off: CalledOff,
    /// The last step that is applied, as far as this worker knows.
    applied: u64,
    /// The last step that this worker handed something in for.
    handed: u64,
    /// The next meeting.
    round: u64,
}

/// Whether a worker is to wait no longer.
#[derive(Debug, Clone, Default)]
struct CalledOff(Vec<Arc<AtomicBool>>);

impl CalledOff {
    fn check(
        &self,
        place: impl FnOnce() -> String,
        what: impl FnOnce() -> String,
    ) -> Result<(), ClientError> {
        if self.0.iter().any(|flag| flag.load(Ordering::Relaxed)) {
            return Err(ClientError::CalledOff { place: place(), what: what() });
        }
        Ok(())
    }
}

/// Where the workers meet.
#[derive(Debug)]
enum Way {
    Here(Arc<Meeting>, Handed),
    Servers(Box<Servers>),
}

/// What was handed in for a step at one place.
#[derive(Debug, Default)]
struct Handed {
    step: u64,
    messages: u32,
}

impl Handed {
    /// Number of the next message of a step.
    fn next(&mut self, step: u64) -> u32 {
        if self.step != step {
            *self = Handed { step, messages: 0 };
        }
        self.messages += 1;
        self.messages - 1
    }

    /// Messages of a step.
    fn of(&self, step: u64) -> u32 {
        if self.step == step { self.messages } else { 0 }
    }
}

impl SyncGroup {
    /// Joins a group whose workers meet at the servers of a cluster. The group is a number that is chosen at random for the
    /// job, and the same for all of its workers; the tables are the same for all, in the same order.
    pub fn join(
        cluster: &Arc<Cluster>,
        tables: &[RemoteTable],
        group: u64,
        worker: u32,
        workers: u32,
        options: SyncOptions,
    ) -> Result<SyncGroup, ClientError> {
        let who = check(worker, workers, options)?;
        let mut servers = Box::new(Servers::new(cluster, tables, group, who)?);
        let (applied, round) = servers.recover(options.timeout)?;
        let (way, called_off) = (Way::Servers(servers), CalledOff::default());
        Ok(SyncGroup { way, who, timeout: options.timeout, called_off, applied, handed: 0, round })
    }

    /// Takes the places of workers that are gone: a step that any server has decided is completed for all of them, and whoever
    /// had their places is shut out if `options` say a higher attempt. The last step that is applied.
    pub fn take_over(
        cluster: &Arc<Cluster>,
        tables: &[RemoteTable],
        group: u64,
        gone: &[u32],
        workers: u32,
        options: SyncOptions,
    ) -> Result<u64, ClientError> {
        let take =
            |worker| SyncGroup::join(cluster, tables, group, worker, workers, options).map(|it| it.applied());
        // All at a time: a server that has not decided it may lack the word of several of them.
        std::thread::scope(|scope| {
            let takes: Vec<_> = gone.iter().map(|&worker| scope.spawn(move || take(worker))).collect();
            takes.into_iter().try_fold(0, |applied, taken| {
                Ok(taken.join().unwrap_or_else(|panic| resume_unwind(panic))?.max(applied))
            })
        })
    }

    /// Joins a group whose workers are threads of this process.
    pub fn join_here(
        meeting: &Arc<Meeting>,
        worker: u32,
        options: SyncOptions,
    ) -> Result<SyncGroup, ClientError> {
        let who = check(worker, meeting.workers(), options)?;
        let Progress { applied, round, .. } = meeting.recover(who, options.timeout)?;
        let way = Way::Here(Arc::clone(meeting), Handed::default());
        let called_off = CalledOff::default();
        Ok(SyncGroup { way, who, timeout: options.timeout, called_off, applied, handed: 0, round })
    }

    /// From when this is true, or what was given before, waits end with [`ClientError::CalledOff`], within moments: for
    /// whoever knows that somebody will not come. What was waited for may have happened, or may yet.
    #[must_use]
    pub fn call_off_with(mut self, called_off: &Arc<AtomicBool>) -> SyncGroup {
        self.called_off.0.push(Arc::clone(called_off));
        self
    }

    /// Which worker it is.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.who.worker
    }

    /// How many there are.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.who.workers
    }

    /// The last step that is applied; who comes in the place of another goes on with the one after it.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Hands in gradients of a step for the table at this place of the list. Those of a key that occurs twice, here or
    /// with others, are summed. `counts` says how often each key occurred in the batch. All workers must give the same
    /// scale. A step that is applied stays as it is. After an error all of the step is to be handed in again.
    pub fn push_step(
        &mut self,
        step: u64,
        table: usize,
        keys: &[u64],
        counts: &[u32],
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let (name, dim) = self.table(table)?;
        let found = match gradients {
            StepGradients::Single(values) => values.len(),
            StepGradients::Fixed { sums, .. } => sums.len(),
        };
        for (what, expected, found) in
            [("counts", keys.len(), counts.len()), ("gradients", keys.len() * dim, found)]
        {
            if expected != found {
                return Err(StoreError::Length { table: name, what, expected, found }.into());
            }
        }
        scale.check(&name)?;
        if let StepGradients::Single(values) = gradients
            && let Some(at) = bad_gradient(values)
        {
            let (key, coordinate, value) = (keys[at / dim], at % dim, values[at]);
            return Err(StoreError::BadGradient { table: name, key, coordinate, value }.into());
        }
        if step <= self.applied || keys.is_empty() {
            return Ok(());
        }
        match &mut self.way {
            Way::Here(meeting, handed) => {
                let at = (step, handed.next(step));
                let taken = meeting.take(self.who, at, table, (keys, counts), gradients, scale);
                taken.inspect_err(|_| *handed = Handed::default())?;
            }
            Way::Servers(servers) => servers.push(step, table, keys, counts, gradients, scale)?,
        }
        self.handed = self.handed.max(step);
        Ok(())
    }

    /// The step that this worker has handed something in for and not waited for. Nothing of it is applied before all workers
    /// do, and what one leaves behind is lost.
    #[must_use]
    pub fn open_step(&self) -> Option<u64> {
        (self.handed > self.applied).then_some(self.handed)
    }

    /// Where in the list this table is, which is added if it is not there; `None`: the workers do not meet at servers.
    pub fn place_of_remote(&mut self, table: &RemoteTable) -> Result<Option<usize>, ClientError> {
        match &mut self.way {
            Way::Here(..) => Ok(None),
            Way::Servers(servers) => servers.place_of(table).map(Some),
        }
    }

    /// The list of tables, where the workers meet at servers.
    #[must_use]
    pub fn remote_tables(&self) -> &[RemoteTable] {
        match &self.way {
            Way::Here(..) => &[],
            Way::Servers(servers) => servers.tables(),
        }
    }

    /// Where in the list this table is; `None`: it is not there.
    #[must_use]
    pub fn place_of(&self, table: &Table) -> Option<usize> {
        match &self.way {
            Way::Here(meeting, _) => meeting.place_of(table),
            Way::Servers(_) => None,
        }
    }

    fn table(&self, table: usize) -> Result<(String, usize), ClientError> {
        let found = match &self.way {
            Way::Here(meeting, _) => meeting.table(table).map(|table| (table.name().to_owned(), table.dim())),
            Way::Servers(servers) => servers.table(table).map(|table| (table.name().to_owned(), table.dim())),
        };
        let reason = || format!("the group has no table at place {table} of its list");
        found.ok_or_else(|| ClientError::Group { place: self.place(), reason: reason() })
    }

    /// Says that all of this worker's part of a step is handed in, which may be nothing, and does not wait: there is time for
    /// something else before [`SyncGroup::wait_applied`], which says what failed.
    pub fn hand_over(&mut self, step: u64) {
        if let Way::Servers(servers) = &mut self.way
            && step > self.applied
        {
            servers.announce(step);
        }
    }

    /// Says the same unless it was said, and waits until the step is applied everywhere: a pull that begins then sees it.
    pub fn wait_applied(&mut self, step: u64) -> Result<(), ClientError> {
        if step <= self.applied {
            return Ok(());
        }
        match &mut self.way {
            Way::Here(meeting, handed) => {
                let said = meeting.whole(handed.of(step));
                meeting.wait(self.who, step, said, self.timeout, &self.called_off)?;
            }
            Way::Servers(servers) => servers.wait_applied(step, self.timeout, &self.called_off)?,
        }
        self.applied = step;
        Ok(())
    }

    /// Says that this worker has finished a step of its own, and waits while the slowest is more than `bound` steps behind.
    /// What it pushes is pushed as ever, not in step. How far behind the slowest is, then.
    pub fn progress(&mut self, step: u64, bound: u64) -> Result<u64, ClientError> {
        let (start, who) = (Instant::now(), self.who);
        loop {
            let progress = match &mut self.way {
                Way::Here(meeting, _) => {
                    let until = start + self.timeout;
                    meeting.say_until(who, step, Said::Finished, until, &self.called_off, |progress| {
                        step <= progress.finished.saturating_add(bound)
                    })?
                }
                Way::Servers(servers) => servers.say(0, step, Said::Finished)?,
            };
            if step <= progress.finished.saturating_add(bound) {
                return Ok(step.saturating_sub(progress.finished));
            }
            if start.elapsed() >= self.timeout {
                let what = format!("step {step}, more than {bound} ahead");
                return Err(self.awaited(what, progress.missing));
            }
            self.called_off.check(|| self.place(), || format!("step {step}"))?;
            nap(start);
        }
    }

    /// Where they meet, for messages.
    fn place(&self) -> String {
        match &self.way {
            Way::Here(..) => here::PLACE.to_owned(),
            Way::Servers(servers) => servers.name(0),
        }
    }

    fn awaited(&self, what: String, workers: Vec<u32>) -> ClientError {
        ClientError::Awaited { place: self.place(), what, workers, timeout: self.timeout }
    }
}

fn check(worker: u32, workers: u32, options: SyncOptions) -> Result<Who, ClientError> {
    if worker < workers && workers as usize <= sanderling_wire::limit::WORKERS_MAX {
        return Ok(Who { worker, workers, attempt: options.attempt });
    }
    let max = sanderling_wire::limit::WORKERS_MAX;
    let reason = format!("worker {worker} of {workers}: they are numbered from 0, and there are 1 to {max}");
    Err(ClientError::Group { place: "group".to_owned(), reason })
}

/// Waits a little, longer the longer it has been since then.
fn nap(since: Instant) {
    let waited = since.elapsed();
    if waited < AWAKE {
        std::thread::yield_now();
    } else {
        std::thread::sleep((waited / 8).min(NAP_MAX));
    }
}
