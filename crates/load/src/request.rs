//! Requests to tables and their results. Knows neither transport nor caller.

use std::time::Instant;

use sanderling_store::Pooling;

/// A table that a thread has opened: its position among those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub u32);

/// A request.
#[derive(Debug, Clone, Copy)]
pub enum Request<'a> {
    /// Rows of keys.
    Pull {
        /// Of which table.
        table: TableId,
        /// Any number, with or without duplicates.
        keys: &'a [u64],
    },
    /// One row per sample, pooled from the rows of its keys.
    PullPooled {
        /// Of which table.
        table: TableId,
        /// All samples' keys.
        keys: &'a [u64],
        /// Where each sample's keys start; one more than samples, from 0 to the number of keys.
        offsets: &'a [u32],
        /// How rows are pooled.
        pooling: Pooling,
    },
    /// Gradients of keys.
    Push {
        /// Of which table.
        table: TableId,
        /// Any number, with or without duplicates.
        keys: &'a [u64],
        /// One row of gradients per key.
        grads: &'a [f32],
    },
    /// Rows that are to go.
    Delete {
        /// Of which table.
        table: TableId,
        /// Any number.
        keys: &'a [u64],
    },
}

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

impl<'a> Request<'a> {
    /// Kind, table, keys and bytes of the request.
    pub(crate) fn parts(&self) -> (Operation, TableId, &'a [u64], u64) {
        let (operation, table, keys, more) = match *self {
            Request::Pull { table, keys } => (Operation::Pull, table, keys, 0),
            Request::PullPooled { table, keys, offsets, .. } => {
                (Operation::PullPooled, table, keys, size_of_val(offsets))
            }
            Request::Push { table, keys, grads } => (Operation::Push, table, keys, size_of_val(grads)),
            Request::Delete { table, keys } => (Operation::Delete, table, keys, 0),
        };
        (operation, table, keys, (size_of_val(keys) + more) as u64)
    }
}
