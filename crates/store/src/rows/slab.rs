//! The slab: memory of a table's rows, runs of 32-bit words that never move ([`crate::rows::placement`]).
//!
//! It reserves address space for all rows that the machine or the budget could hold, so that the row number gives
//! the address without a look-up. Memory is committed when a row is first stored.
#![allow(unsafe_code)] // shows a row's atomics as plain numbers while nobody may change them; finds rows by one check

use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::NO_ROW;
use crate::memory::address_space::Space;
use crate::memory::persist::{Persist, Step};
use crate::memory::prefetch::{PrefetchHint, prefetch, prefetch_lines};
use crate::memory::{RESERVED_BYTES_MAX, Region, machine_bytes};
use crate::rows::access::{RowMut, RowReader, RowWrite, WholeRowReader};
use crate::rows::placement::{HEADER_WORDS, Placement, RowLines};
use crate::rows::undo::UndoSlots;
use crate::simd::halves::Format;
use crate::simd::{Vector, Width};
use crate::sync::seqlock::{SeqLocks, SeqLocksView};
use crate::sync::write_gate::{ExclusiveGuard, SharedGuard};

/// Reserved address space as a multiple of the machine's memory.
const RESERVE_FACTOR: usize = 2;
/// A table without a budget takes one part in this many of the granted space, if the system grants less than
/// requested.
const GRANTED_SHARE: usize = 8;
/// The maximum number of rows: the index stores row numbers plus one, and `u32::MAX` is "no row".
const ROWS_MAX: usize = u32::MAX as usize - 2;

#[derive(Debug)]
pub(crate) struct Slab {
    /// The weights; whole rows if they lie in one piece.
    words: Region<AtomicU32>,
    /// Headers and states, if rows are split.
    rests: Option<Region<AtomicU32>>,
    seq_locks: SeqLocks,
    placement: Placement,
    /// Lines to prefetch of weights, and of whole rows.
    weight_lines: RowLines,
    row_lines: RowLines,
    /// Rows with address space.
    rows: usize,
    width: Width,
    /// Only in tables that outlive the process and update rows in place.
    pub(crate) undo: Option<UndoSlots>,
}

/// Reasons why a slab cannot be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoSpace {
    /// No address space or memory for an empty table.
    Share,
    /// The budget requires `bytes` of address space, but only `room` is left.
    Budget { bytes: usize, room: usize },
}

impl Slab {
    /// Creates a slab for rows placed like this.
    ///
    /// It reserves `budget_bytes`, or a share of the address space without a budget. Threads and the heap keep
    /// their part.
    pub(crate) fn new(placement: Placement, budget_bytes: Option<u64>) -> Result<Slab, NoSpace> {
        let (wanted, _reserving) = Slab::rows_to_reserve(placement, budget_bytes)?;
        let row_bytes = placement.row_bytes();
        let mut slab = Slab::of_rows(placement, wanted).ok_or(NoSpace::Share)?;
        if slab.rows < wanted {
            let granted = slab.rows * row_bytes;
            drop(slab);
            if budget_bytes.is_some() {
                return Err(NoSpace::Budget { bytes: wanted * row_bytes, room: granted });
            }
            // The system grants less than its room (`vm.overcommit_memory` = 2).
            let share = (granted / row_bytes / GRANTED_SHARE).max(1);
            slab = Slab::of_rows(placement, share).ok_or(NoSpace::Share)?;
        }
        Ok(slab)
    }

    /// The number of rows to reserve address space for, now. No other table reserves any while the guard lives.
    pub(crate) fn rows_to_reserve(
        placement: Placement,
        budget_bytes: Option<u64>,
    ) -> Result<(usize, MutexGuard<'static, ()>), NoSpace> {
        let (space, reserving) = Space::measure();
        let row_bytes = placement.row_bytes();
        let wanted = match budget_bytes {
            Some(bytes) => Slab::rows_wanted(row_bytes, bytes),
            None => Slab::rows_wanted(row_bytes, space.share().ok_or(NoSpace::Share)? as u64),
        };
        let bytes = wanted * row_bytes;
        if budget_bytes.is_some() && bytes > space.room() {
            return Err(NoSpace::Budget { bytes, room: space.room() });
        }
        Ok((wanted, reserving))
    }

