//! Eviction: chooses rows to remove for new ones. A cursor moves over all rows cyclically.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::Eviction;
use crate::index::NO_ROW;
use crate::memory::prefetch::PrefetchHint;
use crate::policy::clock::age;
use crate::policy::cursor::{Candidate, EvictionCursor, ScanPause};
use crate::rows::allocator::RESERVE_MAX;
use crate::rows::layout::{LAST_USE, VERSION};
use crate::sync::lock;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// CLOCK scans this many rows per evicted one and evicts the least recently used. With 2 to 16, a trace finds as
/// many keys later on as with a scan of all rows, whether popularity changes or not.
const SCANNED_PER_ROW: usize = 4;
/// A table smaller than one scan evicts one row in this many.
const SMALL_TABLE_PART: usize = 8;
/// The minimum number of rows to evict together, so that waiting for readers pays off.
const EVICTED_MIN: usize = 256;
/// One row in this many is kept in reserve for new keys, at most [`RESERVE_MAX`].
const RESERVE_PART: u64 = 64;
/// A table with more than one free row in this many is no longer under pressure.
const ROOMY_PART: u64 = 16;
/// The maximum number of rows per scan.
const SCANNED_MAX: usize = 1 << 16;
/// Scans of all rows that find nothing, for eviction by norm, are spaced so that each push pays for this many rows.
const SCANNED_PER_PUSH: u64 = 1024;
/// Rows whose headers are prefetched together.
const GROUP: u64 = 32;

/// The free list that gets the evicted rows.
#[derive(Debug, Clone, Copy)]
enum FreeListTarget {
    Lane,
    Shared,
}

/// The lane and free list of an eviction, and the write gate that its caller holds.
type Target<'a> = (usize, FreeListTarget, &'a SharedGuard<'a>);

/// Decides which rows have expired.
struct EvictionPolicy<'a> {
    table: &'a Table,
    lane: usize,
    now: u32,
    now_whole: u64,
    /// Last use of the oldest row that is kept.
    oldest: u32,
    words: Vec<f32>,
}

impl<'a> EvictionPolicy<'a> {
    fn new(table: &'a Table, lane: usize) -> EvictionPolicy<'a> {
        let now_whole = table.clock.now_whole();
        let now = now_whole as u32;
        EvictionPolicy { table, lane, now, now_whole, oldest: now, words: Vec::new() }
    }

    fn is_expired(&mut self, row: Candidate) -> bool {
        match self.table.config().eviction {
            Eviction::Age { pushes } => age(self.now, row.last_use) >= pushes,
            Eviction::Norm { below } => {
                let layout = &self.table.layout;
                self.words.resize(layout.unpacked(), 0.0);
                layout.read_row(&self.table.slab, row.row, &mut self.words);
                let weights = layout.parts(&self.words).weights;
                weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() < f64::from(below).powi(2)
            }
            Eviction::Never | Eviction::Clock => false,
        }
    }

    /// Returns whether to evict a row that is in use, and records the age of kept rows.
    fn should_evict(&mut self, row: Candidate) -> bool {
        let is_expired = self.is_expired(row);
        let by_age = matches!(self.table.config().eviction, Eviction::Age { .. });
        let is_older = || by_age && age(self.now, row.last_use) > age(self.now, self.oldest);
        if !(is_expired || is_older()) || !self.table.is_in_use(self.lane, row) {
            return false;
        }
        if !is_expired {
            self.oldest = row.last_use;
        }
        is_expired
    }

    /// The time of the next scan, after one of all rows that found none.
    fn scan_pause(&self) -> ScanPause {
        match self.table.config().eviction {
            Eviction::Age { pushes } => {
                let left = pushes.saturating_sub(age(self.now, self.oldest));
                ScanPause { until: self.now_whole + u64::from(left) }
            }
            // Any push may shrink a row.
            _ => ScanPause {
                until: self.now_whole + self.table.row_allocator.charged().div_ceil(SCANNED_PER_PUSH),
            },
        }
    }
}

impl Table {
    /// Evicts about `wanted` rows, and at least one if there is any to evict; returns their number.
    ///
    /// The caller must hold no index guard and no key lock.
    pub(crate) fn evict(&self, lane: usize, wanted: usize, shared: &SharedGuard<'_>) -> usize {
        if self.config().eviction == Eviction::Never
            || self.row_allocator.charged() == 0
            || self.is_follower.load(Relaxed)
        {
            return 0;
        }
        if !self.under_pressure.load(Relaxed) {
            self.under_pressure.store(true, Relaxed);
        }
        self.note_use(shared);
        self.evict_for((lane, FreeListTarget::Lane, shared), wanted.max(EVICTED_MIN))
    }

