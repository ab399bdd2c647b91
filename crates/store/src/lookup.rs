//! One request's keys on their way to their rows: hashed together, and looked up well before they are used, so that the
//! cache misses of many keys overlap. Knows nothing of what is done with the rows.
//!
//! The buffers belong to the thread and are reused; requests go through them in chunks, which bounds them.

use std::cell::RefCell;

use crate::hash::mix;
use crate::index::{Index, NO_ROW};
use crate::kernel::Step;
use crate::prefetch::To;
use crate::slab::{LINE_WORDS, RowsView};
use crate::words::Vector;

/// Keys that are hashed at once, and that a reader may hold up others for.
pub(crate) const CHUNK_KEYS: usize = 2048;
/// Keys that are looked up, and then as many that were looked up before and are used, in turn.
const STEP: usize = 32;
/// Steps that are kept between look-up and use; a power of two.
const RING: usize = 8;

/// How far a look-up runs ahead of itself. Every table has the default, which is what a sweep found
/// (`sanderling bench store --distances`); only such a sweep sets others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Distances {
    /// Keys from asking for a bucket to searching it; 32 to 224, in steps of 32.
    pub bucket_keys: usize,
    /// Cache lines of rows from asking for a row to using it: 64 to 192 keys, in steps of 32.
    pub row_lines: usize,
}

impl Default for Distances {
    fn default() -> Distances {
        Distances { bucket_keys: 64, row_lines: 192 }
    }
}

/// What is done with the rows of a chunk.
pub(crate) trait Visit {
    /// What rows are wanted for.
    const TO: To;

    /// Gets the position of a key in the chunk, and its row or [`NO_ROW`].
    fn visit(&mut self, at: usize, row: u32);

    /// The same for keys from position `first` on.
    #[inline(always)]
    fn visit_all(&mut self, first: usize, rows: &[u32]) {
        for (at, &row) in rows.iter().enumerate() {
            self.visit(first + at, row);
        }
    }
}

impl<F: FnMut(usize, u32)> Visit for F {
    const TO: To = To::Change;

    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        self(at, row);
    }
}

/// The buffers of a thread.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    hashes: Vec<u64>,
    /// Positions of keys without a row, for the caller.
    pub(crate) absent: Vec<u32>,
    /// Rows without a key, and rows that their keys have left, for the caller.
    pub(crate) spare: Vec<u32>,
    pub(crate) retired: Vec<u32>,
    /// The words of one row, for the caller.
    pub(crate) words: Vec<f32>,
    /// The optimizers of a push, block by block, for the caller.
    pub(crate) steps: Vec<Step>,
}

impl Lookup {
    /// Takes a chunk of at most [`CHUNK_KEYS`] keys.
    #[inline(always)]
    pub(crate) fn assign(&mut self, keys: &[u64]) {
        debug_assert!(keys.len() <= CHUNK_KEYS);
        self.hashes.clear();
        self.hashes.extend(keys.iter().map(|&key| mix(key)));
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    #[inline(always)]
    pub(crate) fn hash(&self, at: usize) -> u64 {
        self.hashes[at]
    }

    /// Shows `f` every key of the chunk, in order. The rows' first `words` words are in the cache by then.
    #[inline(always)]
    pub(crate) fn walk<F: Visit>(
        &self,
        vector: impl Vector,
        index: &Index,
        slab: RowsView<'_>,
        words: usize,
        distances: Distances,
        f: &mut F,
    ) {
        let (hashes, searcher) = (self.hashes.as_slice(), index.searcher(vector));
        let lines = words.div_ceil(LINE_WORDS).max(1);
        // In steps from here on.
        let lag = (distances.row_lines / lines / STEP).clamp(2, RING - 2);
        let ahead = (distances.bucket_keys / STEP).clamp(1, RING - 1);
        let steps = hashes.len().div_ceil(STEP);
        let of =
            |step: usize| &hashes[(step * STEP).min(hashes.len())..(step * STEP + STEP).min(hashes.len())];
        let (mut homes, mut rows) = ([[0; STEP]; RING], [[NO_ROW; STEP]; RING]);
        for (step, homes) in homes.iter_mut().enumerate().take(ahead) {
            searcher.prefetch_all(of(step), homes);
        }
        // Places in the step of keys that were not in their home bucket: of the step before, and of this one.
        let mut displaced = [Displaced { places: [0; STEP], len: 0 }; 2];
        for step in 0..steps + lag {
            searcher.prefetch_all(of(step + ahead), &mut homes[(step + ahead) % RING]);
            let found = &mut rows[step % RING];
            displaced[step % 2].len = 0;
            for (at, (&hash, &home)) in of(step).iter().zip(&homes[step % RING]).enumerate() {
                let probe = searcher.probe(home, hash);
                found[at] = probe.row;
                if probe.row != NO_ROW {
                    slab.prefetch(probe.row, lines, F::TO);
                } else if probe.goes_on {
                    // Its next bucket is on the way while others are looked up.
                    searcher.prefetch_after(home);
                    displaced[step % 2].push(at);
                }
            }
            let before = step.wrapping_sub(1);
            for &at in displaced[before % 2].places() {
                let row = index.find_displaced(of(before)[at as usize]);
                if row != NO_ROW {
                    slab.prefetch(row, lines, F::TO);
                }
                rows[before % RING][at as usize] = row;
            }
            if let Some(step) = step.checked_sub(lag) {
                let keys = of(step).len();
                f.visit_all(step * STEP, &rows[step % RING][..keys]);
            }
        }
    }
}

/// Places of some keys of a step.
#[derive(Debug, Clone, Copy)]
struct Displaced {
    places: [u8; STEP],
    len: usize,
}

impl Displaced {
    #[inline(always)]
    fn push(&mut self, at: usize) {
        self.places[self.len % STEP] = at as u8;
        self.len += 1;
    }

    fn places(&self) -> &[u8] {
        &self.places[..self.len.min(STEP)]
    }
}

thread_local! {
    static LOOKUP: RefCell<Lookup> = RefCell::default();
}

/// Lends the thread's buffers.
pub(crate) fn with_lookup<R>(f: impl FnOnce(&mut Lookup) -> R) -> R {
    LOOKUP.with_borrow_mut(f)
}
