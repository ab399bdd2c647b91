//! The index of a table: hash of a key -> row number, in buckets of one cache line. Knows nothing of rows' contents,
//! of the budget or of who may write.
//!
//! Open addressing over whole lines. A bucket has five hashes (the hash is a bijection of the key, so that it stands
//! for it), their five row numbers, a version, and an overflow count: how many keys were turned away here because the
//! bucket was full and went on to later ones. A search ends at the first bucket that has turned nobody away, so that
//! nearly every search, of present and of absent keys, touches one line.
//!
//! Searches take no lock and write nothing: the version is odd while a bucket changes, and a search that saw it odd or
//! changed looks again. Keys never move within an index. One thread at a time changes it; the table sees to that.
#![allow(unsafe_code)] // promises that a bucket is made of atomics

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize, fence};

use crate::memory::{Region, ZeroAtomics};
use crate::prefetch::prefetch;
use crate::words::{self, Width};

/// Row number of a key that is absent.
pub(crate) const NO_ROW: u32 = u32::MAX;
/// Keys of a bucket.
const SLOTS: usize = 5;
/// Buckets of a new index.
const BUCKETS_MIN: usize = 4;
/// Shares of the slots that are used: after growing, at which to grow, and, if that fails, at most.
const FILL_GROWN_PERCENT: usize = 50;
const FILL_GROW_PERCENT: usize = 70;
const FILL_MAX_PERCENT: usize = 88;
/// What room is made at when the number of keys is known beforehand: 21.3 bytes per key.
const FILL_DEFAULT_PERCENT: usize = 60;

/// Meta word: bit 0 odd while the bucket changes, bits 0 to 23 the version, bits 24 to 31 the overflow count, which
/// sticks at its maximum.
const VERSION_MASK: u32 = 0x00FF_FFFF;
const OVERFLOW_SHIFT: u32 = 24;
const OVERFLOW_MAX: u32 = 0xFF;

/// Words 0 to 4 are hashes; 5 and 6 are the row numbers of slots 0 to 3, two each; 7 is that of slot 4 and, above it,
/// the meta word. Row numbers are kept plus one, so that zero is an empty slot and zeroed memory an empty index.
#[repr(align(64))]
#[derive(Debug)]
struct Bucket([AtomicU64; 8]);

// SAFETY: a bucket is an array of atomics, and all zero is the empty bucket.
unsafe impl ZeroAtomics for Bucket {}

/// What a search in one bucket found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    /// Row number, or [`NO_ROW`].
    pub(crate) row: u32,
    /// The key is not here but may be in the next bucket.
    pub(crate) goes_on: bool,
}

impl Bucket {
    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    fn meta(&self) -> u32 {
        (self.word(7) >> 32) as u32
    }

    /// Row number plus one.
    #[inline(always)]
    fn row(&self, slot: usize) -> u32 {
        (self.word(SLOTS + slot / 2) >> (slot % 2 * 32)) as u32
    }

    #[inline(always)]
    fn probe(&self, width: Width, hash: u64) -> Probe {
        loop {
            let meta = (self.0[7].load(Acquire) >> 32) as u32;
            let mut matches = words::equal(width, &self.0, hash);
            let mut row = 0;
            // More than one turn only for slots that are empty and hold an old hash.
            while matches != 0 && row == 0 {
                row = self.row(matches.trailing_zeros() as usize);
                matches &= matches - 1;
            }
            fence(Acquire);
            if self.meta() == meta && meta & 1 == 0 {
                return Probe { row: row.wrapping_sub(1), goes_on: row == 0 && meta >> OVERFLOW_SHIFT != 0 };
            }
            std::hint::spin_loop();
        }
    }

    /// Changes the bucket while its version is odd. Only one thread at a time may do this.
    fn change(&self, overflow: u32, write: impl FnOnce(&Bucket)) {
        let (last, meta) = (self.word(7) as u32, self.meta());
        self.0[7].store(u64::from(last) | u64::from(meta | 1) << 32, Relaxed);
        // The odd version is visible before anything that follows.
        fence(Release);
        write(self);
        let meta = (meta.wrapping_add(2) & VERSION_MASK) | overflow << OVERFLOW_SHIFT;
        let last = self.word(7) as u32;
        self.0[7].store(u64::from(last) | u64::from(meta) << 32, Release);
    }

    fn set_row(&self, slot: usize, row: u32) {
        let (word, shift) = (SLOTS + slot / 2, slot % 2 * 32);
        let others = self.word(word) & !(u64::from(u32::MAX) << shift);
        self.0[word].store(others | u64::from(row) << shift, Relaxed);
    }

