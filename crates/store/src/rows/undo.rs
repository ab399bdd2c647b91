//! Copies of rows that are being updated in place, for a process that finds the table after this one has died: it
//! writes the old words back.
//!
//! A slot is a line with the row's number plus one, or 0, and then the words of the row: weights, header, state. A
//! thread has a slot for the time of a request; the others wait for a free one. Its holder waits for no other slot.
#![allow(unsafe_code)] // a slot's atomics as plain numbers, for its only user

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::kept::fault::{self, Fault};
use crate::kept::in_order;
use crate::memory::Region;
use crate::rows::access::RowMut;
use crate::simd::Vector;
use crate::sync::pause;

/// Slots of a table.
const SLOTS: usize = 64;
/// Words before the copy.
const HEADER: usize = 16;

#[derive(Debug)]
pub(crate) struct UndoSlots {
    words: Region<AtomicU32>,
    /// Words of a row.
    row_words: usize,
    is_taken: Box<[Taken]>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Taken(AtomicU32);

/// A slot that only its holder uses.
#[derive(Debug)]
pub(crate) struct UndoSlot<'a> {
    words: &'a [AtomicU32],
    taken: &'a AtomicU32,
}

impl UndoSlots {
    fn stride(row_words: usize) -> usize {
        (HEADER + row_words).next_multiple_of(HEADER)
    }

    /// Words of the slots for rows of so many words.
    pub(crate) fn words(row_words: usize) -> usize {
        SLOTS * UndoSlots::stride(row_words)
    }

    /// The slots in a region of [`UndoSlots::words`].
    pub(crate) fn new(words: Region<AtomicU32>, row_words: usize) -> UndoSlots {
        UndoSlots { words, row_words, is_taken: (0..SLOTS).map(|_| Taken::default()).collect() }
    }

    fn at(&self, slot: usize) -> &[AtomicU32] {
        let stride = UndoSlots::stride(self.row_words);
        &self.words[slot * stride..][..HEADER + self.row_words]
    }

    /// Takes a slot until it is dropped, the lane's own one if it is free.
    pub(crate) fn take(&self, lane: usize) -> UndoSlot<'_> {
        let mut spins = 0;
        loop {
            for slot in (0..SLOTS).map(|next| (lane + next) % SLOTS) {
                let Taken(taken) = &self.is_taken[slot];
                if taken.load(Relaxed) == 0 && taken.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                    return UndoSlot { words: self.at(slot), taken };
                }
            }
            pause(&mut spins);
        }
    }

    /// The rows below `rows` that were being updated when the process died, with their words before.
    pub(crate) fn interrupted(&self, rows: u64) -> Vec<(u32, Vec<f32>)> {
        let of = |slot: usize| {
            let (number, words) = self.at(slot).split_at(HEADER);
            let row = number[0].load(Relaxed).checked_sub(1).filter(|&row| u64::from(row) < rows)?;
            Some((row, words.iter().map(|word| f32::from_bits(word.load(Relaxed))).collect()))
        };
        (0..SLOTS).filter_map(of).collect()
    }

    /// Empties all slots.
    pub(crate) fn clear(&self) {
        in_order();
        (0..SLOTS).for_each(|slot| self.at(slot)[0].store(0, Relaxed));
    }
}

impl UndoSlot<'_> {
    /// Copies a row that is about to be updated, and is locked.
    #[inline(always)]
    pub(crate) fn begin(&mut self, number: u32, row: &RowMut<'_, impl Vector>) {
        if fault::is(Fault::NoUndo) {
            return;
        }
        let Range { start, end } = self.words[HEADER..].as_ptr_range();
        // SAFETY: the words after the header belong to this slot, which only its holder uses, and the holder has
        // borrowed it exclusively. Atomics may be changed behind a shared reference. An f32 has the size and the
        // alignment of a word, and every bit pattern is one.
        let words = unsafe {
            std::slice::from_raw_parts_mut(start.cast_mut().cast::<f32>(), end.offset_from(start) as usize)
        };
        row.load_row(words);
        in_order();
        self.words[0].store(number + 1, Relaxed);
        in_order();
        if fault::is(Fault::UndoEndsEarly) {
            self.end();
        }
    }

    /// Forgets the copy, before the row is unlocked.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        in_order();
        self.words[0].store(0, Relaxed);
        in_order();
    }
}

impl Drop for UndoSlot<'_> {
    fn drop(&mut self) {
        self.taken.store(0, Release);
    }
}
