//! The roofline of benchmarks: the memory traffic of a pull, a pooled pull or a push in the table's own memory,
//! with all addresses known in advance.
//!
//! Rows are copied with the table's own instructions. Searching, version checks and arithmetic are left out. All
//! functions prefetch `ahead` positions in advance; the caller searches the best distance.
#![allow(unsafe_code)] // rewrites rows without their locks

use std::hint::black_box;

use crate::index::directory::IndexGuard;
use crate::memory::prefetch::PrefetchHint;
use crate::rows::slab::{RowPrefetcher, RowsView};
use crate::simd::{self, Vector, Width, Work};
use crate::sync::lanes::lane;
use crate::table::Table;

/// The memory of a table.
#[derive(Debug)]
pub struct Roofline<'a> {
    view: IndexGuard<'a>,
    table: &'a Table,
    rows: RowsView<'a>,
    weights: RowPrefetcher<'a>,
    whole: RowPrefetcher<'a>,
    weight_words: usize,
    width: Width,
}

impl<'a> Roofline<'a> {
    /// Borrows the memory of a table with at least one row.
    ///
    /// Pushes that grow the table's index wait while this lives, so the same thread must not push new keys.
    #[must_use]
    pub fn of(table: &'a Table) -> Roofline<'a> {
        let (weight_words, width) = (table.layout.weight_words, table.width());
        table.directory.finish_growth(lane());
        Roofline {
            view: table.directory.pin(lane()),
            table,
            rows: table.slab.view(),
            weights: table.slab.prefetcher(false),
            whole: table.slab.prefetcher(true),
            weight_words,
            width,
        }
    }

    /// Cache lines of the index.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.view.view().index.len()
    }

    /// 32-bit words of a row's weights: half the number of 16-bit weights.
    #[must_use]
    pub fn weight_words(&self) -> usize {
        self.weight_words
    }

    /// Used 32-bit words of a row, including header and optimizer state.
    #[must_use]
    pub fn row_words(&self) -> usize {
        self.table.layout.words()
    }

    /// Allocated rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.row_allocator.charged() as usize
    }

    /// Cache lines that a pull and a push touch per row, averaged over all rows.
    #[must_use]
    pub fn lines_per_row(&self) -> (f64, f64) {
        self.table.layout.placement.lines_per_row()
    }

    #[inline(always)]
    fn prefetch(&self, row: u32, whole: bool) {
        let prefetcher = if whole { self.whole } else { self.weights };
        prefetcher.row(row, PrefetchHint::Read, true);
    }

    /// Traffic of a pull.
    ///
    /// Per position, reads a word of an index line and copies the words of a row's weights to its part of `out`,
    /// which has `out.len() / rows.len()` values. Takes as many `lines` as `rows`.
    pub fn gather(&self, lines: &[u32], rows: &[u32], ahead: usize, out: &mut [f32]) {
        simd::run(self.width, Gather { limit: self, lines, rows, ahead, out });
    }

    /// Traffic of a pooled pull.
    ///
    /// Sums the rows `offsets[s]..offsets[s + 1]` of every sample `s` into `out`, as if they were f32.
    pub fn pool(&self, rows: &[u32], offsets: &[u32], ahead: usize, out: &mut [f32]) {
        simd::run(self.width, Pool { limit: self, rows, offsets, ahead, out });
    }

    /// Traffic of a push: per position, reads and rewrites a row of `copy.len()` words.
    ///
    /// Like a push it waits for a [`crate::TableWriter`], so it must not be called by a thread that holds a `Roofline` or a
    /// writer.
    ///
    /// # Safety
    ///
    /// It writes rows without their sequence locks. No other thread may use the table meanwhile, except for this function:
    /// readers would see torn rows, and updates would be lost.
    pub unsafe fn rewrite(table: &Table, rows: &[u32], ahead: usize, copy: &mut [f32]) {
        let _sharing = table.write_gate.lock_shared(lane());
        let limit = Roofline::of(table);
        simd::run(limit.width, Rewrite { limit: &limit, rows, ahead, copy });
    }
}

struct Gather<'a> {
    limit: &'a Roofline<'a>,
    lines: &'a [u32],
    rows: &'a [u32],
    ahead: usize,
    out: &'a mut [f32],
}

