//! The rows of requests that wait for a run of their model's dense part. Knows no model and no thread.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sanderling_observe::Latency;
use tokio::sync::Notify;

use crate::dense::DenseInputs;
use crate::error::ServeError;

/// When a batch is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batching {
    /// Time from the first request of a batch to its run; zero: each request runs alone.
    pub(crate) window: Duration,
    /// Rows from which on a batch runs at once. Requests with more rows run alone.
    pub(crate) rows_max: usize,
}

/// A request that waits, of any answer.
pub(crate) trait Ticket: Send {
    /// Whether the client has gone, or its time limit has passed.
    fn is_gone(&self) -> bool;
    /// Notes that it waited since a moment, and that its batch is run from another one to now.
    fn note_run(&self, since: Instant, began: Instant);
    /// Answers with the scores or the error of its rows.
    fn tell(self: Box<Self>, scores: Result<Vec<f32>, ServeError>);
}

/// The rows of a request in a batch.
pub(crate) struct Entry {
    pub(crate) inputs: DenseInputs,
    pub(crate) since: Instant,
    pub(crate) ticket: Box<dyn Ticket>,
}

/// The batches of one version of a model.
#[derive(Default)]
pub(crate) struct Batches {
    open: Mutex<Open>,
    /// A batch has all the rows that it may have.
    pub(crate) full: Notify,
    pub(crate) statistics: Mutex<Statistics>,
}

/// Requests that wait for the next run.
#[derive(Default)]
pub(crate) struct Open {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) rows: usize,
    pub(crate) is_scheduled: bool,
}

/// Requests that a run left.
pub(crate) struct Left {
    /// Time since the first of them came.
    pub(crate) age: Duration,
    pub(crate) is_full: bool,
}

/// Numbers since the start.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    pub(crate) batches: u64,
    pub(crate) requests: u64,
    pub(crate) rows: u64,
    pub(crate) wait: Latency,
}

impl Batches {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request; returns whether a run has to be scheduled.
    pub(crate) fn join(&self, entry: Entry, rows_max: usize) -> bool {
        let mut open = self.lock();
        open.rows += entry.inputs.rows;
        open.entries.push_back(entry);
        if open.rows >= rows_max {
            self.full.notify_one();
        }
        !std::mem::replace(&mut open.is_scheduled, true)
    }

    /// Takes the requests of the next run, and tells what it leaves.
    pub(crate) fn take(&self, rows_max: usize) -> (Vec<Entry>, Option<Left>) {
        let mut open = self.lock();
        let (mut taken, mut rows) = (Vec::new(), 0);
        while let Some(entry) = open.entries.pop_front() {
            open.rows -= entry.inputs.rows;
            if entry.ticket.is_gone() {
                continue;
            }
            if !taken.is_empty() && rows + entry.inputs.rows > rows_max {
                open.rows += entry.inputs.rows;
                open.entries.push_front(entry);
                break;
            }
            rows += entry.inputs.rows;
            taken.push(entry);
        }
        let is_full = open.rows >= rows_max;
        let left = open.entries.front().map(|entry| Left { age: entry.since.elapsed(), is_full });
        open.is_scheduled = left.is_some();
        (taken, left)
    }

    pub(crate) fn note(&self, entries: &[Entry], rows: usize) {
        let mut statistics = self.statistics.lock().unwrap_or_else(PoisonError::into_inner);
        statistics.batches += 1;
        statistics.requests += entries.len() as u64;
        statistics.rows += rows as u64;
        entries.iter().for_each(|entry| statistics.wait.record(entry.since.elapsed()));
    }
}
