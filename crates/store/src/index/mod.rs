//! The index of a table: hash of a key -> row number, in buckets of one cache line.
//!
//! It is an open-addressing table of whole lines. A bucket has five hashes (bijective, so that each stands for its
//! key), their row numbers, a version, and an overflow count: the number of keys that found the bucket full and
//! went on to later buckets. A search ends at the first bucket whose overflow count is 0, so that most searches, of
//! present and of absent keys, touch one line.
//!
//! Searches take no lock and write nothing. The version is odd while a bucket changes, and a search that sees an
//! odd or changed version retries. A key moves either to its home bucket or from a bucket to a later one, and it
//! appears in the new place before it disappears from the old one. A forward search can therefore miss it only if
//! it moved home meanwhile, which changes the home bucket's version. Many threads may change an index at once, each
//! under the lock of its key ([`crate::index::directory`]); a bucket is locked for one change at a time.

pub(crate) mod bucket;
pub(crate) mod directory;
mod durable;
pub(crate) mod fill;
pub(crate) mod growth;
pub(crate) mod hash;
pub(crate) mod recover;
pub(crate) mod removals;

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering::Acquire;

pub(crate) use crate::index::bucket::NO_ROW;
use crate::index::bucket::{Bucket, Probe, SLOTS};
use crate::index::fill::Fill;
use crate::index::hash::part;
use crate::kept::head::IndexName;
use crate::kept::live::{Exchange, Record};
use crate::memory::Region;
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, Step};
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::simd::{Vector, Width};
use crate::sync::fence;

/// Buckets of a new index.
const BUCKETS_MIN: usize = if cfg!(loom) { 2 } else { 4 };

/// Searches buckets with vector instructions; see [`Index::searcher`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Searcher<'a, V> {
    buckets: &'a [Bucket],
    vector: V,
}

impl<V: Vector> Searcher<'_, V> {
    /// Computes the home buckets of hashes.
    #[inline(always)]
    pub(crate) fn homes<const N: usize>(&self, hashes: &[u64; N], homes: &mut [u32; N]) {
        let buckets = self.buckets.len() as u32;
        // A loop of its own, so that it vectorizes.
        homes.iter_mut().zip(hashes).for_each(|(home, &hash)| *home = self::home(hash, buckets));
    }

    /// Prefetches buckets.
    #[inline(always)]
    pub(crate) fn prefetch_all(&self, buckets: &[u32]) {
        for &bucket in buckets {
            prefetch(self.buckets, bucket as usize, PrefetchHint::Read);
        }
    }

    /// Prefetches a bucket and the next one.
    #[inline(always)]
    pub(crate) fn prefetch_two(&self, bucket: u32) {
        prefetch_two(self.buckets, bucket as usize);
    }

    /// The next bucket of a search.
    #[inline(always)]
    pub(crate) fn after(&self, bucket: u32) -> u32 {
        after(bucket as usize, self.buckets.len()) as u32
    }

    /// Searches a bucket and, if the key overflowed, the next one.
    #[inline(always)]
    pub(crate) fn probe_two(&self, bucket: u32, hash: &u64, optimistic: bool) -> Probe {
        let probe = self.probe(bucket, hash, optimistic);
        if probe.goes_on { self.probe(self.after(bucket), hash, optimistic) } else { probe }
    }

    /// Searches the home buckets of hashes; returns a bit for each search that continues.
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

    /// Searches a bucket. `optimistic` skips the version check, see [`Bucket::probe_once`].
    #[inline(always)]
    pub(crate) fn probe(&self, bucket: u32, hash: &u64, optimistic: bool) -> Probe {
        let bucket = &self.buckets[bucket as usize];
        if optimistic { bucket.probe_once(self.vector, hash) } else { bucket.probe(self.vector, hash) }
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    buckets: Region<Bucket>,
    fill: Fill,
    width: Width,
    /// The number of its file; 0 in private memory.
    pub(crate) number: u64,
    /// The way to make slots durable, if the table survives the loss of power.
    persist: Option<Persist>,
}

impl Index {
    pub(crate) const NEW_BUCKETS: usize = BUCKETS_MIN;
    /// Bytes of a new index.
    pub(crate) const NEW_BYTES: usize = BUCKETS_MIN * size_of::<Bucket>();

