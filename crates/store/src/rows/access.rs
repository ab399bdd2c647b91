//! Access to the words of a row: consistent copies for readers, and changes by whoever holds the row.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::rows::half::Half;
use crate::rows::placement::Placement;
use crate::rows::slab::RowsView;
use crate::simd::halves::Format;
use crate::simd::{self, Vector, Width, halves};
use crate::sync::seqlock::RowWriteGuard;

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
impl<'a, F: Format, V: Vector, const OPTIMISTIC: bool> RowReader<'a, F, V, OPTIMISTIC> {
    #[inline(always)]
    pub(super) fn new(rows: RowsView<'a>, format: F, vector: V) -> Self {
        RowReader { rows, format, vector }
    }

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
        self.format.one(self.rows.first_word(row))
    }
}

/// Copies whole rows, consistent under concurrent writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WholeRowReader<'a, V> {
    rows: RowsView<'a>,
    rests: &'a [AtomicU32],
    placement: Placement,
    vector: V,
}

impl<'a, V: Vector> WholeRowReader<'a, V> {
    #[inline(always)]
    pub(super) fn new(rows: RowsView<'a>, rests: &'a [AtomicU32], placement: Placement, vector: V) -> Self {
        WholeRowReader { rows, rests, placement, vector }
    }

    /// Copies the words of a row: weights, header, state.
    #[inline(always)]
    pub(crate) fn row(self, row: u32, out: &mut [f32]) {
        let (words, seq_locks) = (self.rows.words(row), self.rows.seq_locks);
        loop {
            let before = seq_locks.read_begin(row);
            if self.placement.is_split {
                let (weights, rest) = out.split_at_mut(self.placement.weights);
                simd::load(self.vector, words, weights);
                simd::load(self.vector, &self.rests[row as usize * self.placement.rest_stride..], rest);
            } else {
                simd::load(self.vector, words, out);
            }
            if seq_locks.read_validate(row, before) {
                return;
            }
        }
    }
}

/// A row locked for a write.
#[derive(Debug)]
pub(crate) struct RowWrite<'a> {
    pub(crate) row: RowMut<'a>,
    _guard: RowWriteGuard<'a>,
}

impl<'a> RowWrite<'a> {
    #[inline(always)]
    pub(super) fn new(row: RowMut<'a>, guard: RowWriteGuard<'a>) -> RowWrite<'a> {
        RowWrite { row, _guard: guard }
    }
}

/// The words of a row that only the caller may change: weights, and header and state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowMut<'a, V = Width> {
    /// The weights; the whole row if it lies in one piece.
    words: &'a [AtomicU32],
    /// Header and state.
    rest: &'a [AtomicU32],
    is_split: bool,
    width: V,
}

impl<'a> RowMut<'a> {
    #[inline(always)]
    pub(crate) fn new(
        words: &'a [AtomicU32],
        rest: &'a [AtomicU32],
        is_split: bool,
        width: Width,
    ) -> RowMut<'a> {
        RowMut { words, rest, is_split, width }
    }

    /// For work that is compiled for this width.
    #[inline(always)]
    pub(crate) fn by<V: Vector>(self, vector: V) -> RowMut<'a, V> {
        RowMut { words: self.words, rest: self.rest, is_split: self.is_split, width: vector }
    }
}

impl<V: Vector> RowMut<'_, V> {
    /// Loads `len` halves from number `first` on, padded like [`RowMut::load_weights`].
    #[inline(always)]
    pub(crate) fn load_halves(&self, half: Half, first: usize, len: usize, out: &mut [f32]) {
        halves::load_halves_padded(self.width, half, self.words, first, len, out);
    }

    /// Stores the first `len` halves, from number `first` on.
    #[inline(always)]
    pub(crate) fn store_halves<const N: usize>(&self, first: usize, len: usize, halves: &[u16; N]) {
        halves::store_halves(self.width, self.words, first, len, halves);
    }

    /// Loads the words of the row: weights, header, state.
    #[inline(always)]
    pub(crate) fn load_row(&self, out: &mut [f32]) {
        if !self.is_split {
            return simd::load(self.width, self.words, out);
        }
        let (weights, rest) = out.split_at_mut(out.len() - self.rest.len());
        simd::load(self.width, self.words, weights);
        simd::load(self.width, self.rest, rest);
    }

    /// Stores the words of the row: weights, header, state.
    #[inline(always)]
    pub(crate) fn store_row(&self, words: &[f32]) {
        if !self.is_split {
            return simd::store(self.width, self.words, words);
        }
        let (weights, rest) = words.split_at(words.len() - self.rest.len());
        simd::store(self.width, self.words, weights);
        simd::store(self.width, self.rest, rest);
    }

    /// Loads `len` words of weights and pads them with zeros to the length of `out`, see [`simd::load_padded`].
    #[inline(always)]
    pub(crate) fn load_weights(&self, first: usize, len: usize, out: &mut [f32]) {
        simd::load_padded(self.width, &self.words[first..][..len], out);
    }

    /// Stores words of weights.
    #[inline(always)]
    pub(crate) fn store_weights(&self, first: usize, values: &[f32]) {
        simd::store(self.width, &self.words[first..], values);
    }

    /// Loads `len` words from position `at` after the weights on, padded like [`RowMut::load_weights`].
    #[inline(always)]
    pub(crate) fn load_rest(&self, at: usize, len: usize, out: &mut [f32]) {
        simd::load_padded(self.width, &self.rest[at..][..len], out);
    }

    /// Stores words after the weights.
    #[inline(always)]
    pub(crate) fn store_rest(&self, at: usize, values: &[f32]) {
        simd::store(self.width, &self.rest[at..], values);
    }

    /// Pads values that belong to the row, such as a gradient, to the length of `out`.
    #[inline(always)]
    pub(crate) fn pad(&self, values: &[f32], out: &mut [f32; simd::PAD]) {
        simd::pad(self.width, values, out);
    }

    /// A word of the weights.
    #[inline(always)]
    pub(crate) fn weight(&self, at: usize) -> u32 {
        self.words[at].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_weight(&self, at: usize, word: u32) {
        self.words[at].store(word, Relaxed);
    }

    /// A word after the weights: of the header, then of the state.
    #[inline(always)]
    pub(crate) fn get(&self, at: usize) -> u32 {
        self.rest[at].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, at: usize, word: u32) {
        self.rest[at].store(word, Relaxed);
    }
}
