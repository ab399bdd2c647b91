//! Rows of one table: fixed-size runs of 32-bit words that never move, with a free list, and the versions that make a
//! row's words one row. Knows neither keys nor optimizers, only the length of a row in words.
//!
//! A slab reserves address space for all rows that the machine or the budget could hold, so that a row is found by its
//! number without a look-up in memory. Memory is taken as rows are made, and charged to the budget in pieces that grow
//! with the slab, up to 2 MiB.
//!
//! A reader copies a row between two looks at its version and starts over when the version was odd or has changed; a
//! writer makes it odd, stores, and makes it even. Versions are not in the rows but in a small array that rows share by
//! a hash of their number: rows of 32 weights then lie on two cache lines instead of three, and the array is always in
//! the cache. (Sharing costs a rare needless retry, never a missed one.)
#![allow(unsafe_code)] // shows a row's atomics as plain numbers while nobody may change them

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, fence};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::budget::Budget;
use crate::memory::{HUGE_BYTES, Region, machine_bytes};
use crate::prefetch::prefetch;
use crate::words::{self, Width};

/// The first piece that is charged to the budget has as many rows (a power of two) as fit in this, and at least one.
const FIRST_PIECE_BYTES: usize = 64 * 1024;
/// Later pieces are as large as all before them together, up to about this size: a huge page.
const PIECE_BYTES: usize = HUGE_BYTES;
/// Address space for rows, as a multiple of the machine's memory.
const RESERVE_FACTOR: usize = 2;
/// Words of a cache line.
const LINE_WORDS: usize = 16;
/// Row versions of a table; a power of two.
const VERSIONS: usize = 1024;
/// Spins on a row that is being changed before the processor is left to others.
const SPINS: u32 = 64;
/// Removed rows that wait together for the readers who may still see them.
const LIMBO_ROWS: usize = 256;
/// End of the free list.
const NO_NEXT: u32 = u32::MAX;
/// Row numbers stay below this, because the index keeps them plus one and uses `u32::MAX` for "no row".
const ROWS_MAX: usize = u32::MAX as usize - 2;

#[derive(Debug)]
pub(crate) struct Slab {
    words: Region<AtomicU32>,
    versions: Box<[AtomicU32]>,
    stride: usize,
    /// Rows of the first piece, and the most rows of a piece; powers of two.
    first_piece: u64,
    piece_max: u64,
    width: Width,
    /// Shared by those who change rows under their versions; exclusive for who removes rows or keeps all others out.
    updates: RwLock<()>,
}

/// Which rows are in use. One for each slab, guarded by its owner.
#[derive(Debug)]
pub(crate) struct Allocation {
    /// Rows handed out so far, freed ones included.
    made: u32,
    /// Rows that have been charged to the budget.
    charged: u64,
    charged_bytes: usize,
    /// Head of the list of freed rows; each holds the next one's number in its first word.
    free: u32,
    free_len: u32,
    /// Freed rows that readers may still see.
    limbo: Vec<u32>,
}

/// Words from the start of one row to the next, so that neither a row nor its first `hot` words ever straddle more
/// cache lines than they must.
pub(crate) fn stride_words(words: usize, hot: usize) -> usize {
    // Starts are multiples of some power of two (up to a line); what hangs over the last full line must fit into that.
    let hangs_over = |words: usize| (words - 1) % LINE_WORDS + 1;
    let grain = hangs_over(words).max(hangs_over(hot.max(1))).next_power_of_two();
    words.next_multiple_of(grain)
}

impl Slab {
    /// Bytes of a slab without rows.
    pub(crate) const NEW_BYTES: usize = VERSIONS * size_of::<AtomicU32>();

