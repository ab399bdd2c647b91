//! Iteration over rows and checkpoints during changes: each key at most once, permanent keys exactly once,
//! consistent rows. Also compares copy-on-write with updates in place. `SANDERLING_TEST_SECONDS` sets the duration
//! of the concurrent tests, 0.3 by default.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use crate::support::{Draw, Stop, duration};
use sanderling_store::{
    Block, Checkpoint, CheckpointWriter, Eviction, Init, Optimizer, PushScale, Row, StoreError, Table,
    TableConfig, Writes,
};

const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
const BOTH: [Writes; 2] = [Writes::InPlace, Writes::CopyOnWrite];

fn push(t: &Table, keys: &[u64], gradient: f32) -> Result<(), StoreError> {
    t.push(keys, &vec![gradient; keys.len() * t.dim()], PushScale::default())
}

fn walked(t: &Table) -> HashSet<u64> {
    let mut seen = HashSet::new();
    t.for_each_row(|row| assert!(seen.insert(row.key), "key {} twice", row.key));
    seen
}

/// Changes made by the function of a walk itself, and the expected end.
#[test]
fn walks_bear_any_change_in_the_middle() {
    type Change = fn(&Table);
    let changes: [(&str, Change); 5] = [
        ("push all", |t| push(t, &(0..20_000).collect::<Vec<_>>(), 1.0).unwrap()),
        ("push twice", |t| (0..2).for_each(|_| push(t, &(0..20_000).collect::<Vec<_>>(), 1.0).unwrap())),
        ("push others", |t| push(t, &(1 << 40..(1 << 40) + 20_000).collect::<Vec<_>>(), 1.0).unwrap()),
        ("maintain", |t| _ = t.maintain(1 << 20)),
        ("reserve", |t| assert!(t.reserve(100_000))),
    ];
    for writes in BOTH {
        for (what, change) in changes {
            let t =
                Table::new(TableConfig { writes, ..TableConfig::single("t", 2, Init::Zero, SGD) }).unwrap();
            let keys: Vec<u64> = (0..20_000).collect();
            push(&t, &keys, 1.0).unwrap();
            for when in [0, 9_999, 19_999] {
                let (mut seen, mut number) = (HashSet::new(), 0);
                t.for_each_row(|row| {
                    if number == when {
                        change(&t);
                    }
                    number += 1;
                    assert!(seen.insert(row.key), "{what}: key {} twice", row.key);
                });
                let missing = keys.iter().filter(|key| !seen.contains(key)).count();
                assert_eq!(missing, 0, "{writes:?}, {what} at {when}");
                // Nothing remains of the walk that disturbs the next one.
                assert_eq!(walked(&t).len(), t.len(), "{writes:?}, {what} at {when}");
            }
        }
    }
}

/// A panic of the walk's function leaves no marks that hide rows from the next walk.
#[test]
fn a_walk_that_panics_is_over() {
    for writes in BOTH {
        for when in [0, 2_500, 4_999] {
            let t =
                Table::new(TableConfig { writes, ..TableConfig::single("t", 2, Init::Zero, SGD) }).unwrap();
            push(&t, &(0..5_000).collect::<Vec<_>>(), 1.0).unwrap();
            for by_key in [false, true] {
                let mut number = 0;
                let mut panic_in_time = || {
                    // Copy-on-write moves rows before they are visited.
                    if number == when / 2 {
                        push(&t, &(0..5_000).collect::<Vec<_>>(), 1.0).unwrap();
                    }
                    if number == when {
                        panic_any("in the middle of a walk");
                    }
                    number += 1;
                };
                let walk = || match by_key {
                    false => t.for_each_row(|_| panic_in_time()),
                    true => t.for_each_key(|_| true, |_| panic_in_time()),
                };
                assert!(catch_unwind(AssertUnwindSafe(walk)).is_err());
                push(&t, &(4_000..7_000).collect::<Vec<_>>(), 1.0).unwrap();
                assert_eq!(walked(&t), (0..7_000).collect(), "{writes:?}, at {when}");
                let (mut keys, mut shown) = (HashSet::new(), 0);
                t.for_each_key(
                    |_| true,
                    |key| {
                        keys.insert(key);
                        shown += 1;
                    },
                );
                assert_eq!((keys.len(), shown), (7_000, 7_000), "{writes:?}, at {when}");
                (5_000..7_000).for_each(|key| assert!(t.remove(key)));
            }
        }
    }
}

