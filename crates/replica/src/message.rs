//! Messages between replicas; the events that a replica takes in, and the actions that it asks for.

use std::sync::Arc;

use sanderling_store::{RowColumns, RowVersions, TableConfig};

use crate::group::{Group, Member, Revised};
use crate::placement::Placement;
use crate::push_dedup::{Outcome, SavedPushDedup};

/// A push as a client sends it; `clock` is what the primary counts it as.
#[derive(Debug, Clone, PartialEq)]
pub struct Push {
    /// Number of the table.
    pub table: u32,
    /// The client.
    pub client: u64,
    /// Number of the push among those of the client.
    pub sequence: u64,
    /// It goes on with the client's push before it, and is not counted again.
    pub continues: bool,
    /// Factor of the learning rate.
    pub lr_scale: f32,
    /// Distinct keys.
    pub keys: Vec<u64>,
    /// Occurrences of each key.
    pub counts: Vec<u32>,
    /// Gradients, row after row.
    pub grads: Vec<f32>,
}

impl Push {
    /// The push without keys.
    pub(crate) fn without_keys(&self) -> Push {
        let Push { table, client, sequence, continues, lr_scale, .. } = *self;
        let (keys, counts, grads) = Default::default();
        Push { table, client, sequence, continues, lr_scale, keys, counts, grads }
    }
}

/// A push that the primary has applied.
#[derive(Debug)]
pub struct AppliedPush {
    /// The push.
    pub push: Arc<Push>,
    /// Reading of the use clock.
    pub clock: u32,
    /// Rows after the push.
    pub rows: RowVersions,
    /// The outcome, which every replica marks.
    pub outcome: Outcome,
}

/// A change that all replicas apply between the same pushes.
#[derive(Debug, Clone)]
pub enum Operation {
    /// Creates a table.
    Create {
        /// Number of the table.
        table: u32,
        /// Its configuration.
        config: Box<TableConfig>,
        /// A note of the driver about the table, for the drivers of other replicas.
        note: String,
    },
    /// Drops a table.
    Drop {
        /// Number of the table.
        table: u32,
    },
    /// Drops all tables but some, all at once: those of a checkpoint replace the others.
    Replace {
        /// Number and new note of each table that stays.
        notes: Vec<(u32, String)>,
    },
    /// Replaces whole rows.
    Import {
        /// Number of the table.
        table: u32,
        /// The rows.
        rows: Arc<RowColumns>,
        /// The table's use clock reaches so many pushes.
        pushes: u64,
    },
    /// Removes rows. Followers learn it from the removals before it.
    Remove {
        /// Number of the table.
        table: u32,
        /// Their keys.
        keys: Vec<u64>,
    },
    /// Takes over a version of the placement.
    Place(Arc<Placement>),
}

/// An entry of a stream. Streams are as parallel as the primary's workers.
#[derive(Debug)]
pub enum Record {
    /// A push.
    Push(AppliedPush),
    /// Removals of a table, on every stream before the first push that has seen them.
    Removals {
        /// Number of the table.
        table: u32,
        /// Removals before the first key.
        before: u64,
        /// Keys in the order of their removal.
        keys: Vec<u64>,
    },
    /// A change that waits until every stream has come to it.
    Barrier {
        /// Number of the change; all streams have it.
        number: u64,
        /// The change.
        operation: Operation,
    },
}

/// A table at the beginning of a session.
#[derive(Debug, Clone)]
pub struct TableState {
    /// Number of the table.
    pub table: u32,
    /// Its configuration.
    pub config: TableConfig,
    /// See [`Operation::Create`].
    pub note: String,
    /// Removals so far.
    pub removals: u64,
}