    fn overflow(&self) -> u32 {
        self.meta() >> OVERFLOW_SHIFT
    }

    fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.row(slot) == 0)
    }

    fn fill(&self, slot: usize, hash: u64, row: u32) {
        self.change(self.overflow(), |bucket| {
            bucket.0[slot].store(hash, Relaxed);
            bucket.set_row(slot, row + 1);
        });
    }

    fn empty(&self, slot: usize) {
        self.change(self.overflow(), |bucket| bucket.set_row(slot, 0));
    }

    fn turn_away(&self) {
        self.change((self.overflow() + 1).min(OVERFLOW_MAX), |_| ());
    }

    fn take_back(&self) {
        let overflow = self.overflow();
        // At its maximum it has lost count: it stays until the index is made anew.
        if overflow < OVERFLOW_MAX {
            self.change(overflow - 1, |_| ());
        }
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Region<Bucket>,
    len: AtomicUsize,
    width: Width,
}

impl Index {
    /// Bytes of a new index.
    pub(crate) const NEW_BYTES: usize = BUCKETS_MIN * size_of::<Bucket>();

    /// An empty index of [`Index::NEW_BYTES`]; `None` without memory.
    pub(crate) fn new() -> Option<Index> {
        Index::with_buckets(BUCKETS_MIN)
    }

    fn with_buckets(buckets: usize) -> Option<Index> {
        Some(Index { buckets: Region::zeroed(buckets)?, len: AtomicUsize::new(0), width: Width::detect() })
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    pub(crate) fn addresses(&self) -> (usize, usize) {
        self.buckets.addresses()
    }

    /// Is there room for another key, in the end?
    pub(crate) fn has_room(&self) -> bool {
        (self.len() + 1) * 100 <= self.buckets.len() * SLOTS * FILL_MAX_PERCENT
    }

    /// Bytes of the larger index that should replace this one before another key comes; 0 when there is room.
    pub(crate) fn grown_bytes(&self) -> usize {
        if (self.len() + 1) * 100 <= self.buckets.len() * SLOTS * FILL_GROW_PERCENT {
            return 0;
        }
        buckets_for(self.len() + 1, FILL_GROWN_PERCENT) * size_of::<Bucket>()
    }

    /// Bytes of an index for this many keys at the default fill; 0 when this one has as many.
    pub(crate) fn reserved_bytes(&self, keys: usize) -> usize {
        let wanted = buckets_for(keys, FILL_DEFAULT_PERCENT);
        if wanted <= self.buckets.len() { 0 } else { wanted * size_of::<Bucket>() }
    }

    /// A copy of this index with `bytes` of buckets, at least as many as this one has. The order of buckets follows
    /// that of the hashes, so that both are gone through from front to back. `None` without memory.
    pub(crate) fn grown(&self, bytes: usize) -> Option<Index> {
        let index = Index::with_buckets(bytes / size_of::<Bucket>())?;
        for bucket in &*self.buckets {
            for slot in 0..SLOTS {
                if let Some(row) = bucket.row(slot).checked_sub(1) {
                    index.insert(bucket.word(slot), row);
                }
            }
        }
        Some(index)
    }

    /// The bucket where a search for the hash begins: the hash as a fraction of its range, hence any number of
    /// buckets.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline(always)]
    fn after(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    /// Asks the cache for the hash's home bucket.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets, self.home(hash));
    }

    /// Asks the cache for the bucket after the hash's home bucket.
    #[inline(always)]
    pub(crate) fn prefetch_second(&self, hash: u64) {
        prefetch(&self.buckets, self.after(self.home(hash)));
    }

    /// Looks into the hash's home bucket.
    #[inline(always)]
    pub(crate) fn probe_home(&self, hash: u64) -> Probe {
        self.buckets[self.home(hash)].probe(self.width, hash)
    }

    /// Looks into the buckets after the hash's home bucket; its row or [`NO_ROW`].
    pub(crate) fn find_displaced(&self, hash: u64) -> u32 {
        let mut at = self.home(hash);
        for _ in 1..self.buckets.len() {
            at = self.after(at);
            let probe = self.buckets[at].probe(self.width, hash);
            if !probe.goes_on {
                return probe.row;
            }
        }
        NO_ROW
    }

    /// Row of the hash, or [`NO_ROW`].
    pub(crate) fn find(&self, hash: u64) -> u32 {
        let probe = self.probe_home(hash);
        if probe.goes_on { self.find_displaced(hash) } else { probe.row }
    }

    /// Inserts a hash that is not there. There must be room; only one thread at a time may change the index.
    pub(crate) fn insert(&self, hash: u64, row: u32) {
        debug_assert!(self.has_room() && row < NO_ROW - 1);
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            if let Some(slot) = bucket.free_slot() {
                bucket.fill(slot, hash, row);
                break;
            }
            bucket.turn_away();
            at = self.after(at);
        }
        self.len.store(self.len() + 1, Relaxed);
    }