    /// The number of rows that so many bytes hold.
    pub(crate) fn rows_wanted(row_bytes: usize, limit_bytes: u64) -> usize {
        let reserve_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let machine_bytes = machine_bytes().saturating_mul(RESERVE_FACTOR);
        let reserve_bytes = reserve_bytes.min(machine_bytes).min(RESERVED_BYTES_MAX).max(row_bytes);
        (reserve_bytes / row_bytes).min(ROWS_MAX)
    }

    /// A slab of up to `rows` rows, or as many as the system grants; `None` if it grants none.
    fn of_rows(placement: Placement, rows: usize) -> Option<Slab> {
        let words = Region::reserved(rows * placement.weights_stride)?;
        let rests =
            if placement.is_split { Some(Region::reserved(rows * placement.rest_stride)?) } else { None };
        Slab::of(placement, words, rests)
    }

    /// A slab of as many rows as the regions hold; `None` if they hold none.
    pub(crate) fn of(
        placement: Placement,
        words: Region<AtomicU32>,
        rests: Option<Region<AtomicU32>>,
    ) -> Option<Slab> {
        debug_assert_eq!(rests.is_some(), placement.is_split);
        let in_rests = rests.as_ref().map_or(usize::MAX, |rests| rests.len() / placement.rest_stride);
        let rows = (words.len() / placement.weights_stride).min(in_rests);
        if rows == 0 {
            return None;
        }
        let (weight_lines, row_lines) = (placement.prefetched(false), placement.prefetched(true));
        let (seq_locks, width) = (SeqLocks::new()?, Width::detect());
        Some(Slab { words, rests, seq_locks, placement, weight_lines, row_lines, rows, width, undo: None })
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.placement.row_bytes()
    }

    /// Rows with address space.
    pub(crate) fn rows_max(&self) -> u64 {
        self.rows as u64
    }

    /// Address ranges of the first `rows` rows.
    pub(crate) fn addresses(&self, rows: u64) -> impl Iterator<Item = (usize, usize)> {
        let Placement { weights_stride, rest_stride, .. } = self.placement;
        let rests = self.rests.as_ref().map(|rests| (rests, rest_stride));
        std::iter::once((&self.words, weights_stride)).chain(rests).map(move |(words, stride)| {
            let (first, _) = words.addresses();
            (first, first + rows as usize * stride * size_of::<u32>())
        })
    }

    /// Address of the first row's weights, and bytes from one row's to the next.
    pub(crate) fn weights(&self) -> (usize, usize) {
        (self.words.addresses().0, self.placement.weights_stride * size_of::<u32>())
    }

    /// Whether the rows are in files of a file system on persistent memory (DAX).
    pub(crate) fn is_on_file_system_with_dax(&self) -> bool {
        self.words.is_on_file_system_with_dax()
    }

    /// The widest supported vector width.
    #[inline(always)]
    pub(crate) fn width(&self) -> Width {
        self.width
    }

    /// Headers and states of the rows.
    #[inline(always)]
    fn rests(&self) -> &[AtomicU32] {
        // Rows in one piece have more words than weights.
        self.rests.as_deref().unwrap_or(&self.words[self.placement.weights..])
    }

    /// Prefetches the header of a row.
    pub(crate) fn prefetch_header(&self, row: u32, hint: PrefetchHint) {
        let header = row as usize * self.placement.rest_stride;
        prefetch(self.rests(), header, hint);
        prefetch(self.rests(), header + HEADER_WORDS - 1, hint);
    }