    /// An empty index of [`Index::NEW_BYTES`]; `None` if memory is exhausted.
    pub(crate) fn new() -> Option<Index> {
        Index::with_bytes(Index::NEW_BYTES)
    }

    /// An empty index with `bytes` of buckets; `None` if memory is exhausted.
    pub(crate) fn with_bytes(bytes: usize) -> Option<Index> {
        let (buckets, width) = (Region::zeroed(bytes / size_of::<Bucket>())?, Width::detect());
        Some(Index { buckets, fill: Fill::FAST, width, number: 0, persist: None })
    }

    /// The index in a file. If it is new, its space must be reserved before a use ([`Index::reserve`]).
    pub(crate) fn of_file(
        file: PageFile,
        bytes: usize,
        number: u64,
        persist: Option<Persist>,
    ) -> std::io::Result<Index> {
        let buckets = Region::of_file(file, bytes / size_of::<Bucket>())?;
        Ok(Index { buckets, fill: Fill::FAST, width: Width::detect(), number, persist })
    }

    /// Reserves the space of the file.
    pub(crate) fn reserve(&self) -> std::io::Result<()> {
        self.buckets.reserve(0..self.buckets.len())
    }

    /// The index in the head of a kept table.
    pub(crate) fn name(&self) -> IndexName {
        IndexName { number: self.number, buckets: self.buckets.len() }
    }

    /// The index, as full as this says.
    pub(crate) fn with_fill(self, fill: Fill) -> Index {
        Index { fill, ..self }
    }

