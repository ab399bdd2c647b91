//! One worker of a job: its rank and its collectives. Knows nothing of rows.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_client::{ClientError, Reduce, SyncGroup};
use sanderling_observe::StageTimer;

use crate::error::JobError;
use crate::halt::Halt;
use crate::hosts::survivors::Survivors;
use crate::mesh::{Mesh, PARCEL_BYTES, Parcel};
use crate::options::Options;
use crate::stages::WAIT;

/// The most counts of a histogram; a longer one is refused.
const HISTOGRAM_MAX: usize = 1 << 24;
/// The operation that a lost worker interrupts, in messages.
const TOGETHER: &str = "something that all do together";
/// How long a worker waits for a parcel before it looks at the time.
pub(crate) const RECEIVE: Duration = Duration::from_millis(100);

/// One worker of a job, for its thread.
#[derive(Debug)]
pub struct Worker {
    rank: u32,
    workers: u32,
    pub(crate) group: SyncGroup,
    pub(crate) mesh: Mesh,
    pub(crate) halt: Halt,
    pub(crate) timer: StageTimer,
    pub(crate) seed: u64,
    pub(crate) timeout: Duration,
    /// Bytes of shuffled rows that this worker keeps in memory.
    pub(crate) shuffle_bytes_max: usize,
    pub(crate) scratch_dir: PathBuf,
    /// Number of the next exchange over the mesh.
    pub(crate) round: u64,
    /// Passes that were begun.
    pub(crate) turns: u64,
    /// Steps of its own that it has finished in this one.
    pub(crate) paced: u64,
    /// Whether this one is not over yet.
    pub(crate) is_in_turn: bool,
    /// The group of workers on several hosts.
    pub(crate) survivors: Option<Survivors>,
}

/// A worker that an interpreter keeps among its objects: it is there until its function has returned.
#[derive(Debug, Clone)]
pub struct SharedWorker {
    rank: u32,
    workers: u32,
    worker: Arc<Mutex<Option<Worker>>>,
}

impl SharedWorker {
    pub(crate) fn new(worker: Worker) -> SharedWorker {
        let (rank, workers) = (worker.rank(), worker.workers());
        SharedWorker { rank, workers, worker: Arc::new(Mutex::new(Some(worker))) }
    }

    /// Which worker it is, from 0 on.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are; those that were lost are counted, too.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// Does something with it; an error once its function has returned.
    pub fn with<T>(&self, work: impl FnOnce(&mut Worker) -> Result<T, JobError>) -> Result<T, JobError> {
        // A worker is as good after a panic as after an error.
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        match worker.as_mut() {
            Some(worker) => work(worker),
            None => Err(JobError::Options(format!(
                "worker {} is used after the function that it was given to has returned: its job is over",
                self.rank
            ))),
        }
    }

