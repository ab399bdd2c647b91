//! One request's keys on their way to their rows: hashed together, and looked up well before they are used, so that the
//! cache misses of many keys overlap. Knows nothing of what is done with the rows.
//!
//! The buffers belong to the thread and are reused; requests go through them in chunks, which bounds them.

pub(crate) mod dedup;
pub(crate) mod key_sampler;
pub(crate) mod scratch;

use std::cell::RefCell;
use std::hint::black_box;

use crate::index::hash::HashKey;
use crate::index::removals::RemovalStamp;
use crate::index::{Index, NO_ROW};
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::rows::slab::{LINE_WORDS, RowsView};
use crate::simd::Vector;
use crate::update::kernel::OptimizerStep;

/// Keys that are hashed at once, and that a reader may hold up others for.
pub(crate) const CHUNK_KEYS: usize = 2048;
/// Keys that are asked for, then as many that were asked for before and are looked up, then as many that were looked up
/// before and are used, in turn. Few, so that requests to the memory are spread evenly over the work.
pub(crate) const STEP: usize = 8;
/// Steps that are kept between look-up and use; a power of two.
const RING: usize = 32;
/// Steps from asking for the next two buckets of a displaced key to searching them.
const DISPLACED_LAG: usize = 2;
/// Displaced keys that may be waiting for their next buckets: all that are not used yet.
const DISPLACED_MAX: usize = RING * STEP;
/// Keys of a cache line.
const LINE_KEYS: usize = 8;

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
    const HINT: PrefetchHint;
    /// Will the caller find out if anything was changed meanwhile? Then versions are not looked at, and what is visited may be
    /// torn.
    const OPTIMISTIC: bool = false;

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
    const HINT: PrefetchHint = PrefetchHint::Write;

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
    /// Their home buckets while they are walked.
    homes: RefCell<Vec<[u32; STEP]>>,
    keys: usize,
    /// Positions of keys without a row, for the caller.
    pub(crate) absent: Vec<u32>,
    /// Rows without a key, and rows that their keys have left, for the caller.
    pub(crate) spare: Vec<u32>,
    pub(crate) retired: Vec<u32>,
    /// The words of one row, for the caller.
    pub(crate) words: Vec<f32>,
    /// The words of a row before its update, for the caller.
    pub(crate) before: Vec<f32>,
    /// The optimizers of a push, block by block, for the caller.
    pub(crate) steps: Vec<OptimizerStep>,
}

impl Lookup {
    /// Takes a chunk of at most [`CHUNK_KEYS`] keys.
    #[inline(always)]
    pub(crate) fn assign(&mut self, keys: &[u64]) {
        debug_assert!(keys.len() <= CHUNK_KEYS);
        // Or whoever hashes them waits for one line after the other before the memory has anything to do.
        (0..keys.len()).step_by(LINE_KEYS).for_each(|at| prefetch(keys, at, PrefetchHint::Read));
        self.keys = keys.len();
        self.hashes.resize(keys.len().div_ceil(STEP), [0; STEP]);
        let index_key = HashKey::get();
        let hashes = self.hashes.as_flattened_mut();
        hashes.iter_mut().zip(keys).for_each(|(hash, &key)| *hash = index_key.hash(key));
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
        // All at once and well before they are used: what is stored a moment before it is loaded waits behind all stores before.
        let homes = &mut *self.homes.borrow_mut();
        homes.resize(steps.len(), [0; STEP]);
        steps.iter().zip(homes.iter_mut()).for_each(|(hashes, homes)| searcher.homes(hashes, homes));
        homes.iter().take(ahead).for_each(|homes| searcher.prefetch_all(homes));
        let mut rows = [[NO_ROW; STEP]; RING];
        let mut displaced = Displaced::new();
        for step in 0..steps.len() + lag {
            if let Some(homes) = homes.get(step + ahead) {
                searcher.prefetch_all(homes);
            }
            if let (Some(hashes), Some(homes)) = (steps.get(step), homes.get(step)) {
                let rows = &mut rows[step % RING];
                let mut go_on = searcher.probe_all(homes, hashes, F::OPTIMISTIC, rows);
                slab.prefetch_all(rows, lines, F::HINT, F::OPTIMISTIC);
                while go_on != 0 {
                    // Its next buckets are on the way while others are looked up.
                    let at = go_on.trailing_zeros() as usize % STEP;
                    let bucket = searcher.after(homes[at]);
                    searcher.prefetch_two(bucket);
                    displaced.push(step * STEP + at, bucket, step + DISPLACED_LAG);
                    go_on &= go_on - 1;
                }
            }
            while let Some((place, bucket)) = displaced.pop(step) {
                let hash = &self.hashes[place / STEP][place % STEP];
                let probe = searcher.probe_two(bucket, hash, F::OPTIMISTIC);
                let mut row = probe.row;
                if row == NO_ROW && probe.goes_on && step + DISPLACED_LAG < place / STEP + lag {
                    let bucket = searcher.after(searcher.after(bucket));
                    searcher.prefetch_two(bucket);
                    displaced.push(place, bucket, step + DISPLACED_LAG);
                    continue;
                }
                // Or it is farther away, or has just moved home.
                if row == NO_ROW && (probe.goes_on || !F::OPTIMISTIC) {
                    row = index.find(*hash);
                }
                if row != NO_ROW {
                    slab.prefetch(row, lines, F::HINT, F::OPTIMISTIC);
                }
                rows[place / STEP % RING][place % STEP] = row;
            }
            if let Some(step) = step.checked_sub(lag) {
                // Hidden, or the compiler keeps a running sum for each dim that a visitor knows a loop for.
                let first = black_box(step * STEP);
                f.visit_all(first, &rows[step % RING][..STEP.min(self.keys - first)]);
            }
        }
    }
}