impl Work for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let Gather { limit, lines, rows, ahead, out } = self;
        let dim = out.len() / rows.len().max(1);
        // Common dims have loops of constant length, like those of the table.
        match (dim, limit.weight_words) {
            (8, 8) => return limit.gather_of::<8>(vector, lines, rows, ahead, out.as_chunks_mut().0),
            (16, 16) => return limit.gather_of::<16>(vector, lines, rows, ahead, out.as_chunks_mut().0),
            (32, 32) => return limit.gather_of::<32>(vector, lines, rows, ahead, out.as_chunks_mut().0),
            (64, 64) => return limit.gather_of::<64>(vector, lines, rows, ahead, out.as_chunks_mut().0),
            (128, 128) => return limit.gather_of::<128>(vector, lines, rows, ahead, out.as_chunks_mut().0),
            _ => {}
        }
        let (index, words) = (limit.view.view().index, limit.weight_words.min(dim));
        let ask = |line: u32, row: u32| {
            index.prefetch_bucket(line);
            limit.prefetch(row, false);
        };
        lines.iter().zip(rows).take(ahead).for_each(|(&line, &row)| ask(line, row));
        let mut sum = 0_u64;
        for (at, out) in out.chunks_exact_mut(dim.max(1)).enumerate() {
            if let (Some(&line), Some(&row)) = (lines.get(at + ahead), rows.get(at + ahead)) {
                ask(line, row);
            }
            sum ^= index.word(lines[at]);
            simd::load(vector, limit.rows.words(rows[at]), &mut out[..words]);
        }
        black_box(sum);
    }
}

impl Roofline<'_> {
    #[inline(always)]
    fn gather_of<const DIM: usize>(
        &self,
        vector: impl Vector,
        lines: &[u32],
        rows: &[u32],
        ahead: usize,
        out: &mut [[f32; DIM]],
    ) {
        let index = self.view.view().index;
        let ask = |line: u32, row: u32| {
            index.prefetch_bucket(line);
            self.prefetch(row, false);
        };
        lines.iter().zip(rows).take(ahead).for_each(|(&line, &row)| ask(line, row));
        let mut sum = 0_u64;
        let mut take = |line: u32, row: u32, out: &mut [f32; DIM]| {
            sum ^= index.word(line);
            simd::load(vector, self.rows.words(row), out);
        };
        let later = rows.len().saturating_sub(ahead);
        let (out, out_end) = out.split_at_mut(later);
        let places = lines.iter().zip(rows).zip(lines.iter().zip(rows).skip(ahead));
        for (((&line, &row), (&line_ahead, &row_ahead)), out) in places.zip(out) {
            ask(line_ahead, row_ahead);
            take(line, row, out);
        }
        for ((&line, &row), out) in lines[later..].iter().zip(&rows[later..]).zip(out_end) {
            take(line, row, out);
        }
        black_box(sum);
    }
}

struct Pool<'a> {
    limit: &'a Roofline<'a>,
    rows: &'a [u32],
    offsets: &'a [u32],
    ahead: usize,
    out: &'a mut [f32],
}

impl Work for Pool<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let Pool { limit, rows, offsets, ahead, out } = self;
        let dim = out.len() / offsets.len().saturating_sub(1).max(1);
        // Common dims have loops of constant length, like those of the table.
        match (dim, limit.weight_words) {
            (8, 8) => return limit.pool_of::<8>(vector, rows, offsets, ahead, out.as_chunks_mut().0),
            (16, 16) => return limit.pool_of::<16>(vector, rows, offsets, ahead, out.as_chunks_mut().0),
            (32, 32) => return limit.pool_of::<32>(vector, rows, offsets, ahead, out.as_chunks_mut().0),
            (64, 64) => return limit.pool_of::<64>(vector, rows, offsets, ahead, out.as_chunks_mut().0),
            _ => {}
        }
        let words = limit.weight_words.min(dim);
        let mut copy = vec![0.0; words.next_multiple_of(simd::PAD)];
        rows.iter().take(ahead).for_each(|&row| limit.prefetch(row, false));
        for (sample, sum) in offsets.windows(2).zip(out.chunks_exact_mut(dim.max(1))) {
            sum.fill(0.0);
            for at in sample[0] as usize..sample[1] as usize {
                if let Some(&row) = rows.get(at + ahead) {
                    limit.prefetch(row, false);
                }
                simd::load_padded(vector, &limit.rows.words(rows[at])[..words], &mut copy);
                sum.iter_mut().zip(&copy).for_each(|(sum, weight)| *sum += weight);
            }
        }
    }
}

