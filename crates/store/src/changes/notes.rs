//! Marks of changed rows: a bit per row, a bit per line of those bits, and the hashes of removed keys.
//!
//! A writer marks a row while it holds the row's lock; a drain clears the mark *before* it reads the row. One of both
//! sees the other: either the drain waits for the change, or the mark is set again for the next drain. So a change is
//! in the drain that runs beside it, or in the next one.
//!
//! Marks are tested before they are set, because most rows that change often are marked already. The test is safe
//! only behind a full fence after the row was locked (`store; fence; load` on both sides); locking a row is such a
//! fence on `x86_64`.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::memory::Region;
use crate::sync::lanes::Lanes;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, fence_after_write, lock};

/// Rows of a word.
const WORD_ROWS: usize = u32::BITS as usize;
/// Words of a line, which one bit stands for.
const LINE_WORDS: usize = if cfg!(loom) { 1 } else { 16 };
/// Rows of a line.
const LINE_ROWS: usize = WORD_ROWS * LINE_WORDS;
/// Removed keys that a lane reserves room for at a time, so that lanes rarely share a counter.
const REMOVED_PIECE: usize = 1024;

#[derive(Debug)]
pub(crate) struct Notes {
    /// A bit per row.
    rows: Region<AtomicU32>,
    /// A bit per line of `rows`.
    lines: Region<AtomicU32>,
    /// Hashes of removed keys.
    removed: Lanes<Mutex<Vec<u64>>>,
    /// Removed keys that still have room.
    room: AtomicUsize,
    /// Some changes were not noted.
    is_incomplete: AtomicBool,
}

/// The word and bit of a position.
#[inline(always)]
fn place(at: usize) -> (usize, u32) {
    (at / WORD_ROWS, 1 << (at % WORD_ROWS))
}

