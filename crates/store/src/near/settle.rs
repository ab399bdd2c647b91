//! How copies of rows go back to their table. Knows nothing of how they were updated.

use super::{NearBlock, NearTable, PARTS};
use crate::StoreError;
use crate::index::NO_ROW;
use crate::kernel::finite;
use crate::lookup::{CHUNK_KEYS, Known, Lookup, with_lookup};
use crate::push::{Edit, edit_rows};
use crate::slab::Change;
use crate::table::Table;
use crate::words::{self, Vector, Work};

impl NearTable<'_> {
    /// Brings all copies back, and makes rows for keys that have none; no handle is of use after it. Fails with
    /// [`StoreError::TableFull`] when there is no room for some of them; what there is room for is settled.
    pub fn settle(mut self) -> Result<(), StoreError> {
        let rejected = self.settle_all();
        if rejected > 0 { Err(self.table.full(rejected)) } else { Ok(()) }
    }

    /// How many keys were left out because the table is full.
    fn settle_all(&mut self) -> u64 {
        self.is_settled = true;
        let (near, dim, table, lane) = (&*self.near, self.dim, self.table, self.lane);
        if near.versions.is_empty() {
            return 0;
        }
        let clock = table.clock.tick(lane);
        with_lookup(|lookup| {
            let mut rejected = 0;
            for (number, keys) in near.dedup.unique.chunks(CHUNK_KEYS).enumerate() {
                let first = number * CHUNK_KEYS;
                let places = &near.places[first..][..keys.len()];
                let copies = Copies {
                    table,
                    blocks: &self.blocks,
                    rows: &near.rows[first * PARTS * dim..],
                    fetched: &near.fetched[first * 2 * dim..],
                    versions: &near.versions[first..],
                    places,
                    counts: &near.dedup.counts[first..],
                    clock,
                    are_the_same: true,
                };
                let known = self.since.map(|since| Known { rows: places, since });
                rejected += words::run(table.width(), Settle { table, lane, lookup, keys, known, copies });
            }
            rejected
        })
    }
}

impl Drop for NearTable<'_> {
    fn drop(&mut self) {
        if !self.is_settled && !std::thread::panicking() {
            self.settle_all();
        }
    }
}

/// A chunk of keys whose copies go back, compiled for the machine.
struct Settle<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a mut Lookup,
    keys: &'a [u64],
    known: Option<Known<'a>>,
    copies: Copies<'a>,
}

impl Work for Settle<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> u64 {
        self.lookup.assign(self.keys);
        edit_rows(self.table, self.lane, self.lookup, self.keys, self.known, self.copies, vector)
    }
}

/// The copies of a chunk, and what they were made of.
struct Copies<'a> {
    table: &'a Table,
    blocks: &'a [NearBlock],
    rows: &'a [f32],
    fetched: &'a [f32],
    versions: &'a [u32],
    places: &'a [u32],
    counts: &'a [u32],
    clock: u32,
    /// No row was made anew or replaced since it was fetched: then its number of updates says whether it is as it was.
    are_the_same: bool,
}

impl Edit for Copies<'_> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        Some(self.clock)
    }

    fn lose_known(&mut self) {
        self.are_the_same = false;
    }

    /// The copy is all there is to a row that nobody had made when it was fetched.
    fn fills(&self, at: usize) -> bool {
        self.places[at] == NO_ROW
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: Change<'_>, is_new: bool) {
        let row = row.by(vector);
        let version = self.note(at, row);
        let is_as_fetched = if is_new {
            self.fills(at)
        } else if self.are_the_same {
            // At its maximum it has lost count.
            version == self.versions[at] && version != u32::MAX
        } else {
            self.holds_fetched(at, row)
        };
        if is_as_fetched { self.store(at, row) } else { self.add(at, row) }
    }
}

impl Copies<'_> {
    /// Notes the updates of the copy in a row, as if every occurrence had been pushed by itself; how many the row had before.
    #[inline(always)]
    fn note(&self, at: usize, row: Change<'_, impl Vector>) -> u32 {
        let (header, count) = (self.table.layout.header_at(), self.counts[at]);
        let version = row.get(header + 4);
        row.set(header + 2, row.get(header + 2).saturating_add(count));
        row.set(header + 3, self.clock);
        row.set(header + 4, version.saturating_add(count));
        version
    }

    /// Is the state of a row, whoever made it, what was fetched?
    fn holds_fetched(&self, at: usize, row: Change<'_, impl Vector>) -> bool {
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

    #[inline(always)]
    fn store(&self, at: usize, row: Change<'_, impl Vector>) {
        let dim = self.table.layout.dim;
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        if let ([block], &[w, z, n, _]) = (self.blocks, copy) {
            row.set(0, w.to_bits());
            row.set(block.z_at, z.to_bits());
            row.set(block.n_at, n.to_bits());
            return;
        }
        row.store(0, &copy[..dim]);
        for block in self.blocks {
            row.store(block.z_at, &copy[dim + block.first..][..block.dims]);
            row.store(block.n_at, &copy[2 * dim + block.first..][..block.dims]);
        }
    }

    /// Adds what was added to the copy to a row that others have updated meanwhile, or made.
    fn add(&self, at: usize, row: Change<'_, impl Vector>) {
        let dim = self.table.layout.dim;
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        let fetched = &self.fetched[at * 2 * dim..][..2 * dim];
        for block in self.blocks {
            for i in 0..block.dims {
                let at = block.first + i;
                let sum = |word: usize, now: f32, before: f32| f32::from_bits(row.get(word)) + (now - before);
                let z = sum(block.z_at + i, copy[dim + at], fetched[at]);
                let n = finite(sum(block.n_at + i, copy[2 * dim + at], fetched[dim + at]));
                row.set(block.z_at + i, z.to_bits());
                row.set(block.n_at + i, n.to_bits());
                row.set(at, block.step.weight(z, n.sqrt()).to_bits());
            }
        }
    }
}
