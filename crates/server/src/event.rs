//! What a server has to tell whoever runs it. Prints nothing: it is told to a function.

use std::fmt;
use std::sync::Arc;

use sanderling_store::SkippedRows;

/// Something that a person may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the words are in `Display`
pub enum Event {
    /// A local address that would have been convenient is not there.
    NoLocalAddress {
        reason: String,
    },
    /// A connection could not be accepted.
    NotAccepted {
        reason: String,
    },
    /// A client said no token, or a wrong one.
    LoginRefused {
        who: String,
    },
    /// A connection was given up.
    Lost {
        peer: String,
        reason: String,
    },
    Restored {
        name: String,
        rows: u64,
    },
    /// What the tables that are there may come to take.
    Budgets {
        tables: u64,
        bytes: u64,
        unbounded: u64,
    },
    /// There is nothing to start from, but there is something else.
    StartsEmpty {
        folder: String,
        others: String,
    },
    /// Of a part of a checkpoint that servers of another number of shards have saved, this one's rows are here.
    RowsTaken {
        folder: String,
        table: String,
        rows: u64,
    },
    Saved {
        name: String,
        rows: u64,
        bytes: u64,
    },
    /// Saved, and what was noted of the rows before is there still.
    NoteLeft {
        reason: String,
    },
    /// A checkpoint lacks rows, since a number of each is not finite.
    SkippedRows {
        table: String,
        left_out: SkippedRows,
    },
    SaveFailed {
        name: String,
        reason: String,
    },
    /// A table was dropped by the operator.
    Dropped {
        table: String,
    },
    /// A thread could not be bound to its processor.
    NotPinned {
        worker: usize,
        reason: String,
    },
    /// A worker ended although it should not.
    WorkerFailed {
        worker: usize,
        reason: String,
    },
    Draining {
        connections: usize,
        within_ms: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::NoLocalAddress { reason } => {
                write!(out, "not listening for clients on this host: {reason}")
            }
            Event::NotAccepted { reason } => write!(out, "connection not accepted: {reason}"),
            Event::LoginRefused { who } => {
                write!(out, "login refused, the token is missing or wrong: {who}")
            }
            // The reason begins with the peer where the transport gave it.
            Event::Lost { peer, reason } if reason.starts_with(peer.as_str()) => {
                write!(out, "connection closed: {reason}")
            }
            Event::Lost { peer, reason } => write!(out, "connection closed: {peer}: {reason}"),
            Event::Restored { name, rows } => write!(out, "restored {name}: {rows} rows"),
            Event::Budgets { tables, bytes, unbounded } => write!(
                out,
                "budgets of {tables} tables: {bytes} bytes in all; without a budget: {unbounded} tables (--table-budget limits \
                 them)"
            ),
            Event::StartsEmpty { folder, others } => write!(
                out,
                "starting without rows: {folder} has no checkpoint latest, but has {others}; --restore NAME starts from one"
            ),
            Event::RowsTaken { folder, table, rows } => {
                write!(out, "restoring: {rows} rows of table {table} from {folder} are this shard's")
            }
            Event::Saved { name, rows, bytes } => write!(out, "saved {name}: {rows} rows, {bytes} bytes"),
            Event::NoteLeft { reason } => {
                write!(
                    out,
                    "saved, but the note of where these rows were before is still there; remove it: {reason}"
                )
            }
            Event::SkippedRows { table, left_out: SkippedRows { rows, key, reason } } => {
                write!(
                    out,
                    "table {table}: {rows} rows are not finite and NOT SAVED, key {key} first ({reason}); delete them or restore \
                     an earlier checkpoint"
                )
            }
            Event::SaveFailed { name, reason } => {
                write!(out, "saving {name} failed, the checkpoint before it is intact: {reason}")
            }
            Event::Dropped { table } => write!(out, "dropped table {table}"),
            Event::NotPinned { worker, reason } => write!(out, "worker {worker} is not pinned: {reason}"),
            Event::WorkerFailed { worker, reason } => write!(out, "worker {worker} failed: {reason}"),
            Event::Draining { connections, within_ms } => {
                write!(out, "draining {connections} connections within {within_ms} ms")
            }
        }
    }
}

/// Who is told.
#[derive(Clone)]
pub(crate) struct Log(pub(crate) Arc<dyn Fn(Event) + Send + Sync>);

impl Log {
    pub(crate) fn say(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Log")
    }
}
