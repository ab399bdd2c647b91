//! The events that a server reports to its operator. A callback receives them; the crate prints nothing.

use std::fmt;
use std::sync::Arc;

use sanderling_observe::numbers::bytes as in_units;
use sanderling_store::SkippedRows;

/// An event that an operator may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the words are in `Display`
pub enum Event {
    /// The server does not listen at a local address.
    NoLocalAddress {
        reason: String,
    },
    /// A connection could not be accepted.
    NotAccepted {
        reason: String,
    },
    /// A client sent a wrong token, or none.
    LoginRefused {
        who: String,
    },
    /// A connection failed.
    Lost {
        peer: String,
        reason: String,
    },
    Restored {
        name: String,
        rows: u64,
    },
    /// Sum of the memory limits of the restored tables.
    Budgets {
        tables: u64,
        bytes: u64,
        unbounded: u64,
    },
    /// The server starts without rows, although the folder has checkpoints of other names.
    StartsEmpty {
        folder: String,
        others: String,
    },
    /// Rows of this shard were restored from a part that servers of another shard count saved.
    RowsTaken {
        folder: String,
        table: String,
        rows: u64,
    },
    Saved {
        name: String,
        rows: u64,
        bytes: u64,
        /// Deltas of the checkpoint. 0: the save is a full one.
        deltas: u64,
        /// Why no delta was saved, although one was asked for.
        full_because: String,
    },
    /// The save succeeded, but the note of the rows' former place could not be removed.
    NoteLeft {
        reason: String,
    },
    /// A checkpoint lacks rows with numbers that are not finite.
    SkippedRows {
        table: String,
        left_out: SkippedRows,
    },
    /// A table of an earlier server was attached.
    Attached {
        table: String,
        found: String,
    },
    /// A table of an earlier server was removed.
    Forgotten {
        table: String,
    },
    /// Tables outlive the server in a folder, and the loss of power if that is on persistent memory.
    KeptIn {
        folder: String,
        survives_power: bool,
    },
    /// The folder of kept tables has no huge pages.
    SmallPages {
        folder: String,
        cost: &'static str,
    },
    SaveFailed {
        name: String,
        reason: String,
    },
    /// The changes after the checkpoint were read from the log.
    LogReplayed {
        folder: String,
        groups: u64,
    },
    /// The log ended with a group that was not finished, or was cut before its damage.
    LogCut {
        file: String,
        offset: u64,
        bytes: u64,
    },
    /// The log cannot be written; pushes are refused.
    LogFailed {
        reason: String,
    },
    /// The log can be written again.
    LogWorks,
    /// A group of the log took too long to keep the promise of `lose`.
    LogBehind {
        took_ms: u64,
        lose_ms: u64,
    },
    /// This replica has another role in its group.
    Role {
        group: u16,
        role: &'static str,
        epoch: u64,
    },
    /// An option was set while the server runs.
    OptionSet {
        name: &'static str,
        value: String,
    },
    /// The gatherer of a table's rows for pulls by RDMA, from now on.
    GatheredBy {
        table: String,
        /// `cpu` or `nic`.
        by: &'static str,
        because: String,
    },
    /// The operator dropped a table.
    Dropped {
        table: String,
    },
    /// A move of slots was given up.
    MoveFailed {
        /// The reason.
        reason: String,
    },
    /// A server of the cluster speaks another version of messages.
    OtherVersion {
        /// Both versions, and what to do.
        reason: String,
    },
    /// A worker could not be pinned to its processor.
    NotPinned {
        worker: usize,
        reason: String,
    },
    /// A worker ended with an error.
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
            // The transport's reasons begin with the peer.
            Event::Lost { peer, reason } if reason.starts_with(peer.as_str()) => {
                write!(out, "connection closed: {reason}")
            }
            Event::Lost { peer, reason } => write!(out, "connection closed: {peer}: {reason}"),
            Event::Restored { name, rows } => write!(out, "restored {name}: {rows} rows"),
            Event::Budgets { tables, bytes, unbounded } => write!(
                out,
                "budgets of {tables} tables: {} in all; without a budget: {unbounded} tables (--table-budget limits \
                 them)",
                in_units(*bytes)
            ),
            Event::StartsEmpty { folder, others } => write!(
                out,
                "starting without rows: {folder} has no checkpoint latest, but has {others}; --restore NAME starts from one"
            ),
            Event::RowsTaken { folder, table, rows } => {
                write!(out, "restoring: {rows} rows of table {table} from {folder} are this shard's")
            }
            Event::Saved { name, rows, bytes, deltas, full_because } => {
                let bytes = in_units(*bytes);
                match deltas {
                    0 if full_because.is_empty() => write!(out, "saved {name}: {rows} rows, {bytes}"),
                    0 => write!(out, "saved {name} in full: {rows} rows, {bytes} ({full_because})"),
                    _ => write!(out, "saved {name}: delta {deltas}, {rows} rows, {bytes}"),
                }
            }
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
            Event::Attached { table, found } => write!(out, "table {table}: {found}"),
            Event::Forgotten { table } => write!(out, "removed the kept table {table}"),
            Event::KeptIn { folder, survives_power: true } => write!(
                out,
                "{folder}: persistent memory (DAX); new tables with writes = \"copy_on_write\" survive the loss of power"
            ),
            Event::KeptIn { folder, survives_power: false } => {
                write!(out, "{folder}: tables outlive this process, not the loss of power")
            }
            Event::SmallPages { folder, cost } => write!(out, "{folder}: {cost}"),
            Event::LogReplayed { folder, groups } => {
                write!(out, "restored {groups} groups of changes from the log {folder}")
            }
            Event::LogCut { file, offset, bytes } => write!(
                out,
                "{file}: cut at offset {offset}: the {bytes} bytes after it are no whole group, so changes of the last moment \
                 may be lost"
            ),
            Event::LogFailed { reason } => {
                write!(out, "the log cannot be written, so pushes are refused until it can: {reason}")
            }
            Event::LogWorks => write!(out, "the log can be written again"),
            Event::LogBehind { took_ms, lose_ms } => write!(
                out,
                "the log is too slow: a group took {took_ms} ms, so more than {lose_ms} ms of pushes may be lost with the machine"
            ),
            Event::OptionSet { name, value } => write!(out, "--{name} is {value} from now on, by a request"),
            Event::Role { group, role, epoch } => write!(out, "group {group}, epoch {epoch}: {role}"),
            Event::GatheredBy { table, by, because } => {
                write!(out, "table {table}: rows of pulls by RDMA are gathered by the {by}: {because}")
            }
            Event::Dropped { table } => write!(out, "dropped table {table}"),
            Event::MoveFailed { reason } | Event::OtherVersion { reason } => out.write_str(reason),
            Event::NotPinned { worker, reason } => write!(out, "worker {worker} is not pinned: {reason}"),
            Event::WorkerFailed { worker, reason } => write!(out, "worker {worker} failed: {reason}"),
            Event::Draining { connections, within_ms } => {
                write!(out, "draining {connections} connections within {within_ms} ms")
            }
        }
    }
}

/// The callback that receives events.
#[derive(Clone)]
pub(crate) struct Log(pub(crate) Arc<dyn Fn(Event) + Send + Sync>);

impl Log {
    pub(crate) fn report(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Log")
    }
}