    /// Removes the hash; its row number, or [`NO_ROW`] when it was not there. Only one thread at a time may change the
    /// index.
    pub(crate) fn remove(&self, hash: u64) -> u32 {
        let row = self.find(hash);
        if row == NO_ROW {
            return NO_ROW;
        }
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            let slot = (0..SLOTS).find(|&slot| bucket.word(slot) == hash && bucket.row(slot) != 0);
            if let Some(slot) = slot {
                bucket.empty(slot);
                break;
            }
            bucket.take_back();
            at = self.after(at);
        }
        self.len.store(self.len() - 1, Relaxed);
        row
    }
}

/// Buckets of an index that `keys` keys fill to this share.
fn buckets_for(keys: usize, fill_percent: usize) -> usize {
    (keys * 100).div_ceil(SLOTS * fill_percent).max(BUCKETS_MIN)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::hash::mix;

    proptest! {
        /// Few home buckets and few hashes, zero among them, so that buckets overflow, wrap around and are torn by
        /// removals.
        #[test]
        fn agrees_with_a_hash_map(operations in prop::collection::vec((any::<bool>(), 0_u64..4, 0_u64..12), 1..400)) {
            let mut index = Index::new().unwrap();
            let mut model = HashMap::new();
            let hash_of = |high: u64, low: u64| if high == 3 { u64::MAX - low } else { high << 62 | low };
            for (number, (insert, high, low)) in operations.into_iter().enumerate() {
                let hash = hash_of(high, low);
                if insert {
                    model.entry(hash).or_insert_with(|| {
                        if !index.has_room() {
                            index = index.grown(index.grown_bytes()).unwrap();
                        }
                        index.insert(hash, number as u32);
                        number as u32
                    });
                } else {
                    prop_assert_eq!(index.remove(hash), model.remove(&hash).unwrap_or(NO_ROW));
                }
                prop_assert_eq!(index.len(), model.len());
                for high in 0..4_u64 {
                    for low in 0..12_u64 {
                        let hash = hash_of(high, low);
                        prop_assert_eq!(index.find(hash), model.get(&hash).copied().unwrap_or(NO_ROW));
                    }
                }
            }
            for hash in model.into_keys() {
                index.remove(hash);
            }
            prop_assert!(index.buckets.iter().all(|bucket| bucket.overflow() == 0), "an overflow count was lost");
        }
    }

    /// Dense ids, shifted ids and random ids must all probe alike.
    #[test]
    fn structured_ids_find_their_home() {
        let n = if cfg!(miri) { 2000 } else { 200_000 };
        let check = |what: &str, id: &dyn Fn(u64) -> u64| {
            let empty = Index::new().unwrap();
            let index = empty.grown(empty.reserved_bytes(n as usize)).unwrap();
            assert!(index.bytes() <= 22 * n as usize, "{what}: {} bytes", index.bytes());
            (0..n).for_each(|i| index.insert(mix(id(i)), i as u32));
            let displaced = (0..n).filter(|&i| index.probe_home(mix(id(i))).goes_on).count() as f64;
            // Poisson with mean 3 in 5 slots displaces 4.5 %, and those displace some more.
            assert!(displaced / (n as f64) < 0.07, "{what}: {displaced} of {n} displaced");
            let on = (n..2 * n).filter(|&i| index.probe_home(mix(id(i))).goes_on).count() as f64;
            assert!(on / (n as f64) < 0.15, "{what}: {on} of {n} absent keys need a second line");
        };
        check("dense", &|i| i);
        check("shifted by 20", &|i| i << 20);
        check("shifted by 44", &|i| i << 44);
        check("random", &|i| mix(i ^ 0x5555));
    }

    #[test]
    fn a_lost_overflow_count_stays() {
        let index = Index::new().unwrap();
        let bucket = &index.buckets[0];
        (0..300).for_each(|_| bucket.turn_away());
        (0..300).for_each(|_| bucket.take_back());
        assert_eq!(bucket.overflow(), OVERFLOW_MAX);
    }
}
