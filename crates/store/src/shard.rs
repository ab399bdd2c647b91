//! One shard of a table: index and slab together, and the batch operations on them. Knows nothing of locks or of
//! whole requests: it gets the entries that belong to it.
//!
//! Every operation first resolves the row numbers of all its keys, so that the index's cache misses overlap and the
//! rows are on their way, and then goes over the rows.

use crate::Absent;
use crate::budget::Budget;
use crate::index::{Index, NO_ROW};
use crate::kernel::Step;
use crate::layout::Layout;
use crate::request::Entry;
use crate::slab::{HEADER_WORDS, Header, Slab, touch};

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) index: Index,
    pub(crate) slab: Slab,
}

/// A chunk of a push: parallel slices, `dim` gradients per key.
pub(crate) struct Update<'a> {
    pub(crate) keys: &'a [u64],
    pub(crate) counts: &'a [u32],
    pub(crate) gradients: &'a [f32],
    pub(crate) steps: &'a [Step],
    /// The table's use clock, written to the rows' headers.
    pub(crate) clock: u32,
}

impl Shard {
    pub(crate) fn new(stride: usize) -> Shard {
        Shard { index: Index::new(), slab: Slab::new(stride) }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.slab.bytes()
    }

    /// Copies the weights of the entries' rows to their positions in `out`; positions of absent keys go to `absent`
    /// and their weights are left to the caller.
    pub(crate) fn pull(
        &self,
        layout: &Layout,
        entries: &[Entry],
        rows: &mut Vec<u32>,
        out: &mut [f32],
        absent: &mut Vec<u32>,
    ) {
        let dim = layout.dim;
        rows.clear();
        rows.extend(entries.iter().enumerate().map(|(at, entry)| {
            self.index.prefetch_ahead(entries, at, |entry| entry.hash);
            let row = self.index.find(entry.hash);
            if row != NO_ROW {
                self.slab.prefetch(row, HEADER_WORDS + dim);
            }
            row
        }));
        for (entry, &row) in entries.iter().zip(&*rows) {
            if row == NO_ROW {
                absent.push(entry.position);
            } else if dim == 1 {
                out[entry.position as usize] = self.slab.row(row)[HEADER_WORDS];
            } else {
                let weights = &self.slab.row(row)[HEADER_WORDS..][..dim];
                out[entry.position as usize * dim..][..dim].copy_from_slice(weights);
            }
        }
    }

    /// Updates the rows of the entries, creating those that are absent. The number of entries that were left out
    /// because the budget had no room for their row.
    pub(crate) fn push(
        &mut self,
        layout: &Layout,
        budget: &Budget,
        entries: &[Entry],
        rows: &mut Vec<u32>,
        update: &Update<'_>,
    ) -> u64 {
        rows.clear();
        let mut rejected = 0;
        for (at, entry) in entries.iter().enumerate() {
            self.index.prefetch_ahead(entries, at, |entry| entry.hash);
            let mut row = self.index.find(entry.hash);
            if row == NO_ROW {
                let key = update.keys[entry.position as usize];
                row = self.create(layout, budget, entry.hash, key).unwrap_or(NO_ROW);
                rejected += u64::from(row == NO_ROW);
            } else {
                self.slab.prefetch(row, layout.words());
            }
            rows.push(row);
        }
        if let ([block], [Step::Ftrl(step)]) = (layout.blocks.as_slice(), update.steps)
            && block.dims == 1
        {
            // The row of logistic regression: w, z, n after the header.
            for (entry, &row) in entries.iter().zip(&*rows).filter(|(_, row)| **row != NO_ROW) {
                let position = entry.position as usize;
                let row = self.slab.row_mut(row);
                touch(row, update.counts[position], update.clock);
                if let [w, z, n, ..] = &mut row[HEADER_WORDS..] {
                    (*w, *z, *n) = step.update(*w, *z, *n, update.gradients[position]);
                }
            }
            return rejected;
        }
        let dim = layout.dim;
        for (entry, &row) in entries.iter().zip(&*rows).filter(|(_, row)| **row != NO_ROW) {
            let position = entry.position as usize;
            let gradient = &update.gradients[position * dim..][..dim];
            let row = self.slab.row_mut(row);
            update_row(layout, update.steps, row, update.counts[position], update.clock, gradient);
        }
        rejected
    }

    /// Room for one more key, then a row for it, initialised. `None`: the budget is used up, nothing has changed
    /// but perhaps the size of the index.
    #[cold]
    pub(crate) fn create(&mut self, layout: &Layout, budget: &Budget, hash: u64, key: u64) -> Option<u32> {
        let row = self.create_unwritten(budget, hash)?;
        layout.init_row(key, self.slab.row_mut(row));
        Some(row)
    }

    /// Like `create`, but the row's words are left for the caller to write. The hash must be absent.
    pub(crate) fn create_unwritten(&mut self, budget: &Budget, hash: u64) -> Option<u32> {
        if !self.reserve(budget, 1) {
            return None;
        }
        let row = self.slab.allocate(budget)?;
        self.index.insert(hash, row);
        Some(row)
    }

    /// Room in the index for `extra` more keys; false when the budget has none.
    pub(crate) fn reserve(&mut self, budget: &Budget, extra: usize) -> bool {
        let bytes = self.index.growth_bytes(extra);
        if bytes > 0 {
            if !budget.take(bytes) {
                return false;
            }
            self.index.grow(extra);
        }
        true
    }

    pub(crate) fn remove(&mut self, hash: u64) -> bool {
        let row = self.index.remove(hash);
        if row != NO_ROW {
            self.slab.release(row);
        }
        row != NO_ROW
    }
}

/// One update of one row: its header and every block of it.
#[inline(always)]
pub(crate) fn update_row(
    layout: &Layout,
    steps: &[Step],
    row: &mut [f32],
    count: u32,
    clock: u32,
    gradient: &[f32],
) {
    let version = touch(row, count, clock);
    let (front, state) = row.split_at_mut(HEADER_WORDS + layout.dim);
    for (block, step) in layout.blocks.iter().zip(steps) {
        let weights = &mut front[block.weights_at..][..block.dims];
        let state_at = block.state_at - HEADER_WORDS - layout.dim;
        let state = &mut state[state_at..][..block.kernel.slots() * block.dims];
        step.update(version, weights, state, &gradient[block.first..][..block.dims]);
    }
}

/// Weights for a key without a row.
#[inline]
pub(crate) fn fill_absent(layout: &Layout, absent: Absent, key: u64, weights: &mut [f32]) {
    match absent {
        Absent::Zero => weights.fill(0.0),
        Absent::Init => layout.init_weights(key, weights),
    }
}

/// A row's header, weights and state.
pub(crate) fn parts<'a>(layout: &Layout, row: &'a [f32]) -> (Header, &'a [f32], &'a [f32]) {
    let (front, rest) = row.split_at(HEADER_WORDS + layout.dim);
    (Header::read(row), &front[HEADER_WORDS..], &rest[..layout.state])
}
