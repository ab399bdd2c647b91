//! Results of the requests to tables, and what counts of them. Knows neither transport nor caller.

use std::time::Instant;

use sanderling_client::Call;

/// A table that a thread has opened: its position among those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub u32);

/// Kind of a request, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // as the requests
pub enum Operation {
    Pull,
    PullPooled,
    Push,
    Delete,
}

impl Operation {
    /// All, in order.
    pub const ALL: [Operation; 4] =
        [Operation::Pull, Operation::PullPooled, Operation::Push, Operation::Delete];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Pull => "pull",
            Operation::PullPooled => "pull_pooled",
            Operation::Push => "push",
            Operation::Delete => "delete",
        }
    }
}

/// A request that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The slot for which it was begun.
    pub slot: usize,
    /// Kind of the request.
    pub operation: Operation,
    /// Keys that it had.
    pub keys: usize,
    /// When it was begun.
    pub sent: Instant,
    /// When its answer was there.
    pub done: Instant,
    /// The result.
    pub outcome: Result<Outcome, Failure>,
}

/// Result of a successful request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Keys that had no row.
    pub missing: usize,
    /// Bytes of keys, gradients and rows that were asked and answered.
    pub bytes: u64,
}

/// Why a request came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {reason}")]
pub struct Failure {
    /// A short name to count by, such as `busy`, `late`, `table_full`, `unknown_table`, `lost`.
    pub kind: &'static str,
    /// The whole message, with table and server.
    pub reason: String,
}

/// Kind, keys and bytes of a call.
pub(crate) fn parts<'a>(call: &Call<'a>) -> (Operation, &'a [u64], u64) {
    let (operation, keys, more) = match *call {
        Call::Pull { keys, .. } => (Operation::Pull, keys, 0),
        Call::PullPooled { keys, offsets, .. } => (Operation::PullPooled, keys, size_of_val(offsets)),
        Call::Push { keys, grads, .. } => (Operation::Push, keys, size_of_val(grads)),
        Call::Delete { keys } => (Operation::Delete, keys, 0),
    };
    (operation, keys, (size_of_val(keys) + more) as u64)
}
