//! The record of a group as the registry has it, and the group as a server knows it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use sanderling_replica::{Group, Member};
use serde::{Deserialize, Serialize};

/// The record of a group, with the addresses of its members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRecord {
    /// Epoch, primary and followers in sync.
    pub group: Group,
    /// Addresses for clients and other replicas, by the server's number.
    pub urls: BTreeMap<u32, String>,
}

/// Keeps the record of this server's group, and changes it by compare-and-set. Calls may take long.
pub trait GroupRecords: Send {
    /// Reads the record and its revision, 0 if there is none.
    ///
    /// # Errors
    /// The registry is out of reach.
    fn read(&mut self) -> io::Result<(u64, Option<GroupRecord>)>;

    /// Replaces the record if it is at this revision; returns the record afterwards, whoever wrote it.
    ///
    /// # Errors
    /// The registry is out of reach; the record may have been replaced or not.
    fn compare_and_set(
        &mut self,
        revision: u64,
        record: &GroupRecord,
    ) -> io::Result<(u64, Option<GroupRecord>)>;
}

/// A record in memory, for servers of one process.
#[derive(Debug, Clone, Default)]
pub struct MemoryRecords(Arc<Mutex<(u64, Option<GroupRecord>)>>);

impl GroupRecords for MemoryRecords {
    fn read(&mut self) -> io::Result<(u64, Option<GroupRecord>)> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn compare_and_set(
        &mut self,
        revision: u64,
        record: &GroupRecord,
    ) -> io::Result<(u64, Option<GroupRecord>)> {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if present.0 == revision {
            *present = (revision + 1, Some(record.clone()));
        }
        Ok(present.clone())
    }
}

/// A replica in the record of its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Number of the server.
    pub server: u32,
    /// Its address.
    pub url: String,
    /// Whether it is the primary.
    pub is_primary: bool,
}

/// A group, as one of its servers knows it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupStatus {
    /// Number of the group.
    pub group: u32,
    /// Number of this server.
    pub server: u32,
    /// `primary`, `in sync`, `catching up` or `learner`.
    pub role: &'static str,
    /// Whether this server is the primary.
    pub is_primary: bool,
    /// Counts primaries; 0 before the first.
    pub epoch: u64,
    /// Identifies the rows: those of another history are unrelated.
    pub history: u64,
    /// Revision of the record, which grows with each change.
    pub version: u64,
    /// Primary and followers in sync.
    pub replicas: Vec<ReplicaStatus>,
    /// Replicas that must have a push before it is acknowledged.
    pub min_in_sync: usize,
    /// Records that a follower in sync has not acknowledged.
    pub backlog: u64,
    /// Updates of a follower that wait for others.
    pub waiting: u64,
}

impl GroupStatus {
    /// The primary's address, if the group has one.
    #[must_use]
    pub fn primary_url(&self) -> Option<&str> {
        let primary = self.replicas.iter().find(|replica| replica.is_primary);
        primary.map(|replica| replica.url.as_str())
    }

    /// Replicas in sync, the primary included.
    #[must_use]
    pub fn in_sync(&self) -> usize {
        self.replicas.len()
    }

    pub(super) fn replicas_of(record: Option<&GroupRecord>) -> Vec<ReplicaStatus> {
        let Some(GroupRecord { group, urls }) = record else { return Vec::new() };
        let replica = |member: &Member, is_primary| ReplicaStatus {
            server: member.server,
            url: urls.get(&member.server).cloned().unwrap_or_default(),
            is_primary,
        };
        let followers = group.in_sync.iter().map(|member| replica(member, false));
        std::iter::once(replica(&group.primary, true)).chain(followers).collect()
    }
}
