//! Open-addressing index of one shard: hash of a key -> row number. Knows nothing of rows' contents, of the budget
//! or of locks.
//!
//! Linear probing over 16-byte slots, doubled at 70 % load, deletion by shifting back (no tombstones). An empty slot
//! has the row number [`NO_ROW`], so that every 64-bit hash, and hence every key, is legal.

use crate::memory::Buffer;
use crate::prefetch::prefetch;

/// Row number of an empty slot, and of a key that is absent.
pub(crate) const NO_ROW: u32 = u32::MAX;
/// Slots of a new index.
const SLOTS_MIN: usize = 16;
/// At most this share of the slots is used.
const LOAD_MAX_PERCENT: usize = 70;
/// Keys ahead of the probe whose slot is asked for.
pub(crate) const PREFETCH_KEYS: usize = 32;

#[derive(Debug, Clone, Copy)]
struct Slot {
    hash: u64,
    row: u32,
}

const EMPTY: Slot = Slot { hash: 0, row: NO_ROW };

#[derive(Debug)]
pub(crate) struct Index {
    /// A power of two, never empty, and never full.
    slots: Buffer<Slot>,
    len: usize,
}

impl Index {
    /// Bytes of a new index.
    pub(crate) const NEW_BYTES: usize = SLOTS_MIN * size_of::<Slot>();

    pub(crate) fn new() -> Index {
        Index { slots: Buffer::filled(SLOTS_MIN, EMPTY), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    /// Further bytes needed before `extra` more keys can be inserted; 0 when there is room.
    pub(crate) fn growth_bytes(&self, extra: usize) -> usize {
        slots_for(self.len + extra).saturating_sub(self.slots.len()) * size_of::<Slot>()
    }

    /// Makes room for `extra` more keys.
    pub(crate) fn grow(&mut self, extra: usize) {
        let wanted = slots_for(self.len + extra);
        if wanted <= self.slots.len() {
            return;
        }
        let old = std::mem::replace(&mut self.slots, Buffer::filled(wanted, EMPTY));
        let mask = self.slots.len() - 1;
        for &slot in old.iter().filter(|slot| slot.row != NO_ROW) {
            let mut at = slot.hash as usize & mask;
            while self.slots[at].row != NO_ROW {
                at = (at + 1) & mask;
            }
            self.slots[at] = slot;
        }
    }

    /// Row of the hash, or [`NO_ROW`].
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> u32 {
        let slots = &*self.slots;
        let mask = slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = slots[at];
            if slot.hash == hash || slot.row == NO_ROW {
                // An empty slot yields NO_ROW whatever its hash field says.
                return slot.row;
            }
            at = (at + 1) & mask;
        }
    }

    /// Asks the cache for the first slot of the hash that comes [`PREFETCH_KEYS`] after number `at` of `hashes`.
    #[inline(always)]
    pub(crate) fn prefetch_ahead<T>(&self, entries: &[T], at: usize, hash: impl Fn(&T) -> u64) {
        if let Some(ahead) = entries.get(at + PREFETCH_KEYS) {
            self.prefetch(hash(ahead));
        }
    }

    /// Asks the cache for the first slot of a hash.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.slots, hash as usize & (self.slots.len() - 1));
    }

    /// Inserts a hash that is not there, into room that [`Index::grow`] made.
    pub(crate) fn insert(&mut self, hash: u64, row: u32) {
        debug_assert!(row != NO_ROW && self.growth_bytes(1) == 0, "no room was made");
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        while self.slots[at].row != NO_ROW {
            debug_assert_ne!(self.slots[at].hash, hash, "inserted twice");
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { hash, row };
        self.len += 1;
    }

    /// Removes the hash; its row number, or [`NO_ROW`] when it was not there.
    pub(crate) fn remove(&mut self, hash: u64) -> u32 {
        let mask = self.slots.len() - 1;
        let mut hole = hash as usize & mask;
        while self.slots[hole].hash != hash || self.slots[hole].row == NO_ROW {
            if self.slots[hole].row == NO_ROW {
                return NO_ROW;
            }
            hole = (hole + 1) & mask;
        }
        let row = self.slots[hole].row;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let slot = self.slots[at];
            if slot.row == NO_ROW {
                break;
            }
            // A slot may move back into the hole unless its home lies after the hole: distances from home, cyclic.
            let home = slot.hash as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
        row
    }

    /// Row numbers of all keys, in slot order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().map(|slot| slot.row).filter(|&row| row != NO_ROW)
    }
}

/// Slots that `keys` keys need at the load limit.
fn slots_for(keys: usize) -> usize {
    (keys * 100).div_ceil(LOAD_MAX_PERCENT).next_power_of_two().max(SLOTS_MIN)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Few home slots and few hashes, so that runs are long, wrap around and are torn by removals.
        #[test]
        fn agrees_with_a_hash_map(operations in prop::collection::vec((any::<bool>(), 0_u64..6, 0_u64..8), 1..400)) {
            let mut index = Index::new();
            let mut model = HashMap::new();
            for (number, (insert, high, low)) in operations.into_iter().enumerate() {
                let hash = (high << 32) | (low + 12);
                if insert {
                    model.entry(hash).or_insert_with(|| {
                        index.grow(1);
                        index.insert(hash, number as u32);
                        number as u32
                    });
                } else {
                    prop_assert_eq!(index.remove(hash), model.remove(&hash).unwrap_or(NO_ROW));
                }
                prop_assert_eq!(index.len(), model.len());
                for high in 0..6_u64 {
                    for low in 0..8_u64 {
                        let hash = (high << 32) | (low + 12);
                        prop_assert_eq!(index.find(hash), model.get(&hash).copied().unwrap_or(NO_ROW));
                    }
                }
            }
            let mut rows: Vec<u32> = index.rows().collect();
            let mut expected: Vec<u32> = model.values().copied().collect();
            rows.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(rows, expected);
        }
    }
}
