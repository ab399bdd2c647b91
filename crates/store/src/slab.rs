//! Rows of one shard: fixed-size words in extents that never move, with a free list. Knows neither keys nor
//! optimizers, only the length of a row in words.
//!
//! A row is `stride` 32-bit words: 5 of header (key low, key high, frequency, last use, version, kept as the bits of
//! f32 values, which copies preserve), then weights, then optimizer state, then padding. Header and values lie side
//! by side because an update touches both.

use crate::budget::Budget;
use crate::memory::Buffer;
use crate::prefetch::prefetch;

/// Words of a row's header.
pub(crate) const HEADER_WORDS: usize = 5;
/// A small extent holds as many rows (a power of two) as fit in this, and at least one.
const EXTENT_BYTES: usize = 64 * 1024;
/// After this many small extents come large ones of this many times the size: a small table stays small, and the rows
/// of a large one lie on huge pages.
const LARGE: usize = 32;
/// Words of a cache line, on which extents start.
const LINE_WORDS: usize = 16;
/// End of the free list.
const NO_NEXT: u32 = u32::MAX;
/// Row numbers stay below this, because the index uses `u32::MAX` for "no row".
const ROWS_MAX: u64 = u32::MAX as u64;

#[derive(Debug)]
pub(crate) struct Slab {
    extents: Vec<Buffer<f32>>,
    stride: usize,
    /// log2 of the rows of a small extent.
    shift: u32,
    /// Rows handed out so far, freed ones included.
    made: u32,
    /// Head of the list of freed rows; each holds the next one's number in its first word.
    free: u32,
    free_len: u32,
}

/// Where a row lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    extent: u32,
    /// First word in the extent.
    word: u32,
}

/// Words from the start of one row to the next: tiny rows are padded so that none straddles a cache line.
pub(crate) fn stride_words(words: usize) -> usize {
    if words <= LINE_WORDS / 2 { words.next_power_of_two() } else { words }
}

impl Slab {
    pub(crate) fn new(stride: usize) -> Slab {
        let shift = (EXTENT_BYTES / (stride * size_of::<f32>())).max(1).ilog2();
        Slab { extents: Vec::new(), stride, shift, made: 0, free: NO_NEXT, free_len: 0 }
    }

    /// Rows of the extent that comes next.
    fn next_extent_rows(&self) -> usize {
        if self.extents.len() < LARGE { 1 << self.shift } else { LARGE << self.shift }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.extents.iter().map(|extent| extent.len()).sum::<usize>() * size_of::<f32>()
    }

    /// Rows that the extents have room for.
    fn room(&self) -> usize {
        let (small, large) = (self.extents.len().min(LARGE), self.extents.len().saturating_sub(LARGE));
        (small + large * LARGE) << self.shift
    }

    pub(crate) fn free_rows(&self) -> usize {
        self.free_len as usize
    }

    /// A row of unspecified content, or `None` when the budget or the row numbers are used up.
    pub(crate) fn allocate(&mut self, budget: &Budget) -> Option<u32> {
        if self.free != NO_NEXT {
            let row = self.free;
            self.free = self.row(row)[0].to_bits();
            self.free_len -= 1;
            return Some(row);
        }
        if self.made as usize == self.room() {
            let rows = self.next_extent_rows();
            let words = rows * self.stride;
            if u64::from(self.made) + rows as u64 > ROWS_MAX || !budget.take(words * size_of::<f32>()) {
                return None;
            }
            self.extents.push(Buffer::filled(words, 0.0));
        }
        self.made += 1;
        Some(self.made - 1)
    }

    pub(crate) fn release(&mut self, row: u32) {
        let next = f32::from_bits(self.free);
        self.row_mut(row)[0] = next;
        self.free = row;
        self.free_len += 1;
    }

    /// Where a row lies. It stays there until it is released.
    #[inline(always)]
    pub(crate) fn place(&self, row: u32) -> Place {
        let row = row as usize;
        let large_shift = self.shift + LARGE.ilog2();
        let (extent, shift) = match row >> large_shift {
            0 => (row >> self.shift, self.shift),
            // The small extents hold as many rows as the first large one would.
            large => (LARGE - 1 + large, large_shift),
        };
        // An extent has at most EXTENT_BYTES * LARGE bytes or one row, far fewer words than a u32 counts.
        Place { extent: extent as u32, word: ((row & ((1 << shift) - 1)) * self.stride) as u32 }
    }