    fn evict_for(&self, target: Target<'_>, wanted: usize) -> usize {
        let cursor = &mut *lock(&self.eviction_cursor);
        if self.config().eviction != Eviction::Clock {
            return self.evict_stale(target, cursor, wanted);
        }
        let lane = target.0;
        let removed = self.evict_unused(target, cursor, wanted, SCANNED_MAX, |_| true);
        if removed * 2 > cursor.found.len() {
            return removed;
        }
        // Most candidates were unused rows: reserved, free, or of other threads. Filter them before the choice, and
        // scan all rows if needed.
        removed + self.evict_unused(target, cursor, wanted, usize::MAX, |row| self.is_in_use(lane, row))
    }

    /// Evicts the least recently used of the next rows that are `good`; scans at most `rows_max`.
    fn evict_unused(
        &self,
        target: Target<'_>,
        cursor: &mut EvictionCursor,
        wanted: usize,
        rows_max: usize,
        good: impl Fn(Candidate) -> bool,
    ) -> usize {
        let window = (wanted * SCANNED_PER_ROW).min(SCANNED_MAX);
        let rows = if rows_max == usize::MAX { rows_max } else { window };
        self.scan(cursor, rows, window, good);
        let now = self.clock.now();
        let found = &mut cursor.found;
        let part = if found.len() < window { SMALL_TABLE_PART } else { SCANNED_PER_ROW };
        let wanted = wanted.min(found.len().div_ceil(part));
        if wanted > 0 && wanted < found.len() {
            found.select_nth_unstable_by_key(wanted - 1, |row| std::cmp::Reverse(age(now, row.last_use)));
            found.truncate(wanted);
        }
        self.remove_all(target, cursor)
    }

    /// Evicts the first expired rows that a scan of the whole table finds.
    fn evict_stale(&self, target: Target<'_>, cursor: &mut EvictionCursor, wanted: usize) -> usize {
        let mut policy = EvictionPolicy::new(self, target.0);
        if cursor.scan_pause.is_some_and(|pause| policy.now_whole < pause.until) {
            return 0;
        }
        let mut left = self.row_allocator.charged();
        while left > 0 {
            let rows = left.min(SCANNED_MAX as u64);
            left -= self.scan(cursor, rows as usize, wanted, |row| policy.should_evict(row));
            let removed = self.remove_all(target, cursor);
            if removed > 0 {
                return removed;
            }
        }
        cursor.scan_pause = Some(policy.scan_pause());
        0
    }

    /// Lets the next eviction scan at once, because imported rows may be old.
    pub(crate) fn resume_scan(&self) {
        lock(&self.eviction_cursor).scan_pause = None;
    }

    /// Evicts up to `budget` rows in advance, until the reserve is full, if pushes have had to evict; returns their
    /// number.
    ///
    /// Called by [`crate::Maintenance`], so that pushes need not wait. The caller must hold the shared write gate,
    /// but no index guard and no key lock.
    pub(crate) fn refill(&self, lane: usize, budget: usize, shared: &SharedGuard<'_>) -> usize {
        if self.config().eviction != Eviction::Clock
            || !self.under_pressure.load(Relaxed)
            || self.is_follower.load(Relaxed)
        {
            return 0;
        }
        let rows = self.row_allocator.charged();
        // A key needs a slot in the index and a row.
        let places = || self.directory.pin(lane).view().index.keys_max().saturating_sub(self.directory.len());
        if places().min(self.row_allocator.free_rows()) as u64 > rows / ROOMY_PART {
            self.under_pressure.store(false, Relaxed);
            return 0;
        }
        let enough = (rows / RESERVE_PART).min(RESERVE_MAX as u64) as usize;
        // In short turns, because pushes that evict wait for the cursor meanwhile.
        let turn = (enough / 4).clamp(1, EVICTED_MIN);
        let mut refilled = 0;
        while refilled < budget && places().min(self.row_allocator.reserved_rows()) + turn <= enough {
            match self.evict_for((lane, FreeListTarget::Shared, shared), turn.min(budget - refilled)) {
                0 => break,
                rows => refilled += rows,
            }
        }
        refilled
    }

    /// Returns whether the row's key leads to it at the moment.
    fn is_in_use(&self, lane: usize, row: Candidate) -> bool {
        self.directory.pin(lane).find(self.hash_key.hash(row.key)) == row.row
    }

    /// Scans the next `rows` rows and evicts expired ones; returns their number. Called by [`crate::Maintenance`],
    /// so that they are gone before pushes need room.
    pub(crate) fn sweep(&self, lane: usize, rows: usize, shared: &SharedGuard<'_>) -> usize {
        let expires = matches!(self.config().eviction, Eviction::Age { .. } | Eviction::Norm { .. });
        if !expires || self.is_follower.load(Relaxed) {
            return 0;
        }
        let cursor = &mut *lock(&self.eviction_cursor);
        let mut policy = EvictionPolicy::new(self, lane);
        self.scan(cursor, rows.min(SCANNED_MAX), usize::MAX, |row| policy.is_expired(row));
        self.remove_all((lane, FreeListTarget::Shared, shared), cursor)
    }

