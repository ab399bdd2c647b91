//! One request's keys, hashed and sorted by shard. Knows nothing of tables or rows.
//!
//! The buffers belong to the thread and are reused; requests go through them in chunks, which bounds them.

use std::cell::RefCell;

use crate::hash::mix;
use crate::kernel::Step;

/// Shards of a table; the upper bits of a key's hash choose one, the index uses the lower bits.
pub(crate) const SHARDS: usize = 16;
const SHARD_SHIFT: u32 = u64::BITS - SHARDS.ilog2();
/// Keys that are routed, and whose locks are taken, at once.
pub(crate) const CHUNK_KEYS: usize = 8192;

/// A key on its way to its shard: its hash, and its position in the chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) position: u32,
}

/// Number of the shard that a hash belongs to.
#[inline(always)]
pub(crate) fn shard_of(hash: u64) -> usize {
    (hash >> SHARD_SHIFT) as usize
}

/// A chunk of keys, sorted by shard.
#[derive(Debug, Default)]
pub(crate) struct Route {
    hashes: Vec<u64>,
    entries: Vec<Entry>,
    ends: [u32; SHARDS],
    rows: Vec<u32>,
    /// Positions of the keys without a row, as the shards find them.
    pub(crate) absent: Vec<u32>,
    /// The optimizers of a push, block by block.
    pub(crate) steps: Vec<Step>,
}

/// What one shard gets of a chunk.
pub(crate) struct Part<'a> {
    pub(crate) entries: &'a [Entry],
    /// Buffer for the entries' row numbers.
    pub(crate) rows: &'a mut Vec<u32>,
    pub(crate) absent: &'a mut Vec<u32>,
}

impl Route {
    /// Sorts a chunk of at most [`CHUNK_KEYS`] keys by shard (counting sort; equal shards keep their order).
    pub(crate) fn assign(&mut self, keys: &[u64]) {
        debug_assert!(keys.len() <= CHUNK_KEYS);
        self.hashes.clear();
        self.hashes.extend(keys.iter().map(|&key| mix(key)));
        let mut next = [0_u32; SHARDS];
        for &hash in &self.hashes {
            next[shard_of(hash)] += 1;
        }
        let mut start = 0;
        for count in &mut next {
            start += std::mem::replace(count, start);
        }
        self.entries.resize(keys.len(), Entry::default());
        for (position, &hash) in self.hashes.iter().enumerate() {
            let at = &mut next[shard_of(hash)];
            self.entries[*at as usize] = Entry { hash, position: position as u32 };
            *at += 1;
        }
        self.ends = next;
    }

    /// The entries of a shard, with the buffers that it fills.
    pub(crate) fn shard(&mut self, shard: usize) -> Part<'_> {
        let start = if shard == 0 { 0 } else { self.ends[shard - 1] as usize };
        let entries = &self.entries[start..self.ends[shard] as usize];
        Part { entries, rows: &mut self.rows, absent: &mut self.absent }
    }
}

thread_local! {
    static ROUTE: RefCell<Route> = RefCell::default();
}

/// Lends the thread's route buffers.
pub(crate) fn with_route<R>(f: impl FnOnce(&mut Route) -> R) -> R {
    ROUTE.with_borrow_mut(f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_goes_to_its_shard_once() {
        for n in [0, 1, 2, 17, 5000] {
            let keys: Vec<u64> = (0..n).map(|i| i * 3).collect();
            let mut route = Route::default();
            route.assign(&[1, 2, 3]);
            route.assign(&keys);
            let mut seen = vec![0; keys.len()];
            for shard in 0..SHARDS {
                for entry in route.shard(shard).entries {
                    assert_eq!(entry.hash, mix(keys[entry.position as usize]));
                    assert_eq!(shard_of(entry.hash), shard);
                    seen[entry.position as usize] += 1;
                }
            }
            assert!(seen.iter().all(|&times| times == 1));
        }
    }
}