/// Rows that a chunk's keys had at a moment, [`NO_ROW`] for those that had none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedRows<'a> {
    pub(crate) rows: &'a [u32],
    pub(crate) since: RemovalStamp,
}

impl CachedRows<'_> {
    /// As [`Lookup::walk`].
    #[inline(always)]
    pub(crate) fn walk<F: Visit>(self, slab: RowsView<'_>, words: usize, distances: Distances, f: &mut F) {
        let lines = words.div_ceil(LINE_WORDS).max(1);
        let ahead = (distances.row_lines / lines).max(1);
        let ask_for = |&row: &u32| {
            if row != NO_ROW {
                slab.prefetch(row, lines, F::HINT, F::OPTIMISTIC);
            }
        };
        self.rows.iter().take(ahead).for_each(ask_for);
        for (at, &row) in self.rows.iter().enumerate() {
            self.rows.get(at + ahead).map(ask_for);
            f.visit(at, row);
        }
    }
}

/// Keys that were not in the buckets where they were looked for, in a ring, in the order in which they come up again.
#[derive(Debug)]
struct Displaced {
    keys: [Waiting; DISPLACED_MAX],
    first: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    /// The next bucket to look into.
    bucket: u32,
    /// Place in the chunk.
    place: u16,
    /// The step when the bucket should have arrived.
    due: u16,
}

impl Displaced {
    #[inline(always)]
    fn new() -> Displaced {
        Displaced { keys: [Waiting::default(); DISPLACED_MAX], first: 0, end: 0 }
    }

    #[inline(always)]
    fn push(&mut self, place: usize, bucket: u32, due: usize) {
        self.keys[self.end % DISPLACED_MAX] = Waiting { bucket, place: place as u16, due: due as u16 };
        self.end += 1;
    }

    /// Place and next bucket of the first, if it is due.
    #[inline(always)]
    fn pop(&mut self, step: usize) -> Option<(usize, u32)> {
        let Waiting { bucket, place, due } = self.keys[self.first % DISPLACED_MAX];
        if self.first == self.end || usize::from(due) > step {
            return None;
        }
        self.first += 1;
        Some((usize::from(place), bucket))
    }
}

thread_local! {
    static LOOKUP: RefCell<Lookup> = RefCell::default();
}

/// Lends the thread's buffers.
pub(crate) fn with_lookup<R>(f: impl FnOnce(&mut Lookup) -> R) -> R {
    LOOKUP.with_borrow_mut(f)
}
