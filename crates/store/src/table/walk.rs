//! Iteration over all rows or keys of a table during concurrent changes.

use std::ops::ControlFlow;

use crate::index::NO_ROW;
use crate::index::growth::{SHARE_BUCKETS, shares};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::row::RowRef;
use crate::sync::lock;
use crate::table::Table;

/// Rows whose headers and index lines are prefetched together.
const GROUP: u32 = 64;

impl Table {
    /// Calls `f` on every row, in no particular order (the same for the same history).
    ///
    /// Rows pushed meanwhile are seen before or after the push. Each key is seen at most once, and every key that
    /// is present all the time exactly once. `f` may use this table, but must not call this method again.
    pub fn for_each_row(&self, mut f: impl FnMut(RowRef<'_>)) {
        let _ = self.try_for_each_row(|row| {
            f(row);
            ControlFlow::Continue(())
        });
    }

    /// Calls `f` on every row like [`Table::for_each_row`], until it breaks.
    pub fn try_for_each_row(&self, mut f: impl FnMut(RowRef<'_>) -> ControlFlow<()>) -> ControlFlow<()> {
        let _one_at_a_time = lock(&self.walk);
        // Tables that only serve after a checkpoint have no pushes that would end a growth.
        self.directory.finish_growth(crate::sync::lanes::lane());
        let made = self.row_allocator.begin_walk(&self.directory.lock_all()) as u32;
        // Also after a panic of `f`: remaining marks would hide rows from the next walk.
        let _end = EndWalk(self);
        let lane = crate::sync::lanes::lane();
        let mut words = vec![0.0; self.layout.unpacked()];
        let mut visit = |key: u64, row: Option<u32>| {
            let is_taken = self.take(key, row, &mut words);
            if is_taken { f(self.layout.parts(&words)) } else { ControlFlow::Continue(()) }
        };
        for first in (0..made).step_by(GROUP as usize) {
            let mut rows = first..made.min(first.saturating_add(GROUP));
            {
                let view = self.directory.pin(lane);
                let hashes = rows.clone().map(|row| self.hash_key.hash(self.key_of(row)));
                hashes.for_each(|hash| view.view().of(hash).prefetch(hash, PrefetchHint::Read));
            }
            rows.try_for_each(|row| visit(self.key_of(row), Some(row)))?;
        }
        // Copy-on-write moved these keys before they were visited.
        self.row_allocator.moved().into_iter().try_for_each(|key| visit(key, None))
    }

    /// Calls `f` on every key that `wants` accepts, with the guarantees of [`Table::for_each_row`].
    ///
    /// `wants` must not use this table. Keys come from the index alone, and need not wait for a walk over rows,
    /// which may take as long as a checkpoint.
    pub fn for_each_key(&self, wants: impl Fn(u64) -> bool, mut f: impl FnMut(u64)) {
        let buckets = self.directory.pin(crate::sync::lanes::lane()).view().latest().len();
        // Shares of the hash space do not depend on the index, which may be replaced in between.
        let shares = shares(buckets / SHARE_BUCKETS);
        let mut keys = Vec::new();
        for share in 0..shares {
            let locked = self.directory.lock_share(share, shares);
            locked.for_each_hash(|hash| {
                let key = self.hash_key.key(hash);
                if wants(key) {
                    keys.push(key);
                }
            });
            drop(locked);
            keys.drain(..).for_each(&mut f);
        }
    }

    /// The key of a row, if it has one.
    pub(crate) fn key_of(&self, row: u32) -> u64 {
        u64::from(self.slab.header_word(row, 0)) | u64::from(self.slab.header_word(row, 1)) << 32
    }

    /// Copies the key's row if it is still to be visited and, if `row` is given, is that row. A row is in use if
    /// its key leads to it.
    fn take(&self, key: u64, row: Option<u32>, words: &mut [f32]) -> bool {
        let hash = self.hash_key.hash(key);
        let locked = self.directory.lock(hash);
        let found = locked.find();
        if found == NO_ROW
            || row.is_some_and(|row| row != found || self.row_allocator.is_visited(row, &locked))
        {
            return false;
        }
        self.layout.read_row(&self.slab, found, words);
        self.row_allocator.note_visited(found, &locked);
        true
    }
}

/// Ends the walk when it is dropped.
struct EndWalk<'a>(&'a Table);

impl Drop for EndWalk<'_> {
    fn drop(&mut self) {
        self.0.row_allocator.end_walk(&self.0.directory.lock_all());
    }
}
