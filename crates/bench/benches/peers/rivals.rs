//! Maps from keys to rows, each used as its authors advise: a fast hasher (foldhash, hashbrown's own default), room for
//! all keys reserved, one guard per request where there are guards. Knows nothing of how they are measured.

use std::sync::Arc;

use dashmap::DashMap;
use foldhash::fast::RandomState;
use sanderling_store::{Absent, Pooling, Table};

/// The contestants.
pub(crate) const NAMES: [&str; 8] = [
    "hashbrown",
    "hashbrown_two_pass",
    "dashmap_boxed",
    "dashmap_slab",
    "papaya",
    "scc_index",
    "scc_map",
    "sanderling",
];

/// Rows of `dim` weights one after the other.
pub(crate) struct Slab {
    pub(crate) dim: usize,
    pub(crate) weights: Vec<f32>,
}

impl Slab {
    #[inline]
    fn row(&self, row: u32) -> &[f32] {
        &self.weights[row as usize * self.dim..][..self.dim]
    }
}

/// One that takes part. All keys asked for are there.
pub(crate) trait Rival: Sync {
    /// Its name, one of [`NAMES`].
    fn name(&self) -> &'static str;
    /// Copies the rows of `keys` to `out`.
    fn pull(&self, keys: &[u64], out: &mut [f32]);
    /// Sums the rows of every bag; false if it does not take part in that.
    fn pull_pooled(&self, _keys: &[u64], _offsets: &[u32], _out: &mut [f32]) -> bool {
        false
    }
}

/// The rivals of these names, filled: key `i` of `keys` has row `i` of the slab, and of the table.
pub(crate) fn rivals<'a>(
    names: &[&str],
    keys: &dyn Fn() -> Box<dyn Iterator<Item = u64> + 'a>,
    slab: &Arc<Slab>,
    table: &'a Table,
) -> Vec<Box<dyn Rival + 'a>> {
    let len = slab.weights.len() / slab.dim;
    let rows = || keys().zip(0_u32..);
    let slab = || Arc::clone(slab);
    // Both ways of using it look at one map: they are never measured at once.
    let map = names.iter().any(|name| name.starts_with("hashbrown")).then(|| {
        let mut map = hashbrown::HashMap::with_capacity_and_hasher(len, RandomState::default());
        map.extend(rows());
        Arc::new(map)
    });
    let make = |name: &&str| -> Option<Box<dyn Rival + 'a>> {
        Some(match *name {
            "hashbrown" => Box::new(Plain { map: map.clone()?, slab: slab() }),
            "hashbrown_two_pass" => Box::new(TwoPass { map: map.clone()?, slab: slab() }),
            "dashmap_boxed" => {
                let (map, slab) = (DashMap::with_capacity_and_hasher(len, RandomState::default()), slab());
                rows().for_each(|(key, row)| drop(map.insert(key, Box::from(slab.row(row)))));
                Box::new(DashBoxed { map, dim: slab.dim })
            }
            "dashmap_slab" => {
                let map = DashMap::with_capacity_and_hasher(len, RandomState::default());
                rows().for_each(|(key, row)| _ = map.insert(key, row));
                Box::new(DashSlab { map, slab: slab() })
            }
            "papaya" => {
                let map = papaya::HashMap::builder().capacity(len).hasher(RandomState::default()).build();
                let pinned = map.pin();
                rows().for_each(|(key, row)| _ = pinned.insert(key, row));
                drop(pinned);
                Box::new(Papaya { map, slab: slab() })
            }
            "scc_index" => {
                let map = scc::HashIndex::with_capacity_and_hasher(len, RandomState::default());
                rows().for_each(|(key, row)| _ = map.insert_sync(key, row));
                Box::new(SccIndex { map, slab: slab() })
            }
            "scc_map" => {
                let map = scc::HashMap::with_capacity_and_hasher(len, RandomState::default());
                rows().for_each(|(key, row)| _ = map.insert_sync(key, row));
                Box::new(SccMap { map, slab: slab() })
            }
            "sanderling" => Box::new(Sanderling(table)),
            _ => return None,
        })
    };
    names.iter().filter_map(make).collect()
}

type Map = hashbrown::HashMap<u64, u32, RandomState>;

struct Plain {
    map: Arc<Map>,
    slab: Arc<Slab>,
}

