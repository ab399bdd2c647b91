//! The replay of a recording: lets each pull see the rows of the recorded versions, and applies each row's updates in
//! the recorded order. Knows no learner.
//!
//! Pulls and pushes wait per row, not per minibatch: in the recording, pushes of two workers may have passed each other
//! in different rows. There is always a row that can go on, because the recorded run is such an order.
//!
//! | event | waits until |
//! |---|---|
//! | a pull reads a row | the row has the version that the recorded pull saw |
//! | a push updates a row | the row has the version before, and every pull that saw this version has read it |
//!
//! Only pulls that were overtaken by a push need the second rule: a worker's own push comes after its pull anyway. Their
//! keys are in the recording. An overtaken pull's entry comes before the second entry of its worker after that of the
//! push, so a push waits until one later entry of each worker was read.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_store::Table;

use super::damaged;
use super::digest::of_tables;
use super::file::{Entry, RecordingReader};
use super::minibatch::Minibatch;
use crate::error::LearnError;

/// Bytes of entries that were read and not replayed yet. A recording of this program has less.
const QUEUED_BYTES_MAX: usize = 1 << 30;
/// Interval at which a waiting worker checks for a stop.
const POLL: Duration = Duration::from_millis(50);

/// A minibatch of the recording, with its number in the file.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) minibatch: Minibatch,
    pub(super) at: u64,
    bytes: usize,
}

/// The replay, shared by the workers.
pub(in crate::distributed) struct Replayer {
    pub(super) tables: Vec<Arc<Table>>,
    state: Mutex<State>,
    /// A row was read or updated, or nothing can go on.
    moved: Condvar,
    /// Whether pulls and pushes wait. A planted fault for tests: without it a replay is a race like the recorded run.
    pub(super) waits: bool,
}

struct State {
    reader: RecordingReader,
    /// Entries read so far.
    entries: u64,
    queues: Vec<VecDeque<Queued>>,
    queued_bytes: usize,
    /// Per worker the number of the last entry read, or `u64::MAX` after its last one in the pass.
    read_to: Vec<u64>,
    /// Per worker the passes that were read, and that were replayed.
    passes: Vec<(u64, u64)>,
    /// Versions of rows, by table and key, that pulls have yet to read before the rows are updated.
    awaited: HashMap<(usize, u64), Vec<u32>>,
    /// Minibatches and digest of the end mark.
    end: Option<(u64, u64)>,
    replayed: u64,
    /// Number of changes that waiting workers may wait for.
    changes: u64,
    /// Workers that wait since the last change, and those whose pass is over.
    waiting: usize,
    idle: usize,
    is_stuck: bool,
}

impl State {
    /// Reads an entry; false at the end.
    fn read(&mut self) -> Result<bool, LearnError> {
        if self.end.is_some() {
            return Ok(false);
        }
        let entry = self.reader.next()?;
        self.entries += 1;
        match entry {
            Entry::Minibatch(minibatch) => {
                for (table, order) in minibatch.tables.iter().enumerate() {
                    for &(position, key) in &order.overtaken {
                        let version = order.pulled[position as usize];
                        self.awaited.entry((table, key)).or_default().push(version);
                    }
                }
                let (worker, bytes) = (minibatch.worker as usize, self.reader.entry_bytes());
                self.read_to[worker] = self.entries;
                self.queued_bytes += bytes;
                if self.queued_bytes > QUEUED_BYTES_MAX {
                    let reason = format!(
                        "its workers are more than {QUEUED_BYTES_MAX} bytes apart; record again with --staleness"
                    );
                    return Err(damaged(self.reader.path(), reason));
                }
                self.queues[worker].push_back(Queued { minibatch, at: self.entries, bytes });
            }
            Entry::PassEnd { worker } => {
                self.passes[worker as usize].0 += 1;
                self.read_to[worker as usize] = u64::MAX;
                if self.read_to.iter().all(|&read| read == u64::MAX) {
                    self.read_to.fill(self.entries);
                }
            }
            Entry::End { minibatches, digest } => {
                self.end = Some((minibatches, digest));
                self.read_to.fill(u64::MAX);
            }
        }
        Ok(true)
    }

    /// Reads until there is a minibatch of a worker, or its pass has no further one (false).
    fn read_for(&mut self, worker: usize) -> Result<bool, LearnError> {
        loop {
            if !self.queues[worker].is_empty() {
                return Ok(true);
            }
            let (read, replayed) = self.passes[worker];
            if read > replayed || !self.read()? {
                return Ok(false);
            }
        }
    }
}