/// A message between the primary and another replica.
#[derive(Debug, Clone)]
pub enum Message {
    /// To the primary: begin a session with this member, which has lost the one that the envelope names.
    Join,
    /// Begins a session; the follower drops what it has.
    Begin {
        /// Number of the first record of each stream.
        starts: Vec<u64>,
        /// The tables, without rows.
        tables: Vec<TableState>,
        /// The push windows.
        marks: Arc<SavedPushDedup>,
        /// Barriers so far.
        barrier: u64,
        /// The placement that the group has applied.
        placement: Option<Arc<Placement>>,
    },
    /// Records of a stream, the first with this number.
    Records {
        /// The stream.
        stream: usize,
        /// Number of the first record.
        first: u64,
        /// Consecutive records.
        records: Vec<Arc<Record>>,
    },
    /// Rows of a table for a learner, in numbered parts from 1 on. The last part has no rows.
    Rows {
        /// Number of the part.
        part: u64,
        /// Number of the table.
        table: u32,
        /// Removals of the table before the rows were read.
        removals: u64,
        /// Pushes of the table so far.
        pushes: u64,
        /// The rows.
        rows: Arc<RowColumns>,
        /// There are no more parts.
        is_last: bool,
    },
    /// The primary is there.
    Heartbeat {
        /// When, by the primary's ticks.
        sent: u64,
    },
    /// Everything was sent: the follower becomes the primary if it can.
    HandOver,
    /// To the primary: what the follower has received and marked.
    Ack {
        /// Highest record of each stream, all below included.
        received: Vec<u64>,
        /// Highest part of the rows.
        part: u64,
        /// Time of the last heartbeat.
        echo: u64,
        /// The follower gives up this session.
        is_broken: bool,
    },
}

/// A message with its sender's view.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The sender.
    pub from: Member,
    /// The sender's epoch.
    pub epoch: u64,
    /// The session that the message belongs to.
    pub session: u64,
    /// The message.
    pub message: Message,
}

/// An input of a replica.
#[derive(Debug)]
pub enum Event {
    /// A tick has passed.
    Tick,
    /// The registry's record, as an answer or because it has changed.
    Registry(Revised),
    /// A message of another replica.
    Message(Box<Envelope>),
    /// A client's push.
    Push {
        /// Number for the answer.
        request: u64,
        /// The stream of the worker that serves the client.
        stream: usize,
        /// The push.
        push: Arc<Push>,
    },
    /// A push that a worker of this primary has applied and marked.
    Applied {
        /// Number for the answer.
        request: u64,
        /// The worker's stream.
        stream: usize,
        /// The epoch in which it was applied.
        epoch: u64,
        /// The push.
        applied: Box<AppliedPush>,
    },
    /// A push whose mark says that it was applied before.
    Repeated {
        /// Number for the answer.
        request: u64,
        /// The client.
        client: u64,
        /// Number of the push.
        sequence: u64,
        /// The outcome in the mark.
        outcome: Outcome,
    },
    /// A client's pull.
    Pull {
        /// Number for the answer.
        request: u64,
        /// Number of the table.
        table: u32,
        /// The keys.
        keys: Vec<u64>,
    },
    /// A change between pushes.
    Operate {
        /// Number for the answer.
        request: u64,
        /// The change.
        operation: Operation,
    },
    /// Maintenance removes a row.
    Remove {
        /// Number of the table.
        table: u32,
        /// The key.
        key: u64,
    },
    /// The primary passes its role on, to be stopped or upgraded.
    HandOver,
    /// The system says that another replica's process has ended.
    Ended(Member),
}

/// A request of a replica to its driver.
#[derive(Debug)]
pub enum Action {
    /// Read the registry's record.
    Read,
    /// Change the registry's record.
    CompareAndSet {
        /// The revision that it must have.
        revision: u64,
        /// The new record.
        group: Group,
    },
    /// Send a message.
    Send {
        /// The receiver.
        to: Member,
        /// The message.
        envelope: Box<Envelope>,
    },
    /// Answer a client.
    Answer {
        /// Number of the request.
        request: u64,
        /// The answer.
        answer: Answer,
    },
}

/// The answer to a client.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The push or change is on all replicas in sync.
    Done(Outcome),
    /// Weights of the keys, row after row, as of this epoch.
    Rows {
        /// The epoch.
        epoch: u64,
        /// The weights.
        weights: Vec<f32>,
    },
    /// Another replica is the primary.
    NotHere,
    /// Another group has the keys, as of this version of the placement or a later one.
    Elsewhere {
        /// The version.
        version: u64,
    },
    /// Try again later.
    Busy,
    /// The push is outside the dedup window; its outcome is unknown.
    Stale,
    /// The request is invalid; nothing was applied.
    Refused,
}