    /// A slab for rows of `stride` words, of which the budget allows `limit_bytes`. `None` without address space.
    pub(crate) fn new(stride: usize, limit_bytes: u64) -> Option<Slab> {
        let row_bytes = stride * size_of::<u32>();
        let power = |bytes: usize| 1 << (bytes / row_bytes).max(1).ilog2();
        let reserve_bytes = usize::try_from(limit_bytes).unwrap_or(usize::MAX);
        let reserve_bytes = reserve_bytes.min(machine_bytes().saturating_mul(RESERVE_FACTOR)).max(row_bytes);
        let rows = (reserve_bytes / row_bytes).min(ROWS_MAX);
        Some(Slab {
            words: Region::reserved(rows * stride)?,
            versions: (0..VERSIONS).map(|_| AtomicU32::new(0)).collect(),
            stride,
            first_piece: power(FIRST_PIECE_BYTES),
            piece_max: power(PIECE_BYTES),
            width: Width::detect(),
            updates: RwLock::new(()),
        })
    }

    /// Address range of the rows that have been charged.
    pub(crate) fn addresses(&self, rows: &Allocation) -> (usize, usize) {
        let (first, _) = self.words.addresses();
        (first, first + rows.charged_bytes)
    }

    /// The widest copy that the machine can do.
    #[inline(always)]
    pub(crate) fn width(&self) -> Width {
        self.width
    }

    /// The words of a row that has been made.
    #[inline(always)]
    fn words(&self, row: u32) -> &[AtomicU32] {
        &self.words[row as usize * self.stride..][..self.stride]
    }

    /// Asks the cache for the first `words` words of a row.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32, words: usize) {
        let first = row as usize * self.stride;
        for line in 0..words.div_ceil(LINE_WORDS) {
            prefetch(&self.words, first + line * LINE_WORDS);
        }
    }

    #[inline(always)]
    fn version(&self, row: u32) -> &AtomicU32 {
        &self.versions[(row.wrapping_mul(0x9E37_79B1) >> (u32::BITS - VERSIONS.ilog2())) as usize]
    }

    /// Copies the first words of a row, as they are before or after a change, never between.
    #[inline(always)]
    pub(crate) fn read(&self, row: u32, out: &mut [f32]) {
        self.read_with(row, |words| words::load(self.width, words, out));
    }

    /// As [`Slab::read`] for `len` words, padded with zeros to the length of `out`, see [`words::load_padded`].
    #[inline(always)]
    pub(crate) fn read_padded(&self, row: u32, len: usize, out: &mut [f32]) {
        self.read_with(row, |words| words::load_padded(self.width, &words[..len], out));
    }

    #[inline(always)]
    fn read_with(&self, row: u32, mut copy: impl FnMut(&[AtomicU32])) {
        let words = self.words(row);
        let version = self.version(row);
        let mut spins = 0;
        loop {
            let before = version.load(Acquire);
            if before & 1 == 0 {
                copy(words);
                fence(Acquire);
                if version.load(Relaxed) == before {
                    return;
                }
            }
            pause(&mut spins);
        }
    }

    /// One word of a row, by itself.
    #[inline(always)]
    pub(crate) fn word(&self, row: u32, at: usize) -> u32 {
        self.words(row)[at].load(Relaxed)
    }

    /// Stores the words of a row that no reader knows yet.
    pub(crate) fn write_unseen(&self, row: u32, values: &[f32]) {
        words::store(self.width, self.words(row), values);
    }

    /// The right to change rows one at a time, with others. While it lives, no row is removed.
    pub(crate) fn share(&self) -> Shared<'_> {
        Shared { slab: self, _lock: self.updates.read().unwrap_or_else(PoisonError::into_inner) }
    }

    /// The right to change rows alone.
    pub(crate) fn exclude(&self) -> Exclusive<'_> {
        Exclusive { slab: self, _lock: self.updates.write().unwrap_or_else(PoisonError::into_inner) }
    }
}

#[cold]
fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// A row while its version is odd.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    pub(crate) row: Change<'a>,
    version: &'a AtomicU32,
    before: u32,
}

