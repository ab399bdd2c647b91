//! The state of a replica, for its driver.

use std::collections::BTreeMap;
use std::sync::Arc;

use sanderling_store::Table;

use super::{Node, Role};
use crate::group::Revised;
use crate::message::{Envelope, Message};
use crate::placement::Placement;

/// The role of a replica at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It has no session with a primary.
    Learner,
    /// It follows a primary, and some rows or records are still missing.
    Following,
    /// It has every acknowledged push, and may become the primary.
    InSync,
    /// It takes pushes, if it is open.
    Primary {
        /// The epoch.
        epoch: u64,
        /// Neither handing over, nor with too few or too slow followers.
        is_open: bool,
    },
}

impl Node {
    /// The epoch that this replica knows of; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.known.group.as_ref().map_or(0, |group| group.epoch)
    }

    /// The registry's record, as this replica knows it.
    #[must_use]
    pub fn known(&self) -> &Revised {
        &self.known
    }

    /// The role of this replica at present.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &self.role {
            Role::Learner => Standing::Learner,
            Role::Follower(_) if self.is_in_sync() => Standing::InSync,
            Role::Follower(_) => Standing::Following,
            Role::Primary(primary) => {
                let is_open = self.has_enough() && primary.handing_over.is_none() && !primary.is_full();
                Standing::Primary { epoch: primary.epoch, is_open }
            }
        }
    }

    /// The first tick at which a primary must not answer pulls any more: followers may have replaced it by then.
    #[must_use]
    pub fn lease_until(&self) -> u64 {
        match &self.role {
            Role::Primary(primary) if primary.handing_over.is_none() => {
                primary.lease_until(&self.must_have())
            }
            _ => 0,
        }
    }

    /// The tick at which a follower in sync has heard its primary last; `None`: it is none.
    #[must_use]
    pub fn heard_primary(&self) -> Option<u64> {
        match &self.role {
            Role::Follower(follower) if self.is_in_sync() => Some(follower.heard),
            _ => None,
        }
    }

    /// Whether a message may begin a session with a follower, whose tables and marks are then read.
    #[must_use]
    pub fn begins_session(&self, envelope: &Envelope) -> bool {
        let Role::Primary(primary) = &self.role else { return false };
        let Envelope { from, epoch, session, message } = envelope;
        let is_known = match message {
            Message::Join => primary.sessions.iter().any(|known| known.member == *from),
            Message::Ack { part, .. } => primary
                .sessions
                .iter()
                .any(|known| (known.member, known.number) == (*from, *session) && !known.begins_slice(*part)),
            _ => true,
        };
        *epoch == self.epoch() && !is_known
    }

    /// Records that a follower in sync has not acknowledged.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        let Role::Primary(primary) = &self.role else { return 0 };
        primary.backlog(self.known.in_sync())
    }

    /// The tables by number, and a number that changes with this list.
    #[must_use]
    pub fn tables(&self) -> (u64, &BTreeMap<u32, Arc<Table>>) {
        (self.rows.listed, &self.rows.tables)
    }

    /// The placement that this replica has applied.
    #[must_use]
    pub fn placement(&self) -> Option<&Arc<Placement>> {
        self.rows.placement.as_ref()
    }

    /// The driver's note of the creation of a table.
    #[must_use]
    pub fn note(&self, table: u32) -> Option<&str> {
        self.rows.notes.get(&table).map(String::as_str)
    }

    /// Updates that wait for others, and records that wait for a change on all streams.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let held = if let Role::Follower(follower) = &self.role { follower.held() } else { 0 };
        self.rows.waiting() + held
    }
}