    /// Prefetches a whole row for a change, without its sequence lock.
    pub(crate) fn prefetch_to_fill(&self, row: u32) {
        self.prefetcher(true).row(row, PrefetchHint::Write, true);
    }

    /// Prefetches the first line of a row.
    pub(crate) fn prefetch_first(&self, row: u32, hint: PrefetchHint) {
        prefetch(&self.words, row as usize * self.placement.weights_stride, hint);
    }

    /// Prefetches whole rows, or weights alone.
    #[inline(always)]
    pub(crate) fn prefetcher(&self, whole: bool) -> RowPrefetcher<'_> {
        RowPrefetcher {
            words: &self.words,
            rests: self.rests(),
            weights_stride: self.placement.weights_stride,
            rest_stride: self.placement.rest_stride,
            lines: if whole { self.row_lines } else { self.weight_lines },
            seq_locks: self.seq_locks.view(),
        }
    }

    /// Copies the words of a row, consistent under concurrent writes.
    pub(crate) fn read(&self, row: u32, out: &mut [f32]) {
        self.whole_reader(self.width.elsewhere()).row(row, out);
    }

    /// A reader of weights, headers and states.
    #[inline(always)]
    pub(crate) fn whole_reader<V: Vector>(&self, vector: V) -> WholeRowReader<'_, V> {
        WholeRowReader::new(self.view(), self.rests(), self.placement, vector)
    }

    /// A reader's view by value, so that it stays in registers.
    #[inline(always)]
    pub(crate) fn view(&self) -> RowsView<'_> {
        let stride = self.placement.weights_stride;
        RowsView { words: &self.words, stride, rows: self.rows, seq_locks: self.seq_locks.view() }
    }

    /// Address and bytes of a row's weights, and of its header and state.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn parts(&self, row: u32) -> ((usize, usize), (usize, usize)) {
        let Placement { weights, rest, rest_stride, .. } = self.placement;
        let part = |words: &[AtomicU32]| (words.as_ptr() as usize, size_of_val(words));
        let rest = &self.rests()[row as usize * rest_stride..][..rest];
        (part(&self.view().words(row)[..weights]), part(rest))
    }

    /// The first word of a row that no reader can find, for a list of free rows.
    pub(crate) fn first_word(&self, row: u32) -> u32 {
        self.view().first_word(row)
    }

    /// A word of a row's header, without a version check.
    #[inline(always)]
    pub(crate) fn header_word(&self, row: u32, at: usize) -> u32 {
        self.rests()[row as usize * self.placement.rest_stride + at].load(Relaxed)
    }

    /// Stores the words of an unpublished row.
    pub(crate) fn write_unpublished(&self, row: u32, words: &[f32]) {
        self.unpublished(row).by(self.width.elsewhere()).store_row(words);
    }

    /// Begins to make a row durable.
    #[inline]
    pub(crate) fn flush(&self, row: u32, persist: Persist) {
        let Placement { weights, rest, rest_stride, is_split, .. } = self.placement;
        let words = self.view().words(row);
        persist.flush(Step::Rows, if is_split { &words[..weights] } else { &words[..weights + rest] });
        if let Some(rests) = &self.rests {
            persist.flush(Step::Rests, &rests[row as usize * rest_stride..][..rest]);
        }
    }

    /// A row that no reader can find, or is about to be removed.
    #[inline(always)]
    pub(crate) fn unpublished(&self, row: u32) -> RowMut<'_> {
        let Placement { weights, rest, rest_stride, is_split, .. } = self.placement;
        let words = self.view().words(row);
        // Without a view of the rests, which costs more per row.
        let rest = match &self.rests {
            Some(rests) => &rests[row as usize * rest_stride..][..rest],
            None => &words[weights..][..rest],
        };
        RowMut::new(words, rest, is_split, self.width)
    }

    /// Locks a row for a write. Readers see it as it was before or after; it is unlocked when the result is
    /// dropped. A thread must not lock two rows at once.
    #[inline(always)]
    pub(crate) fn write<'a>(&'a self, row: u32, shared: &SharedGuard<'_>) -> RowWrite<'a> {
        let guard = self.seq_locks.write(row, shared);
        RowWrite::new(self.unpublished(row), guard)
    }

    /// Marks a row as being written, without competing writers.
    #[inline(always)]
    pub(crate) fn write_exclusive<'a>(
        &'a self,
        row: u32,
        exclusive: &mut ExclusiveGuard<'_>,
    ) -> RowWrite<'a> {
        let guard = self.seq_locks.write_exclusive(row, exclusive);
        RowWrite::new(self.unpublished(row), guard)
    }

    /// Borrows the weights of a row.
    #[inline(always)]
    pub(crate) fn peek<'a>(&'a self, row: u32, _: &'a ExclusiveGuard<'_>) -> &'a [f32] {
        let words = &self.view().words(row)[..self.placement.weights];
        // SAFETY: same size, alignment and lifetime, and every bit pattern is an f32. Published rows are stored
        // only under the write gate. The exclusive guard excludes all other writers, and borrowing it excludes its
        // own writes. Readers only load.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<f32>(), words.len()) }
    }

    /// Reserves the space of rows that are charged to the budget, if the table is kept in files.
    pub(crate) fn reserve(&self, rows: Range<u64>) -> std::io::Result<()> {
        let words = |stride: usize| rows.start as usize * stride..rows.end as usize * stride;
        self.words.reserve(words(self.placement.weights_stride))?;
        self.rests.as_ref().map_or(Ok(()), |rests| rests.reserve(words(self.placement.rest_stride)))
    }

    /// Returns the memory of the first rows; they read as zeros. No thread may know any of them.
    pub(crate) fn discard(&self, rows: u64) {
        let zero = |word: &AtomicU32| word.store(0, Relaxed);
        self.words.discard(rows as usize * self.placement.weights_stride, zero);
        if let Some(rests) = &self.rests {
            rests.discard(rows as usize * self.placement.rest_stride, zero);
        }
    }
}

