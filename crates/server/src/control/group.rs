//! The operator's view of a server as a replica of its group.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use super::Control;
use crate::limit::{HAND_OVER_WITHIN, TICK};
use crate::replication::GroupStatus;
use crate::tables::Entry;

impl Control {
    /// The number that this process has drawn at its start.
    #[must_use]
    pub fn boot_id(&self) -> u64 {
        self.state.boot_id()
    }

    /// The newest version of messages between servers that this one speaks; 0: it is no replica.
    #[must_use]
    pub fn speaks(&self) -> u8 {
        self.state.replication.as_ref().map_or(0, |replication| replication.spoken.newest)
    }

    /// The replicas of this server's shard. None: it is no replica.
    #[must_use]
    pub fn group(&self) -> Option<GroupStatus> {
        self.state.replication.as_ref().map(|replication| replication.status())
    }

    /// For each table, by number, a sum over all rows: key, version, weights and state, in any order.
    ///
    /// Replicas at rest have the same sums. It reads all rows.
    #[must_use]
    pub fn digests(&self) -> Vec<u64> {
        let digest = |entry: &Arc<Entry>| {
            let mut sum = 0_u64;
            let mut keys = Vec::new();
            entry.table.for_each_key(|_| true, |key| keys.push(key));
            for row in keys.into_iter().filter_map(|key| entry.table.get(key)) {
                let mut hash = DefaultHasher::new();
                (row.key, row.version).hash(&mut hash);
                row.weights.iter().chain(&row.state).for_each(|value| value.to_bits().hash(&mut hash));
                sum = sum.wrapping_add(hash.finish());
            }
            sum
        };
        self.state.tables.directory().entries.iter().map(digest).collect()
    }

    /// Lets another replica become the primary, if this one is and another one is in sync. [`Control::group`] tells
    /// when it has.
    pub fn hand_over(&self) {
        self.state.replication.iter().for_each(|replication| replication.hand_over());
    }

    /// As [`Control::hand_over`]; returns the group when it has another primary.
    ///
    /// # Errors
    /// Why it has not.
    pub fn hand_over_and_wait(&self) -> Result<GroupStatus, String> {
        let group = || self.group().ok_or_else(|| "this server is in no cluster".to_owned());
        let before = group()?;
        if !before.is_primary {
            let primary = before.primary_url().unwrap_or("no server");
            return Err(format!("this server is not the primary of group {}: {primary} is", before.group));
        }
        if before.in_sync() < 2 {
            return Err("no other replica is in sync".to_owned());
        }
        self.hand_over();
        let until = Instant::now() + HAND_OVER_WITHIN;
        loop {
            std::thread::sleep(TICK / 2);
            let after = group()?;
            if !after.is_primary && after.epoch > before.epoch {
                return Ok(after);
            }
            if Instant::now() >= until {
                return Err(
                    "no other replica took over in time; this server goes on as the primary".to_owned()
                );
            }
        }
    }
}
