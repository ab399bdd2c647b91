//! The slab: memory of a table's rows, runs of 32-bit words that never move.
//!
//! It reserves address space for all rows that the machine or the budget could hold, so that the row number gives
//! the address without a look-up. Memory is committed when a row is first stored.
#![allow(unsafe_code)] // shows a row's atomics as plain numbers while nobody may change them; finds rows by one check

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::NO_ROW;
use crate::memory::address_space::Space;
use crate::memory::prefetch::{PrefetchHint, prefetch, prefetch_lines};
use crate::memory::{RESERVED_BYTES_MAX, Region, machine_bytes};
use crate::rows::half::Half;
use crate::simd::halves::{Format, Singles};
use crate::simd::{self, Vector, Width, halves};
use crate::sync::seqlock::{RowWriteGuard, SeqLocks, SeqLocksView};
use crate::sync::write_gate::{ExclusiveGuard, SharedGuard};

/// Reserved address space as a multiple of the machine's memory.
const RESERVE_FACTOR: usize = 2;
/// A table without a budget takes one part in this many of the granted space, if the system grants less than
/// requested.
const GRANTED_SHARE: usize = 8;
/// Words per cache line.
pub(crate) const LINE_WORDS: usize = 16;
/// The maximum number of rows: the index stores row numbers plus one, and `u32::MAX` is "no row".
const ROWS_MAX: usize = u32::MAX as usize - 2;

#[derive(Debug)]
pub(crate) struct Slab {
    words: Region<AtomicU32>,
    seq_locks: SeqLocks,
    stride: usize,
    /// Rows with address space.
    rows: usize,
    width: Width,
}

/// Reasons why a slab cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSpace {
    /// No address space or memory for an empty table.
    Share,
    /// The budget requires `bytes` of address space, but only `room` is left.
    Budget { bytes: usize, room: usize },
}

/// Words from one row to the next, so that neither a row nor its first `hot` words touch more cache lines than
/// necessary.
pub(crate) fn stride_words(words: usize, hot: usize) -> usize {
    // Rows start at multiples of a power of two, up to a line, which must hold the words beyond the last full line.
    let hangs_over = |words: usize| (words - 1) % LINE_WORDS + 1;
    let grain = hangs_over(words).max(hangs_over(hot.max(1))).next_power_of_two();
    words.next_multiple_of(grain)
}

impl Slab {
    /// Creates a slab for rows of `stride` words.
    ///
    /// It reserves `budget_bytes`, or a share of the address space without a budget. Threads and the heap keep
    /// their part.
    pub(crate) fn new(stride: usize, budget_bytes: Option<u64>) -> Result<Slab, NoSpace> {
        let (space, _reserving) = Space::measure();
        let wanted = match budget_bytes {
            Some(bytes) => Slab::rows_wanted(stride, bytes) * stride,
            None => Slab::rows_wanted(stride, space.share().ok_or(NoSpace::Share)? as u64) * stride,
        };
        let bytes = wanted * size_of::<u32>();
        if budget_bytes.is_some() && bytes > space.room() {
            return Err(NoSpace::Budget { bytes, room: space.room() });
        }
        let mut words = Region::reserved(wanted).ok_or(NoSpace::Share)?;
        if words.len() < wanted {
            let granted = words.bytes();
            drop(words);
            if budget_bytes.is_some() {
                return Err(NoSpace::Budget { bytes, room: granted });
            }
            // The system grants less than its room (`vm.overcommit_memory` = 2).
            let share = (granted / size_of::<u32>() / GRANTED_SHARE).max(stride);
            words = Region::reserved(share).ok_or(NoSpace::Share)?;
        }
        Slab::of(words, stride).ok_or(NoSpace::Share)
    }

    /// The number of rows to reserve address space for.
    pub(crate) fn rows_wanted(stride: usize, limit_bytes: u64) -> usize {
        let row_bytes = stride * size_of::<u32>();
        let reserve_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let machine_bytes = machine_bytes().saturating_mul(RESERVE_FACTOR);
        let reserve_bytes = reserve_bytes.min(machine_bytes).min(RESERVED_BYTES_MAX).max(row_bytes);
        (reserve_bytes / row_bytes).min(ROWS_MAX)
    }

