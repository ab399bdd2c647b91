//! Measurements of the threads of a feed queue, added up when read. Knows no queue.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sanderling_observe::{Exposition, Labels, Latency, LatencySummary, StageTotal};
use serde::Serialize;

use crate::fed::PooledAt;

/// One thread's measurements; that thread is the only writer.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) read_sample: Latency,
    pub(crate) embedding_lookup: Latency,
    /// Waiting for room in the queue.
    pub(crate) queue_full: Latency,
    /// Waiting of the trainer for a minibatch.
    pub(crate) queue_empty: Latency,
    pub(crate) rows: u64,
}

/// The accounts of all threads.
#[derive(Debug, Default, Clone)]
pub(crate) struct Accounts {
    threads: Arc<Mutex<Vec<Arc<Mutex<Measured>>>>>,
}

/// One thread's account.
#[derive(Debug, Clone)]
pub(crate) struct Account(Arc<Mutex<Measured>>);

impl Account {
    /// Records a measurement; the lock is contended only during a read.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Measured)) {
        note(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Accounts {
    /// An account for one thread: one that a thread of an earlier pass has left, if there is one, so that passes without end do not
    /// need memory without end.
    pub(crate) fn open(&self) -> Account {
        let mut threads = self.lock();
        if let Some(left) = threads.iter().find(|measured| Arc::strong_count(measured) == 1) {
            return Account(Arc::clone(left));
        }
        let measured = Arc::<Mutex<Measured>>::default();
        threads.push(Arc::clone(&measured));
        Account(measured)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Mutex<Measured>>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sum over all threads.
    pub(crate) fn total(&self) -> Measured {
        let mut total = Measured::default();
        for thread in self.lock().iter() {
            let thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
            total.read_sample.merge(&thread.read_sample);
            total.embedding_lookup.merge(&thread.embedding_lookup);
            total.queue_full.merge(&thread.queue_full);
            total.queue_empty.merge(&thread.queue_empty);
            total.rows += thread.rows;
        }
        total
    }
}

/// A feed queue's counts, and where its time went.
#[derive(Debug, Clone, Serialize)]
pub struct FeedStatistics {
    /// Minibatches that the trainer has taken.
    pub batches: u64,
    /// Samples that were read.
    pub rows: u64,
    /// Rows of files that could not be read and were left out, in all passes; hubs account for theirs.
    pub bad_rows: u64,
    /// The errors of the first ones.
    pub bad_row_messages: Vec<String>,
    /// Minibatches that are ready now.
    pub ready: usize,
    /// Since the start.
    pub seconds: f64,
    /// Share of that time in which the trainer waited for a minibatch.
    pub trainer_waits: f64,
    /// Share of the threads' time in which they waited because the queue was full.
    pub threads_wait: f64,
    /// Reading, decoding and assembling a minibatch.
    pub read_sample: LatencySummary,
    /// Pulling and pooling its rows.
    pub embedding_lookup: LatencySummary,
    /// From a push to its application.
    pub push_grad: LatencySummary,
    /// Where rows of tables on servers were pooled, over all queues of the embedding.
    pub pooled_at: PooledAt,
    /// The stages of reading, added up over threads.
    pub stages: Vec<StageTotal>,
    /// Which stage starves which.
    pub verdict: String,
}

/// Below this share of its time spent waiting, a trainer is not held up.
const WAIT_SHARE: f64 = 0.05;

impl FeedStatistics {
    /// Without bad rows.
    pub(crate) fn new(
        measured: &Measured,
        push_grad: LatencySummary,
        pooled_at: PooledAt,
        elapsed: Duration,
        threads: usize,
        ready: usize,
        stages: Vec<StageTotal>,
    ) -> FeedStatistics {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let queue_empty = measured.queue_empty.summary();
        let trainer_waits = queue_empty.sum_ns as f64 * 1e-9 / seconds;
        let threads_wait = measured.queue_full.summary().sum_ns as f64 * 1e-9 / seconds / threads as f64;
        let read_sample = measured.read_sample.summary();
        let embedding_lookup = measured.embedding_lookup.summary();
        let slowest =
            if read_sample.sum_ns >= embedding_lookup.sum_ns { "ReadSample" } else { "EmbeddingLookup" };
        let verdict = if queue_empty.count == 0 {
            "no minibatch was taken yet".to_owned()
        } else if trainer_waits < WAIT_SHARE {
            format!("the trainer is the bottleneck: it waits {:.1} % of its time", trainer_waits * 100.0)
        } else {
            format!("{slowest} starves the trainer, which waits {:.1} % of its time", trainer_waits * 100.0)
        };
        FeedStatistics {
            batches: queue_empty.count,
            rows: measured.rows,
            bad_rows: 0,
            bad_row_messages: Vec::new(),
            ready,
            seconds,
            trainer_waits,
            threads_wait,
            read_sample,
            embedding_lookup,
            push_grad,
            pooled_at,
            stages,
            verdict,
        }
    }
}

impl FeedStatistics {
    /// In the text format of Prometheus; `queue` is the label that tells several queues of a process apart.
    #[must_use]
    pub fn exposition(&self, queue: &str) -> String {
        let mut text = Exposition::default();
        let labels = [("queue", queue)];
        for (name, kind, help, value) in [
            ("batches_total", "counter", "Minibatches that the trainer has taken.", self.batches as f64),
            ("rows_total", "counter", "Samples that were read.", self.rows as f64),
            ("bad_rows_total", "counter", "Rows of files that were left out as bad.", self.bad_rows as f64),
            ("ready", "gauge", "Minibatches that are ready.", self.ready as f64),
            ("uptime_seconds", "gauge", "Time since the start.", self.seconds),
            ("trainer_waits_ratio", "gauge", "Share of it in which the trainer waited.", self.trainer_waits),
            (
                "threads_wait_ratio",
                "gauge",
                "Share in which threads found the queue full.",
                self.threads_wait,
            ),
        ] {
            let name = format!("sanderling_feed_{name}");
            text.family(&name, kind, help);
            text.sample(&name, &labels, value);
        }
        text.stages("sanderling_feed_reading", &labels, &self.stages);
        let stages = [
            ("ReadSample", self.read_sample),
            ("EmbeddingLookup", self.embedding_lookup),
            ("PushGrad", self.push_grad),
        ];
        let rows: Vec<(Labels<'_>, LatencySummary)> = stages
            .into_iter()
            .map(|(stage, summary)| (vec![("queue", queue), ("stage", stage)], summary))
            .collect();
        text.latencies("sanderling_feed_latency", "Time of a minibatch in a stage.", &rows);
        text.finish()
    }
}

impl fmt::Display for FeedStatistics {
    /// A line per stage: count, p50, p95, p99 and max in microseconds; then the verdict.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = [
            ("ReadSample", &self.read_sample),
            ("EmbeddingLookup", &self.embedding_lookup),
            ("PushGrad", &self.push_grad),
        ];
        for (name, summary) in stages {
            let us = |ns: u64| ns as f64 / 1000.0;
            writeln!(
                formatter,
                "{name:<15} count {}, p50 {:.0}, p95 {:.0}, p99 {:.0}, max {:.0} us",
                summary.count,
                us(summary.p50_ns),
                us(summary.p95_ns),
                us(summary.p99_ns),
                us(summary.max_ns)
            )?;
        }
        write!(formatter, "{}", self.verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_on_with_the_account_of_one_that_has_ended() {
        let accounts = Accounts::default();
        let trainer = accounts.open();
        for _ in 0..3 {
            let threads = [accounts.open(), accounts.open()];
            threads.iter().for_each(|account| account.note(|measured| measured.rows += 1));
        }
        trainer.note(|measured| measured.rows += 1);
        assert_eq!(accounts.total().rows, 7);
        assert_eq!(accounts.lock().len(), 3);
    }
}