impl Rival for Plain {
    fn name(&self) -> &'static str {
        "hashbrown"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
            if let Some(&row) = self.map.get(key) {
                out.copy_from_slice(self.slab.row(row));
            }
        }
    }

    fn pull_pooled(&self, keys: &[u64], offsets: &[u32], out: &mut [f32]) -> bool {
        for (bag, out) in offsets.windows(2).zip(out.chunks_exact_mut(self.slab.dim)) {
            out.fill(0.0);
            for key in &keys[bag[0] as usize..bag[1] as usize] {
                if let Some(&row) = self.map.get(key) {
                    out.iter_mut().zip(self.slab.row(row)).for_each(|(sum, weight)| *sum += weight);
                }
            }
        }
        true
    }
}

/// All look-ups first, then all copies: the processor overlaps more of them.
struct TwoPass {
    map: Arc<Map>,
    slab: Arc<Slab>,
}

/// Keys of one turn of the two passes; more than most requests have.
const TWO_PASS_KEYS: usize = 1024;

impl Rival for TwoPass {
    fn name(&self) -> &'static str {
        "hashbrown_two_pass"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        let mut rows = [0; TWO_PASS_KEYS];
        for (keys, out) in keys.chunks(TWO_PASS_KEYS).zip(out.chunks_mut(TWO_PASS_KEYS * self.slab.dim)) {
            for (key, row) in keys.iter().zip(&mut rows) {
                *row = self.map.get(key).copied().unwrap_or(u32::MAX);
            }
            for (&row, out) in rows.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
                if row != u32::MAX {
                    out.copy_from_slice(self.slab.row(row));
                }
            }
        }
    }

    fn pull_pooled(&self, keys: &[u64], offsets: &[u32], out: &mut [f32]) -> bool {
        let rows: Vec<u32> = keys.iter().map(|key| self.map.get(key).copied().unwrap_or(u32::MAX)).collect();
        for (bag, out) in offsets.windows(2).zip(out.chunks_exact_mut(self.slab.dim)) {
            out.fill(0.0);
            for &row in rows[bag[0] as usize..bag[1] as usize].iter().filter(|&&row| row != u32::MAX) {
                out.iter_mut().zip(self.slab.row(row)).for_each(|(sum, weight)| *sum += weight);
            }
        }
        true
    }
}

struct DashBoxed {
    map: DashMap<u64, Box<[f32]>, RandomState>,
    dim: usize,
}

impl Rival for DashBoxed {
    fn name(&self) -> &'static str {
        "dashmap_boxed"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.dim)) {
            if let Some(row) = self.map.get(key) {
                out.copy_from_slice(&row);
            }
        }
    }
}

struct DashSlab {
    map: DashMap<u64, u32, RandomState>,
    slab: Arc<Slab>,
}

impl Rival for DashSlab {
    fn name(&self) -> &'static str {
        "dashmap_slab"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
            if let Some(row) = self.map.get(key) {
                out.copy_from_slice(self.slab.row(*row));
            }
        }
    }
}

struct Papaya {
    map: papaya::HashMap<u64, u32, RandomState>,
    slab: Arc<Slab>,
}

impl Rival for Papaya {
    fn name(&self) -> &'static str {
        "papaya"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        let map = self.map.pin();
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
            if let Some(&row) = map.get(key) {
                out.copy_from_slice(self.slab.row(row));
            }
        }
    }
}

struct SccIndex {
    map: scc::HashIndex<u64, u32, RandomState>,
    slab: Arc<Slab>,
}

impl Rival for SccIndex {
    fn name(&self) -> &'static str {
        "scc_index"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        let guard = scc::Guard::new();
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
            if let Some(&row) = self.map.peek(key, &guard) {
                out.copy_from_slice(self.slab.row(row));
            }
        }
    }
}

struct SccMap {
    map: scc::HashMap<u64, u32, RandomState>,
    slab: Arc<Slab>,
}

impl Rival for SccMap {
    fn name(&self) -> &'static str {
        "scc_map"
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.slab.dim)) {
            self.map.read_sync(key, |_, &row| out.copy_from_slice(self.slab.row(row)));
        }
    }
}

struct Sanderling<'a>(&'a Table);

impl Rival for Sanderling<'_> {
    fn name(&self) -> &'static str {
        "sanderling"
    }

    // Requests of these shapes cannot fail; that nothing was absent is checked before anything is measured.
    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        let absent_keys = self.0.pull(keys, Absent::Zero, out, None);
        debug_assert!(matches!(absent_keys, Ok(0)));
    }

    fn pull_pooled(&self, keys: &[u64], offsets: &[u32], out: &mut [f32]) -> bool {
        let absent_keys = self.0.pull_pooled(keys, None, offsets, Pooling::Sum, Absent::Zero, out, None);
        debug_assert!(matches!(absent_keys, Ok(0)));
        true
    }
}
