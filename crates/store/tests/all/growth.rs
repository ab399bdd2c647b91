//! The index grows beside pushes, pulls, removals, evictions and walks: every thread finds its own keys with the
//! weights that it gave them. `SANDERLING_TEST_SECONDS` sets the duration of each test, 0.3 by default.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use crate::support::{Draw, Stop, duration};
use sanderling_store::{
    Absent, Eviction, Init, Optimizer, PushScale, StoreError, Table, TableConfig, Writes,
};

const OWNERS: u64 = 3;
/// Keys of an owner, at most: enough for shares that take several pushes to move.
const KEYS: u64 = if cfg!(miri) { 100 } else { 20_000 };

fn config(writes: Writes) -> TableConfig {
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    TableConfig { writes, ..TableConfig::single("t", 1, Init::Zero, sgd) }
}

/// Pushes 1 to the weight of every key; returns whether all had room.
fn add_one(t: &Table, keys: &[u64]) -> bool {
    match t.push(keys, &vec![-1.0; keys.len()], PushScale::default()) {
        Ok(()) => true,
        Err(StoreError::TableFull { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A thread that alone changes its keys, and knows their weights.
struct Owner<'a> {
    t: &'a Table,
    first: u64,
    weights: HashMap<u64, f32>,
    draw: Draw,
}

impl<'a> Owner<'a> {
    fn new(t: &'a Table, number: u64) -> Owner<'a> {
        Owner { t, first: number << 48, weights: HashMap::new(), draw: Draw(number) }
    }

    /// Some of the first `below` keys, each once.
    fn some_keys(&mut self, below: u64) -> Vec<u64> {
        let (first, len) = (self.draw.below(below), 1 + self.draw.below(500));
        (first..first + len).map(|key| self.first + key % (below + 500)).collect()
    }

    /// Pushes to new and to old keys, removes a few, and looks some up.
    fn step(&mut self, made: u64) {
        let keys = self.some_keys(made + 1);
        assert!(add_one(self.t, &keys));
        keys.iter().for_each(|&key| *self.weights.entry(key).or_insert(0.0) += 1.0);
        for key in self.some_keys(made + 1).into_iter().take(20) {
            assert_eq!(self.t.remove(key), self.weights.remove(&key).is_some());
        }
        let keys = self.some_keys(made + 1);
        self.check(&keys);
    }

    fn check(&self, keys: &[u64]) {
        let (mut out, mut missing) = (vec![9.0; keys.len()], Vec::new());
        let absent = self.t.pull(keys, Absent::Zero, &mut out, Some(&mut missing)).unwrap();
        assert_eq!(absent, missing.len());
        let expected: Vec<f32> =
            keys.iter().map(|key| self.weights.get(key).copied().unwrap_or(0.0)).collect();
        assert_eq!(out, expected);
        for (at, key) in keys.iter().enumerate().step_by(50) {
            let is_missing = missing.binary_search(&(at as u32)).is_ok();
            assert_eq!(
                (is_missing, self.t.get(*key).is_none()),
                (!self.weights.contains_key(key), is_missing)
            );
        }
    }
}

#[test]
fn owners_find_their_keys_while_the_index_grows() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let start = Instant::now();
        while start.elapsed() < duration() / 2 {
            let t = Table::new(config(writes)).unwrap();
            // Keys that no thread changes.
            let steady: Vec<u64> = (0..1000).map(|key| OWNERS << 48 | key).collect();
            assert!(add_one(&t, &steady));
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let owners: Vec<_> = (0..OWNERS)
                    .map(|number| {
                        let mut owner = Owner::new(&t, number);
                        scope.spawn(move || {
                            (0..KEYS).step_by(200).for_each(|made| owner.step(made));
                            owner
                        })
                    })
                    .collect();
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        let mut seen = HashSet::new();
                        t.for_each_key(|key| key >> 48 == OWNERS, |key| assert!(seen.insert(key)));
                        assert_eq!(seen.len(), steady.len());
                        t.maintain(100);
                        if !cfg!(miri) {
                            thread::yield_now();
                        }
                    }
                });
                let _stop = Stop(&stop);
                let mut rows = steady.len();
                for owner in owners {
                    let owner = owner.join().unwrap();
                    let keys: Vec<u64> = (0..KEYS + 500).map(|key| owner.first + key).collect();
                    owner.check(&keys);
                    rows += owner.weights.len();
                }
                assert_eq!((t.len(), t.stats().rows), (rows, rows as u64));
            });
        }
    }
}

/// The index of a table with a budget grows while rows are evicted: a weight is what was pushed, or the row is gone.
#[test]
fn rows_are_evicted_while_the_index_grows() {
    for (writes, eviction) in [
        (Writes::InPlace, Eviction::Clock),
        (Writes::CopyOnWrite, Eviction::Clock),
        (Writes::InPlace, Eviction::Age { pushes: 50 }),
    ] {
        let start = Instant::now();
        while start.elapsed() < duration() / 3 {
            let budget_bytes = Some(3 << 20);
            let t = Table::new(TableConfig { eviction, budget_bytes, ..config(writes) }).unwrap();
            thread::scope(|scope| {
                for number in 0..OWNERS {
                    let t = &t;
                    scope.spawn(move || {
                        let mut owner = Owner::new(t, number);
                        for made in (0..KEYS).step_by(200) {
                            let keys = owner.some_keys(made + 1);
                            let is_all = add_one(t, &keys);
                            assert!(is_all || eviction != Eviction::Clock);
                            keys.iter().for_each(|&key| *owner.weights.entry(key).or_insert(0.0) += 1.0);
                            let keys = owner.some_keys(made + 1);
                            let mut out = vec![9.0; keys.len()];
                            t.pull(&keys, Absent::Zero, &mut out, None).unwrap();
                            for (key, weight) in keys.iter().zip(out) {
                                // Pushes before an eviction are gone.
                                let pushes = owner.weights.get(key).copied().unwrap_or(0.0);
                                assert!(
                                    (0.0..=pushes).contains(&weight) && weight.fract() == 0.0,
                                    "{weight}"
                                );
                            }
                            for key in owner.some_keys(made + 1).into_iter().take(10) {
                                t.remove(key);
                                owner.weights.remove(&key);
                                assert!(t.get(key).is_none());
                            }
                        }
                    });
                }
            });
            let (stats, mut rows) = (t.stats(), 0);
            t.for_each_row(|row| {
                rows += 1;
                assert_eq!(row.weights, [row.version as f32], "key {}", row.key);
            });
            assert!(
                stats.rows == rows && budget_bytes.is_some_and(|budget| t.bytes() <= budget),
                "{stats:?}"
            );
        }
    }
}
