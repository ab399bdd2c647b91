//! The distinct keys of a request. Knows nothing of tables.

use std::ops::Range;

use crate::hash::GOLDEN;

/// Slots of a new table; always a power of two.
const SLOTS_MIN: usize = 64;
/// Keys that are looked at together; their places in a chunk fit into a byte.
const CHUNK: usize = 64;

/// Where the search for a key begins: by Fibonacci hashing (Knuth 1973, section 6.4), which is enough for keys that
/// nobody else's memory depends on.
#[inline(always)]
fn place(key: u64, mask: usize) -> usize {
    ((key ^ key >> 32).wrapping_mul(GOLDEN) >> 32) as usize & mask
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    key: u64,
    /// Index into `unique`.
    unique: u32,
    /// The slot is in use when this is the current epoch, so that clearing costs nothing.
    epoch: u32,
}

/// Numbers the distinct keys of a request in order of first appearance. Reusable: in steady state it allocates
/// nothing, and clearing costs nothing.
///
/// `unique[inverse[i]] == keys[i]`, and `counts[u]` is how often `unique[u]` occurred.
#[derive(Debug, Clone, Default)]
pub struct Dedup {
    /// Distinct keys, in order of first appearance.
    pub unique: Vec<u64>,
    /// For every key that was added, its position in `unique`.
    pub inverse: Vec<u32>,
    /// Occurrences, parallel to `unique`.
    pub counts: Vec<u32>,
    slots: Vec<Slot>,
    epoch: u32,
}

impl Dedup {
    /// An empty one.
    #[must_use]
    pub fn new() -> Dedup {
        Dedup::default()
    }

    /// Forgets all keys and keeps the memory.
    pub fn clear(&mut self) {
        self.unique.clear();
        self.inverse.clear();
        self.counts.clear();
        self.epoch = self.epoch.wrapping_add(1);
        if self.epoch == 0 {
            self.slots.fill(Slot::default());
            self.epoch = 1;
        }
    }

    /// Replaces the content by these keys: [`Dedup::clear`], then [`Dedup::add`].
    pub fn assign(&mut self, keys: &[u64]) {
        self.clear();
        self.add(keys);
    }

    /// Adds further keys; the range of `inverse` that belongs to them.
    pub fn add(&mut self, keys: &[u64]) -> Range<usize> {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS_MIN, Slot::default());
            self.epoch = self.epoch.max(1);
        }
        let start = self.inverse.len();
        let mut rest = keys;
        while !rest.is_empty() {
            // So many can be new before half of the slots are in use.
            let room = self.slots.len() / 2 - self.unique.len();
            if room < rest.len() && room < self.slots.len() / 8 {
                self.grow();
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min(room));
            self.number(now);
            rest = later;
        }
        start..self.inverse.len()
    }

    /// Adds keys that there is room for even if all are new.
    fn number(&mut self, keys: &[u64]) {
        for keys in keys.chunks(CHUNK) {
            self.number_chunk(keys);
        }
    }

    /// Keys that are where the search for them begins are numbered first, without a branch that depends on them; then the
    /// others, in their order: those that are new, and those that others keep from their place.
    #[inline(always)]
    fn number_chunk(&mut self, keys: &[u64]) {
        let Dedup { unique, inverse, counts, slots, epoch } = self;
        let (mask, epoch, slots) = (slots.len() - 1, *epoch, slots.as_mut_slice());
        let (mut others, mut other_len) = ([0_u8; CHUNK], 0);
        let start = inverse.len();
        inverse.extend(keys.iter().enumerate().map(|(at, &key)| {
            let slot = &slots[place(key, mask) & mask];
            others[other_len % CHUNK] = at as u8;
            other_len += usize::from((slot.key != key) | (slot.epoch != epoch));
            slot.unique
        }));
        let inverse = &mut inverse[start..];
        for &other in &others[..other_len] {
            let key = keys[usize::from(other)];
            let mut at = place(key, mask);
            inverse[usize::from(other)] = loop {
                let slot = &mut slots[at & mask];
                if slot.epoch != epoch {
                    let number = unique.len() as u32;
                    *slot = Slot { key, unique: number, epoch };
                    unique.push(key);
                    counts.push(0);
                    break number;
                }
                if slot.key == key {
                    break slot.unique;
                }
                at += 1;
            };
        }
        inverse.iter().for_each(|&number| counts[number as usize] += 1);
    }

    #[cold]
    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(size, Slot::default());
        for (unique, &key) in self.unique.iter().enumerate() {
            let mut at = place(key, size - 1);
            while self.slots[at].epoch == self.epoch {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = Slot { key, unique: unique as u32, epoch: self.epoch };
        }
    }

    /// Bytes that are kept allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot>()
            + self.unique.capacity() * size_of::<u64>()
            + (self.inverse.capacity() + self.counts.capacity()) * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(dedup: &Dedup, keys: &[u64]) {
        assert_eq!(dedup.inverse.len(), keys.len());
        let mut expected: Vec<u64> = Vec::new();
        for (&key, &unique) in keys.iter().zip(&dedup.inverse) {
            if !expected.contains(&key) {
                expected.push(key);
            }
            assert_eq!(dedup.unique[unique as usize], key);
        }
        assert_eq!(dedup.unique, expected);
        for (unique, &count) in dedup.unique.iter().zip(&dedup.counts) {
            assert_eq!(keys.iter().filter(|key| *key == unique).count(), count as usize);
        }
    }

    proptest! {
        #[test]
        fn numbers_distinct_keys(requests in prop::collection::vec(prop::collection::vec(
            prop_oneof![0_u64..40, any::<u64>(), Just(u64::MAX)], 0..200), 1..6)) {
            let mut dedup = Dedup::new();
            for keys in &requests {
                dedup.assign(keys);
                check(&dedup, keys);
            }
            dedup.clear();
            let mut all = Vec::new();
            for keys in &requests {
                let range = dedup.add(keys);
                prop_assert_eq!(range, all.len()..all.len() + keys.len());
                all.extend_from_slice(keys);
            }
            check(&dedup, &all);
        }
    }

    #[test]
    fn the_epoch_wraps() {
        let mut dedup = Dedup { epoch: u32::MAX - 1, ..Dedup::default() };
        for _ in 0..4 {
            dedup.assign(&[0, 0, 7]);
            check(&dedup, &[0, 0, 7]);
        }
    }
}