/// Keys removed during a walk, and inserted again: seen at most once, and by the next walk all of them.
#[test]
fn what_goes_and_comes_during_a_walk_is_in_the_next() {
    for writes in BOTH {
        for all_at_once in [true, false] {
            let t =
                Table::new(TableConfig { writes, ..TableConfig::single("t", 2, Init::Zero, SGD) }).unwrap();
            let keys: Vec<u64> = (0..20_000).collect();
            push(&t, &keys, 1.0).unwrap();
            for when in [0, 5_000, 15_000] {
                let (mut seen, mut number) = (HashSet::new(), 0);
                t.for_each_row(|row| {
                    assert!(seen.insert(row.key), "key {} twice", row.key);
                    if number == when {
                        if all_at_once {
                            t.clear();
                        } else {
                            keys.iter().for_each(|&key| assert!(t.remove(key)));
                        }
                        if !all_at_once {
                            push(&t, &keys, 1.0).unwrap();
                            push(&t, &keys, 1.0).unwrap();
                        }
                    }
                    number += 1;
                });
                push(&t, &keys, 1.0).unwrap();
                assert_eq!(walked(&t).len(), keys.len(), "{writes:?}, all at once: {all_at_once}, at {when}");
            }
        }
    }
}

/// Weights are `key % 1000` plus the number of updates, equal in all coordinates.
#[test]
fn checkpoints_are_whole_while_the_table_changes() {
    const DIM: usize = 9;
    for writes in BOTH {
        for eviction in [Eviction::Never, Eviction::Clock] {
            let budget_bytes = (eviction == Eviction::Clock).then_some(4 << 20);
            let config = TableConfig {
                writes,
                eviction,
                budget_bytes,
                ..TableConfig::single("t", DIM, Init::Zero, SGD)
            };
            let (t, stop, start) = (Table::new(config).unwrap(), AtomicBool::new(false), Instant::now());
            let stay: Vec<u64> = (0..3000).collect();
            let first = |keys: &[u64]| {
                let gradients: Vec<f32> = keys.iter().flat_map(|key| [-((key % 1000) as f32); DIM]).collect();
                t.push(keys, &gradients, PushScale::default()).unwrap();
            };
            first(&stay);
            let whole = |key: u64, version: u32, weights: &[f32]| {
                let mut expected = (key % 1000) as f32 + (version - 1) as f32;
                if eviction == Eviction::Clock && weights[0] != expected {
                    // It was evicted and created again by an update.
                    expected = version as f32;
                }
                assert!(weights.iter().all(|&w| w == expected), "key {key}, version {version}: {weights:?}");
            };
            thread::scope(|scope| {
                for number in 0..2_u64 {
                    let (t, stop, first) = (&t, &stop, &first);
                    scope.spawn(move || {
                        let mut draw = Draw(number);
                        let mut new = (number + 1) << 40;
                        while !stop.load(Relaxed) {
                            // Often enough for CLOCK to keep them.
                            let mut request: Vec<u64> = (0..600).map(|_| draw.below(3000)).collect();
                            request.sort_unstable();
                            request.dedup();
                            push(t, &request, -1.0).unwrap();
                            let others: Vec<u64> = (new..new + 100).collect();
                            first(&others);
                            new += 100;
                            (0..90).for_each(|_| _ = t.remove(new - 1 - draw.below(1000)));
                        }
                    });
                }
                let (dir, _stop) = (tempfile::tempdir().unwrap(), Stop(&stop));
                while start.elapsed() < duration() {
                    let mut seen = HashSet::new();
                    t.for_each_row(|row| {
                        assert!(seen.insert(row.key), "key {} twice", row.key);
                        whole(row.key, row.version, row.weights);
                    });
                    let missing: Vec<_> = stay.iter().filter(|&key| !seen.contains(key)).collect();
                    assert!(eviction == Eviction::Clock || missing.is_empty(), "{writes:?}: {missing:?}");
                    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
                    writer.table(&t).unwrap();
                    writer.commit().unwrap();
                    let loaded = Checkpoint::open(dir.path()).unwrap().load_table("t").unwrap();
                    loaded.for_each_row(|row| whole(row.key, row.version, row.weights));
                    let missing = stay.iter().filter(|&&key| loaded.get(key).is_none()).count();
                    assert!(eviction == Eviction::Clock || missing == 0, "{writes:?}: {missing}");
                }
            });
            assert_eq!(walked(&t).len(), t.len());
        }
    }
}

fn rows(t: &Table) -> HashMap<u64, Row> {
    walked(t).into_iter().map(|key| (key, t.get(key).unwrap())).collect()
}

