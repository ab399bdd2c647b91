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
/// Keys that are asked for, then as many that were asked for before and are looked up, then as many that were looked up
/// before and are used, in turn. Few, so that requests to the memory are spread evenly over the work.
const STEP: usize = 8;
/// Steps that are kept between look-up and use; a power of two.
const RING: usize = 32;
/// Steps from asking for the next bucket of a displaced key to searching it.
const DISPLACED_LAG: usize = 2;
/// Displaced keys that may be waiting for their next buckets; a power of two.
const DISPLACED_MAX: usize = ((DISPLACED_LAG + 1) * STEP).next_power_of_two();

/// How far a look-up runs ahead of itself. Every table has the default, which is what a sweep found
/// (`sanderling bench store --distances`); only such a sweep sets others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Distances {
    /// Keys from asking for a bucket to searching it; 8 to 240, in steps of 8.
    pub bucket_keys: usize,
    /// Cache lines of rows from asking for a row to using it: 48 to 240 keys, in steps of 8.
    pub row_lines: usize,
}

impl Default for Distances {
    fn default() -> Distances {
        Distances { bucket_keys: 48, row_lines: 192 }
    }
}

/// What is done with the rows of a chunk.
pub(crate) trait Visit {
    /// What rows are wanted for.
    const TO: To;
    /// Will the caller find out if anything was changed meanwhile? Then versions are not looked at, and what is visited may be
    /// torn.
    const CALM: bool = false;

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
    /// In steps; what is left of the last one is whatever was there before.
    hashes: Vec<[u64; STEP]>,
    keys: usize,
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
        self.keys = keys.len();
        self.hashes.resize(keys.len().div_ceil(STEP), [0; STEP]);
        let hashes = self.hashes.as_flattened_mut();
        hashes.iter_mut().zip(keys).for_each(|(hash, &key)| *hash = mix(key));
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes.as_flattened()[..self.keys]
    }

    #[inline(always)]
    pub(crate) fn hash(&self, at: usize) -> u64 {
        self.hashes[at / STEP][at % STEP]
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
        let (steps, searcher) = (self.hashes.as_slice(), index.searcher(vector));
        let lines = words.div_ceil(LINE_WORDS).max(1);
        // In steps from here on.
        let lag = (distances.row_lines / lines / STEP).clamp(DISPLACED_LAG + 1, RING - 2);
        let ahead = (distances.bucket_keys / STEP).clamp(1, RING - 2);
        let (mut homes, mut rows) = ([[0; STEP]; RING], [[NO_ROW; STEP]; RING]);
        for (hashes, homes) in steps.iter().zip(&mut homes).take(ahead) {
            searcher.prefetch_all(hashes, homes);
        }
        let mut displaced = Displaced { places: [0; DISPLACED_MAX], first: 0, end: 0 };
        for step in 0..steps.len() + lag {
            if let Some(hashes) = steps.get(step + ahead) {
                searcher.prefetch_all(hashes, &mut homes[(step + ahead) % RING]);
            }
            if let Some(hashes) = steps.get(step) {
                let (homes, rows) = (&homes[step % RING], &mut rows[step % RING]);
                for (at, (hash, &home)) in hashes.iter().zip(homes).enumerate() {
                    let probe = searcher.probe(home, hash, F::CALM);
                    rows[at] = probe.row;
                    if probe.row != NO_ROW {
                        slab.prefetch(probe.row, lines, F::TO, F::CALM);
                    } else if probe.goes_on {
                        // Its next bucket is on the way while others are looked up.
                        searcher.prefetch_after(home);
                        displaced.push(step * STEP + at);
                    }
                }
            }
            while let Some(place) = displaced.pop_before((step * STEP).saturating_sub(DISPLACED_LAG * STEP)) {
                let (hash, step, at) =
                    (&self.hashes[place / STEP][place % STEP], place / STEP % RING, place % STEP);
                let probe = searcher.probe_after(hash, F::CALM);
                // Or it is farther away, or has just moved home.
                let certain = probe.row != NO_ROW || (F::CALM && !probe.goes_on);
                let row = if certain { probe.row } else { index.find(*hash) };
                if row != NO_ROW {
                    slab.prefetch(row, lines, F::TO, F::CALM);
                }
                rows[step][at] = row;
            }
            if let Some(step) = step.checked_sub(lag) {
                let first = step * STEP;
                f.visit_all(first, &rows[step % RING][..STEP.min(self.keys - first)]);
            }
        }
    }
}

/// Places in the chunk of keys that were not in their home bucket, in a ring.
#[derive(Debug)]
struct Displaced {
    places: [usize; DISPLACED_MAX],
    first: usize,
    end: usize,
}

impl Displaced {
    #[inline(always)]
    fn push(&mut self, place: usize) {
        self.places[self.end % DISPLACED_MAX] = place;
        self.end += 1;
    }

    /// The first, if it is before this place.
    #[inline(always)]
    fn pop_before(&mut self, place: usize) -> Option<usize> {
        let first = self.places[self.first % DISPLACED_MAX];
        if self.first == self.end || first >= place {
            return None;
        }
        self.first += 1;
        Some(first)
    }
}

thread_local! {
    static LOOKUP: RefCell<Lookup> = RefCell::default();
}

/// Lends the thread's buffers.
pub(crate) fn with_lookup<R>(f: impl FnOnce(&mut Lookup) -> R) -> R {
    LOOKUP.with_borrow_mut(f)
}
