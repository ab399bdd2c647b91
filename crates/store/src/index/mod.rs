//! The index of a table: hash of a key -> row number, in buckets of one cache line. Knows nothing of rows' contents,
//! of the budget or of who may write.
//!
//! Open addressing over whole lines. A bucket has five hashes (the hash is a bijection of the key, so that it stands
//! for it), their five row numbers, a version, and an overflow count: how many keys were turned away here because the
//! bucket was full and went on to later ones. A search ends at the first bucket that has turned nobody away, so that
//! nearly every search, of present and of absent keys, touches one line.
//!
//! Searches take no lock and write nothing: the version is odd while a bucket changes, and a search that saw it odd or
//! changed looks again. A key moves only to its home bucket, or from a bucket to a later one; it is in
//! the new place before it is seen to have left the old one, so that a search that goes forward misses it only if it moved
//! home meanwhile, which shows in the home bucket's version. Many threads may change an index at once, each under the lock of the
//! key that it changes (which [`crate::index::directory`] has); a bucket is held for one change at a time.

pub(crate) mod bucket;
pub(crate) mod directory;
pub(crate) mod hash;
pub(crate) mod removals;

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Acquire;

pub(crate) use crate::index::bucket::NO_ROW;
use crate::index::bucket::{Bucket, Probe, SLOTS};
use crate::index::hash::part;
use crate::memory::Region;
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::simd::{Vector, Width};
use crate::sync::fence;

/// Buckets of a new index.
const BUCKETS_MIN: usize = if cfg!(loom) { 2 } else { 4 };
/// Shares of the slots that are used: after growing, at which to grow, and, if that fails, at most.
const FILL_GROWN_PERCENT: usize = 50;
const FILL_GROW_PERCENT: usize = 70;
const FILL_MAX_PERCENT: usize = 88;
/// The share after growing of an index that is still small, if memory is no object: it doubles, since what is copied, and pages
/// that the system clears for it, are felt while a table is new.
const FILL_DOUBLED_PERCENT: usize = 35;
const SMALL_BYTES: usize = 64 << 20;
/// What room is made at when the number of keys is known beforehand: 21.3 bytes per key.
const FILL_DEFAULT_PERCENT: usize = 60;

/// See [`Index::searcher`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Searcher<'a, V> {
    buckets: &'a [Bucket],
    vector: V,
}

impl<V: Vector> Searcher<'_, V> {
    /// Where searches for the hashes begin.
    #[inline(always)]
    pub(crate) fn homes<const N: usize>(&self, hashes: &[u64; N], homes: &mut [u32; N]) {
        let buckets = self.buckets.len() as u32;
        // By itself, so that it vectorises.
        homes.iter_mut().zip(hashes).for_each(|(home, &hash)| *home = self::home(hash, buckets));
    }

    /// Asks the cache for buckets.
    #[inline(always)]
    pub(crate) fn prefetch_all(&self, buckets: &[u32]) {
        for &bucket in buckets {
            prefetch(self.buckets, bucket as usize, PrefetchHint::Read);
        }
    }

    /// Asks the cache for this bucket and the one after it.
    #[inline(always)]
    pub(crate) fn prefetch_two(&self, bucket: u32) {
        prefetch_two(self.buckets, bucket as usize);
    }

    /// The bucket that a search goes on with.
    #[inline(always)]
    pub(crate) fn after(&self, bucket: u32) -> u32 {
        after(bucket as usize, self.buckets.len()) as u32
    }

    /// Looks into this bucket and, if it is not there but may be, into the one after it.
    #[inline(always)]
    pub(crate) fn probe_two(&self, bucket: u32, hash: &u64, optimistic: bool) -> Probe {
        let probe = self.probe(bucket, hash, optimistic);
        if probe.goes_on { self.probe(self.after(bucket), hash, optimistic) } else { probe }
    }

    /// Looks into the home buckets of hashes; a bit for each whose search goes on.
    #[inline(always)]
    pub(crate) fn probe_all<const N: usize>(
        &self,
        homes: &[u32; N],
        hashes: &[u64; N],
        optimistic: bool,
        rows: &mut [u32; N],
    ) -> u32 {
        let mut go_on = 0;
        for (at, ((&home, hash), row)) in homes.iter().zip(hashes).zip(rows).enumerate() {
            let probe = self.probe(home, hash, optimistic);
            *row = probe.row;
            go_on |= u32::from(probe.goes_on) << at;
        }
        go_on
    }

    /// Looks into a bucket: see [`Bucket::probe_once`] for what `optimistic` is.
    #[inline(always)]
    pub(crate) fn probe(&self, bucket: u32, hash: &u64, optimistic: bool) -> Probe {
        let bucket = &self.buckets[bucket as usize];
        if optimistic { bucket.probe_once(self.vector, hash) } else { bucket.probe(self.vector, hash) }
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Region<Bucket>,
    width: Width,
}

