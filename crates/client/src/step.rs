//! Workers that train together: synchronous steps, whose gradients are summed over all workers and applied once;
//! asynchronous steps with a bound on how far a worker is ahead of the slowest; and collectives. Knows no model.
//!
//! The workers meet at the servers of a cluster or, as threads of one process, at a [`Meeting`]. Every wait has a
//! time limit; its error names the missing workers.

mod collective;
mod servers;

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use sanderling_store::{PushScale, StoreError, Table, bad_gradient};
use sanderling_sync::{CancelFlags, GradientsRef, Meeting, MeetingError, Participant, Progress, StepReport};
use sanderling_wire::StepGradients;

use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::remote::RemoteTable;
use servers::Servers;

pub use collective::Reduce;
/// Waits shorter than this stay awake.
const AWAKE: Duration = Duration::from_micros(100);
/// Longer waits sleep for an eighth of the time waited so far, up to this.
const NAP_MAX: Duration = Duration::from_millis(1);

/// The place of a meeting of threads, in messages.
const THIS_PROCESS: &str = "this process";

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
/// Gradients of a step are handed in with [`SyncGroup::push_step`], once or several times;
/// [`SyncGroup::wait_applied`] ends the step. Steps are numbered from 1 without gaps, anew for each group. All
/// workers must call collectives ([`SyncGroup::barrier`] and others) in the same order.
#[derive(Debug)]
pub struct SyncGroup {
    way: Way,
    participant: Participant,
    timeout: Duration,
    cancel: CancelFlags,
    /// The last step that is applied, as far as this worker knows.
    applied: u64,
    /// The last step that this worker handed something in for.
    handed: u64,
    /// The next meeting.
    round: u64,
}

/// An error if a cancel flag is set.
fn check_cancel(
    cancel: &CancelFlags,
    place: impl FnOnce() -> String,
    what: impl FnOnce() -> String,
) -> Result<(), ClientError> {
    if cancel.is_set() { Err(ClientError::CalledOff { place: place(), what: what() }) } else { Ok(()) }
}

/// Where the workers meet.
#[derive(Debug)]
enum Way {
    Here(Arc<Meeting>, Handed),
    Servers(Box<Servers>),
}