impl<'a> Changing<'a> {
    #[inline(always)]
    fn new(slab: &'a Slab, row: u32, before: u32) -> Changing<'a> {
        // The odd version is visible before any store of the change.
        fence(Release);
        let change = Change { words: slab.words(row), width: slab.width };
        Changing { row: change, version: slab.version(row), before }
    }
}

impl Drop for Changing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.version.store(self.before.wrapping_add(2), Release);
    }
}

/// The words of such a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    words: &'a [AtomicU32],
    width: Width,
}

impl Change<'_> {
    /// Loads `len` words and pads them with zeros to the length of `out`, see [`words::load_padded`].
    #[inline(always)]
    pub(crate) fn load_padded(&self, first: usize, len: usize, out: &mut [f32]) {
        words::load_padded(self.width, &self.words[first..][..len], out);
    }

    #[inline(always)]
    pub(crate) fn store(&self, first: usize, values: &[f32]) {
        words::store(self.width, &self.words[first..], values);
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

/// See [`Slab::share`].
#[derive(Debug)]
pub(crate) struct Shared<'a> {
    slab: &'a Slab,
    _lock: RwLockReadGuard<'a, ()>,
}

impl Shared<'_> {
    /// Waits until nobody changes the row, and then lets the caller do so; others see it as it was before or as it is
    /// when the result is dropped. One thread must not change two rows at once: they may share a version.
    #[inline(always)]
    pub(crate) fn change(&self, row: u32) -> Changing<'_> {
        let (version, mut spins) = (self.slab.version(row), 0);
        let before = loop {
            let before = version.load(Relaxed);
            if before & 1 == 0 && version.compare_exchange_weak(before, before | 1, Acquire, Relaxed).is_ok()
            {
                break before;
            }
            pause(&mut spins);
        };
        Changing::new(self.slab, row, before)
    }
}

/// See [`Slab::exclude`].
#[derive(Debug)]
pub(crate) struct Exclusive<'a> {
    slab: &'a Slab,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Exclusive<'_> {
    /// As [`Shared::change`], without having to reckon with other writers.
    #[inline(always)]
    pub(crate) fn change(&mut self, row: u32) -> Changing<'_> {
        let version = self.slab.version(row);
        let before = version.load(Relaxed);
        version.store(before | 1, Relaxed);
        Changing::new(self.slab, row, before)
    }

    /// The first `len` words of a row in place.
    #[inline(always)]
    pub(crate) fn peek(&self, row: u32, len: usize) -> &[f32] {
        let words = &self.slab.words(row)[..len];
        // SAFETY: same size, alignment and lifetime; every pattern is an f32. Rows that others know are stored to only
        // through `Shared` and `Exclusive`: the lock of this one excludes all others, and the borrow its own changes.
        // Readers only load.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<f32>(), len) }
    }
}

impl Allocation {
    pub(crate) fn new() -> Allocation {
        Allocation { made: 0, charged: 0, charged_bytes: 0, free: NO_NEXT, free_len: 0, limbo: Vec::new() }
    }

    /// Rows below this number have been made.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// Rows that were made and are not in use.
    pub(crate) fn free_rows(&self) -> usize {
        self.free_len as usize + self.limbo.len()
    }

