//! The server of each key, as of a version of the placement. Small enough for a copy per thread.

use sanderling_wire::{Home, even_slots, slot_of};

/// Slots to servers; see `docs/wire-format.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    /// 0: there is none, and the slots are shared out evenly.
    pub(crate) version: u64,
    pub(crate) servers: usize,
    slots: Vec<u16>,
}

impl Placement {
    /// The default placement. `servers` fit 16 bits.
    pub(crate) fn even(servers: usize) -> Placement {
        Placement { version: 0, servers, slots: even_slots(servers) }
    }

    /// The server of each slot, all below `servers`; there is at least one slot.
    pub(crate) fn new(version: u64, servers: usize, slots: Vec<u16>) -> Placement {
        Placement { version, servers, slots }
    }

    /// The server that has the key of a table.
    #[inline]
    pub(crate) fn server_of(&self, home: Home, key: u64) -> usize {
        match home {
            Home::Pinned(server) => (server as usize).min(self.servers - 1),
            Home::Sharded if self.servers == 1 => 0,
            Home::Sharded => self.slots[slot_of(key, self.slots.len())].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_over_all_servers_and_stay_where_they_are() {
        for servers in [1, 2, 3, 7] {
            let placement = Placement::even(servers);
            let mut counts = vec![0_i64; servers];
            (0..1 << 16).for_each(|key| counts[placement.server_of(Home::Sharded, key << 20)] += 1);
            let mean = (1 << 16) / servers as i64;
            assert!(counts.iter().all(|count| (count - mean).abs() < mean / 20), "{counts:?}");
            assert_eq!(placement.server_of(Home::Pinned(servers as u32 - 1), 5), servers - 1);
        }
        let two = Placement::even(2);
        let found = [0, 1, 42, u64::MAX].map(|key| two.server_of(Home::Sharded, key));
        assert_eq!(found, [0, 1, 1, 0]);
    }
}
