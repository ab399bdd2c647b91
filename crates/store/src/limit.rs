//! What the memory of this machine allows, for benchmarks to compare with: the same traffic as a pull or a push, with
//! every address known in advance. Knows nothing of tables.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Region;
use crate::prefetch::prefetch;
use crate::words::{self, Width};

const LINE_BYTES: usize = 64;

/// Memory of the size of a table's index and rows.
#[derive(Debug)]
pub struct Limit {
    lines: Region<AtomicU64>,
    rows: Region<AtomicU32>,
    stride: usize,
    width: Width,
}

impl Limit {
    /// `lines` cache lines of index, `rows` rows of `stride` 32-bit words. `None` without memory.
    #[must_use]
    pub fn new(lines: usize, rows: usize, stride: usize) -> Option<Limit> {
        let limit = Limit {
            lines: Region::zeroed(lines * LINE_BYTES / size_of::<u64>())?,
            rows: Region::zeroed(rows * stride)?,
            stride,
            width: Width::detect(),
        };
        // Untouched pages would all be the same page of zeros.
        limit.lines.iter().step_by(8).for_each(|word| word.store(1, Ordering::Relaxed));
        limit.rows.iter().step_by(16).for_each(|word| word.store(1, Ordering::Relaxed));
        Some(limit)
    }

    fn row(&self, row: u32) -> &[AtomicU32] {
        &self.rows[row as usize * self.stride..][..self.stride]
    }

    #[inline(always)]
    fn prefetch_row(&self, row: u32, words: usize) {
        for line in 0..words.div_ceil(16) {
            prefetch(&self.rows, row as usize * self.stride + line * 16);
        }
    }

    /// Per place: reads one word of an index line and copies the first words of a row, `out.len() / lines.len()` of
    /// them; both are prefetched `ahead` places before.
    pub fn gather(&self, lines: &[u32], rows: &[u32], ahead: usize, out: &mut [f32]) {
        let words = out.len() / lines.len().max(1);
        let mut sum = 0;
        for (at, out) in out.chunks_exact_mut(words).enumerate() {
            if let (Some(&line), Some(&row)) = (lines.get(at + ahead), rows.get(at + ahead)) {
                prefetch(&self.lines, line as usize * 8);
                self.prefetch_row(row, words);
            }
            sum += self.lines[lines[at] as usize * 8].load(Ordering::Relaxed);
            words::load(self.width, self.row(rows[at]), out);
        }
        black_box(sum);
    }

    /// Per place: reads and writes the first `words` words of a row, prefetched `ahead` places before.
    pub fn rewrite(&self, rows: &[u32], words: usize, ahead: usize) {
        let mut copy = vec![0.0; words];
        for (at, &row) in rows.iter().enumerate() {
            if let Some(&row) = rows.get(at + ahead) {
                self.prefetch_row(row, words);
            }
            words::load(self.width, self.row(row), &mut copy);
            words::store(self.width, self.row(row), &copy);
        }
    }
}