#[test]
fn copies_on_write_end_up_as_updates_in_place() {
    let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 };
    let ftrl = Optimizer::Ftrl { alpha: 0.2, beta: 1.0, l1: 0.05, l2: 0.1 };
    for (dims, optimizer) in [(1, ftrl), (5, adam), (37, SGD)] {
        for full in [false, true] {
            let tables = BOTH.map(|writes| {
                let blocks = vec![Block { dims, init: Init::Zero, optimizer }];
                let budget_bytes = (writes == Writes::CopyOnWrite && full).then_some(400 << 10);
                Table::new(TableConfig { writes, budget_bytes, ..TableConfig::new("t", blocks) }).unwrap()
            });
            let [in_place, copied] = &tables;
            let mut keys: Vec<u64> = (0..3000).map(|i| i << 20).collect();
            if full {
                let more: Vec<u64> = (0..40_000).map(|i| i << 20).collect();
                assert!(matches!(push(copied, &more, 0.0), Err(StoreError::TableFull { .. })));
                keys.extend(&more[3000..]);
                keys.retain(|&key| copied.get(key).is_some());
                push(in_place, &keys, 0.0).unwrap();
                assert_eq!((copied.len(), in_place.len()), (keys.len(), keys.len()));
            }
            let mut draw = Draw(dims as u64);
            for round in 0..30 {
                let request: Vec<u64> =
                    (0..500 + round * 50).map(|_| keys[draw.below(keys.len() as u64) as usize]).collect();
                let gradients: Vec<f32> =
                    (0..request.len() * dims).map(|_| draw.below(1000) as f32 / 500.0 - 1.0).collect();
                for t in &tables {
                    t.push(&request, &gradients, PushScale { lr_scale: 0.5 }).unwrap();
                }
                if !full {
                    let gone = keys[draw.below(keys.len() as u64) as usize];
                    assert_eq!(in_place.remove(gone), copied.remove(gone));
                }
            }
            assert!(rows(in_place) == rows(copied), "dims {dims}, full: {full}");
            assert_eq!(copied.stats().rows, copied.len() as u64);
        }
    }
}

/// Several threads compete for the last rows of a copy-on-write table: afterwards every row can be updated.
#[test]
fn a_full_table_can_be_updated_still() {
    for round in 0..20 {
        let budget_bytes = Some(260 << 10);
        let config = TableConfig {
            writes: Writes::CopyOnWrite,
            budget_bytes,
            ..TableConfig::single("t", 20, Init::Zero, SGD)
        };
        let t = Table::new(config).unwrap();
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let t = &t;
                scope.spawn(move || {
                    let mut draw = Draw(round * 4 + number);
                    for _ in 0..200 {
                        let first = draw.below(4000);
                        // Full or not, existing rows are updated.
                        let _ = push(t, &(first..first + 50).collect::<Vec<_>>(), 1.0);
                    }
                });
            }
        });
        let keys: Vec<u64> = walked(&t).into_iter().collect();
        push(&t, &keys, 1.0).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// Threads update the rows of a full copy-on-write table, each more at a time than there are spare rows: no row is
/// rejected, and no update is lost.
#[test]
fn a_full_table_updates_its_rows_whoever_else_does() {
    const THREADS: usize = 3;
    for eviction in [Eviction::Never, Eviction::Age { pushes: 1 << 30 }] {
        for spare in [1, 100] {
            let (writes, budget_bytes) = (Writes::CopyOnWrite, Some(600 << 10));
            let config = TableConfig::single("t", 20, Init::Zero, SGD);
            let t = Table::new(TableConfig { writes, eviction, budget_bytes, ..config }).unwrap();
            let full = push(&t, &(0..10_000).collect::<Vec<_>>(), -1.0);
            assert!(matches!(full, Err(StoreError::TableFull { .. })), "{full:?}");
            let mut keys: Vec<u64> = walked(&t).into_iter().collect();
            assert!(keys.len() > 500, "{} rows", keys.len());
            keys.drain(..spare - 1).for_each(|key| assert!(t.remove(key)));
            let (before, rounds) = (t.stats(), 100);
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (t, keys) = (&t, &keys);
                    scope.spawn(move || {
                        for round in 0..rounds {
                            let half = keys.len() / 2;
                            let (first, second) = keys.split_at(half);
                            for keys in [first, second] {
                                push(t, keys, -1.0)
                                    .unwrap_or_else(|error| panic!("{thread}, round {round}: {error}"));
                            }
                        }
                    });
                }
            });
            let updates = 1 + THREADS * rounds;
            t.for_each_row(|row| {
                assert_eq!((row.weights, row.version as usize), (&[updates as f32; 20][..], updates));
            });
            let after = t.stats();
            assert_eq!(
                (after.rows, after.free_rows, after.rejected_full),
                (before.rows, before.free_rows, before.rejected_full)
            );
        }
    }
}