/// The messages that were handed in for a step at one place.
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
        let participant = check(worker, workers, options)?;
        let mut servers = Box::new(Servers::new(cluster, tables, group, participant)?);
        let (applied, round) = servers.recover(options.timeout)?;
        let (way, cancel) = (Way::Servers(servers), CancelFlags::default());
        Ok(SyncGroup { way, participant, timeout: options.timeout, cancel, applied, handed: 0, round })
    }

    /// Takes the places of dead workers and completes decided steps for them; the last applied step.
    ///
    /// A step that any server has decided is completed on all. With a higher attempt in `options` the earlier
    /// processes are shut out.
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
        let participant = check(worker, meeting.workers(), options)?;
        let Progress { applied, round, .. } = meeting.recover(participant, options.timeout)?;
        let way = Way::Here(Arc::clone(meeting), Handed::default());
        let cancel = CancelFlags::default();
        Ok(SyncGroup { way, participant, timeout: options.timeout, cancel, applied, handed: 0, round })
    }

    /// Fails with [`ClientError::CalledOff`] once a cancel flag is set, for waits of the caller's own for `what`.
    pub fn check_cancel(&self, what: &str) -> Result<(), ClientError> {
        check_cancel(&self.cancel, || self.place(), || what.to_owned())
    }

    /// Adds a cancel flag: once it is set, waits end with [`ClientError::CalledOff`] within moments. The awaited
    /// event may have happened, or may happen later.
    #[must_use]
    pub fn cancel_with(mut self, flag: &Arc<AtomicBool>) -> SyncGroup {
        self.cancel.add(flag);
        self
    }

    /// Which worker it is.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.participant.worker
    }

    /// How many there are.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.participant.workers
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
                let taken =
                    meeting.take(self.participant, at, table, (keys, counts), by_ref(gradients), scale);
                taken.inspect_err(|_| *handed = Handed::default())?;
            }
            Way::Servers(servers) => servers.push(step, table, keys, counts, gradients, scale)?,
        }
        self.handed = self.handed.max(step);
        Ok(())
    }

    /// The step that this worker has handed gradients in for and not waited for.
    ///
    /// None of it is applied before all workers do, and an unfinished part is lost.
    #[must_use]
    pub fn open_step(&self) -> Option<u64> {
        (self.handed > self.applied).then_some(self.handed)
    }

    /// Position of the table in the group's list, to which it is added; `None` without servers.
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

    /// Reports this worker's part of a step as complete, without waiting. The part may be empty.
    ///
    /// The caller can do other work before [`SyncGroup::wait_applied`], which reports errors.
    pub fn hand_over(&mut self, step: u64) {
        if let Way::Servers(servers) = &mut self.way
            && step > self.applied
        {
            servers.announce(step);
        }
    }

    /// Waits until the step is applied everywhere; reports this worker's part as complete if needed.
    ///
    /// A pull that begins afterwards sees the step.
    pub fn wait_applied(&mut self, step: u64) -> Result<(), ClientError> {
        if step <= self.applied {
            return Ok(());
        }
        match &mut self.way {
            Way::Here(meeting, handed) => {
                let said = meeting.whole(handed.of(step));
                meeting.wait(self.participant, step, said, self.timeout, &self.cancel)?;
            }
            Way::Servers(servers) => servers.wait_applied(step, self.timeout, &self.cancel)?,
        }
        self.applied = step;
        Ok(())
    }

    /// Reports an asynchronous step as finished, and waits while the slowest is over `bound` behind.
    ///
    /// Returns how many steps the slowest worker is behind then.
    pub fn progress(&mut self, step: u64, bound: u64) -> Result<u64, ClientError> {
        let (start, participant) = (Instant::now(), self.participant);
        loop {
            let progress = match &mut self.way {
                Way::Here(meeting, _) => {
                    let until = start + self.timeout;
                    meeting.say_until(
                        participant,
                        step,
                        StepReport::Finished,
                        until,
                        &self.cancel,
                        |progress| step <= progress.finished.saturating_add(bound),
                    )?
                }
                Way::Servers(servers) => servers.say(0, step, StepReport::Finished)?,
            };
            if step <= progress.finished.saturating_add(bound) {
                return Ok(step.saturating_sub(progress.finished));
            }
            if start.elapsed() >= self.timeout {
                let what = format!("step {step}, more than {bound} ahead");
                return Err(self.awaited(what, progress.missing));
            }
            check_cancel(&self.cancel, || self.place(), || format!("step {step}"))?;
            nap(start);
        }
    }

    /// Where they meet, for messages.
    fn place(&self) -> String {
        match &self.way {
            Way::Here(..) => THIS_PROCESS.to_owned(),
            Way::Servers(servers) => servers.name(0),
        }
    }

    fn awaited(&self, what: String, workers: Vec<u32>) -> ClientError {
        ClientError::Awaited { place: self.place(), what, workers, timeout: self.timeout }
    }
}

fn by_ref(gradients: StepGradients<'_>) -> GradientsRef<'_> {
    match gradients {
        StepGradients::Single(values) => GradientsRef::Single(values),
        StepGradients::Fixed { unit_log2, sums } => GradientsRef::Fixed { unit_log2, sums },
    }
}

impl From<MeetingError> for ClientError {
    fn from(error: MeetingError) -> ClientError {
        let place = THIS_PROCESS.to_owned();
        match error {
            MeetingError::Refused(reason) => ClientError::Group { place, reason },
            MeetingError::Awaited { what, workers, timeout } => {
                ClientError::Awaited { place, what, workers, timeout }
            }
            MeetingError::Cancelled { what } => ClientError::CalledOff { place, what },
        }
    }
}

fn check(worker: u32, workers: u32, options: SyncOptions) -> Result<Participant, ClientError> {
    if worker < workers && workers as usize <= sanderling_wire::limit::WORKERS_MAX {
        return Ok(Participant { worker, workers, attempt: options.attempt });
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