    /// A slab of as many rows as `words` holds; `None` if it holds none.
    pub(crate) fn of(words: Region<AtomicU32>, stride: usize) -> Option<Slab> {
        let rows = words.len() / stride;
        if rows == 0 {
            return None;
        }
        Some(Slab { words, seq_locks: SeqLocks::new()?, stride, rows, width: Width::detect() })
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride * size_of::<u32>()
    }

    /// Rows with address space.
    pub(crate) fn rows_max(&self) -> u64 {
        self.rows as u64
    }

    /// Address range of the first `rows` rows.
    pub(crate) fn addresses(&self, rows: u64) -> (usize, usize) {
        let (first, _) = self.words.addresses();
        (first, first + rows as usize * self.row_bytes())
    }

    /// The words of all rows, and the words per row.
    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn all_words(&self) -> (&[AtomicU32], usize) {
        (&self.words, self.stride)
    }

    /// The widest supported vector width.
    #[inline(always)]
    pub(crate) fn width(&self) -> Width {
        self.width
    }

    #[inline(always)]
    fn words(&self, row: u32) -> &[AtomicU32] {
        self.view().words(row)
    }

    /// Prefetches the line of a word of a row.
    pub(crate) fn prefetch_word(&self, row: u32, at: usize, hint: PrefetchHint) {
        prefetch(&self.words, row as usize * self.stride + at, hint);
    }

    /// Copies the first words of a row, consistent under concurrent writes.
    pub(crate) fn read(&self, row: u32, out: &mut [f32]) {
        self.view().reader::<_, _, false>(Singles, self.width.elsewhere()).weights(row, out);
    }

    /// A reader's view by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> RowsView<'_> {
        let (words, stride, rows) = (&*self.words, self.stride, self.rows);
        RowsView { words, stride, rows, seq_locks: self.seq_locks.view() }
    }

    /// A word of a row, without a version check.
    #[inline(always)]
    pub(crate) fn word(&self, row: u32, at: usize) -> u32 {
        self.view().word(row, at)
    }

    /// Stores the words of an unpublished row.
    pub(crate) fn write_unpublished(&self, row: u32, words: &[f32]) {
        self.unpublished(row).by(self.width.elsewhere()).store(0, words);
    }

    /// A row that no reader can find, or is about to be removed.
    #[inline(always)]
    pub(crate) fn unpublished(&self, row: u32) -> RowMut<'_> {
        RowMut { words: self.words(row), width: self.width }
    }

    /// Locks a row for a write. Readers see it as it was before or after; it is unlocked when the result is
    /// dropped. A thread must not lock two rows at once.
    #[inline(always)]
    pub(crate) fn write<'a>(&'a self, row: u32, shared: &SharedGuard<'_>) -> RowWrite<'a> {
        let guard = self.seq_locks.write(row, shared);
        RowWrite { row: self.unpublished(row), _guard: guard }
    }

    /// Marks a row as being written, without competing writers.
    #[inline(always)]
    pub(crate) fn write_exclusive<'a>(
        &'a self,
        row: u32,
        exclusive: &mut ExclusiveGuard<'_>,
    ) -> RowWrite<'a> {
        let guard = self.seq_locks.write_exclusive(row, exclusive);
        RowWrite { row: self.unpublished(row), _guard: guard }
    }

    /// Borrows the first `len` words of a row.
    #[inline(always)]
    pub(crate) fn peek<'a>(&'a self, row: u32, len: usize, _: &'a ExclusiveGuard<'_>) -> &'a [f32] {
        let words = &self.words(row)[..len];
        // SAFETY: same size, alignment and lifetime, and every bit pattern is an f32. Published rows are stored
        // only under the write gate. The exclusive guard excludes all other writers, and borrowing it excludes its
        // own writes. Readers only load.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<f32>(), len) }
    }

    /// Returns the memory of the first rows; they read as zeros. No thread may know any of them.
    pub(crate) fn discard(&self, rows: u64) {
        self.words.discard(rows as usize * self.stride, |word| word.store(0, Relaxed));
    }
}

/// A copyable view of the rows, see [`Slab::view`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsView<'a> {
    words: &'a [AtomicU32],
    stride: usize,
    /// The number of rows in `words`.
    rows: usize,
    seq_locks: SeqLocksView<'a>,
}

