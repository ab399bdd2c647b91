//! The distinct keys of a request. Knows nothing of tables.

use std::ops::Range;

use crate::hash::mix;
use crate::prefetch::{To, prefetch};

/// Slots of a new table; always a power of two.
const SLOTS_MIN: usize = 64;
/// Up to so many are near enough to do without prefetching: 128 KiB.
const SLOTS_NEAR: usize = 1 << 13;
/// How many keys ahead a slot is asked for.
const AHEAD: usize = 16;

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
        self.inverse.reserve(keys.len());
        for (at, &key) in keys.iter().enumerate() {
            if self.slots.len() > SLOTS_NEAR
                && let Some(&later) = keys.get(at + AHEAD)
            {
                prefetch(&self.slots, mix(later) as usize & (self.slots.len() - 1), To::Change);
            }
            let unique = self.number(key);
            self.inverse.push(unique);
        }
        start..self.inverse.len()
    }

    #[inline(always)]
    fn number(&mut self, key: u64) -> u32 {
        let mask = self.slots.len() - 1;
        let mut at = mix(key) as usize & mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.epoch != self.epoch {
                let unique = self.unique.len() as u32;
                *slot = Slot { key, unique, epoch: self.epoch };
                self.unique.push(key);
                self.counts.push(1);
                if self.unique.len() * 2 > self.slots.len() {
                    self.grow();
                }
                return unique;
            }
            if slot.key == key {
                self.counts[slot.unique as usize] += 1;
                return slot.unique;
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(size, Slot::default());
        for (unique, &key) in self.unique.iter().enumerate() {
            let mut at = mix(key) as usize & (size - 1);
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
