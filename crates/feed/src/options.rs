//! Options of a feed queue, and the combinations that are refused.

use sanderling_client::Stop;

use crate::error::FeedError;

/// Minibatches that may be ready.
pub const DEPTH_MAX: usize = 4096;
/// Threads of one queue.
pub const THREADS_MAX: usize = 64;

/// Options of a feed queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Samples of a minibatch.
    pub batch_rows: usize,
    /// Times that the input is gone through.
    pub passes: u64,
    /// Threads that read and look up. If minibatches come in order, as many other threads decode ahead.
    pub threads: usize,
    /// Minibatches that may be ready, at most [`DEPTH_MAX`].
    pub depth: usize,
    /// Bytes of ready minibatches, with their rows, beyond which nothing more is begun.
    pub depth_bytes: usize,
    /// Whether minibatches come in the order of the input, whatever the number of threads.
    pub ordered: bool,
    /// Rows of the shuffle buffer; 0 keeps the input's order.
    pub shuffle: usize,
    /// Seed of the shuffle.
    pub seed: u64,
    /// Of every `ranks` minibatches this queue takes one, the one with this number. Needs an order.
    pub rank: u64,
    /// How many queues share the input.
    pub ranks: u64,
    /// Rows of the first pass, of all ranks together, that were used before and are passed over. Needs an order.
    pub used_rows: u64,
    /// The stop check of waits for a minibatch; the default is that of the tables' servers.
    pub stop: Option<Stop>,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions {
            batch_rows: 1024,
            passes: 1,
            threads: 2,
            depth: 8,
            depth_bytes: 1 << 30,
            ordered: true,
            shuffle: 0,
            seed: 0,
            rank: 0,
            ranks: 1,
            used_rows: 0,
            stop: None,
        }
    }
}

impl QueueOptions {
    pub(crate) fn check(&self) -> Result<(), FeedError> {
        let within = |option: &'static str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let reason = format!("{value}: {least} to {most} are possible");
            Err(FeedError::Option { option, reason })
        };
        within("batch_size", self.batch_rows as u64, 1, 1 << 24)?;
        within("passes", self.passes, 1, u64::MAX)?;
        within("threads", self.threads as u64, 1, THREADS_MAX as u64)?;
        within("depth", self.depth as u64, 1, DEPTH_MAX as u64)?;
        within("depth_bytes", self.depth_bytes as u64, 1, u64::MAX)?;
        within("ranks", self.ranks, 1, u64::MAX)?;
        within("rank", self.rank, 0, self.ranks - 1)?;
        for (is_set, what) in [
            (self.ranks > 1, "several ranks share an input by the order of its minibatches"),
            (self.used_rows > 0, "which rows were used before, only an order says"),
        ] {
            if is_set && !self.ordered {
                return Err(FeedError::Option { option: "ordered", reason: what.to_owned() });
            }
        }
        Ok(())
    }
}