    /// Bytes of rows that have been charged to the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.charged_bytes
    }

    /// A row of unspecified content that no reader can see, or `None` when the budget, the memory or the row numbers
    /// are used up. The caller must not be a reader.
    pub(crate) fn allocate(&mut self, slab: &Slab, budget: &Budget) -> Option<u32> {
        if self.free == NO_NEXT && !self.limbo.is_empty() {
            self.leave_limbo(slab);
        }
        if self.free != NO_NEXT {
            let row = self.free;
            self.free = slab.word(row, 0);
            self.free_len -= 1;
            return Some(row);
        }
        if u64::from(self.made) == self.charged {
            let rows = self.charged.clamp(slab.first_piece, slab.piece_max);
            let room = (slab.words.len() / slab.stride) as u64 - self.charged;
            let rows = rows.min(room);
            let bytes = rows as usize * slab.stride * size_of::<u32>();
            if rows == 0 || !budget.take(bytes) {
                return None;
            }
            self.charged += rows;
            self.charged_bytes += bytes;
        }
        self.made += 1;
        Some(self.made - 1)
    }

    /// Takes back a row that searches no longer find. The caller must not be a reader.
    pub(crate) fn release(&mut self, slab: &Slab, row: u32) {
        self.limbo.push(row);
        if self.limbo.len() == LIMBO_ROWS {
            self.leave_limbo(slab);
        }
    }

    /// Waits for the readers who may still see removed rows, and then frees these.
    fn leave_limbo(&mut self, slab: &Slab) {
        crate::readers::synchronize();
        for row in self.limbo.drain(..) {
            slab.words(row)[0].store(self.free, Relaxed);
            self.free = row;
            self.free_len += 1;
        }
    }

    /// Forgets all rows and gives their memory back. The caller has made sure that nobody can reach a row.
    pub(crate) fn clear(&mut self, slab: &Slab, budget: &Budget) {
        slab.words.discard(self.made as usize * slab.stride, |word| word.store(0, Relaxed));
        budget.give_back(self.charged_bytes);
        *self = Allocation::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stay_put_are_reused_and_counted() {
        for (stride, rows) in [(6, 150_000), (8, 70_000), (37, 3000), (200_000, 70)] {
            if cfg!(miri) && stride > 100 {
                continue;
            }
            let rows = if cfg!(miri) { 20 } else { rows };
            let budget = Budget::new(None);
            let (slab, mut allocation) = (Slab::new(stride, u64::MAX).unwrap(), Allocation::new());
            for number in 0..rows {
                let row = allocation.allocate(&slab, &budget).unwrap();
                assert_eq!(row, number);
                slab.write_unseen(row, &vec![number as f32; stride]);
            }
            let mut values = vec![0.0; stride];
            for number in 0..rows {
                slab.read(number, &mut values);
                assert!(values.iter().all(|&word| word == number as f32));
            }
            allocation.release(&slab, 0);
            allocation.release(&slab, 1);
            assert_eq!(allocation.free_rows(), 2);
            let mut next = || allocation.allocate(&slab, &budget);
            assert_eq!((next(), next(), next()), (Some(1), Some(0), Some(rows)));
            assert_eq!(allocation.bytes() as u64, budget.used_bytes());
            let used = rows as usize * stride * 4;
            assert!((used..used * 2 + FIRST_PIECE_BYTES + PIECE_BYTES).contains(&allocation.bytes()));
            allocation.clear(&slab, &budget);
            assert_eq!((budget.used_bytes(), allocation.allocate(&slab, &budget)), (0, Some(0)));
            slab.read(rows - 1, &mut values);
            assert!(values.iter().all(|&word| word == 0.0));
        }
    }

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

    /// The test that seqlocks exist for: rows whose words are all equal stay so under two writers.
    #[test]
    fn readers_see_whole_rows() {
        const STRIDE: usize = 37;
        let rounds = if cfg!(miri) { 8 } else { 100_000 };
        let (slab, mut allocation, budget) =
            (Slab::new(STRIDE, u64::MAX).unwrap(), Allocation::new(), Budget::new(None));
        for _ in 0..4 {
            let row = allocation.allocate(&slab, &budget).unwrap();
            slab.write_unseen(row, &[1.0; STRIDE]);
        }
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let shared = slab.share();
                        let changing = shared.change(round % 4);
                        let mut values = [0.0; STRIDE.next_multiple_of(16)];
                        changing.row.load_padded(0, STRIDE, &mut values);
                        assert!(values[..STRIDE].iter().all(|&value| value == values[0]));
                        changing.row.store(0, &values.map(|value| value + 1.0)[..STRIDE]);
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
        let sum: f32 = (0..4).map(|row| slab.exclude().peek(row, 1)[0] - 1.0).sum();
        assert_eq!(sum, 2.0 * rounds as f32);
    }
}
