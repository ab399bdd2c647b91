//! Which keys belong to this server. It knows slots and shards, no table.

use sanderling_wire::{Fault, Home, PlacementMap, PlacementServer, even_slots, limit, slot_of};

use crate::refusal::Refusal;

/// Version of the placement. It never changes yet.
const VERSION: u64 = 1;

/// The slots of all shards, from the point of view of one shard.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    pub(crate) shard: u16,
    pub(crate) shards: u16,
    slots: Vec<u16>,
    /// One URL per shard. Empty: unknown.
    urls: Vec<String>,
}

impl Placement {
    /// Divides the slots evenly among the shards. `urls` has one entry per shard.
    pub(crate) fn new(shard: u16, shards: u16, urls: Vec<String>) -> Placement {
        assert!(shard < shards && urls.len() == usize::from(shards), "checked with the configuration");
        Placement { shard, shards, slots: even_slots(shards.into()), urls }
    }

    pub(crate) fn version(&self) -> u64 {
        VERSION
    }

    pub(crate) fn map(&self) -> PlacementMap<'_> {
        let servers = self.urls.iter().zip(0..);
        PlacementMap {
            version: VERSION,
            servers: servers.map(|(url, server_id)| PlacementServer { server_id, url }).collect(),
            slots: &self.slots,
        }
    }

    /// Refuses to create a table that is pinned to another server.
    pub(crate) fn check_home(&self, name: &str, home: Home) -> Result<(), Refusal> {
        match home {
            Home::Pinned(server) if server != u32::from(self.shard) => {
                Err(self.elsewhere(&format!("table {name:?} is pinned to server {server}")))
            }
            _ => Ok(()),
        }
    }

    /// Whether a key of a sharded table belongs to this server.
    pub(crate) fn is_here(&self, key: u64) -> bool {
        self.slots[slot_of(key, limit::SLOTS_DEFAULT)] == self.shard
    }

    /// Refuses a request with keys of other servers.
    pub(crate) fn check_keys(&self, home: Home, keys: &[u64]) -> Result<(), Refusal> {
        if self.shards == 1 || home != Home::Sharded {
            return Ok(());
        }
        // This scan has no branch per key.
        if keys.iter().fold(true, |all, &key| all & self.is_here(key)) {
            return Ok(());
        }
        let key = keys.iter().copied().find(|&key| !self.is_here(key)).unwrap_or_default();
        let server = self.slots[slot_of(key, limit::SLOTS_DEFAULT)];
        Err(self.elsewhere(&format!("key {key} is on server {server}")))
    }

    fn elsewhere(&self, what: &str) -> Refusal {
        let advice = "if the number of shards has changed, connect anew and name each of them once";
        let reason = format!("{what}, this is {} of {}; {advice}", self.shard, self.shards);
        Refusal::new(Fault::NotHere { placement_version: VERSION }, reason)
    }
}
