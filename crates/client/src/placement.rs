//! The server of each key, as of a version of the placement. Small enough for a copy per thread.

use sanderling_wire::limit::{SERVERS_MAX, SLOTS_MAX};
use sanderling_wire::{Home, even_slots, slot_of};

/// The server of each slot, as of a version of the placement; see `docs/wire-format.md`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// 0: there is none, and the slots are shared out evenly.
    pub(crate) version: u64,
    /// Servers, or groups, with those that have no slots.
    pub(crate) servers: usize,
    /// Moves of slots that are under way.
    pub(crate) moves: usize,
    slots: Vec<u16>,
    /// Servers whose pinned tables are at another one, and where these are.
    pinned: Vec<(u32, u16)>,
}

impl Default for Placement {
    fn default() -> Placement {
        Placement::even(1)
    }
}

impl Placement {
    /// The default placement. `servers` fit 16 bits.
    pub(crate) fn even(servers: usize) -> Placement {
        Placement { version: 0, servers, moves: 0, slots: even_slots(servers), pinned: Vec::new() }
    }

    /// The server of each slot, all below `servers`; there is at least one slot.
    pub(crate) fn new(version: u64, servers: usize, slots: Vec<u16>) -> Placement {
        Placement { version, servers, moves: 0, slots, pinned: Vec::new() }
    }

    /// The placement of a record in a registry, in a cluster of so many groups.
    ///
    /// # Errors
    /// Why it can be none.
    pub(crate) fn of_record(
        record: &sanderling_registry::Placement,
        groups: u32,
    ) -> Result<Placement, String> {
        if record.slots == 0 || record.slots as usize > SLOTS_MAX {
            return Err(format!("{} slots; 1 to {SLOTS_MAX} are possible", record.slots));
        }
        if groups == 0 || groups as usize > SERVERS_MAX {
            return Err(format!("{groups} groups; 1 to {SERVERS_MAX} are possible"));
        }
        record.check(groups)?;
        let slots = record.groups().into_iter().map(|group| group as u16).collect();
        let pinned = record.pinned.iter().map(|place| (place.home, place.group as u16)).collect();
        let moves = record.moves.len();
        Ok(Placement { moves, pinned, ..Placement::new(record.version, groups as usize, slots) })
    }

    /// It is of no record.
    pub(crate) fn unversioned(self) -> Placement {
        Placement { version: 0, ..self }
    }

    /// Counts the changes of the record; 0: there is none.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The server that has the key of a table.
    #[inline]
    pub(crate) fn server_of(&self, home: Home, key: u64) -> usize {
        match home {
            Home::Pinned(server) => {
                let moved = self.pinned.iter().find(|(home, _)| *home == server);
                moved.map_or(server as usize, |(_, at)| usize::from(*at)).min(self.servers - 1)
            }
            Home::Sharded if self.servers == 1 => 0,
            Home::Sharded => self.slots[slot_of(key, self.slots.len())].into(),
        }
    }

    /// The servers that have slots, or pinned tables that were made for another server, ascending.
    #[must_use]
    pub fn with_rows(&self) -> Vec<usize> {
        let mut has_rows = vec![false; self.servers];
        let pinned = self.pinned.iter().map(|(_, at)| at);
        self.slots.iter().chain(pinned).for_each(|&server| has_rows[usize::from(server)] = true);
        (0..self.servers).filter(|&server| has_rows[server]).collect()
    }

    /// Whether a server has a slot, or pinned tables, that it did not have as of another placement.
    #[must_use]
    pub fn has_gained(&self, before: &Placement, server: usize) -> bool {
        let gains = |home: &u32| {
            let [now, then] = [self, before].map(|it| it.server_of(Home::Pinned(*home), 0));
            now == server && then != server
        };
        if self.pinned.iter().chain(&before.pinned).any(|(home, _)| gains(home)) {
            return true;
        }
        let is_new = |(slot, &now): (usize, &u16)| {
            usize::from(now) == server && before.slots.get(slot).is_none_or(|before| *before != now)
        };
        self.slots.iter().enumerate().any(is_new)
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

    #[test]
    fn a_record_with_moves_names_the_groups_that_have_slots() {
        let mut record = sanderling_registry::Placement::of_groups(3, &[0, 0, 2, 2]);
        let before = Placement::of_record(&record, 3).unwrap();
        assert_eq!((before.version(), before.servers, before.with_rows()), (3, 3, vec![0, 2]));
        record = sanderling_registry::Placement::of_groups(4, &[0, 1, 2, 2]);
        let after = Placement::of_record(&record, 3).unwrap();
        assert_eq!([0, 1, 2].map(|server| after.has_gained(&before, server)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|server| before.has_gained(&after, server)), [true, false, false]);
        // The tables that are pinned to group 2 have moved to group 1.
        record.pinned = vec![sanderling_registry::PinnedPlace { home: 2, group: 1 }];
        let moved = Placement::of_record(&record, 3).unwrap();
        assert_eq!([0, 2].map(|home| moved.server_of(Home::Pinned(home), 7)), [0, 1]);
        assert_eq!([0, 1, 2].map(|server| moved.has_gained(&after, server)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|server| after.has_gained(&moved, server)), [false, false, true]);
        for (record, groups, expected) in [
            (sanderling_registry::Placement::of_groups(1, &[]), 1, "0 slots"),
            (record.clone(), 2, "beyond the 2"),
            (record, 2000, "2000 groups; 1 to 1024"),
        ] {
            let reason = Placement::of_record(&record, groups).unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