    /// Advances the cursor by up to `rows` rows, or until `enough` are found good; returns the number of scanned
    /// rows.
    fn scan(
        &self,
        cursor: &mut EvictionCursor,
        rows: usize,
        enough: usize,
        mut good: impl FnMut(Candidate) -> bool,
    ) -> u64 {
        cursor.found.clear();
        let charged = self.row_allocator.charged();
        let rows = (rows as u64).min(charged);
        let mut left = rows;
        let ask_for = |rows: Range<u64>| {
            for row in rows.start as u32..rows.end.min(charged) as u32 {
                self.slab.prefetch_header(row, PrefetchHint::ReadOnce);
            }
        };
        ask_for(cursor.at..cursor.at + left.min(GROUP));
        while left > 0 && cursor.found.len() < enough {
            if cursor.at >= charged {
                cursor.at = 0;
            }
            let group = left.min(GROUP).min(charged - cursor.at);
            let next = cursor.at + group;
            // Prefetches the next group while this one is scanned.
            ask_for(next..next + GROUP.min(left - group));
            for row in cursor.at as u32..next as u32 {
                let word = |at: usize| self.slab.header_word(row, at);
                let (key, last_use, version) = (self.key_of(row), word(LAST_USE), word(VERSION));
                let candidate = Candidate { row, key, last_use, version };
                if good(candidate) {
                    cursor.found.push(candidate);
                }
            }
            cursor.at = next;
            left -= group;
        }
        #[cfg(all(test, not(loom)))]
        {
            cursor.scanned += rows - left;
        }
        rows - left
    }