    /// The words of a row.
    #[inline(always)]
    pub(crate) fn at(&self, place: Place) -> &[f32] {
        &self.extents[place.extent as usize][place.word as usize..][..self.stride]
    }

    /// The words of a row, to change.
    #[inline(always)]
    pub(crate) fn at_mut(&mut self, place: Place) -> &mut [f32] {
        &mut self.extents[place.extent as usize][place.word as usize..][..self.stride]
    }

    #[inline(always)]
    pub(crate) fn row(&self, row: u32) -> &[f32] {
        self.at(self.place(row))
    }

    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: u32) -> &mut [f32] {
        self.at_mut(self.place(row))
    }

    /// Asks the cache for the first `words` words of a row.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32, words: usize) {
        self.prefetch_at(self.place(row), words);
    }

    /// The same for a row whose place is known.
    #[inline(always)]
    pub(crate) fn prefetch_at(&self, place: Place, words: usize) {
        let Some(extent) = self.extents.get(place.extent as usize) else { return };
        let first = place.word as usize;
        let mut word = first;
        while word < first + words {
            prefetch(extent, word);
            word += LINE_WORDS;
        }
    }
}

/// The header of a row, unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) key: u64,
    pub(crate) frequency: u32,
    pub(crate) last_use: u32,
    pub(crate) version: u32,
}

impl Header {
    pub(crate) fn read(row: &[f32]) -> Header {
        Header {
            key: u64::from(row[0].to_bits()) | (u64::from(row[1].to_bits()) << 32),
            frequency: row[2].to_bits(),
            last_use: row[3].to_bits(),
            version: row[4].to_bits(),
        }
    }

    pub(crate) fn write(self, row: &mut [f32]) {
        row[0] = f32::from_bits(self.key as u32);
        row[1] = f32::from_bits((self.key >> 32) as u32);
        row[2] = f32::from_bits(self.frequency);
        row[3] = f32::from_bits(self.last_use);
        row[4] = f32::from_bits(self.version);
    }
}

/// Counts one update in a row's header; the row's new version (its number of updates, saturating).
#[inline(always)]
pub(crate) fn touch(row: &mut [f32], count: u32, clock: u32) -> u32 {
    let version = row[4].to_bits().saturating_add(1);
    row[2] = f32::from_bits(row[2].to_bits().saturating_add(count));
    row[3] = f32::from_bits(clock);
    row[4] = f32::from_bits(version);
    version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_put_are_reused_and_counted() {
        for stride in [6, 8, 37, 200_000] {
            let budget = Budget::new(None);
            let mut slab = Slab::new(stride);
            // Small rows go beyond the small extents.
            let rows = if stride < 10 { 150_000 } else { 3000 };
            for number in 0..rows.min(60_000_000 / stride as u32 / 4) {
                let row = slab.allocate(&budget).unwrap();
                assert_eq!(row, number);
                slab.row_mut(row).fill(number as f32);
            }
            let made = slab.made;
            for number in 0..made {
                assert!(slab.row(number).iter().all(|&word| word == number as f32));
            }
            slab.release(1);
            slab.release(0);
            assert_eq!(
                (slab.free_rows(), slab.allocate(&budget), slab.allocate(&budget)),
                (2, Some(0), Some(1))
            );
            assert_eq!(slab.allocate(&budget), Some(made));
            assert_eq!(slab.bytes() as u64, budget.used_bytes());
        }
    }

    #[test]
    fn header_keeps_every_bit() {
        let mut row = [0.0; HEADER_WORDS];
        for bits in [0, 1, u64::MAX, 0x7FA0_0001_FF80_0001, 0x7F80_0000_FFFF_FFFF] {
            let low = bits as u32;
            let header = Header { key: bits, frequency: low, last_use: !low, version: low ^ 0x7F80_0001 };
            header.write(&mut row);
            let copy = row;
            assert_eq!(Header::read(&copy), header);
        }
    }

    #[test]
    fn tiny_rows_never_straddle_a_line() {
        for (words, stride) in [(6, 8), (7, 8), (8, 8), (9, 9), (37, 37)] {
            assert_eq!(stride_words(words), stride);
        }
    }
}
