//! Writes cached rows back to their table.

use super::{CachedBlock, LocalCache, PARTS};
use crate::StoreError;
use crate::index::NO_ROW;
use crate::index::removals::RemovalStamp;
use crate::lookup::{CHUNK_KEYS, CachedRows, Lookup, with_lookup};
use crate::rows::access::RowMut;
use crate::rows::layout::{FREQUENCY, LAST_USE, VERSION, version_after};
use crate::simd::{self, Vector, Work};
use crate::table::Table;
use crate::update::edit::{Edit, edit_rows};
use crate::update::failures::PushFailures;
use crate::update::kernel::finite;

impl LocalCache<'_> {
    /// Writes all copies back and creates rows for keys that have none.
    ///
    /// # Errors
    ///
    /// - [`StoreError::TableFull`] if some new rows found no room, and [`StoreError::NotFinite`] if some results
    ///   are not finite. All other rows are written.
    /// - [`StoreError::Writing`] if this thread holds a [`TableWriter`](crate::TableWriter) of the table. All updates are lost.
    pub fn flush(mut self) -> Result<(), StoreError> {
        self.flush_all()
    }

    /// Drops the copies and their updates.
    pub fn discard(mut self) {
        self.is_flushed = true;
    }

    fn flush_all(&mut self) -> Result<(), StoreError> {
        self.is_flushed = true;
        let (buffers, dim, table, lane) = (&*self.buffers, self.dim, self.table, self.lane);
        if buffers.versions.is_empty() {
            return Ok(());
        }
        table.check_not_writing()?;
        let clock = table.tick(lane);
        let mut failures = PushFailures::default();
        for (number, keys) in buffers.dedup.unique.chunks(CHUNK_KEYS).enumerate() {
            let first = number * CHUNK_KEYS;
            let copies = Copies {
                table,
                blocks: &self.blocks,
                keys,
                rows: &buffers.rows[first * PARTS * dim..],
                fetched: &buffers.fetched[first * 2 * dim..],
                versions: &buffers.versions[first..],
                places: &buffers.places[first..][..keys.len()],
                counts: &buffers.dedup.counts[first..],
                clock,
                are_the_same: true,
                failures: &mut failures,
            };
            let full = copies.flush(lane, self.since);
            failures.note_full(full);
        }
        failures.check(table)
    }
}

impl Drop for LocalCache<'_> {
    /// Flushes a cache that was neither flushed nor discarded, for example on an early return. Panics if the flush
    /// fails.
    fn drop(&mut self) {
        if self.is_flushed || std::thread::panicking() {
            return;
        }
        if let Err(error) = self.flush_all() {
            panic!("a local cache was dropped without flush(), and flushing it failed: {error}");
        }
    }
}

/// Flushes the copies of a chunk of keys.
struct Flush<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a mut Lookup,
    keys: &'a [u64],
    cached: Option<CachedRows<'a>>,
    copies: Copies<'a>,
}

impl Work for Flush<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> u64 {
        self.lookup.assign(self.table.hash_key, self.keys);
        edit_rows(self.table, self.lane, self.lookup, self.keys, self.cached, self.copies, vector)
    }
}

/// The copies of a chunk, and the values they were fetched with.
pub(super) struct Copies<'a> {
    pub(super) table: &'a Table,
    pub(super) blocks: &'a [CachedBlock],
    pub(super) keys: &'a [u64],
    pub(super) rows: &'a [f32],
    pub(super) fetched: &'a [f32],
    pub(super) versions: &'a [u32],
    pub(super) places: &'a [u32],
    pub(super) counts: &'a [u32],
    pub(super) clock: u32,
    /// No row was created or replaced since the fetch, so that an equal number of updates proves a row unchanged.
    pub(super) are_the_same: bool,
    pub(super) failures: &'a mut PushFailures,
}

impl Edit for Copies<'_> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        Some(self.clock)
    }

    fn invalidate_cached(&mut self) {
        self.are_the_same = false;
    }

    /// A row that was absent at the fetch is written from the copy alone.
    fn initializes(&self, at: usize) -> bool {
        self.places[at] == NO_ROW
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, is_new: bool) {
        let row = row.by(vector);
        let version = row.get(VERSION);
        let is_as_fetched = if is_new {
            self.initializes(at)
        } else if self.are_the_same {
            version == self.versions[at]
        } else {
            self.holds_fetched(at, row)
        };
        let is_finite = if is_as_fetched { self.store(at, row, is_new) } else { self.add(at, row) };
        if is_finite {
            self.note(at, row, version);
        } else {
            self.failures.note(self.keys[at]);
        }
    }
}

