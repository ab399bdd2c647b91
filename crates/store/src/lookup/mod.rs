//! Batched search: hashes the keys of a request together and searches them well before their rows are used, so that
//! the cache misses of many keys overlap.
//!
//! Buffers are per thread and reused. Requests are processed in chunks, which bounds the buffers.

pub(crate) mod dedup;
pub(crate) mod key_sampler;
pub(crate) mod pulled_rows;
pub(crate) mod scatter;
pub(crate) mod scratch;

use std::cell::RefCell;
use std::hint::black_box;
use std::ops::Range;

use crate::index::NO_ROW;
use crate::index::growth::IndexView;
use crate::index::hash::HashKey;
use crate::index::removals::RemovalStamp;
use crate::memory::prefetch::{PrefetchHint, prefetch};
use crate::rows::slab::RowPrefetcher;
use crate::simd::Vector;
use crate::update::kernel::OptimizerStep;

/// Keys per chunk: hashed together, and searched under one index guard.
pub(crate) const CHUNK_KEYS: usize = 2048;
/// Keys per step. Each step prefetches buckets, searches buckets prefetched earlier, and uses rows found earlier.
/// Steps are short, so that memory requests are spread evenly over the work.
pub(crate) const STEP: usize = 8;
/// Steps between search and use, at most; a power of two.
const RING: usize = 32;
/// Steps between prefetching the next two buckets of a displaced key and searching them.
const DISPLACED_LAG: usize = 2;
/// The maximum number of displaced keys that wait for their next buckets.
const DISPLACED_MAX: usize = RING * STEP;
/// Keys per cache line.
const LINE_KEYS: usize = 8;

/// Prefetch distances of a search.
///
/// Tables use the default, the optimum of a sweep (`sanderling bench store --distances`); only such a sweep sets
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Distances {
    /// Keys between prefetching a bucket and searching it; 8 to 240, in steps of 8.
    pub bucket_keys: usize,
    /// Cache lines of rows between prefetching a row and using it.
    ///
    /// At least 48 and at most 240 keys, in steps of 8.
    pub row_lines: usize,
}

impl Default for Distances {
    fn default() -> Distances {
        Distances { bucket_keys: 48, row_lines: 192 }
    }
}

/// Consumes the rows of a chunk.
pub(crate) trait Visit {
    /// The use of the rows.
    const HINT: PrefetchHint;
    /// Whether whole rows are used; otherwise only their weights.
    const WHOLE: bool = true;
    /// Whether the caller validates the whole read afterwards. If so, versions are not checked, and rows may be
    /// torn.
    const OPTIMISTIC: bool = false;

    /// Takes the position of a key in the chunk, and its row or [`NO_ROW`].
    fn visit(&mut self, at: usize, row: u32);

    /// Takes the rows of consecutive keys from position `first` on.
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
    /// Whole steps; the rest of the last one is stale.
    hashes: Vec<[u64; STEP]>,
    /// Home buckets during a search.
    homes: RefCell<Vec<[u32; STEP]>>,
    keys: usize,
    /// Positions of keys without a row, for the caller.
    pub(crate) absent: Vec<u32>,
    /// Unused rows, and rows removed from the index, for the caller.
    pub(crate) spare: Vec<u32>,
    pub(crate) retired: Vec<u32>,
    /// The words of a row, for the caller.
    pub(crate) words: Vec<f32>,
    /// The words of a row before its update, for the caller.
    pub(crate) before: Vec<f32>,
    /// The optimizer steps of a push, one per block, for the caller.
    pub(crate) steps: Vec<OptimizerStep>,
}