/// The positions of the bits in a word.
fn ones(mut word: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

impl Notes {
    /// Notes for rows below `rows`, and for about `removed_max` removed keys; `None` without address space.
    pub(crate) fn new(rows: u64, removed_max: usize) -> Option<Notes> {
        let lines = (rows as usize).div_ceil(LINE_ROWS);
        let wanted = lines * LINE_WORDS;
        let marks = Region::reserved(wanted).filter(|marks: &Region<AtomicU32>| marks.len() >= wanted)?;
        Some(Notes {
            rows: marks,
            lines: Region::zeroed(lines.div_ceil(WORD_ROWS))?,
            removed: Lanes::new(),
            room: AtomicUsize::new(removed_max.next_multiple_of(REMOVED_PIECE)),
            is_incomplete: AtomicBool::new(false),
        })
    }

    /// Marks a row that the caller has just locked with [`crate::rows::slab::Slab::write`], before its change.
    #[inline(never)]
    pub(crate) fn note_update(&self, row: u32) {
        // Orders the lock of the row before the test of the mark.
        fence_after_write();
        let (word, bit) = place(row as usize);
        if self.rows[word].load(Acquire) & bit == 0 {
            self.rows[word].fetch_or(bit, SeqCst);
            fence_after_write();
        }
        self.note_line(row);
    }

    /// Marks a row without a test: one that has just got its key, or is being changed without a lock of its own.
    pub(crate) fn note_store(&self, row: u32) {
        let (word, bit) = place(row as usize);
        // Also if it is marked: a drain that clears the mark then sees the new key.
        self.rows[word].fetch_or(bit, SeqCst);
        fence_after_write();
        self.note_line(row);
    }

    /// Also for a row that another thread has marked, because that thread may not have got here yet.
    #[inline(always)]
    fn note_line(&self, row: u32) {
        let (word, bit) = place(row as usize / LINE_ROWS);
        if self.lines[word].load(Relaxed) & bit == 0 {
            self.lines[word].fetch_or(bit, SeqCst);
        }
    }

    /// Records a removed key. The caller must hold the key's lock, and have removed the key.
    pub(crate) fn note_removed(&self, lane: usize, hash: u64) {
        let mut removed = lock(self.removed.get(lane));
        if removed.len().is_multiple_of(REMOVED_PIECE) {
            let take = |room: usize| room.checked_sub(REMOVED_PIECE);
            if self.room.fetch_update(Relaxed, Relaxed, take).is_err() {
                self.set_incomplete();
                return;
            }
            removed.reserve_exact(REMOVED_PIECE);
        }
        removed.push(hash);
    }

    /// Makes all earlier changes count as lost. Called after the change that was not noted.
    pub(crate) fn set_incomplete(&self) {
        self.is_incomplete.store(true, SeqCst);
    }

    /// Takes the removed keys. [`Notes::take_incomplete`] tells afterwards whether they are all.
    pub(crate) fn take_removed(&self, hashes: &mut Vec<u64>) {
        for lane in self.removed.iter() {
            let removed = std::mem::take(&mut *lock(lane));
            self.room.fetch_add(removed.len().next_multiple_of(REMOVED_PIECE), Relaxed);
            hashes.extend(removed);
        }
    }

    /// Returns whether changes were lost since the last call.
    pub(crate) fn take_incomplete(&self) -> bool {
        self.is_incomplete.swap(false, SeqCst)
    }

    /// Returns whether there is nothing to take, as far as changes were complete before.
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.iter().all(|lines| lines.load(SeqCst) == 0)
            && self.removed.iter().all(|lane| lock(lane).is_empty())
            && !self.is_incomplete.load(SeqCst)
    }

    /// Clears the marks of the rows in `lines`, whose numbers below `rows` go to `f`, until `f` wants no more lines.
    /// Advances `lines` past those that are done.
    ///
    /// The caller reads the rows afterwards, and only then.
    pub(crate) fn take_rows(&self, lines: &mut Range<usize>, mut f: impl FnMut(u32) -> bool) {
        let mut is_enough = false;
        while !is_enough && let Some(line) = lines.next() {
            let (word, bit) = place(line);
            let marked = self.lines[word].load(Relaxed);
            if marked == 0 {
                // The rest of the word.
                lines.start = lines.end.min((word + 1) * WORD_ROWS);
                continue;
            }
            if marked & bit == 0 {
                continue;
            }
            self.lines[word].fetch_and(!bit, SeqCst);
            fence_after_write();
            for (at, marks) in self.rows[line * LINE_WORDS..][..LINE_WORDS].iter().enumerate() {
                if marks.load(Relaxed) == 0 {
                    continue;
                }
                let marked = marks.swap(0, SeqCst);
                // Orders the clearing before the reads of the rows.
                fence_after_write();
                for bit in ones(marked) {
                    is_enough |= f((line * LINE_ROWS + at * WORD_ROWS + bit) as u32);
                }
            }
        }
    }

    /// All lines of the rows below `rows`.
    pub(crate) fn lines_of(&self, rows: u64) -> Range<usize> {
        0..(rows as usize).div_ceil(LINE_ROWS).min(self.rows.len() / LINE_WORDS)
    }

    /// Whether a row is marked.
    #[cfg(test)]
    pub(crate) fn is_noted(&self, row: u32) -> bool {
        let (word, bit) = place(row as usize);
        self.rows[word].load(SeqCst) & bit != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn marks_of_any_rows_are_taken_once() {
        let rows = 100_000;
        let notes = Notes::new(rows, 0).expect("address space");
        let taken = |enough: usize| {
            let (mut lines, mut rows, mut calls) = (notes.lines_of(rows), Vec::new(), 0);
            while !lines.is_empty() {
                let until = rows.len() + enough;
                notes.take_rows(&mut lines, |row| {
                    rows.push(row);
                    rows.len() >= until
                });
                calls += 1;
            }
            (rows, calls)
        };
        for (noted, enough, calls) in [
            (vec![], 1, 1),
            (vec![0], 10, 1),
            (vec![0, 31, 32, 511, 512, 16_383, 16_384, 99_999], 100, 1),
            (vec![1, 2, 600, 50_000], 1, 4),
            ((0..100_000).collect(), 100_000, 1),
        ] {
            for row in noted.iter().rev() {
                notes.note_update(*row);
                notes.note_store(*row);
                notes.note_update(*row);
                assert!(notes.is_noted(*row));
            }
            let (rows, called) = taken(enough);
            assert_eq!(rows, noted);
            assert!(called <= calls, "{called} calls for {} rows", noted.len());
            assert!(taken(1).0.is_empty());
        }
    }

    #[test]
    fn removed_keys_beyond_the_room_are_said_to_be_lost() {
        let notes = Notes::new(1, 2 * REMOVED_PIECE).expect("address space");
        for (removed, expected) in [(3, 3), (0, 0), (2 * REMOVED_PIECE, 2 * REMOVED_PIECE), (1, 1)] {
            (0..removed).for_each(|hash| notes.note_removed(0, hash as u64));
            let mut hashes = Vec::new();
            notes.take_removed(&mut hashes);
            assert_eq!((hashes.len(), notes.take_incomplete()), (expected, false));
        }
        (0..=2 * REMOVED_PIECE).for_each(|hash| notes.note_removed(0, hash as u64));
        notes.take_removed(&mut Vec::new());
        assert_eq!([notes.take_incomplete(), notes.take_incomplete()], [true, false]);
    }
}
