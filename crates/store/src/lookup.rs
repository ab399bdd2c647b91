//! One request's keys on their way to their rows: hashed together, looked up in groups, so that the cache misses of
//! many keys overlap. Knows nothing of what is done with the rows.
//!
//! The buffers belong to the thread and are reused; requests go through them in chunks, which bounds them.

use std::cell::RefCell;
use std::ops::Range;

use crate::hash::mix;
use crate::index::{Index, NO_ROW};
use crate::kernel::Step;
use crate::slab::Slab;

/// Keys that are hashed at once, and that a reader may hold up others for.
pub(crate) const CHUNK_KEYS: usize = 2048;
/// Most keys that are looked up together; at most 256, from the same sweep.
pub(crate) const GROUP_KEYS: usize = 128;
/// Cache lines of rows that a group may ask for: half of them are in use while the other half are on their way.
const GROUP_LINES: usize = 128;
/// Keys ahead of the search whose bucket is asked for; found by a sweep (`examples/limit.rs`).
const PREFETCH_KEYS: usize = 48;
/// What is done with the rows of a chunk.
pub(crate) trait Visit {
    /// Gets the position of a key in the chunk, and its row or [`NO_ROW`].
    fn visit(&mut self, at: usize, row: u32);
}

impl<F: FnMut(usize, u32)> Visit for F {
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
    /// Row numbers, for the caller.
    pub(crate) rows: Vec<u32>,
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

    /// The groups of the chunk, in order, for rows of which `words` words are used.
    fn groups(&self, words: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let keys = self.hashes.len();
        let group = (GROUP_LINES / words.div_ceil(16).max(1)).clamp(8, GROUP_KEYS);
        (0..keys).step_by(group).map(move |start| start..(start + group).min(keys))
    }

    #[inline(always)]
    pub(crate) fn hash(&self, at: usize) -> u64 {
        self.hashes[at]
    }

    /// Asks the cache for the buckets of the chunk's first keys; after this, [`Lookup::find`] stays ahead.
    pub(crate) fn prefetch_first(&self, index: &Index) {
        self.hashes.iter().take(PREFETCH_KEYS).for_each(|&hash| index.prefetch(hash));
    }

    /// Shows `f` every key of the chunk, in order. The rows' first `words` words are in the cache by then: while a group's rows are used, those of the next are on their way.
    #[inline(always)]
    pub(crate) fn walk(&self, index: &Index, slab: &Slab, words: usize, f: &mut impl Visit) {
        let mut rows = [[NO_ROW; GROUP_KEYS]; 2];
        let mut groups = self.groups(words);
        self.prefetch_first(index);
        let mut next = groups.next();
        if let Some(group) = next.clone() {
            self.find(index, slab, group, words, &mut rows[0]);
        }
        let mut turn = 0;
        while let Some(group) = next {
            next = groups.next();
            if let Some(group) = next.clone() {
                self.find(index, slab, group, words, &mut rows[1 - turn]);
            }
            for (at, &row) in group.zip(&rows[turn]) {
                f.visit(at, row);
            }
            turn = 1 - turn;
        }
    }

    /// Fills the first of `rows` for a group, and asks the cache for the first `words` words of every row.
    #[inline(always)]
    pub(crate) fn find(
        &self,
        index: &Index,
        slab: &Slab,
        group: Range<usize>,
        words: usize,
        rows: &mut [u32; GROUP_KEYS],
    ) {
        let (ahead, hashes) = (&self.hashes[group.start..], &self.hashes[group]);
        let ahead = ahead.get(PREFETCH_KEYS..).unwrap_or_default();
        let mut displaced = [0_u8; GROUP_KEYS];
        let mut displaced_len = 0;
        for (at, (&hash, row)) in hashes.iter().zip(&mut *rows).enumerate() {
            if let Some(&ahead) = ahead.get(at) {
                index.prefetch(ahead);
            }
            let probe = index.probe_home(hash);
            *row = probe.row;
            if probe.row != NO_ROW {
                slab.prefetch(probe.row, words);
            } else if probe.goes_on {
                // Its next bucket is on the way while the others are looked up.
                index.prefetch_second(hash);
                displaced[displaced_len] = at as u8;
                displaced_len += 1;
            }
        }
        for &at in &displaced[..displaced_len] {
            let row = index.find_displaced(hashes[at as usize]);
            if row != NO_ROW {
                slab.prefetch(row, words);
            }
            rows[at as usize] = row;
        }
    }
}

thread_local! {
    static LOOKUP: RefCell<Lookup> = RefCell::default();
}

/// Lends the thread's buffers.
pub(crate) fn with_lookup<R>(f: impl FnOnce(&mut Lookup) -> R) -> R {
    LOOKUP.with_borrow_mut(f)
}
