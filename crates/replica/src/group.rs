//! The membership of a group: one small record, changed by compare-and-set in a registry.

use serde::{Deserialize, Serialize};

/// A process that holds a replica. A process that starts again is another member, because its memory is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// Number of the server, which stays over restarts.
    pub server: u32,
    /// Number that the process has drawn at its start.
    pub boot: u64,
}

/// The present members of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Counts primaries; a replica refuses messages of a lower epoch.
    pub epoch: u64,
    /// Drawn when the group began. Rows and marks of another history are unrelated.
    pub history: u64,
    /// The replica that takes pushes.
    pub primary: Member,
    /// The other replicas that have every acknowledged push. One of them may become the primary.
    pub in_sync: Vec<Member>,
}

/// The record of a group with its revision.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Revised {
    /// Counts changes of the record; 0 before the first.
    pub revision: u64,
    /// The record; `None` at revision 0.
    pub group: Option<Group>,
}

impl Revised {
    /// Members that a push must have reached before it is acknowledged, beside the primary.
    pub fn in_sync(&self) -> &[Member] {
        self.group.as_ref().map_or(&[], |group| &group.in_sync)
    }
}
