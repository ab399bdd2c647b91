//! Numbers the distinct keys of a request.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use crate::index::hash::GOLDEN;

/// Slots of a new hash table; always a power of two.
const SLOTS_MIN: usize = 64;
/// Keys processed together; their positions in a chunk fit into a byte.
const CHUNK: usize = 64;

/// Search steps that trigger a new hash factor: this many per key, and `STEPS_MORE_MAX` more. Two steps are
/// typical.
const STEPS_PER_KEY_MAX: usize = 16;
const STEPS_MORE_MAX: usize = 1024;

/// The slot where the search for a key begins, by Fibonacci hashing (Knuth 1973, section 6.4).
///
/// It spreads ordinary keys. An attacker can choose keys that collide, so a random odd factor replaces the golden
/// ratio once searches become long: two keys then collide with a probability of two in the number of slots
/// (Dietzfelbinger et al. 1997).
#[derive(Debug, Clone, Copy)]
struct Places {
    factor: u64,
    shift: u32,
}

impl Places {
    /// For `slots` slots, a power of two.
    fn new(salt: u64, slots: usize) -> Places {
        Places { factor: GOLDEN ^ salt, shift: u64::BITS - slots.trailing_zeros() }
    }

    #[inline(always)]
    fn of(self, key: u64) -> usize {
        (key.wrapping_mul(self.factor) >> self.shift) as usize
    }
}

/// The content of an unused slot.
const EMPTY: u32 = u32::MAX;
/// With fewer keys than one per this many slots, clearing visits only their slots.
const SPARSE: usize = 16;

/// Numbers the distinct keys of a request in order of first appearance.
///
/// It is reusable: in steady state it allocates nothing, and clearing costs no more than numbering did.
/// `unique[inverse[i]] == keys[i]`, and `counts[u]` is the number of occurrences of `unique[u]`.
#[derive(Debug, Clone, Default)]
pub struct Dedup {
    /// Distinct keys, in order of first appearance.
    pub unique: Vec<u64>,
    /// For every added key, its position in `unique`.
    pub inverse: Vec<u32>,
    /// Occurrences, parallel to `unique`.
    pub counts: Vec<u32>,
    /// Positions in `unique`, or [`EMPTY`]; at most half are used. A search goes from slot to slot up to an empty
    /// one. The slots hold no keys, so that those of a run of samples fit into a cache: the key is at the slot's
    /// position in `unique`.
    slots: Vec<u32>,
    /// XOR of the hash factor and the golden ratio; even.
    salt: u64,
    /// Search steps since the factor was chosen.
    steps: usize,
}

impl Dedup {
    /// Creates an empty one.
    #[must_use]
    pub fn new() -> Dedup {
        Dedup::default()
    }

    /// Forgets all keys and keeps the memory.
    pub fn clear(&mut self) {
        if self.unique.len() < self.slots.len() / SPARSE {
            let (mask, places) = (self.slots.len() - 1, Places::new(self.salt, self.slots.len()));
            for &key in &self.unique {
                // Clears up to the next empty slot, because the keys of a run may have been stored in any order.
                let mut at = places.of(key);
                while std::mem::replace(&mut self.slots[at], EMPTY) != EMPTY {
                    at = (at + 1) & mask;
                }
            }
        } else {
            self.slots.fill(EMPTY);
        }
        self.unique.clear();
        self.inverse.clear();
        self.counts.clear();
        self.steps = 0;
    }

    /// Removes keys for which `stays`, called with the key's number, is false, and renumbers the others in order.
    ///
    /// `inverse` is invalid afterwards, and no keys may be added before [`Dedup::clear`].
    pub fn retain(&mut self, mut stays: impl FnMut(usize) -> bool) {
        let mut kept = 0;
        for number in 0..self.unique.len() {
            if stays(number) {
                self.unique[kept] = self.unique[number];
                self.counts[kept] = self.counts[number];
                kept += 1;
            }
        }
        self.unique.truncate(kept);
        self.counts.truncate(kept);
        self.slots.fill(EMPTY);
    }

    /// Replaces the content with these keys: [`Dedup::clear`], then [`Dedup::add`].
    pub fn assign(&mut self, keys: &[u64]) {
        self.clear();
        self.add(keys);
    }

    /// Adds keys; returns their range in `inverse`.
    pub fn add(&mut self, keys: &[u64]) -> Range<usize> {
        if self.slots.is_empty() {
            self.slots.resize(SLOTS_MIN, EMPTY);
        }
        let start = self.inverse.len();
        let mut rest = if self.unique.is_empty() { self.add_new(keys) } else { keys };
        while !rest.is_empty() {
            // The number of new keys that still leave half of the slots empty.
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

    /// Adds keys while all are new, as those of a deduplicated list are; returns the remaining keys.
    fn add_new<'a>(&mut self, keys: &'a [u64]) -> &'a [u64] {
        let mut new = 0;
        for chunk in keys.chunks(CHUNK) {
            while self.slots.len() / 2 < self.unique.len() + chunk.len() {
                self.grow();
            }
            let inserted = self.insert_new(chunk);
            new += inserted;
            self.bound_steps();
            if inserted < chunk.len() {
                break;
            }
        }
        &keys[new..]
    }