/// A copyable view of the weights, see [`Slab::view`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsView<'a> {
    /// Weights; whole rows if they lie in one piece.
    words: &'a [AtomicU32],
    stride: usize,
    /// The number of rows.
    rows: usize,
    pub(super) seq_locks: SeqLocksView<'a>,
}

impl<'a> RowsView<'a> {
    /// The words of a row's weights; of the whole row if it lies in one piece.
    #[inline(always)]
    pub(crate) fn words(self, row: u32) -> &'a [AtomicU32] {
        let row = row as usize;
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // One check instead of two, which is measurable in a pull. SAFETY: `words` has at least
        // `rows * stride` words, as computed in `Slab::of`; none of them changes later. The row is below
        // `rows`.
        unsafe { self.words.get_unchecked(row * self.stride..(row + 1) * self.stride) }
    }

    /// The first word of a row, without a version check.
    #[inline(always)]
    pub(super) fn first_word(self, row: u32) -> u32 {
        self.words(row)[0].load(Relaxed)
    }

    /// A reader of weights in this format.
    #[inline(always)]
    pub(crate) fn reader<F: Format, V: Vector, const OPTIMISTIC: bool>(
        self,
        format: F,
        vector: V,
    ) -> RowReader<'a, F, V, OPTIMISTIC> {
        RowReader::new(self, format, vector)
    }
}

/// Prefetches rows, or their weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPrefetcher<'a> {
    words: &'a [AtomicU32],
    rests: &'a [AtomicU32],
    weights_stride: usize,
    rest_stride: usize,
    lines: RowLines,
    seq_locks: SeqLocksView<'a>,
}