impl<'a> RowsView<'a> {
    /// Prefetches the first lines of a row, and its sequence lock unless the read is optimistic.
    #[inline(always)]
    pub(crate) fn prefetch(self, row: u32, lines: usize, hint: PrefetchHint, optimistic: bool) {
        prefetch_lines(self.words, row as usize * self.stride, lines, hint);
        if !optimistic {
            self.seq_locks.prefetch(row, hint);
        }
    }

    /// Prefetches the rows other than [`NO_ROW`].
    #[inline(always)]
    pub(crate) fn prefetch_all<const N: usize>(
        self,
        rows: &[u32; N],
        lines: usize,
        hint: PrefetchHint,
        optimistic: bool,
    ) {
        // Specialized for the usual numbers of lines.
        match lines {
            1 => self.prefetch_lines_of(rows, 1, hint, optimistic),
            2 => self.prefetch_lines_of(rows, 2, hint, optimistic),
            _ => self.prefetch_lines_of(rows, lines, hint, optimistic),
        }
    }

    #[inline(always)]
    fn prefetch_lines_of<const N: usize>(
        self,
        rows: &[u32; N],
        lines: usize,
        hint: PrefetchHint,
        optimistic: bool,
    ) {
        for &row in rows {
            if row != NO_ROW {
                self.prefetch(row, lines, hint, optimistic);
            }
        }
    }

    #[inline(always)]
    fn words(self, row: u32) -> &'a [AtomicU32] {
        let row = row as usize;
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // One check instead of two, which is measurable in a pull. SAFETY: `words` has at least `rows * stride`
        // words, as computed in `Slab::of`; neither changes later. The row is below `rows`.
        unsafe { self.words.get_unchecked(row * self.stride..(row + 1) * self.stride) }
    }

    /// A word of a row, without a version check.
    #[inline(always)]
    pub(crate) fn word(self, row: u32, at: usize) -> u32 {
        self.words(row)[at].load(Relaxed)
    }

    /// A reader of weights in this format.
    #[inline(always)]
    pub(crate) fn reader<F: Format, V: Vector, const OPTIMISTIC: bool>(
        self,
        format: F,
        vector: V,
    ) -> RowReader<'a, F, V, OPTIMISTIC> {
        RowReader { rows: self, format, vector }
    }
}

/// Copies weights out of rows, consistent under concurrent writes.
///
/// With `OPTIMISTIC`, versions are not checked: the caller excludes writers or validates the whole read afterwards
/// ([`crate::sync::write_gate::WriteGate::validate`]).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowReader<'a, F, V, const OPTIMISTIC: bool> {
    rows: RowsView<'a>,
    format: F,
    vector: V,
}

// Explicit loops, because closures are not always inlined, and only inlined code is compiled for the detected
// instructions.
impl<F: Format, V: Vector, const OPTIMISTIC: bool> RowReader<'_, F, V, OPTIMISTIC> {
    /// Copies the first weights of a row, as f32.
    #[inline(always)]
    pub(crate) fn weights(self, row: u32, out: &mut [f32]) {
        let (words, seq_locks) = (self.rows.words(row), self.rows.seq_locks);
        if OPTIMISTIC {
            return self.format.load(self.vector, words, out);
        }
        loop {
            let before = seq_locks.read_begin(row);
            self.format.load(self.vector, words, out);
            if seq_locks.read_validate(row, before) {
                return;
            }
        }
    }

    /// Copies `len` weights and pads them with zeros to the length of `out`, see [`simd::load_padded`].
    #[inline(always)]
    pub(crate) fn padded(self, row: u32, len: usize, out: &mut [f32]) {
        let (words, seq_locks) = (self.rows.words(row), self.rows.seq_locks);
        if OPTIMISTIC {
            return self.format.load_padded(self.vector, words, len, out);
        }
        loop {
            let before = seq_locks.read_begin(row);
            self.format.load_padded(self.vector, words, len, out);
            if seq_locks.read_validate(row, before) {
                return;
            }
        }
    }

    /// The only weight of a row of one; a single word is never torn.
    #[inline(always)]
    pub(crate) fn one(self, row: u32) -> f32 {
        self.format.one(self.rows.word(row, 0))
    }
}

/// A row locked for a write.
#[derive(Debug)]
pub(crate) struct RowWrite<'a> {
    pub(crate) row: RowMut<'a>,
    _guard: RowWriteGuard<'a>,
}

/// The words of a row that only the caller may change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMut<'a, V = Width> {
    words: &'a [AtomicU32],
    width: V,
}