    pub(crate) fn take_back(&self) -> Option<Worker> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Worker {
    pub(crate) fn new(
        group: SyncGroup,
        mesh: Mesh,
        timer: StageTimer,
        options: &Options,
        shuffle_bytes_max: usize,
    ) -> Worker {
        let Options { seed, timeout, ref scratch_dir, .. } = *options;
        let scratch_dir = scratch_dir.clone();
        Worker {
            rank: group.worker(),
            workers: group.workers(),
            group,
            halt: mesh.halt(),
            mesh,
            timer,
            seed,
            timeout,
            shuffle_bytes_max,
            scratch_dir,
            round: 0,
            turns: 0,
            paced: 0,
            is_in_turn: false,
            survivors: None,
        }
    }

    /// Which worker it is, from 0 on.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are; those that were lost are counted, too.
    #[must_use]
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// This thread's stopwatch. Whatever is called with the worker leaves it in one of [`crate::STAGES`].
    pub fn timer(&mut self) -> &mut StageTimer {
        &mut self.timer
    }

    /// The group that this worker is one of, for pushing in step. What all do together is done with the worker itself, which
    /// goes on without one that is lost; a wait of the group is called off then.
    pub fn group(&mut self) -> &mut SyncGroup {
        &mut self.group
    }

    /// Each number becomes the sum of those of all workers, added in their order: the same bits for all.
    pub fn sum(&mut self, name: &str, values: &mut [f64]) -> Result<(), JobError> {
        self.reduce(name, values, Reduce::Sum)
    }

    /// Each number becomes the mean of those of all workers.
    pub fn mean(&mut self, name: &str, values: &mut [f64]) -> Result<(), JobError> {
        self.reduce(name, values, Reduce::Mean)
    }

    /// Each number becomes the largest of those of all workers.
    pub fn max(&mut self, name: &str, values: &mut [f64]) -> Result<(), JobError> {
        self.reduce(name, values, Reduce::Max)
    }

    fn reduce(&mut self, name: &str, values: &mut [f64], reduce: Reduce) -> Result<(), JobError> {
        let mine = values.to_vec();
        self.meet(|group| {
            values.copy_from_slice(&mine);
            group.all_reduce(name, values, reduce)
        })
    }

    /// Counts become the sums of those of all workers; as many as the longest list has.
    pub fn histogram(&mut self, name: &str, counts: &mut Vec<u64>) -> Result<(), JobError> {
        let mut longest = [0];
        self.meet(|group| {
            longest = [counts.len() as u64];
            group.all_reduce_counts(name, &mut longest, Reduce::Max)
        })?;
        if longest[0] > HISTOGRAM_MAX as u64 {
            let reason = format!("histogram {name:?} of {} counts: at most {HISTOGRAM_MAX}", longest[0]);
            return Err(JobError::Options(reason));
        }
        counts.resize(longest[0] as usize, 0);
        let mine = counts.clone();
        self.meet(|group| {
            counts.copy_from_slice(&mine);
            group.all_reduce_counts(name, counts, Reduce::Sum)
        })
    }

    /// Everybody's bytes, in the order of workers; without those of whoever is lost. At most 1 MiB each, and where the workers
    /// meet at servers an equal part of not quite 16 MiB.
    pub fn all_gather(&mut self, name: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, JobError> {
        self.meet(|group| group.all_gather(name, bytes))
    }

    /// Waits until all workers are here.
    pub fn barrier(&mut self, name: &str) -> Result<(), JobError> {
        self.meet(|group| group.barrier(name))
    }

    /// Its place among the live workers, in their order; equal to its rank without losses.
    pub(crate) fn place(&self) -> u32 {
        self.group.worker()
    }

    /// How many live.
    pub(crate) fn living(&self) -> u32 {
        self.group.workers()
    }

    /// Ranks of those who live, in the order of their places.
    fn members(&self) -> Vec<u32> {
        self.links().map_or_else(|| (0..self.workers).collect(), |links| links.members().to_vec())
    }

    /// Sends `parts[n]` to the worker of rank `n`; returns the parts of all workers, by rank.
    ///
    /// There is one part for each of [`Worker::workers`]. The parts to and from a lost worker are empty; a non-empty
    /// part for one is an error that names it. An [`Worker::all_gather`] of ranks tells which workers are alive.
    pub fn all_to_all(&mut self, name: &str, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, JobError> {
        let refused = |reason| Err(JobError::Options(format!("all_to_all {name:?}: {reason}")));
        if parts.len() != self.workers as usize {
            return refused(format!("{} parts for {} workers", parts.len(), self.workers));
        }
        let members = self.members();
        let is_for_lost = |&rank: &u32| !members.contains(&rank) && !parts[rank as usize].is_empty();
        let lost: Vec<u32> = (0..self.workers).filter(is_for_lost).collect();
        if !lost.is_empty() {
            let reason = format!(
                "bytes for workers {lost:?}, which are lost: give them to others; an all_gather of ranks says who is there"
            );
            return refused(reason);
        }
        let part = |&rank: &u32| std::mem::take(&mut parts[rank as usize]);
        let received = self.exchange_parts(name, members.iter().map(part).collect())?;
        for (&rank, part) in members.iter().zip(received) {
            parts[rank as usize] = part;
        }
        Ok(parts)
    }

    /// The exchange among live workers, in the order of their places.
    fn exchange_parts(&mut self, name: &str, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, JobError> {
        let (rank, workers) = (self.place(), self.living());
        self.timer.switch(WAIT);
        let round = self.next_round();
        let (received, missing) = (vec![Vec::new(); parts.len()], (0..workers).filter(|&from| from != rank));
        let mut gathering = Gathering { round, received, missing: missing.collect() };
        gathering.received[rank as usize] = std::mem::take(&mut parts[rank as usize]);
        // Everybody begins with another one, so that not all send to the same.
        for to in (rank + 1..workers).chain(0..rank) {
            let part = std::mem::take(&mut parts[to as usize]);
            let mut at = 0;
            loop {
                let end = part.len().min(at + PARCEL_BYTES);
                let (is_last, bytes) = (end == part.len(), part[at..end].to_vec());
                let parcel = Parcel::Bytes { round, is_last, bytes };
                self.send(to, parcel, |_, from, parcel| gathering.take(rank, from, parcel))?;
                at = end;
                if is_last {
                    break;
                }
            }
        }
        let mut since = Instant::now();
        while !gathering.missing.is_empty() {
            match self.mesh.receive(RECEIVE)? {
                Some((from, parcel)) => {
                    gathering.take(rank, from, parcel)?;
                    since = Instant::now();
                }
                None if since.elapsed() < self.timeout => {}
                None => return Err(self.awaited_at(name, &gathering.missing)),
            }
        }
        self.group.barrier(name).map_err(|error| self.called_off(error))?;
        Ok(gathering.received)
    }

    /// Fails once the job is asked to stop ([`Options::stop`]). Waits and reads of this crate check it themselves.
    pub fn check_halt(&self) -> Result<(), JobError> {
        self.halt.check()
    }

    /// Fails once the job is asked to stop, or another worker has failed: for waits of the caller's own for `what`.
    pub fn check_going_on(&self, what: &str) -> Result<(), JobError> {
        self.check_halt()?;
        self.group.check_cancel(what).map_err(|error| self.called_off(error))
    }

    /// Fails if this worker handed in gradients for a step without waiting for its end: they would be lost.
    pub(crate) fn check_step_ended(&self) -> Result<(), JobError> {
        let open = self.group.open_step();
        open.map_or(Ok(()), |step| Err(JobError::OpenStep { worker: self.rank, step }))
    }

    /// The cause of a cancelled wait: a stop or a lost worker; other errors stay.
    pub(crate) fn called_off(&self, error: ClientError) -> JobError {
        match (&error, self.check_halt()) {
            (ClientError::CalledOff { .. } | ClientError::Stopped { .. }, Err(halted)) => halted,
            (ClientError::CalledOff { .. }, Ok(())) => {
                self.lost_amid(TOGETHER).unwrap_or_else(|| error.into())
            }
            _ => error.into(),
        }
    }

    /// Whatever its group says, it is this one of so many.
    #[cfg(test)]
    pub(crate) fn is_of(&mut self, rank: u32, workers: u32) {
        (self.rank, self.workers) = (rank, workers);
    }

    pub(crate) fn next_round(&mut self) -> u64 {
        self.set_round(self.round + 1);
        self.round
    }

    pub(crate) fn set_round(&mut self, round: u64) {
        self.round = round;
        if let Mesh::Remote(links) = &mut self.mesh {
            links.set_round(round);
        }
    }

    /// Sends a parcel; `take` gets what is received while the other's queue is full.
    pub(crate) fn send(
        &mut self,
        to: u32,
        parcel: Parcel,
        mut take: impl FnMut(&mut Worker, u32, Parcel) -> Result<(), JobError>,
    ) -> Result<(), JobError> {
        let mut unsent = self.mesh.try_send(to, parcel)?;
        let mut since = None;
        while let Some(parcel) = unsent {
            if let Some((from, received)) = self.mesh.receive(SEND_AGAIN)? {
                take(self, from, received)?;
            } else if since.get_or_insert_with(Instant::now).elapsed() >= self.timeout {
                return Err(self.awaited_at("a queue with room", &[to]));
            }
            unsent = self.mesh.try_send(to, parcel)?;
        }
        Ok(())
    }

    pub(crate) fn awaited(&self, what: &str, missing: Vec<u32>) -> JobError {
        let timeout_s = self.timeout.as_secs();
        JobError::Awaited { worker: self.rank(), what: what.to_owned(), missing, timeout_s }
    }

    /// The error for missing workers at these places of the group.
    pub(crate) fn awaited_at(&self, what: &str, places: &[u32]) -> JobError {
        let members = self.members();
        self.awaited(what, places.iter().filter_map(|&place| members.get(place as usize).copied()).collect())
    }
}

/// How long whoever cannot send waits for something to receive before it tries again.
const SEND_AGAIN: Duration = Duration::from_micros(200);

/// The state of an all-to-all at the receiver.
struct Gathering {
    round: u64,
    received: Vec<Vec<u8>>,
    /// Workers that have not sent all of their part.
    missing: Vec<u32>,
}

impl Gathering {
    fn take(&mut self, worker: u32, from: u32, parcel: Parcel) -> Result<(), JobError> {
        match parcel {
            Parcel::Bytes { round, is_last, bytes } if round == self.round => {
                let part = &mut self.received[from as usize];
                if part.is_empty() {
                    *part = bytes;
                } else {
                    part.extend_from_slice(&bytes);
                }
                if is_last {
                    self.missing.retain(|&worker| worker != from);
                }
                Ok(())
            }
            _ => {
                let reason =
                    format!("worker {from} sends something else than bytes of exchange {}", self.round);
                Err(JobError::OutOfStep { worker, reason })
            }
        }
    }
}

#[cfg(test)]
mod tests;