impl RowPrefetcher<'_> {
    /// Cache lines per row.
    #[inline(always)]
    pub(crate) fn lines(&self) -> usize {
        self.lines.first + self.lines.rest
    }

    /// Prefetches a row, and its sequence lock unless the read is optimistic.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32, hint: PrefetchHint, optimistic: bool) {
        let RowLines { first, rest, last_words } = self.lines;
        let (weights_at, rest_at) = (row as usize * self.weights_stride, row as usize * self.rest_stride);
        prefetch_lines(self.words, weights_at, first, hint);
        if rest > 0 {
            prefetch_lines(self.rests, rest_at, rest, hint);
        }
        if let Some((last, last_of_rest)) = last_words {
            prefetch(self.words, weights_at + last, hint);
            if rest > 0 {
                prefetch(self.rests, rest_at + last_of_rest, hint);
            }
        }
        if !optimistic {
            self.seq_locks.prefetch(row, hint);
        }
    }

    /// Prefetches the rows other than [`NO_ROW`].
    #[inline(always)]
    pub(crate) fn all<const N: usize>(&self, rows: &[u32; N], hint: PrefetchHint, optimistic: bool) {
        // Specialized for the usual numbers of lines, which are constants then.
        match self.lines {
            RowLines { first: 1, rest: 0, last_words: None } => self.lines_of(rows, 1, hint, optimistic),
            RowLines { first: 2, rest: 0, last_words: None } => self.lines_of(rows, 2, hint, optimistic),
            _ => self.any_lines_of(rows, hint, optimistic),
        }
    }

    #[inline(always)]
    fn lines_of<const N: usize>(&self, rows: &[u32; N], first: usize, hint: PrefetchHint, optimistic: bool) {
        let lines = RowLines { first, rest: 0, last_words: None };
        let ask = RowPrefetcher { lines, ..*self };
        for &row in rows {
            if row != NO_ROW {
                ask.row(row, hint, optimistic);
            }
        }
    }

    /// A call, because this much code in the loop over keys would slow all others down.
    #[inline(never)]
    fn any_lines_of(&self, rows: &[u32], hint: PrefetchHint, optimistic: bool) {
        for &row in rows {
            if row != NO_ROW {
                self.row(row, hint, optimistic);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Packing;
    use crate::sync::write_gate::WriteGate;

    /// The property of sequence locks: rows of equal words stay equal under two writers, in one piece or split.
    #[test]
    fn readers_see_whole_rows() {
        let (fast, compact) = (Packing::Fast, Packing::Compact);
        for (weights, rest, packing, is_split) in
            [(8, 29, fast, false), (32, 37, compact, true), (16, 21, compact, true)]
        {
            let words = weights + rest;
            let rounds = if cfg!(miri) { 8 } else { 30_000 };
            let placement = Placement::new(weights, rest, packing);
            assert_eq!(placement.is_split, is_split, "{weights} {rest}");
            let (slab, write_gate) = (Slab::new(placement, None).unwrap(), WriteGate::new());
            for row in 0..4 {
                slab.write_unpublished(row, &vec![1.0; words]);
            }
            std::thread::scope(|scope| {
                for lane in 0..2 {
                    let (slab, write_gate) = (&slab, &write_gate);
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let shared = write_gate.lock_shared(lane);
                            let writing = slab.write(round % 4, &shared);
                            let mut values = vec![0.0; words];
                            writing.row.load_row(&mut values);
                            assert!(values.iter().all(|&value| value == values[0]));
                            values.iter_mut().for_each(|value| *value += 1.0);
                            writing.row.store_row(&values);
                        }
                    });
                }
                scope.spawn(|| {
                    let mut values = vec![0.0; words];
                    for round in 0..rounds {
                        slab.read(round % 4, &mut values);
                        assert!(values.iter().all(|&value| value == values[0]), "{values:?}");
                    }
                });
            });
            let sum: f32 = (0..4).map(|row| slab.peek(row, &write_gate.lock_exclusive())[0] - 1.0).sum();
            assert_eq!(sum, 2.0 * rounds as f32);
        }
    }
}