impl Copies<'_> {
    /// Writes the copies back; returns the number of new rows without room. `since` was taken before the first row
    /// was fetched.
    pub(super) fn flush(self, lane: usize, since: Option<RemovalStamp>) -> u64 {
        let (table, keys) = (self.table, self.keys);
        let cached = since.map(|since| CachedRows { rows: self.places, since });
        with_lookup(|lookup| {
            simd::run(table.width(), Flush { table, lane, lookup, keys, cached, copies: self })
        })
    }

    /// Updates the header of a row as if every occurrence had been pushed on its own.
    #[inline(always)]
    fn note(&self, at: usize, row: RowMut<'_, impl Vector>, version: u32) {
        let count = self.counts[at];
        row.set(FREQUENCY, row.get(FREQUENCY).saturating_add(count));
        row.set(LAST_USE, self.clock);
        row.set(VERSION, version_after(version, count));
    }

    /// Returns whether the row's state equals the fetched one, bit by bit.
    fn holds_fetched(&self, at: usize, row: RowMut<'_, impl Vector>) -> bool {
        let dim = self.table.layout.dim;
        let (z, n) = self.fetched[at * 2 * dim..][..2 * dim].split_at(dim);
        let holds = |first: usize, values: &[f32]| {
            values.iter().enumerate().all(|(i, value)| row.get(first + i) == value.to_bits())
        };
        self.blocks.iter().all(|block| {
            let part = block.first..block.first + block.dims;
            holds(block.z_at, &z[part.clone()]) && holds(block.n_at, &n[part])
        })
    }

    /// Overwrites the row with the copy, if that is finite.
    #[inline(always)]
    fn store(&self, at: usize, row: RowMut<'_, impl Vector>, is_new: bool) -> bool {
        let dim = self.table.layout.dim;
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        if let ([block], &[w, z, n, _]) = (self.blocks, copy)
            && w.is_finite() & z.is_finite()
        {
            row.set_weight(0, w.to_bits());
            row.set(block.z_at, z.to_bits());
            row.set(block.n_at, n.to_bits());
            return true;
        }
        // Sums of squares are always finite.
        if !copy[..2 * dim].iter().fold(true, |all, value| all & value.is_finite()) {
            if is_new {
                self.store_first(at, row);
            }
            return false;
        }
        row.store_weights(0, &copy[..dim]);
        for block in self.blocks {
            row.store_rest(block.z_at, &copy[dim + block.first..][..block.dims]);
            row.store_rest(block.n_at, &copy[2 * dim + block.first..][..block.dims]);
        }
        true
    }

    /// Initializes a new row as if nothing had been learned.
    #[cold]
    fn store_first(&self, at: usize, row: RowMut<'_, impl Vector>) {
        let layout = &self.table.layout;
        let mut unpacked = vec![0.0; layout.unpacked()];
        row.store_row(layout.init_row(self.keys[at], &mut unpacked));
    }

    /// Adds the changes of the copy to a row that other threads have updated or created meanwhile, if the sums are
    /// finite.
    fn add(&self, at: usize, row: RowMut<'_, impl Vector>) -> bool {
        let dim = self.table.layout.dim;
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        let fetched = &self.fetched[at * 2 * dim..][..2 * dim];
        let sums = |block: &CachedBlock, i: usize| {
            let at = block.first + i;
            let sum = |word: usize, now: f32, before: f32| f32::from_bits(row.get(word)) + (now - before);
            let z = sum(block.z_at + i, copy[dim + at], fetched[at]);
            let n = finite(sum(block.n_at + i, copy[2 * dim + at], fetched[dim + at]));
            (block.step.weight(z, n.sqrt()), z, n)
        };
        let all = || self.blocks.iter().flat_map(|block| (0..block.dims).map(move |i| (block, i)));
        if !all().all(|(block, i)| {
            let (w, z, _) = sums(block, i);
            w.is_finite() & z.is_finite()
        }) {
            return false;
        }
        for (block, i) in all() {
            let (w, z, n) = sums(block, i);
            row.set(block.z_at + i, z.to_bits());
            row.set(block.n_at + i, n.to_bits());
            row.set_weight(block.first + i, w.to_bits());
        }
        true
    }
}