    /// The number of buckets.
    pub(crate) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// The number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.buckets.len() * SLOTS
    }

    /// Prefetches a bucket.
    #[cfg(any(test, feature = "bench"))]
    #[inline(always)]
    pub(crate) fn prefetch_bucket(&self, bucket: u32) {
        prefetch(&self.buckets, bucket as usize, PrefetchHint::Read);
    }

    /// Some word of a bucket, for benchmarks.
    #[cfg(any(test, feature = "bench"))]
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

    /// The maximum number of keys.
    pub(crate) fn keys_max(&self) -> usize {
        self.slots() * self.fill.max / 100
    }

    /// Bytes of the larger index that should replace this one before it holds `keys` keys; 0 if there is room. An
    /// index with a budget grows by less.
    pub(crate) fn grown_bytes(&self, keys: usize, is_bounded: bool) -> usize {
        if keys * 100 <= self.slots() * self.fill.grow {
            return 0;
        }
        let doubles = !is_bounded && self.bytes() < self.fill.small_bytes;
        let fill_percent = if doubles { self.fill.doubled } else { self.fill.grown };
        buckets_for(keys, fill_percent) * size_of::<Bucket>()
    }

    /// The fills to try when the number of keys is known, best first.
    pub(crate) fn reserved_percents(fill: Fill) -> RangeInclusive<usize> {
        fill.reserved..=fill.max
    }

    /// Approximate bytes of an index of `keys` keys.
    pub(crate) fn bytes_of_keys(keys: u64, fill: Fill) -> u64 {
        let slots = keys.saturating_mul(100) / fill.reserved as u64;
        (slots / SLOTS as u64).saturating_mul(size_of::<Bucket>() as u64)
    }

    /// Bytes of an index for `keys` keys at this fill; 0 if this index is large enough.
    pub(crate) fn reserved_bytes(&self, keys: usize, fill_percent: usize) -> usize {
        let wanted = buckets_for(keys, fill_percent);
        if wanted <= self.buckets.len() { 0 } else { wanted * size_of::<Bucket>() }
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

    /// The number of buckets from one to another in search order.
    fn steps(&self, from: usize, to: usize) -> usize {
        if from <= to { to - from } else { to + self.buckets.len() - from }
    }

    /// Prefetches the hash's home bucket.
    pub(crate) fn prefetch(&self, hash: u64, hint: PrefetchHint) {
        prefetch(&self.buckets, self.home(hash), hint);
    }

    /// Prefetches the hash's home bucket and the next one, where a displaced key most likely is.
    pub(crate) fn prefetch_two(&self, hash: u64) {
        prefetch_two(&self.buckets, self.home(hash));
    }

    /// A searcher by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn searcher<V: Vector>(&self, vector: V) -> Searcher<'_, V> {
        Searcher { buckets: &self.buckets, vector }
    }

    /// Searches the buckets after this one.
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

    /// The row of the hash, or [`NO_ROW`].
    pub(crate) fn find(&self, hash: u64) -> u32 {
        let home = self.home(hash);
        loop {
            let version = self.buckets[home].version();
            let probe = self.buckets[home].probe(self.width, &hash);
            if !probe.goes_on {
                return probe.row;
            }
            let row = self.find_beyond(home, hash);
            // A search can miss a key only if it moved home meanwhile, which changes the home bucket's version.
            fence(Acquire);
            if row != NO_ROW || self.buckets[home].version() == version {
                return row;
            }
        }
    }

    /// Inserts an absent hash. There must be room, and the caller must hold the key's lock.
    pub(crate) fn insert(&self, hash: u64, row: u32) {
        self.insert_at(hash, row);
    }

    /// Inserts an absent hash; returns its bucket.
    fn insert_at(&self, hash: u64, row: u32) -> usize {
        debug_assert!(row < NO_ROW - 1);
        let mut at = self.home(hash);
        loop {
            let mut held = self.buckets[at].hold();
            if let Some(slot) = held.bucket.free_slot() {
                held.fill(slot, hash, row);
                return at;
            }
            held.inc_overflow();
            at = self.after(at);
        }
    }

    /// The bucket and slot of a hash whose lock the caller holds. Such a hash does not move, and the overflow count
    /// of every bucket before it includes it.
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

    /// Calls `f` once for each hash from `first` to `last`, with its row. The caller must hold the locks of all of
    /// them.
    pub(crate) fn for_each(&self, (first, last): (u64, u64), mut f: impl FnMut(u64, u32)) {
        let mut at = self.home(first);
        let homes = self.home(last) - at + 1;
        for bucket in 1..=self.buckets.len() {
            let found = self.buckets[at].rows().into_iter().flatten();
            found.filter(|(hash, _)| (first..=last).contains(hash)).for_each(|(hash, row)| f(hash, row));
            // A key that overflowed from the last home bucket may be in any bucket up to one whose overflow count
            // is 0.
            if bucket >= homes && self.buckets[at].overflow() == 0 {
                return;
            }
            at = self.after(at);
        }
    }

    /// Replaces the row of a hash; returns the old row, or [`NO_ROW`] if the hash is absent. The caller must hold
    /// the key's lock.
    #[cfg(test)]
    pub(crate) fn replace(&self, hash: u64, row: u32) -> u32 {
        self.replace_by(hash, row, None)
    }

    /// Replaces the row of a hash, and begins to make it durable if it survives the loss of power; returns the old row.
    pub(crate) fn replace_by(&self, hash: u64, row: u32, record: Option<Record<'_>>) -> u32 {
        let Some((at, slot)) = self.locate(hash) else { return NO_ROW };
        let held = self.buckets[at].hold();
        let old = held.bucket.row(slot) - 1;
        held.set_row(slot, row + 1);
        drop(held);
        if record.is_some() {
            self.flush(Step::Slots, at);
        }
        old
    }

    /// Removes the hash; returns its row, or [`NO_ROW`] if it is absent. The caller must hold the key's lock.
    #[cfg(test)]
    pub(crate) fn remove(&self, hash: u64) -> u32 {
        self.remove_if(hash, |_| true, None)
    }

    /// Removes the hash if `may_go` accepts its row; returns the row, or [`NO_ROW`] if nothing was removed.
    pub(crate) fn remove_if(
        &self,
        hash: u64,
        may_go: impl FnOnce(u32) -> bool,
        record: Option<Record<'_>>,
    ) -> u32 {
        match self.locate(hash) {
            Some((at, slot)) if may_go(self.buckets[at].row(slot) - 1) => self.vacate(hash, at, slot, record),
            _ => NO_ROW,
        }
    }

    /// Empties the slot of a hash; returns its row.
    fn vacate(&self, hash: u64, last: usize, slot: usize, record: Option<Record<'_>>) -> u32 {
        if let Some(record) = record {
            record.set_last_bucket(self.number, last);
        }
        let held = self.buckets[last].hold();
        let row = held.bucket.row(slot) - 1;
        held.set_row(slot, 0);
        drop(held);
        if record.is_some() {
            // Another thread may insert the key elsewhere as soon as it is unlocked.
            self.flush(Step::Removal, last);
            self.fence(Step::Removal);
        }
        let mut at = self.home(hash);
        while at != last {
            self.buckets[at].dec_overflow();
            at = self.after(at);
        }
        row
    }

    /// Moves a hash, whose lock the caller holds, to its home bucket; returns whether it moved.
    ///
    /// It takes a free slot there, or swaps places with the coldest key of the home bucket if that key is colder
    /// and `try_lock` locks it. Only one thread at a time may call this, because it locks two buckets at once.
    pub(crate) fn promote<G>(
        &self,
        hash: u64,
        hotness: impl Fn(u64) -> u32,
        try_lock: impl FnOnce(u64) -> Option<G>,
        record: Option<Record<'_>>,
    ) -> bool {
        let home = self.home(hash);
        let Some((at, slot)) = self.locate(hash).filter(|&(at, _)| at != home) else { return false };
        let row = self.buckets[at].row(slot) - 1;
        let held = self.buckets[home].hold();
        if let Some(free) = held.bucket.free_slot() {
            held.fill(free, hash, row);
            drop(held);
            self.flush(Step::Promotion, home);
            self.fence(Step::Promotion);
            self.vacate(hash, at, slot, record);
            return true;
        }
        drop(held);
        let hashes = (0..SLOTS).map(|slot| self.buckets[home].hash(slot));
        // The victim may move only forward; in a small index its search may have passed the place already.
        let forward =
            |hash: &u64| self.steps(self.home(*hash), home) + self.steps(home, at) < self.buckets.len();
        let victims = hashes.filter(forward).map(|hash| (hotness(hash), hash));
        let Some((coldest, victim)) = victims.min() else { return false };
        if coldest >= hotness(hash) {
            return false;
        }
        let Some(_lock) = try_lock(victim) else { return false };
        // From here on the victim, if it is still present, does not move.
        let Some(home_slot) = self.buckets[home].slot_of(victim) else { return false };
        let (near, far) = (self.buckets[home].hold(), self.buckets[at].hold());
        let victim_row = near.bucket.row(home_slot) - 1;
        if let Some(record) = record {
            let pair = |bucket: usize, slot: usize| (bucket as u32, slot as u32);
            let (index, near, far) = (self.number, pair(home, home_slot), pair(at, slot));
            record.begin_exchange(Exchange { index, hash, row, victim, victim_row, near, far });
        }
        far.fill(slot, victim, victim_row);
        near.fill(home_slot, hash, row);
        drop((near, far));
        if let Some(record) = record {
            [at, home].into_iter().for_each(|bucket| self.flush(Step::Exchanged, bucket));
            self.fence(Step::Exchanged);
            record.end_exchange();
        }
        // Overflow counts are unchanged: the victim now passes the buckets that the promoted key passed before.
        true
    }

    /// The number of cache lines that a search for the hash touches.
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

/// The home bucket of a hash, by its upper half, which has enough bits for all row numbers.
#[inline(always)]
fn home(hash: u64, buckets: u32) -> u32 {
    part(hash, buckets)
}

/// The bucket after this one, cyclically.
#[inline(always)]
fn after(bucket: usize, buckets: usize) -> usize {
    if bucket + 1 == buckets { 0 } else { bucket + 1 }
}

/// Prefetches a bucket and the next one.
#[inline(always)]
fn prefetch_two(buckets: &[Bucket], bucket: usize) {
    prefetch(buckets, bucket, PrefetchHint::Read);
    prefetch(buckets, bucket + 1, PrefetchHint::Read);
}

/// The number of buckets that `keys` keys fill to `fill_percent`.
fn buckets_for(keys: usize, fill_percent: usize) -> usize {
    (keys * 100).div_ceil(SLOTS * fill_percent).max(BUCKETS_MIN)
}

#[cfg(all(test, not(loom)))]
mod tests;