impl<'a> RowMut<'a> {
    /// A row of test words.
    #[cfg(test)]
    pub(crate) fn of(words: &'a [AtomicU32], width: Width) -> RowMut<'a> {
        RowMut { words, width }
    }

    /// For work that is compiled for this width.
    #[inline(always)]
    pub(crate) fn by<V: Vector>(self, vector: V) -> RowMut<'a, V> {
        RowMut { words: self.words, width: vector }
    }
}

impl<V: Vector> RowMut<'_, V> {
    /// Loads `len` halves from number `first` on, padded like [`RowMut::load_padded`].
    #[inline(always)]
    pub(crate) fn load_halves(&self, half: Half, first: usize, len: usize, out: &mut [f32]) {
        halves::load_halves_padded(self.width, half, self.words, first, len, out);
    }

    /// Stores the first `len` halves, from number `first` on.
    #[inline(always)]
    pub(crate) fn store_halves<const N: usize>(&self, first: usize, len: usize, halves: &[u16; N]) {
        halves::store_halves(self.width, self.words, first, len, halves);
    }

    /// Loads the first words.
    #[inline(always)]
    pub(crate) fn load(&self, out: &mut [f32]) {
        simd::load(self.width, self.words, out);
    }

    /// Loads `len` words and pads them with zeros to the length of `out`, see [`simd::load_padded`].
    #[inline(always)]
    pub(crate) fn load_padded(&self, first: usize, len: usize, out: &mut [f32]) {
        simd::load_padded(self.width, &self.words[first..][..len], out);
    }

    /// Pads values that belong to the row, such as a gradient, to the length of `out`.
    #[inline(always)]
    pub(crate) fn pad(&self, values: &[f32], out: &mut [f32; simd::PAD]) {
        simd::pad(self.width, values, out);
    }

    #[inline(always)]
    pub(crate) fn store(&self, first: usize, values: &[f32]) {
        simd::store(self.width, &self.words[first..], values);
    }

    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.words[at].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, at: usize, word: u32) {
        self.words[at].store(word, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::write_gate::WriteGate;

    #[test]
    fn rows_straddle_no_more_lines_than_they_must() {
        let lines = |words: usize, at: usize| (at + words).div_ceil(LINE_WORDS) - at / LINE_WORDS;
        for words in 1..100 {
            for hot in 1..=words {
                let stride = stride_words(words, hot);
                assert!(stride >= words && stride < words + LINE_WORDS);
                for row in 0..64 {
                    assert_eq!(lines(words, row * stride), lines(words, 0), "{words} {hot}");
                    assert_eq!(lines(hot, row * stride), lines(hot, 0), "{words} {hot}");
                }
            }
        }
        assert_eq!((stride_words(8, 1), stride_words(69, 32)), (8, 80));
    }

    /// The property of sequence locks: rows of equal words stay equal under two writers.
    #[test]
    fn readers_see_whole_rows() {
        const STRIDE: usize = 37;
        let rounds = if cfg!(miri) { 8 } else { 100_000 };
        let (slab, write_gate) = (Slab::new(STRIDE, None).unwrap(), WriteGate::new());
        for row in 0..4 {
            slab.unpublished(row).store(0, &[1.0; STRIDE]);
        }
        std::thread::scope(|scope| {
            for lane in 0..2 {
                let (slab, write_gate) = (&slab, &write_gate);
                scope.spawn(move || {
                    for round in 0..rounds {
                        let shared = write_gate.lock_shared(lane);
                        let writing = slab.write(round % 4, &shared);
                        let mut values = [0.0; STRIDE.next_multiple_of(16)];
                        writing.row.load_padded(0, STRIDE, &mut values);
                        assert!(values[..STRIDE].iter().all(|&value| value == values[0]));
                        writing.row.store(0, &values.map(|value| value + 1.0)[..STRIDE]);
                    }
                });
            }
            scope.spawn(|| {
                let mut values = [0.0; STRIDE];
                for round in 0..rounds {
                    slab.read(round % 4, &mut values);
                    assert!(values.iter().all(|&value| value == values[0]), "{values:?}");
                }
            });
        });
        let sum: f32 = (0..4).map(|row| slab.peek(row, 1, &write_gate.lock_exclusive())[0] - 1.0).sum();
        assert_eq!(sum, 2.0 * rounds as f32);
    }
}