impl Lookup {
    /// Takes a chunk of at most [`CHUNK_KEYS`] keys.
    #[inline(always)]
    pub(crate) fn assign(&mut self, hash_key: HashKey, keys: &[u64]) {
        debug_assert!(keys.len() <= CHUNK_KEYS);
        // Otherwise hashing would wait for one line after another while the memory is idle.
        (0..keys.len()).step_by(LINE_KEYS).for_each(|at| prefetch(keys, at, PrefetchHint::Read));
        self.keys = keys.len();
        self.hashes.resize(keys.len().div_ceil(STEP), [0; STEP]);
        let hashes = self.hashes.as_flattened_mut();
        hashes.iter_mut().zip(keys).for_each(|(hash, &key)| *hash = hash_key.hash(key));
    }

    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes.as_flattened()[..self.keys]
    }

    #[inline(always)]
    pub(crate) fn hash(&self, at: usize) -> u64 {
        self.hashes[at / STEP][at % STEP]
    }

    /// Searches the chunk and passes every key's row to `f`, in order, with the row, or its weights, in the cache.
    #[inline(always)]
    pub(crate) fn walk<F: Visit>(
        &self,
        vector: impl Vector,
        view: IndexView<'_>,
        prefetcher: RowPrefetcher<'_>,
        distances: Distances,
        f: &mut F,
    ) {
        let (steps, searcher) = (self.hashes.as_slice(), view.index.searcher(vector));
        // Distances are in steps from here on.
        let lag = (distances.row_lines / prefetcher.lines() / STEP).clamp(DISPLACED_LAG + 1, RING - 2);
        let ahead = (distances.bucket_keys / STEP).clamp(1, RING - 2);
        // All at once, long before they are used: a load soon after its store waits for all stores before it.
        let homes = &mut *self.homes.borrow_mut();
        // None while the index grows.
        homes.resize(if view.growth.is_none() { steps.len() } else { 0 }, [0; STEP]);
        steps.iter().zip(homes.iter_mut()).for_each(|(hashes, homes)| searcher.homes(hashes, homes));
        homes.iter().take(ahead).for_each(|homes| searcher.prefetch_all(homes));
        if view.growth.is_some() {
            (0..ahead).for_each(|step| view.prefetch_step(steps.get(step)));
        }
        let mut rows = [[NO_ROW; STEP]; RING];
        let mut displaced = Displaced::new();
        for step in 0..steps.len() + lag {
            if let Some(homes) = homes.get(step + ahead) {
                searcher.prefetch_all(homes);
            }
            if let Some(hashes) = steps.get(step) {
                let rows = &mut rows[step % RING];
                let mut go_on = if let Some(homes) = homes.get(step) {
                    searcher.probe_all(homes, hashes, F::OPTIMISTIC, rows)
                } else {
                    view.find_step(hashes, steps.get(step + ahead), rows);
                    0
                };
                prefetcher.all(rows, F::HINT, F::OPTIMISTIC);
                while go_on != 0 {
                    // The next buckets are fetched while other keys are searched.
                    let at = go_on.trailing_zeros() as usize % STEP;
                    let bucket = searcher.after(homes[step][at]);
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
                // The key is farther away, or has just moved home.
                if row == NO_ROW && (probe.goes_on || !F::OPTIMISTIC) {
                    row = view.index.find(*hash);
                }
                if row != NO_ROW {
                    prefetcher.row(row, F::HINT, F::OPTIMISTIC);
                }
                rows[place / STEP % RING][place % STEP] = row;
            }
            if let Some(step) = step.checked_sub(lag) {
                // Hidden from the compiler, which otherwise keeps a running sum for each dim with a special loop.
                let first = black_box(step * STEP);
                f.visit_all(first, &rows[step % RING][..STEP.min(self.keys - first)]);
            }
        }
    }
}

/// The rows of a chunk's keys at an earlier time; [`NO_ROW`] for absent keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CachedRows<'a> {
    pub(crate) rows: &'a [u32],
    pub(crate) since: RemovalStamp,
}

impl CachedRows<'_> {
    /// The values of the keys at these positions.
    pub(crate) fn part(self, keys: Range<usize>) -> Self {
        CachedRows { rows: &self.rows[keys], ..self }
    }

    /// Returns whether no key is absent.
    pub(crate) fn is_complete(self) -> bool {
        !self.rows.contains(&NO_ROW)
    }

    /// Passes every row to `f`, prefetched like those of [`Lookup::walk`].
    #[inline(always)]
    pub(crate) fn walk<F: Visit>(self, prefetcher: RowPrefetcher<'_>, distances: Distances, f: &mut F) {
        let ahead = (distances.row_lines / prefetcher.lines()).max(1);
        let ask_for = |&row: &u32| {
            if row != NO_ROW {
                prefetcher.row(row, F::HINT, F::OPTIMISTIC);
            }
        };
        self.rows.iter().take(ahead).for_each(ask_for);
        for (at, &row) in self.rows.iter().enumerate() {
            self.rows.get(at + ahead).map(ask_for);
            f.visit(at, row);
        }
    }
}

/// Queue of keys that overflowed from the buckets searched so far.
#[derive(Debug)]
struct Displaced {
    keys: [Waiting; DISPLACED_MAX],
    first: usize,
    end: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    /// The next bucket to search.
    bucket: u32,
    /// Position in the chunk.
    place: u16,
    /// The step by which the bucket should have arrived.
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

    /// Position and next bucket of the first key, if it is due.
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

/// Calls `f` with the thread's buffers.
pub(crate) fn with_lookup<R>(f: impl FnOnce(&mut Lookup) -> R) -> R {
    LOOKUP.with_borrow_mut(f)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

    /// At every prefetch distance all keys are found, also displaced ones.
    #[test]
    fn distances_decide_speed_only() {
        let keys: Vec<u64> = (0..5000).collect();
        let gradients: Vec<f32> = keys.iter().map(|&key| -(key as f32)).collect();
        for bucket_keys in [0, 8, 32, 208, 216, 224, 232, 240, 10_000] {
            for row_lines in [0, 8, 64, 240, 10_000] {
                let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
                let mut t = Table::new(TableConfig::single("t", 1, Init::Zero, sgd)).unwrap();
                t.set_distances(Distances { bucket_keys, row_lines });
                t.push(&keys, &gradients, PushScale::default()).unwrap();
                let mut out = vec![-1.0; keys.len()];
                let absent = t.pull(&keys, Absent::Zero, &mut out, None).unwrap();
                assert_eq!(absent, 0, "{bucket_keys}, {row_lines}");
                assert!(keys.iter().zip(&out).all(|(&key, &weight)| weight == key as f32));
            }
        }
    }
}