    /// Removes the candidates, except rows that are not in use (these have arbitrary contents) or were used
    /// meanwhile. Eviction by norm checks them again, because the scan may have seen rows under construction.
    fn remove_all(&self, (lane, target, shared): Target<'_>, cursor: &mut EvictionCursor) -> usize {
        if cursor.found.is_empty() {
            // Avoids a removal, which would invalidate cached rows.
            return 0;
        }
        let mut retired = Vec::with_capacity(cursor.found.len());
        let mut policy =
            matches!(self.config().eviction, Eviction::Norm { .. }).then(|| EvictionPolicy::new(self, lane));
        let _removing = self.removals.begin();
        for group in cursor.found.chunks(GROUP as usize) {
            {
                let view = self.directory.pin(lane);
                let hashes = group.iter().map(|row| self.hash_key.hash(row.key));
                hashes.for_each(|hash| view.view().of(hash).prefetch_two(hash));
            }
            for row in group {
                let hash = self.hash_key.hash(row.key);
                let locked = self.directory.lock(hash);
                let word = |at: usize| self.slab.header_word(row.row, at);
                // Compares the version too, because pushes of several threads may have the same reading of the use
                // clock.
                let is_unused = || (word(LAST_USE), word(VERSION)) == (row.last_use, row.version);
                // A row under construction is complete once its key lock is released.
                let mut is_small = || policy.as_mut().is_none_or(|policy| policy.is_expired(*row));
                let should_evict = |found| found == row.row && is_unused() && is_small();
                if locked.remove_if(should_evict) != NO_ROW {
                    self.row_allocator.note_inherited(row.row);
                    if let Some(notes) = self.notes() {
                        notes.note_removed(lane, hash);
                    }
                    self.removal_log.note(&self.slab, row.row, row.key, shared);
                    retired.push(row.row);
                }
            }
        }
        let removed = retired.len();
        self.directory.unclaim(removed);
        self.counters.get(lane).evicted.fetch_add(removed as u64, Relaxed);
        match target {
            FreeListTarget::Lane => {
                self.row_allocator.retire(lane, &self.slab, &self.directory, &mut retired);
            }
            FreeListTarget::Shared => {
                self.row_allocator.retire_for_all(&self.slab, &self.directory, &mut retired);
            }
        }
        removed
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::lanes::lane;
    use crate::{Init, Optimizer, PushScale, RowColumns, StoreError, TableConfig, Writes};

    const PUSHES: u64 = 1000;

    fn push(t: &Table, keys: &[u64], gradient: f32) -> Result<(), StoreError> {
        t.push(keys, &vec![gradient; keys.len()], PushScale::default())
    }

    fn remove_found(t: &Table, cursor: &mut EvictionCursor) -> usize {
        t.remove_all((lane(), FreeListTarget::Lane, &t.write_gate.lock_shared(lane())), cursor)
    }

    /// A table that is full after its second push.
    fn full(eviction: Eviction, writes: Writes) -> Table {
        let config = TableConfig::single("t", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
        let t = Table::new(TableConfig { eviction, writes, budget_bytes: Some(1 << 20), ..config });
        let t = t.expect("a table");
        push(&t, &[0], 3.0).expect("room");
        push(&t, &(1..50_000).collect::<Vec<_>>(), 3.0).expect_err("no room for all");
        t
    }

    /// Rows scanned so far.
    fn scanned(t: &Table) -> u64 {
        lock(&t.eviction_cursor).scanned
    }

    #[test]
    fn rows_are_not_looked_at_before_one_can_be_old() {
        for writes in [Writes::InPlace, Writes::CopyOnWrite] {
            let t = full(Eviction::Age { pushes: PUSHES as u32 }, writes);
            let (rows, before) = (t.len(), scanned(&t));
            for key in 0..100 {
                push(&t, &[1 << 40 | key], 1.0).unwrap_err();
            }
            let looked = scanned(&t) - before;
            assert!(looked <= t.row_allocator.charged(), "{writes:?}: {looked} of {rows}");
            // Up to the moment when one has expired.
            while t.clock() < PUSHES - 1 {
                push(&t, &[1], 1.0).unwrap();
            }
            push(&t, &[1 << 41], 1.0).unwrap_err();
            push(&t, &[1 << 41], 1.0).unwrap();
            assert_eq!((t.get(0), t.stats().evicted, t.len()), (None, 1, rows), "{writes:?}");
            // An imported row may be old.
            let (row, mut columns) = (t.get(1).unwrap(), RowColumns::default());
            columns.push(crate::Row { last_use: 1, ..row }.as_ref());
            // The others would expire next.
            push(&t, &(2..t.len() as u64).collect::<Vec<_>>(), 1.0).unwrap();
            push(&t, &[1 << 42], 1.0).unwrap_err();
            t.import(columns.rows()).unwrap();
            push(&t, &[1 << 42], 1.0).unwrap();
            assert_eq!((t.get(1), t.stats().evicted), (None, 2), "{writes:?}");
        }
    }

    #[test]
    fn rows_are_looked_at_seldom_while_none_is_small() {
        let t = full(Eviction::Norm { below: 1.0 }, Writes::InPlace);
        let (rows, before) = (t.row_allocator.charged(), scanned(&t));
        for key in 0..100 {
            push(&t, &[1 << 40 | key], 1.0).unwrap_err();
        }
        let looked = scanned(&t) - before;
        assert!(looked <= rows + 100 * SCANNED_PER_PUSH, "{looked} of {rows}");
        push(&t, &[0], -3.0).unwrap();
        let tries = (0..1000).take_while(|_| push(&t, &[1 << 41], 1.0).is_err()).count() as u64;
        assert!(tries <= rows / SCANNED_PER_PUSH + 1, "{tries} pushes, {rows} rows");
        assert_eq!((t.get(0), t.stats().evicted), (None, 1));
    }

    /// A cursor that has found the row of key 1.
    fn chosen(t: &Table) -> EvictionCursor {
        let mut cursor = EvictionCursor::default();
        t.scan(&mut cursor, usize::MAX, usize::MAX, |row| row.key == 1 && t.is_in_use(lane(), row));
        cursor
    }

    #[test]
    fn rows_that_change_after_they_were_chosen_stay() {
        let t = full(Eviction::Age { pushes: PUSHES as u32 }, Writes::InPlace);
        let mut cursor = chosen(&t);
        // With the row's reading of the use clock.
        let row = t.get(1).unwrap();
        let mut columns = RowColumns::default();
        columns.push(crate::Row { version: row.version + 1, ..row }.as_ref());
        t.import(columns.rows()).unwrap();
        assert_eq!(remove_found(&t, &mut cursor), 0);
        assert!(t.get(1).is_some());
        assert_eq!(remove_found(&t, &mut chosen(&t)), 1);
        assert!(t.get(1).is_none());
    }

    /// A row's header is written before its weights, so that a scan in between sees the previous weights.
    #[test]
    fn rows_that_are_not_small_when_they_are_to_go_stay() {
        let t = full(Eviction::Norm { below: 1.0 }, Writes::InPlace);
        let import = |weight: f32| {
            let mut columns = RowColumns::default();
            columns.push(crate::Row { weights: vec![weight], ..t.get(1).unwrap() }.as_ref());
            t.import(columns.rows()).unwrap();
        };
        for (weight, removed) in [(3.0, 0), (0.5, 1)] {
            // With an unchanged header.
            import(0.0);
            let mut cursor = chosen(&t);
            import(weight);
            assert_eq!(remove_found(&t, &mut cursor), removed, "{weight}");
            assert_eq!(t.get(1).is_none(), removed == 1, "{weight}");
        }
    }
}