impl Replayer {
    pub(super) fn new(reader: RecordingReader, tables: Vec<Arc<Table>>) -> Replayer {
        let workers = reader.header.workers as usize;
        let state = State {
            reader,
            entries: 0,
            queues: (0..workers).map(|_| VecDeque::new()).collect(),
            queued_bytes: 0,
            read_to: vec![0; workers],
            passes: vec![(0, 0); workers],
            awaited: HashMap::new(),
            end: None,
            replayed: 0,
            changes: 0,
            waiting: 0,
            idle: 0,
            is_stuck: false,
        };
        Replayer { tables, state: Mutex::new(state), moved: Condvar::new(), waits: true }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An error of the file, or of a run that is not the recorded one.
    pub(super) fn error(&self, reason: impl Into<String>) -> LearnError {
        damaged(self.lock().reader.path(), reason)
    }

    /// The next minibatch of a worker. A push of it may begin: the pulls that it must not overtake are known.
    pub(super) fn next(&self, worker: u32) -> Result<Queued, LearnError> {
        let mut state = self.lock();
        if !state.read_for(worker as usize)? {
            let reason =
                format!("worker {worker} has more minibatches than in the recording: the input differs");
            return Err(damaged(state.reader.path(), reason));
        }
        let at = state.queues[worker as usize].front().map_or(0, |queued| queued.at);
        let is_behind =
            |state: &State| (0..).zip(&state.read_to).any(|(other, &read)| other != worker && read <= at);
        while is_behind(&state) && state.read()? {}
        let queued = state.queues[worker as usize].pop_front();
        let Some(queued) = queued else { unreachable!("read_for has found it") };
        state.queued_bytes -= queued.bytes;
        Ok(queued)
    }

    /// Ends the pass of a worker.
    pub(super) fn end_pass(&self, worker: u32) -> Result<(), LearnError> {
        let mut state = self.lock();
        if state.read_for(worker as usize)? {
            let reason =
                format!("worker {worker} has fewer minibatches than in the recording: the input differs");
            return Err(damaged(state.reader.path(), reason));
        }
        state.passes[worker as usize].1 += 1;
        state.idle += 1;
        if state.idle == state.queues.len() {
            state.idle = 0;
        }
        drop(state);
        self.change(1);
        Ok(())
    }

    /// Number of changes so far, for [`Replayer::wait`].
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Tells waiting workers that so many rows were read or updated.
    pub(super) fn change(&self, rows: usize) {
        if rows > 0 {
            let mut state = self.lock();
            state.changes += 1;
            state.waiting = 0;
            drop(state);
            self.moved.notify_all();
        }
    }

    /// Waits until there was a change after the first `seen`.
    pub(super) fn wait(
        &self,
        seen: u64,
        check: &dyn Fn() -> Result<(), LearnError>,
    ) -> Result<(), LearnError> {
        let mut state = self.lock();
        if state.changes == seen {
            state.waiting += 1;
            if state.waiting + state.idle == state.queues.len() {
                state.is_stuck = true;
                self.moved.notify_all();
            }
        }
        while state.changes == seen && !state.is_stuck {
            state = self.moved.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
            check()?;
        }
        if state.is_stuck {
            let reason =
                "no worker can go on: it is not the recording of this run, or another program wrote it";
            return Err(damaged(state.reader.path(), reason));
        }
        Ok(())
    }

    /// Notes that a pull has read these versions, which others may replace now.
    pub(super) fn have_read(&self, table: usize, rows: &[(u64, u32)]) {
        if rows.is_empty() {
            return;
        }
        let awaited = &mut self.lock().awaited;
        for &(key, version) in rows {
            let Some(versions) = awaited.get_mut(&(table, key)) else { continue };
            if let Some(at) = versions.iter().position(|&awaited| awaited == version) {
                versions.swap_remove(at);
            }
            if versions.is_empty() {
                awaited.remove(&(table, key));
            }
        }
    }

    /// Keeps the positions whose rows no pull has yet to read in the version before their update.
    pub(super) fn keep_free(&self, table: usize, keys: &[u64], pushed: &[u32], positions: &mut Vec<u32>) {
        let awaited = &self.lock().awaited;
        positions.retain(|&at| {
            let (key, before) = (keys[at as usize], pushed[at as usize] - 1);
            awaited.get(&(table, key)).is_none_or(|versions| !versions.contains(&before))
        });
    }

    /// Counts a replayed minibatch.
    pub(super) fn count(&self) {
        self.lock().replayed += 1;
    }

    /// Compares the tables with the recorded ones; returns what was replayed, in words.
    pub(super) fn finish(self) -> Result<String, LearnError> {
        let mut state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        while state.end.is_none() && state.read()? {}
        let path = state.reader.path();
        let (minibatches, digest) = state.end.unwrap_or_default();
        if state.replayed != minibatches {
            let reason = format!(
                "{} of its {minibatches} minibatches were replayed: the input or the validation differs",
                state.replayed
            );
            return Err(damaged(path, reason));
        }
        let found = of_tables(&self.tables);
        if found != digest {
            let reason = format!(
                "the replay ended with other tables ({found:016x}) than the recording ({digest:016x}): another version of \
                 sanderling, or another kind of CPU"
            );
            return Err(damaged(path, reason));
        }
        Ok(format!(
            "replayed {minibatches} minibatches of {}: the tables have the recorded bits, {digest:016x}",
            path.display()
        ))
    }
}
