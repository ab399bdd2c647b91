//! One thread's way to the tables: requests that are begun and, later, finished, many of them under way at once. Knows
//! neither scripts nor statistics.

use std::time::Instant;

use sanderling_store::{Pooling, TableConfig};

/// A table that a thread has opened: its position among those.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TableId(pub u32);

/// What may be asked.
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

/// What a request was, for statistics.
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
    /// What it was.
    pub operation: Operation,
    /// Keys that it had.
    pub keys: usize,
    /// When it was begun.
    pub sent: Instant,
    /// When its answer was there.
    pub done: Instant,
    /// What came of it.
    pub outcome: Result<Outcome, Failure>,
}

/// What came of a request that succeeded.
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

/// A table that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableShape {
    /// Its name.
    pub name: String,
    /// Weights per row.
    pub dim: usize,
}

/// One thread's way to the tables.
#[derive(Debug)]
pub struct Port {}

impl Port {
    /// Makes a table, or opens the one that is there with the same configuration. Waits.
    pub fn create(&mut self, config: &TableConfig) -> Result<TableId, Failure> {
        let _ = config;
        Err(Failure { kind: "not_here", reason: "there is no way yet".to_owned() })
    }

    /// Opens a table by its name; the same name yields the same id. Waits when asked first.
    pub fn open(&mut self, name: &str) -> Result<TableId, Failure> {
        Err(Failure { kind: "unknown_table", reason: format!("table {name:?}: there is none") })
    }

    /// Of a table that was opened.
    #[must_use]
    pub fn shape(&self, _table: TableId) -> Option<&TableShape> {
        None
    }

    /// Begins a request for a slot that has none under way; it ends with a [`Finished`] of that slot, be it at once.
    /// Keys and gradients are copied, or used up, before this returns.
    pub fn begin(&mut self, slot: usize, request: &Request<'_>) {
        let _ = (slot, request);
    }

    /// Hands over what has ended. If nothing has, waits until something does, but not beyond `until`; `None` does not wait.
    pub fn poll(&mut self, until: Option<Instant>, finished: &mut Vec<Finished>) {
        let _ = (until, finished);
    }
}