impl Roofline<'_> {
    /// The sum stays in registers until its sample ends.
    #[inline(always)]
    fn pool_of<const DIM: usize>(
        &self,
        vector: impl Vector,
        rows: &[u32],
        offsets: &[u32],
        ahead: usize,
        out: &mut [[f32; DIM]],
    ) {
        rows.iter().take(ahead).for_each(|&row| self.prefetch(row, false));
        let mut later = rows.iter().skip(ahead);
        let mut weights = [0.0; DIM];
        for (sample, out) in offsets.windows(2).zip(out) {
            let mut sum = [0.0; DIM];
            for &row in &rows[sample[0] as usize..sample[1] as usize] {
                if let Some(&row) = later.next() {
                    self.prefetch(row, false);
                }
                simd::load(vector, self.rows.words(row), &mut weights);
                sum.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += weight);
            }
            *out = sum;
        }
    }
}

struct Rewrite<'a> {
    limit: &'a Roofline<'a>,
    rows: &'a [u32],
    ahead: usize,
    copy: &'a mut [f32],
}

impl Work for Rewrite<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let Rewrite { limit, rows, ahead, copy } = self;
        rows.iter().take(ahead).for_each(|&row| limit.prefetch(row, true));
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&row) = rows.get(at + ahead) {
                limit.prefetch(row, true);
            }
            let row = limit.table.slab.unpublished(row).by(vector);
            row.load_row(copy);
            row.store_row(copy);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::{Absent, Init, Optimizer, PushScale, TableConfig};

    /// At every distance, all requested rows are read and summed, and rewriting changes none.
    #[test]
    fn distances_change_nothing() {
        let rows = [4, 1, 1, 0, 3];
        for dim in [1, 3, 8, 16, 32, 37, 64, 128] {
            let config = TableConfig::single("t", dim, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
            let table = Table::new(config).expect("it is a table");
            // One at a time, in the order of rows.
            for key in 0..5 {
                let gradient = vec![-(key as f32); dim];
                table.push(&[key], &gradient, PushScale::default()).expect("there is room");
            }
            for ahead in [0, 1, 3, 100] {
                // SAFETY: no other thread knows the table.
                unsafe { Roofline::rewrite(&table, &rows, ahead, &mut vec![7.0; table.layout.words()]) };
                let limit = Roofline::of(&table);
                assert!(limit.rows() >= 5);
                let last = limit.lines() as u32 - 1;
                let mut out = vec![9.0; rows.len() * dim];
                limit.gather(&[0, last, 1, 0, last], &rows, ahead, &mut out);
                let all =
                    |values: &[f32]| values.iter().flat_map(|&value| vec![value; dim]).collect::<Vec<_>>();
                assert_eq!(out, all(&[4.0, 1.0, 1.0, 0.0, 3.0]), "dim {dim}, ahead {ahead}");
                let mut sums = vec![9.0; 3 * dim];
                limit.pool(&rows, &[0, 2, 2, 5], ahead, &mut sums);
                assert_eq!(sums, all(&[5.0, 0.0, 4.0]), "dim {dim}, ahead {ahead}");
            }
            Roofline::of(&table).gather(&[], &[], 8, &mut []);
            let mut out = vec![0.0; dim];
            table.pull(&[4], Absent::Zero, &mut out, None).expect("lengths fit");
            assert_eq!(out, vec![4.0; dim]);
        }
    }

    /// A writer borrows rows as plain numbers, so no other thread may store to them.
    #[test]
    fn rewriting_waits_for_a_writer() {
        let config = TableConfig::single("t", 4, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
        let table = Table::new(config).expect("it is a table");
        let mut writer = table.writer(PushScale::default()).expect("the table shows its rows");
        let mut handles = Vec::new();
        writer.resolve(&[7], &mut handles).expect("there is room");
        let (begun, done) = (Barrier::new(2), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                begun.wait();
                // SAFETY: the writer excludes it, and other threads do not use the table afterwards.
                unsafe { Roofline::rewrite(&table, &[0], 0, &mut [0.0; 9]) };
                done.store(true, SeqCst);
            });
            begun.wait();
            thread::sleep(Duration::from_millis(20));
            assert!(!done.load(SeqCst));
            writer.update(handles[0], &[-1.0; 4]);
            assert_eq!(writer.weights(handles[0]), [1.0; 4]);
            drop(writer);
        });
        assert!(done.into_inner());
    }
}