    /// Adds keys up to the first that is present; returns their number. There must be room.
    fn insert_new(&mut self, keys: &[u64]) -> usize {
        let Dedup { unique, inverse, counts, slots, salt, steps } = self;
        let (mask, slots) = (slots.len() - 1, slots.as_mut_slice());
        let (places, first) = (Places::new(*salt, slots.len()), unique.len());
        unique.extend_from_slice(keys);
        let mut new = 0;
        'keys: for (number, &key) in (first as u32..).zip(keys) {
            let begin = places.of(key);
            let mut at = begin;
            while slots[at & mask] != EMPTY {
                if unique[slots[at & mask] as usize] == key {
                    break 'keys;
                }
                at += 1;
            }
            slots[at & mask] = number;
            *steps += at - begin;
            new += 1;
        }
        unique.truncate(first + new);
        inverse.extend(first as u32..(first + new) as u32);
        counts.resize(first + new, 1);
        new
    }

    /// Adds keys; there must be room even if all are new.
    fn number(&mut self, keys: &[u64]) {
        for keys in keys.chunks(CHUNK) {
            self.number_chunk(keys);
            self.bound_steps();
        }
    }

    /// Numbers a chunk of keys: first the keys in their first slot, without a data-dependent branch, then the new
    /// and the displaced ones, in order.
    #[inline(always)]
    fn number_chunk(&mut self, keys: &[u64]) {
        let Dedup { unique, inverse, counts, slots, salt, steps } = self;
        let (mask, slots) = (slots.len() - 1, slots.as_mut_slice());
        let places = Places::new(*salt, slots.len());
        let (mut others, mut other_len) = ([0_u8; CHUNK], 0);
        let start = inverse.len();
        inverse.resize(start + keys.len(), 0);
        let inverse = &mut inverse[start..];
        // It exists: the first key of all was added as a new one.
        let last = unique.len() - 1;
        let known = &unique[..=last];
        // Separate loops keep as many loads in flight as possible.
        for (&key, inverse) in keys.iter().zip(&mut *inverse) {
            // An empty slot yields the last number; the comparison below rejects it.
            *inverse = slots[places.of(key) & mask].min(last as u32);
        }
        for (at, (&key, &number)) in keys.iter().zip(&*inverse).enumerate() {
            others[other_len % CHUNK] = at as u8;
            other_len += usize::from(known[number as usize] != key);
        }
        for &other in &others[..other_len] {
            let key = keys[usize::from(other)];
            let begin = places.of(key);
            let mut at = begin;
            inverse[usize::from(other)] = loop {
                let slot = &mut slots[at & mask];
                if *slot == EMPTY {
                    let number = unique.len() as u32;
                    *slot = number;
                    unique.push(key);
                    counts.push(0);
                    break number;
                }
                if unique[*slot as usize] == key {
                    break *slot;
                }
                at += 1;
            };
            *steps += at - begin;
        }
        inverse.iter().for_each(|&number| counts[number as usize] += 1);
    }

    /// Chooses a new hash factor once searches have become too long.
    fn bound_steps(&mut self) {
        if self.steps > STEPS_MORE_MAX + STEPS_PER_KEY_MAX * self.inverse.len() {
            self.scatter();
        }
    }

    #[cold]
    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        self.slots.clear();
        self.slots.resize(size, EMPTY);
        self.fill_slots();
    }

    /// Rehashes all keys with a random factor.
    #[cold]
    fn scatter(&mut self) {
        self.salt = RandomState::new().hash_one(self.salt) & !1;
        self.steps = 0;
        self.slots.fill(EMPTY);
        self.fill_slots();
    }

    fn fill_slots(&mut self) {
        let (mask, places) = (self.slots.len() - 1, Places::new(self.salt, self.slots.len()));
        for (number, &key) in (0..).zip(&self.unique) {
            let mut at = places.of(key);
            while self.slots[at] != EMPTY {
                at = (at + 1) & mask;
            }
            self.slots[at] = number;
        }
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
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
    fn cleared_slots_are_empty_however_many_keys_there_were() {
        let mut dedup = Dedup::new();
        let many: Vec<u64> = (0..1000).collect();
        for keys in [&many[..], &[0, 0, 7], &[7, 0], &many[500..], &[]] {
            dedup.assign(keys);
            check(&dedup, keys);
            let used = dedup.slots.iter().filter(|&&slot| slot != EMPTY).count();
            assert_eq!(used, dedup.unique.len());
        }
    }

    #[test]
    fn keys_that_are_taken_out_leave_nothing_behind() {
        let mut dedup = Dedup::new();
        for many in [1000, 10, 2000, 3] {
            let keys: Vec<u64> = (0..many).chain(0..many).collect();
            dedup.assign(&keys);
            dedup.retain(|number| number % 3 == 1);
            assert_eq!(dedup.unique, (0..many).filter(|key| key % 3 == 1).collect::<Vec<_>>());
            assert_eq!(dedup.counts, vec![2; dedup.unique.len()]);
            dedup.assign(&keys);
            check(&dedup, &keys);
        }
    }

    /// Keys that were chosen to collide under the golden ratio are spread by a new factor.
    #[test]
    fn chosen_keys_are_spread() {
        const KEYS: u64 = if cfg!(miri) { 1 << 9 } else { 1 << 15 };
        // Newton's method doubles the number of correct digits.
        let inverse = (0..6).fold(GOLDEN, |inverse, _| {
            inverse.wrapping_mul(2_u64.wrapping_sub(GOLDEN.wrapping_mul(inverse)))
        });
        assert_eq!(inverse.wrapping_mul(GOLDEN), 1);
        let mut dedup = Dedup::new();
        for many in [KEYS, KEYS / 3, KEYS] {
            let keys: Vec<u64> = (0..many).map(|key| key.wrapping_mul(inverse)).collect();
            dedup.assign(&keys);
            assert_eq!(dedup.unique, keys);
            assert!(dedup.inverse.iter().copied().eq(0..many as u32));
            let runs = dedup.slots.split(|&slot| slot == EMPTY);
            let longest = runs.map(<[u32]>::len).max().unwrap_or_default();
            assert!(longest < 256, "{longest} of {many}");
        }
    }
}