impl Index {
    /// Bytes of a new index.
    pub(crate) const NEW_BYTES: usize = BUCKETS_MIN * size_of::<Bucket>();

    /// An empty index of [`Index::NEW_BYTES`]; `None` without memory.
    pub(crate) fn new() -> Option<Index> {
        Index::with_bytes(Index::NEW_BYTES)
    }

    fn with_bytes(bytes: usize) -> Option<Index> {
        Some(Index { buckets: Region::zeroed(bytes / size_of::<Bucket>())?, width: Width::detect() })
    }

    /// Buckets.
    pub(crate) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Asks the cache for a bucket.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, bucket: u32) {
        prefetch(&self.buckets, bucket as usize, PrefetchHint::Read);
    }

    /// A word of a bucket, whatever it means.
    #[inline(always)]
    pub(crate) fn word(&self, bucket: u32) -> u64 {
        self.buckets[bucket as usize].hash(0)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }

    pub(crate) fn addresses(&self) -> (usize, usize) {
        self.buckets.addresses()
    }

    /// Keys that it may hold in the end.
    pub(crate) fn keys_max(&self) -> usize {
        self.buckets.len() * SLOTS * FILL_MAX_PERCENT / 100
    }

    /// Bytes of the larger index that should replace this one before it holds `keys` keys; 0 when there is room. Where memory
    /// is bounded by a budget it grows by less.
    pub(crate) fn grown_bytes(&self, keys: usize, is_bounded: bool) -> usize {
        if keys * 100 <= self.buckets.len() * SLOTS * FILL_GROW_PERCENT {
            return 0;
        }
        let doubles = !is_bounded && self.bytes() < SMALL_BYTES;
        let fill_percent = if doubles { FILL_DOUBLED_PERCENT } else { FILL_GROWN_PERCENT };
        buckets_for(keys, fill_percent) * size_of::<Bucket>()
    }

    /// The fills that room for a known number of keys is made at, best first: where memory is short, up to the most that
    /// an index bears.
    pub(crate) const RESERVED_PERCENTS: RangeInclusive<usize> = FILL_DEFAULT_PERCENT..=FILL_MAX_PERCENT;

    /// About how many bytes an index of so many keys takes.
    pub(crate) fn bytes_of_keys(keys: u64) -> u64 {
        let slots = keys.saturating_mul(100) / FILL_DEFAULT_PERCENT as u64;
        (slots / SLOTS as u64).saturating_mul(size_of::<Bucket>() as u64)
    }

    /// Bytes of an index for this many keys at such a fill; 0 when this one has as many.
    pub(crate) fn reserved_bytes(&self, keys: usize, fill_percent: usize) -> usize {
        let wanted = buckets_for(keys, fill_percent);
        if wanted <= self.buckets.len() { 0 } else { wanted * size_of::<Bucket>() }
    }

    /// A copy of this index with `bytes` of buckets, at least as many as this one has. The order of buckets follows
    /// that of the hashes, so that both are gone through from front to back. `None` without memory. Nobody may change
    /// this one meanwhile.
    pub(crate) fn grown(&self, bytes: usize) -> Option<Index> {
        let index = Index::with_bytes(bytes)?;
        for bucket in &*self.buckets {
            for slot in 0..SLOTS {
                if let Some(row) = bucket.row(slot).checked_sub(1) {
                    index.insert(bucket.hash(slot), row);
                }
            }
        }
        Some(index)
    }

    /// The bucket where a search for the hash begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        home(hash, self.buckets.len() as u32) as usize
    }

    #[inline(always)]
    fn after(&self, bucket: usize) -> usize {
        after(bucket, self.buckets.len())
    }

    /// Buckets from one to another on a search's way.
    fn steps(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.buckets.len() - from }
    }

    /// Asks the cache for the hash's home bucket.
    pub(crate) fn prefetch(&self, hash: u64) {
        prefetch(&self.buckets, self.home(hash), PrefetchHint::Read);
    }

    /// Asks the cache for the hash's home bucket, to change it.
    pub(crate) fn prefetch_to_change(&self, hash: u64) {
        prefetch(&self.buckets, self.home(hash), PrefetchHint::Write);
    }

    /// Asks the cache for the hash's home bucket and the one after it, where it is if it found no room at home.
    pub(crate) fn prefetch_two(&self, hash: u64) {
        prefetch_two(&self.buckets, self.home(hash));
    }

    /// What it takes to look into buckets, by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn searcher<V: Vector>(&self, vector: V) -> Searcher<'_, V> {
        Searcher { buckets: &self.buckets, vector }
    }

    /// Looks into the buckets after this one.
    fn find_beyond(&self, mut at: usize, hash: u64) -> u32 {
        for _ in 1..self.buckets.len() {
            at = self.after(at);
            let probe = self.buckets[at].probe(self.width, &hash);
            if !probe.goes_on {
                return probe.row;
            }
        }
        NO_ROW
    }

    /// Row of the hash, or [`NO_ROW`].
    pub(crate) fn find(&self, hash: u64) -> u32 {
        let home = self.home(hash);
        loop {
            let version = self.buckets[home].version();
            let probe = self.buckets[home].probe(self.width, &hash);
            if !probe.goes_on {
                return probe.row;
            }
            let row = self.find_beyond(home, hash);
            // Keys move home behind the back of a search, and nowhere else.
            fence(Acquire);
            if row != NO_ROW || self.buckets[home].version() == version {
                return row;
            }
        }
    }

    /// Inserts a hash that is not there. There must be room, and the caller must hold the key's lock.
    pub(crate) fn insert(&self, hash: u64, row: u32) {
        debug_assert!(row < NO_ROW - 1);
        let mut at = self.home(hash);
        loop {
            let mut held = self.buckets[at].hold();
            if let Some(slot) = held.bucket.free_slot() {
                held.fill(slot, hash, row);
                return;
            }
            held.inc_overflow();
            at = self.after(at);
        }
    }

    /// Bucket and slot of a hash whose lock the caller holds: if it is there, it stays where it is, and every bucket on the
    /// way has turned it away all the time.
    fn locate(&self, hash: u64) -> Option<(usize, usize)> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            match bucket.slot_of(hash) {
                Some(slot) => return Some((at, slot)),
                None if bucket.overflow() == 0 => return None,
                None => at = self.after(at),
            }
        }
        None
    }

    /// Calls `f` on all hashes that are there from `first` to `last`, once each. The caller must hold the locks of all of them: see
    /// [`Index::locate`].
    pub(crate) fn for_each_hash(&self, (first, last): (u64, u64), mut f: impl FnMut(u64)) {
        let mut at = self.home(first);
        let homes = self.home(last) - at + 1;
        for bucket in 1..=self.buckets.len() {
            let found = self.buckets[at].hashes().into_iter().flatten();
            found.filter(|hash| (first..=last).contains(hash)).for_each(&mut f);
            // Who was turned away by the last of their homes may be in any bucket up to one that turns nobody away.
            if bucket >= homes && self.buckets[at].overflow() == 0 {
                return;
            }
            at = self.after(at);
        }
    }

    /// Gives the hash another row; its old one, or [`NO_ROW`] when it was not there. The caller must hold the key's lock.
    pub(crate) fn replace(&self, hash: u64, row: u32) -> u32 {
        let Some((at, slot)) = self.locate(hash) else { return NO_ROW };
        let held = self.buckets[at].hold();
        let old = held.bucket.row(slot) - 1;
        held.set_row(slot, row + 1);
        old
    }

    /// Removes the hash; its row number, or [`NO_ROW`] when it was not there. The caller must hold the key's lock.
    pub(crate) fn remove(&self, hash: u64) -> u32 {
        self.remove_if(hash, |_| true)
    }

    /// The same if its row is one that may go; [`NO_ROW`] otherwise, too.
    pub(crate) fn remove_if(&self, hash: u64, may_go: impl FnOnce(u32) -> bool) -> u32 {
        match self.locate(hash) {
            Some((at, slot)) if may_go(self.buckets[at].row(slot) - 1) => self.vacate(hash, at, slot),
            _ => NO_ROW,
        }
    }

    /// Empties the slot of a hash; the row number that was in it.
    fn vacate(&self, hash: u64, last: usize, slot: usize) -> u32 {
        let held = self.buckets[last].hold();
        let row = held.bucket.row(slot) - 1;
        held.set_row(slot, 0);
        drop(held);
        let mut at = self.home(hash);
        while at != last {
            self.buckets[at].dec_overflow();
            at = self.after(at);
        }
        row
    }

    /// Moves a hash, whose lock the caller holds, to its home bucket: to a free slot, or in exchange for the coldest key
    /// there, if this is colder and its lock, which `try_lock` asks for, is free. Did it move? Only one thread at a time may
    /// do this: it holds two buckets at once.
    pub(crate) fn promote<G>(
        &self,
        hash: u64,
        hotness: impl Fn(u64) -> u32,
        try_lock: impl FnOnce(u64) -> Option<G>,
    ) -> bool {
        let home = self.home(hash);
        let Some((at, slot)) = self.locate(hash).filter(|&(at, _)| at != home) else { return false };
        let row = self.buckets[at].row(slot) - 1;
        let held = self.buckets[home].hold();
        if let Some(free) = held.bucket.free_slot() {
            held.fill(free, hash, row);
            drop(held);
            self.vacate(hash, at, slot);
            return true;
        }
        drop(held);
        let hashes = (0..SLOTS).map(|slot| self.buckets[home].hash(slot));
        // Only forward on its own way: in a small index that may have passed the place already.
        let forward =
            |hash: &u64| self.steps(self.home(*hash), home) + self.steps(home, at) < self.buckets.len();
        let victims = hashes.filter(forward).map(|hash| (hotness(hash), hash));
        let Some((coldest, victim)) = victims.min() else { return false };
        if coldest >= hotness(hash) {
            return false;
        }
        let Some(_lock) = try_lock(victim) else { return false };
        // From here on the victim stays where it is, if it is still there.
        let Some(home_slot) = self.buckets[home].slot_of(victim) else { return false };
        let (near, far) = (self.buckets[home].hold(), self.buckets[at].hold());
        far.fill(slot, victim, near.bucket.row(home_slot) - 1);
        near.fill(home_slot, hash, row);
        // Overflow counts stay as they are: the victim now passes by the buckets that the other key passed by.
        true
    }

    /// Cache lines that a search for the hash touches.
    pub(crate) fn lines(&self, hash: u64) -> usize {
        let mut at = self.home(hash);
        for lines in 1..=self.buckets.len() {
            if !self.buckets[at].probe(self.width, &hash).goes_on {
                return lines;
            }
            at = self.after(at);
        }
        self.buckets.len()
    }
}

