//! Which keys belong to this server. It knows slots and shards, no table.

use std::sync::Arc;

use sanderling_replica::{Placement as Record, SlotOwner};
use sanderling_wire::{Fault, Home, PlacementMap, PlacementServer, even_slots, limit, slot_of};

use crate::checkpoints::Part;
use crate::refusal::Refusal;

/// Version of the placement of servers that are in no cluster. It never changes.
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

/// The slots of a group of a cluster, as its replicas have applied them.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) record: Arc<Record>,
    group: u16,
    owners: Vec<SlotOwner>,
    has_all: bool,
}

impl Slots {
    pub(crate) fn new(record: &Arc<Record>, group: u16) -> Slots {
        let owners = record.owners(group.into());
        let has_all = owners.iter().all(|owner| *owner == SlotOwner::Here);
        Slots { record: Arc::clone(record), group, owners, has_all }
    }

    fn owner_of(&self, key: u64) -> SlotOwner {
        self.owners[slot_of(key, self.owners.len())]
    }

    /// Whether this group has the key's slot.
    pub(crate) fn is_here(&self, key: u64) -> bool {
        self.owner_of(key) == SlotOwner::Here
    }

    pub(crate) fn group(&self) -> u16 {
        self.group
    }

    /// Refuses a request with keys of other groups, or of slots that are handed over.
    pub(crate) fn check_keys(&self, home: Home, keys: &[u64]) -> Result<(), Refusal> {
        if self.has_all || home != Home::Sharded {
            return Ok(());
        }
        if keys.iter().fold(true, |all, &key| all & (self.owner_of(key) == SlotOwner::Here)) {
            return Ok(());
        }
        for &key in keys {
            if let SlotOwner::Elsewhere(other) = self.owner_of(key) {
                let reason = format!("key {key} is in group {other}, this is group {}", self.group);
                let placement_version = self.record.version;
                return Err(Refusal::new(Fault::NotHere { placement_version }, reason));
            }
        }
        Err(Refusal::busy("slots of these keys are handed over to another group".to_owned()))
    }

    /// Whether slots are on their way: a save now may have rows of a slot twice, or not at all.
    pub(crate) fn is_moving(&self) -> bool {
        !self.record.moves.is_empty()
    }

    /// The part of a checkpoint that this group saves; `None`: it has no slots.
    pub(crate) fn part(&self) -> Option<Part> {
        let groups = self.record.groups();
        let mut having: Vec<u32> = groups.clone();
        having.sort_unstable();
        having.dedup();
        let shard = having.iter().position(|group| *group == u32::from(self.group))?;
        let even = even_slots(having.len());
        let is_even = groups.len() == even.len()
            && groups.iter().zip(even).all(|(group, part)| having[usize::from(part)] == *group);
        Some(Part { shard: shard as u16, shards: having.len() as u16, is_even })
    }

    /// The group of each slot, as clients get it.
    pub(crate) fn map(&self) -> (u64, usize, Vec<u16>) {
        let slots: Vec<u16> = self.record.groups().into_iter().map(|group| group as u16).collect();
        let groups = slots.iter().max().map_or(1, |last| usize::from(*last) + 1);
        (self.record.version, groups.max(usize::from(self.group) + 1), slots)
    }
}
