//! What the memory of this machine allows, for benchmarks to compare with: the same traffic as a pull, a pooled pull or
//! a push, with every address known in advance. Knows nothing of tables.
//!
//! The memory is got as a table gets its own, and copied with the same instructions; what is left out is finding rows,
//! versions and arithmetic. All functions ask for the first `ahead` places before they begin, and from then on for the
//! place that many further on; which `ahead` is best is for the caller to find out.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::{Region, granted_huge_bytes};
use crate::prefetch::prefetch;
use crate::words::{self, Vector, Width, Work};

const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / size_of::<u32>();
const LINE_LONGS: usize = LINE_BYTES / size_of::<u64>();

/// Memory of the size of a table's index and rows.
#[derive(Debug)]
pub struct Limit {
    lines: Region<AtomicU64>,
    rows: Region<AtomicU32>,
    stride: usize,
    width: Width,
}

impl Limit {
    /// `lines` cache lines of index, `rows` rows of `stride` 32-bit words, all at least 1. `None` without memory.
    #[must_use]
    pub fn new(lines: usize, rows: usize, stride: usize) -> Option<Limit> {
        let limit = Limit {
            lines: Region::zeroed(lines * LINE_LONGS)?,
            rows: Region::zeroed(rows * stride)?,
            stride,
            width: Width::detect().elsewhere(),
        };
        // Untouched pages would all be the same page of zeros.
        limit.lines.iter().step_by(LINE_LONGS).for_each(|word| word.store(1, Ordering::Relaxed));
        for (number, row) in limit.rows.chunks_exact(stride).enumerate() {
            let value = (number as f32).to_bits();
            row.iter().step_by(LINE_WORDS).for_each(|word| word.store(value, Ordering::Relaxed));
        }
        Some(limit)
    }

    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.lines.bytes() + self.rows.bytes()) as u64
    }

    /// Those of them that the system has put on huge pages.
    #[must_use]
    pub fn huge_bytes(&self) -> u64 {
        granted_huge_bytes(&[self.lines.addresses(), self.rows.addresses()])
    }

    #[inline(always)]
    fn row(&self, row: u32) -> &[AtomicU32] {
        &self.rows[row as usize * self.stride..][..self.stride]
    }

    #[inline(always)]
    fn prefetch_row(&self, row: u32, words: usize) {
        for line in 0..words.div_ceil(LINE_WORDS) {
            prefetch(&self.rows, row as usize * self.stride + line * LINE_WORDS);
        }
    }

    /// A pull: per place, reads one word of an index line and copies the first words of a row to `out`,
    /// `out.len() / rows.len()` of them. As many `lines` as `rows`.
    pub fn gather(&self, lines: &[u32], rows: &[u32], ahead: usize, out: &mut [f32]) {
        words::run(self.width, Gather { limit: self, lines, rows, ahead, out });
    }

    /// A pooled pull of rows that are known: `out` gets the sum of the rows `offsets[s]..offsets[s + 1]` for every sample
    /// `s`; `out.len() / (offsets.len() - 1)` words of each row.
    pub fn pool(&self, rows: &[u32], offsets: &[u32], ahead: usize, out: &mut [f32]) {
        words::run(self.width, Pool { limit: self, rows, offsets, ahead, out });
    }

    /// A push: per place, reads and writes the first `copy.len()` words of a row.
    pub fn rewrite(&self, rows: &[u32], ahead: usize, copy: &mut [f32]) {
        words::run(self.width, Rewrite { limit: self, rows, ahead, copy });
    }
}

struct Gather<'a> {
    limit: &'a Limit,
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
        let words = out.len() / rows.len().max(1);
        let ask = |line: u32, row: u32| {
            prefetch(&limit.lines, line as usize * LINE_LONGS);
            limit.prefetch_row(row, words);
        };
        lines.iter().zip(rows).take(ahead).for_each(|(&line, &row)| ask(line, row));
        let mut sum = 0;
        for (at, out) in out.chunks_exact_mut(words.max(1)).enumerate() {
            if let (Some(&line), Some(&row)) = (lines.get(at + ahead), rows.get(at + ahead)) {
                ask(line, row);
            }
            sum += limit.lines[lines[at] as usize * LINE_LONGS].load(Ordering::Relaxed);
            words::load(vector, limit.row(rows[at]), out);
        }
        black_box(sum);
    }
}

struct Pool<'a> {
    limit: &'a Limit,
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
        let words = out.len() / offsets.len().saturating_sub(1).max(1);
        let mut copy = vec![0.0; words.next_multiple_of(words::PAD)];
        rows.iter().take(ahead).for_each(|&row| limit.prefetch_row(row, words));
        for (sample, sum) in offsets.windows(2).zip(out.chunks_exact_mut(words.max(1))) {
            sum.fill(0.0);
            for at in sample[0] as usize..sample[1] as usize {
                if let Some(&row) = rows.get(at + ahead) {
                    limit.prefetch_row(row, words);
                }
                words::load_padded(vector, &limit.row(rows[at])[..words], &mut copy);
                sum.iter_mut().zip(&copy).for_each(|(sum, weight)| *sum += weight);
            }
        }
    }
}

struct Rewrite<'a> {
    limit: &'a Limit,
    rows: &'a [u32],
    ahead: usize,
    copy: &'a mut [f32],
}

impl Work for Rewrite<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let Rewrite { limit, rows, ahead, copy } = self;
        rows.iter().take(ahead).for_each(|&row| limit.prefetch_row(row, copy.len()));
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&row) = rows.get(at + ahead) {
                limit.prefetch_row(row, copy.len());
            }
            words::load(vector, limit.row(row), copy);
            words::store(vector, limit.row(row), copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the distance, the rows asked for are read and summed, and rewriting changes none.
    #[test]
    fn distances_change_nothing() {
        let (lines, rows) = ([0, 3, 1, 0, 2], [4, 1, 1, 0, 3]);
        for stride in [1, 3, 16, 37] {
            let limit = Limit::new(4, 5, stride).unwrap();
            for ahead in [0, 1, 3, 100] {
                limit.rewrite(&rows, ahead, &mut vec![7.0; stride]);
                let mut out = vec![9.0; rows.len() * stride];
                limit.gather(&lines, &rows, ahead, &mut out);
                let first: Vec<f32> = out.chunks_exact(stride).map(|row| row[0]).collect();
                assert_eq!(first, [4.0, 1.0, 1.0, 0.0, 3.0], "stride {stride}, ahead {ahead}");
                let mut sums = vec![9.0; 3 * stride];
                limit.pool(&rows, &[0, 2, 2, 5], ahead, &mut sums);
                let first: Vec<f32> = sums.chunks_exact(stride).map(|sum| sum[0]).collect();
                assert_eq!(first, [5.0, 0.0, 4.0], "stride {stride}, ahead {ahead}");
            }
            limit.gather(&[], &[], 8, &mut []);
            assert_eq!(limit.bytes(), 4 * 64 + 5 * 4 * stride as u64);
            assert!(limit.huge_bytes() <= limit.bytes());
        }
    }
}