/// The hash as a fraction of its range, of so many buckets: of any number. Its upper half is fine enough for as many as row
/// numbers can fill.
#[inline(always)]
fn home(hash: u64, buckets: u32) -> u32 {
    part(hash, buckets)
}

/// The bucket after this one, of so many.
#[inline(always)]
fn after(bucket: usize, buckets: usize) -> usize {
    if bucket + 1 == buckets { 0 } else { bucket + 1 }
}

/// Asks the cache for a bucket and the one after it.
#[inline(always)]
fn prefetch_two(buckets: &[Bucket], bucket: usize) {
    prefetch(buckets, bucket, PrefetchHint::Read);
    prefetch(buckets, bucket + 1, PrefetchHint::Read);
}

/// Buckets of an index that `keys` keys fill to this share.
fn buckets_for(keys: usize, fill_percent: usize) -> usize {
    (keys * 100).div_ceil(SLOTS * fill_percent).max(BUCKETS_MIN)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::index::hash::mix;

    /// Few home buckets and few hashes, zero among them, so that buckets overflow, wrap around and are torn by
    /// removals and moves.
    fn hash_of(high: u64, low: u64) -> u64 {
        if high == 3 { u64::MAX - low } else { high << 62 | low }
    }

    proptest! {
        // Miri is slow.
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn agrees_with_a_hash_map(operations in prop::collection::vec((0_u8..5, 0_u64..4, 0_u64..12), 1..if cfg!(miri) { 40 } else { 400 })) {
            let mut index = Index::new().unwrap();
            let mut model = HashMap::new();
            for (number, (operation, high, low)) in operations.into_iter().enumerate() {
                let (hash, number) = (hash_of(high, low), number as u32);
                match operation {
                    0 | 1 => {
                        model.entry(hash).or_insert_with(|| {
                            if index.keys_max() == index_len(&index) {
                                index = index.grown(index.grown_bytes(index_len(&index) + 1, number % 2 == 0)).unwrap();
                            }
                            index.insert(hash, number);
                            number
                        });
                    }
                    2 => prop_assert_eq!(index.remove(hash), model.remove(&hash).unwrap_or(NO_ROW)),
                    3 => {
                        let old = model.get_mut(&hash).map_or(NO_ROW, |row| std::mem::replace(row, number));
                        prop_assert_eq!(index.replace(hash, number), old);
                    }
                    _ => {
                        let (lines, hotness) = (index.lines(hash), |other| u32::from(other == hash));
                        let moved = index.promote(hash, hotness, |_| Some(()));
                        prop_assert!(!moved || (lines > 1 && index.lines(hash) == 1));
                    }
                }
                prop_assert_eq!(index_len(&index), model.len());
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

    fn index_len(index: &Index) -> usize {
        index.buckets.iter().map(|bucket| (0..SLOTS).filter(|&slot| bucket.row(slot) != 0).count()).sum()
    }

    /// An index with `n` keys of a kind at a fill of so many percent.
    fn filled(n: u64, fill_percent: usize, id: &dyn Fn(u64) -> u64) -> Index {
        let index =
            Index::with_bytes(buckets_for(n as usize, fill_percent) * size_of::<Bucket>()).expect("memory");
        (0..n).for_each(|i| index.insert(mix(id(i)), i as u32));
        index
    }

    /// Dense ids, shifted ids and random ids must all probe alike.
    #[test]
    fn structured_ids_find_their_home() {
        let n = if cfg!(miri) { 2000 } else { 200_000 };
        let check = |what: &str, id: &dyn Fn(u64) -> u64| {
            let index = filled(n, FILL_DEFAULT_PERCENT, id);
            assert!(index.bytes() <= 22 * n as usize, "{what}: {} bytes", index.bytes());
            let lines: usize = (0..n).map(|i| index.lines(mix(id(i)))).sum();
            // What a run of random hashes has: 1.13.
            let mean = lines as f64 / n as f64;
            assert!((1.05..1.2).contains(&mean), "{what}: {mean} lines per search");
        };
        check("dense", &|i| i);
        check("shifted by 20", &|i| i << 20);
        check("shifted by 44", &|i| i << 44);
        check("random", &|i| mix(i ^ 0x5555));
    }

    /// What migration is for: the keys that are asked for most need fewer lines afterwards, the others a few more.
    #[test]
    fn hot_keys_move_home() {
        let n = if cfg!(miri) { 2000 } else { 100_000_u64 };
        let index = filled(n, 85, &|i| i);
        // Every tenth key is hot.
        let hot: std::collections::HashSet<u64> = (0..n / 10).map(|i| mix(i * 10)).collect();
        let mean = |step: u64| {
            let lines: usize = (0..n / step).map(|i| index.lines(mix(i * step))).sum();
            lines as f64 / (n / step) as f64
        };
        let (before, before_all) = (mean(10), mean(1));
        for &hash in &hot {
            index.promote(hash, |other| u32::from(hot.contains(&other)), |_| Some(()));
        }
        let (after, after_all) = (mean(10), mean(1));
        assert!(before > 1.3 && after < 1.0 + (before - 1.0) / 4.0, "hot keys: {before} lines, then {after}");
        assert!(after_all < before_all + 0.05, "all keys: {before_all} lines, then {after_all}");
        (0..n).for_each(|i| assert_eq!(index.find(mix(i)), i as u32));
    }

    /// In an index so small that ways go all around it, the place that a victim would go to may be one that its own way
    /// has already passed, where a search that is under way would miss it.
    #[test]
    fn a_victim_moves_only_forward() {
        for victim_home in 0..3_u64 {
            let (index, mut number) = (Index::new().unwrap(), 0);
            let mut insert = |home: u64| {
                number += 1;
                index.insert(home << 62 | number, number as u32);
                home << 62 | number
            };
            // All full: 0, 1, 2 with the victim, and 3. Then one leaves bucket 1, and the hot key finds room there only.
            let mut others: Vec<u64> = [0, 0, 0, 0, 0, 1, 1, 1, 1, 1].map(&mut insert).to_vec();
            let victim = insert(victim_home);
            others.extend([2, 2, 2, 2, 3, 3, 3, 3, 3].map(&mut insert));
            index.remove(others.remove(9));
            let hot = insert(2);
            let (before, hotness) =
                (index.lines(victim), |hash| if hash == hot { 2 } else { u32::from(hash != victim) });
            assert_eq!((before, index.lines(hot)), (3 - victim_home as usize, 4));
            let moved = index.promote(hot, hotness, |_| Some(()));
            assert!(moved && index.lines(victim) >= before, "home {victim_home}");
            others.extend([victim, hot]);
            assert!(others.iter().all(|&hash| index.remove(hash) != NO_ROW));
            assert!(index.buckets.iter().all(|bucket| bucket.overflow() == 0), "an overflow count was lost");
        }
    }

    #[test]
    fn a_lost_overflow_count_stays() {
        let index = Index::new().unwrap();
        let bucket = &index.buckets[0];
        (0..300).for_each(|_| bucket.hold().inc_overflow());
        (0..300).for_each(|_| bucket.dec_overflow());
        assert_eq!(bucket.overflow(), crate::index::bucket::OVERFLOW_MAX);
    }
}
