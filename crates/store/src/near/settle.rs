//! How copies of rows go back to their table. Knows nothing of how they were updated.

use super::{NearBlock, NearTable, PARTS};
use crate::StoreError;
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
                let copies = Copies {
                    table,
                    blocks: &self.blocks,
                    rows: &near.rows[first * PARTS * dim..],
                    fetched: &near.fetched[first * 2 * dim..],
                    versions: &near.versions[first..],
                    counts: &near.dedup.counts[first..],
                    clock,
                };
                let places = &near.places[first..][..keys.len()];
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
    counts: &'a [u32],
    clock: u32,
}

impl Edit for Copies<'_> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        Some(self.clock)
    }

    /// The copy is all there is to a row that nobody had made when it was fetched.
    fn fills(&self, at: usize) -> bool {
        self.versions[at] == 0
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: Change<'_>) {
        let (dim, header, row) = (self.table.layout.dim, self.table.layout.header_at(), row.by(vector));
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        let (count, version) = (self.counts[at], row.get(header + 4));
        row.set(header + 2, row.get(header + 2).saturating_add(count));
        row.set(header + 3, self.clock);
        // As if every occurrence had been pushed by itself.
        row.set(header + 4, version.saturating_add(count));
        // At its maximum it has lost count.
        let is_as_fetched = version == self.versions[at] && version != u32::MAX;
        if !is_as_fetched {
            return self.add(at, row);
        }
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
}

impl Copies<'_> {
    /// Adds what was added to the copy to a row that others have updated meanwhile.
    fn add(&self, at: usize, row: Change<'_, impl Vector>) {
        let dim = self.table.layout.dim;
        let copy = &self.rows[at * PARTS * dim..][..PARTS * dim];
        let fetched = &self.fetched[at * 2 * dim..][..2 * dim];
        for block in self.blocks {
            for i in 0..block.dims {
                let at = block.first + i;
                let added = |word: usize, now: f32, before: f32| {
                    let sum = f32::from_bits(row.get(word)) + (now - before);
                    row.set(word, sum.to_bits());
                    sum
                };
                let z = added(block.z_at + i, copy[dim + at], fetched[at]);
                let n = added(block.n_at + i, copy[2 * dim + at], fetched[dim + at]);
                row.set(at, block.step.weight(z, n.sqrt()).to_bits());
            }
        }
    }
}
