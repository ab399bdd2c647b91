//! Concurrent writers and readers: rows are consistent, and present keys are found while the index grows and other
//! keys are removed. `SANDERLING_TEST_SECONDS` sets the duration of each test, 0.3 by default.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Draw, Stop, always, duration};
use sanderling_store::{
    Absent, CacheBuffers, Eviction, Init, Maintenance, Optimizer, Packing, Pooling, PushScale, Table,
    TableConfig, Writes,
};

const DIM: usize = 37;
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };

fn table(dim: usize) -> Table {
    Table::new(TableConfig::single("t", dim, Init::Zero, SGD)).unwrap()
}

/// Continues for the duration of a test, and longer until something has happened, for sanitizers and busy machines.
fn goes_on(start: Instant, has_happened: impl Fn() -> bool) -> bool {
    let longest = Duration::from_secs(100).max(100 * duration());
    start.elapsed() < duration() || (!has_happened() && start.elapsed() < longest)
}

/// Weights are small integers, exact in f32, and the last one is a checksum. Pushes preserve it, so that a torn row
/// is detected.
fn gradient(draw: &mut Draw) -> [f32; DIM] {
    let mut gradient = [0.0; DIM];
    for g in &mut gradient[..DIM - 1] {
        *g = draw.below(7) as f32 - 3.0;
    }
    gradient[DIM - 1] = checksum(&gradient);
    gradient
}

fn checksum(row: &[f32]) -> f32 {
    row[..DIM - 1].iter().enumerate().map(|(at, w)| w * (at % 5 + 1) as f32).sum()
}

fn assert_whole(row: &[f32]) {
    assert_eq!(row[DIM - 1], checksum(row), "a torn row: {row:?}");
}

#[test]
fn rows_are_seen_whole() {
    rows_are_seen_whole_in(TableConfig::single("t", DIM, Init::Zero, SGD));
}

/// Neighbouring rows share cache lines.
#[test]
fn compact_rows_are_seen_whole() {
    let packing = Packing::Compact;
    rows_are_seen_whole_in(TableConfig { packing, ..TableConfig::single("t", DIM, Init::Zero, SGD) });
}

#[test]
fn copied_rows_are_seen_whole() {
    let writes = Writes::CopyOnWrite;
    rows_are_seen_whole_in(TableConfig { writes, ..TableConfig::single("t", DIM, Init::Zero, SGD) });
    // The budget leaves hardly a spare row.
    let budget_bytes = Some(150 << 10);
    let config = TableConfig { writes, budget_bytes, ..TableConfig::single("t", DIM, Init::Zero, SGD) };
    rows_are_seen_whole_in(TableConfig { eviction: Eviction::Clock, ..config });
}

fn rows_are_seen_whole_in(config: TableConfig) {
    let (t, stop) = (Table::new(config).unwrap(), AtomicBool::new(false));
    let in_place = t.config().writes == Writes::InPlace;
    let keys = if in_place { 50 } else { 450 };
    thread::scope(|scope| {
        for thread in 0..2 {
            let (t, stop) = (&t, &stop);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                while !stop.load(Relaxed) {
                    let request: Vec<u64> = (0..20).map(|_| draw.below(keys) << 20).collect();
                    let grads: Vec<f32> = request.iter().flat_map(|_| gradient(&mut draw)).collect();
                    t.push(&request, &grads, PushScale::default()).unwrap();
                }
            });
            scope.spawn(move || {
                let mut draw = Draw(thread + 10);
                let mut out = vec![0.0; 100 * DIM];
                while !stop.load(Relaxed) {
                    let request: Vec<u64> = (0..100).map(|_| draw.below(keys) << 20).collect();
                    t.pull(&request, Absent::Zero, &mut out, None).unwrap();
                    out.chunks(DIM).for_each(assert_whole);
                    t.for_each_row(|row| assert_whole(row.weights));
                    if let Some(row) = t.get(request[0]) {
                        assert_whole(&row.weights);
                    }
                }
            });
        }
        // Another thread updates rows by handle, exclusively.
        scope.spawn(|| {
            let _stop = Stop(&stop);
            let (mut draw, start, mut handles) = (Draw(99), Instant::now(), Vec::new());
            while start.elapsed() < duration() {
                if !in_place {
                    t.maintain(1000);
                    thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let request: Vec<u64> = (0..20).map(|_| draw.below(keys) << 20).collect();
                handles.clear();
                let mut writer = t.writer(PushScale::default()).unwrap();
                writer.resolve(&request, &mut handles).unwrap();
                for &handle in &handles {
                    writer.update(handle, &gradient(&mut draw));
                    assert_whole(writer.weights(handle));
                }
                drop(writer);
                thread::yield_now();
            }
        });
    });
    t.for_each_row(|row| assert_whole(row.weights));
}

/// Present keys are found with their weights while many others are inserted and the index is replaced repeatedly. A
/// pooled pull whose validation fails repeats its chunk in the middle of a sample, without adding a row twice.
#[test]
fn sums_are_of_whole_rows_each_added_once() {
    const KEYS: u64 = 7;
    let table = table(DIM);
    let ones = vec![-1.0; KEYS as usize * DIM];
    let keys: Vec<u64> = (0..KEYS).collect();
    table.push(&keys, &ones, PushScale::default()).unwrap();
    let done = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        let _stop = Stop(&done);
        scope.spawn(|| {
            // Every weight is 1 or 2.
            for sign in [-1.0, 1.0].into_iter().cycle() {
                if done.load(Relaxed) {
                    return;
                }
                let gradients: Vec<f32> = ones.iter().map(|one| one * -sign).collect();
                table.push(&keys, &gradients, PushScale::default()).unwrap();
                thread::yield_now();
            }
        });
        // More keys than a chunk, with samples across the boundary.
        let offsets = [0, 1000, 1000, 5000, 5003, 9000];
        let keys: Vec<u64> = (0..9000).map(|at| at % KEYS).collect();
        let mut out = vec![0.0; 5 * DIM];
        while start.elapsed() < duration() {
            table.pull_pooled(&keys, None, &offsets, Pooling::Sum, Absent::Zero, &mut out, None).unwrap();
            for (sums, pair) in out.chunks_exact(DIM).zip(offsets.windows(2)) {
                let keys = (pair[1] - pair[0]) as f32;
                assert!(keys <= sums[0] && sums[0] <= 2.0 * keys, "{} of {keys} keys", sums[0]);
                assert_eq!(sums, [sums[0]; DIM]);
            }
        }
    });
}

#[test]
fn readers_go_on_while_the_index_grows() {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    while start.elapsed() < duration() {
        stop.store(false, Relaxed);
        let t = table(1);
        let known: Vec<u64> = (1..=500).map(|i| i * 7919).collect();
        t.push(&known, &vec![-3.0; known.len()], PushScale::default()).unwrap();
        thread::scope(|scope| {
            let _stop = Stop(&stop);
            for _ in 0..2 {
                scope.spawn(|| {
                    let (mut out, mut missing) = (vec![0.0; known.len()], Vec::new());
                    while !stop.load(Relaxed) {
                        let absent = t.pull(&known, Absent::Zero, &mut out, Some(&mut missing)).unwrap();
                        assert_eq!((absent, missing.len()), (0, 0));
                        assert!(out.iter().all(|&w| w == 3.0));
                    }
                });
            }
            let writers: Vec<_> = (0..2_u64)
                .map(|thread| {
                    let t = &t;
                    scope.spawn(move || {
                        for first in (0..150_000_u64).step_by(1000) {
                            // Both threads create every other key.
                            let new: Vec<u64> =
                                (first..first + 1000).map(|i| (i << 30) + i % 2 * (thread + 1)).collect();
                            t.push(&new, &vec![1.0; new.len()], PushScale::default()).unwrap();
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
        // Common keys, keys of each thread, and the known keys.
        assert_eq!(t.len(), 75_000 + 2 * 75_000 + known.len());
    }
}

/// Rows are created, removed and reused under readers: the weights of a key are its own or zero.
#[test]
fn removed_rows_are_never_another_keys() {
    let (t, stop) = (table(DIM), AtomicBool::new(false));
    let keys = 3000_u64;
    let weights = |key: u64| -> Vec<f32> { (0..DIM).map(|at| -((key * 3 + at as u64 + 1) as f32)).collect() };
    thread::scope(|scope| {
        for thread in 0..2 {
            let (t, stop) = (&t, &stop);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                let mut out = vec![0.0; 200 * DIM];
                while !stop.load(Relaxed) {
                    let request: Vec<u64> = (0..200).map(|_| draw.below(keys)).collect();
                    t.pull(&request, Absent::Zero, &mut out, None).unwrap();
                    for (key, row) in request.iter().zip(out.chunks(DIM)) {
                        if row[0] != 0.0 {
                            let one: Vec<f32> = weights(*key).iter().map(|w| -w).collect();
                            assert_eq!(row, one, "key {key}");
                        } else {
                            assert!(row.iter().all(|&w| w == 0.0), "a torn row: {row:?}");
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            let _stop = Stop(&stop);
            let (mut draw, start) = (Draw(77), Instant::now());
            while start.elapsed() < duration() {
                let mut request: Vec<u64> = (0..100).map(|_| draw.below(keys)).collect();
                request.sort_unstable();
                request.dedup();
                for &key in &request {
                    t.remove(key);
                }
                let grads: Vec<f32> = request.iter().flat_map(|&key| weights(key)).collect();
                t.push(&request, &grads, PushScale::default()).unwrap();
                for &key in request.iter().step_by(2) {
                    t.remove(key);
                }
            }
        });
    });
    let (stats, bytes) = (t.stats(), t.bytes());
    assert!(stats.rows + stats.free_rows <= keys + 300, "rows are reused: {stats:?}");
    assert_eq!(stats.index_bytes + stats.slab_bytes, bytes);
}

/// Four threads create and update the same keys: no key gets two rows, and no update is lost.
#[test]
fn a_key_gets_one_row_whoever_makes_it() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let start = Instant::now();
        while start.elapsed() < duration() / 2 {
            let t =
                Table::new(TableConfig { writes, ..TableConfig::single("t", 2, Init::Zero, SGD) }).unwrap();
            let (keys, pushes) = (5000_u64, 3);
            thread::scope(|scope| {
                for thread in 0..4 {
                    let t = &t;
                    scope.spawn(move || {
                        // Each in a different order.
                        let request: Vec<u64> =
                            (0..keys).map(|i| ((i * (thread * 2 + 7)) % keys) << 17).collect();
                        for _ in 0..pushes {
                            for request in request.chunks(700) {
                                t.push(request, &vec![-1.0; request.len() * 2], PushScale::default())
                                    .unwrap();
                            }
                        }
                    });
                }
            });
            let mut rows = 0;
            t.for_each_row(|row| {
                rows += 1;
                // 5000 and the strides are coprime: each key once per push and thread.
                assert_eq!((row.weights, row.version, row.frequency), (&[12.0; 2][..], 12, 12), "{writes:?}");
            });
            let stats = t.stats();
            assert_eq!((rows, stats.rows, stats.admitted), (keys, keys, keys), "{writes:?}");
        }
    }
}

/// Hot keys are promoted in a crowded index under readers and writers, and no present key is missed.
#[test]
fn keys_are_found_while_they_move_home() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        // Room for all rows, but not for a larger index.
        let sized = table(2);
        assert!(sized.reserve(16_000));
        let budget_bytes = Some(sized.bytes() + (1 << 20) + (100 << 10));
        let config = TableConfig { writes, budget_bytes, ..TableConfig::single("t", 2, Init::Zero, SGD) };
        let t = Arc::new(Table::new(config).unwrap());
        assert!(t.reserve(16_000));
        t.maintain(1);
        let keys: Vec<u64> = (0..22_000).map(|i: u64| i << 20).collect();
        for keys in keys.chunks(1000) {
            t.push(keys, &vec![-1.0; keys.len() * 2], PushScale::default()).unwrap();
        }
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (t, stop, keys) = (&t, &stop, &keys);
                scope.spawn(move || {
                    let mut draw = Draw(thread);
                    let mut out = vec![0.0; 512 * 2];
                    let mut hot = 0;
                    while !stop.load(Relaxed) {
                        // Other keys become hot now and then, so that keys displace each other.
                        hot += u64::from(draw.below(200) == 0);
                        let request: Vec<u64> = (0..512)
                            .map(|_| keys[(hot * 2200 + draw.below(2200)) as usize % keys.len()])
                            .collect();
                        if thread == 2 {
                            t.push(&request, &[-1.0; 1024], PushScale::default()).unwrap();
                        }
                        assert_eq!(t.pull(&request, Absent::Zero, &mut out, None).unwrap(), 0);
                        assert!(out.chunks(2).all(|row| row[0] == row[1] && row[0] >= 1.0));
                        assert!(t.get(request[0]).is_some());
                    }
                });
            }
            let (_stop, start) = (Stop(&stop), Instant::now());
            let maintenance = Maintenance::start(always(&t)).unwrap();
            while goes_on(start, || t.stats().promoted > 100) {
                thread::sleep(Duration::from_millis(10));
            }
            drop(maintenance);
        });
        assert!(t.stats().promoted > 100, "{:?}", t.stats());
        assert_eq!((t.len(), t.stats().admitted), (22_000, 22_000));
    }
}

/// Rows are evicted under readers, while the table is cleared and, where possible, changed by an exclusive writer.
/// The weights of a key are its own.
#[test]
fn eviction_goes_on_beside_everything() {
    for (writes, eviction) in [
        (Writes::InPlace, Eviction::Clock),
        (Writes::CopyOnWrite, Eviction::Clock),
        (Writes::InPlace, Eviction::Age { pushes: 3 }),
    ] {
        let budget_bytes = Some(700 << 10);
        let config =
            TableConfig { writes, eviction, budget_bytes, ..TableConfig::single("t", DIM, Init::Zero, SGD) };
        let (t, stop) = (Table::new(config).unwrap(), AtomicBool::new(false));
        let keys = 20_000;
        let weights =
            |key: u64| -> Vec<f32> { (0..DIM).map(|at| (key * 3 + at as u64 + 1) as f32).collect() };
        thread::scope(|scope| {
            for thread in 0..2 {
                let (t, stop) = (&t, &stop);
                scope.spawn(move || {
                    let mut draw = Draw(thread);
                    while !stop.load(Relaxed) {
                        let mut request: Vec<u64> = (0..300).map(|_| draw.below(keys)).collect();
                        request.sort_unstable();
                        request.dedup();
                        let grads: Vec<f32> =
                            request.iter().flat_map(|&key| weights(key).into_iter().map(|w| -w)).collect();
                        let pushed = t.push(&request, &grads, PushScale::default());
                        assert!(eviction != Eviction::Clock || pushed.is_ok(), "{writes:?}: {pushed:?}");
                    }
                });
                scope.spawn(move || {
                    let mut draw = Draw(thread + 10);
                    let mut out = vec![0.0; 200 * DIM];
                    while !stop.load(Relaxed) {
                        let request: Vec<u64> = (0..200).map(|_| draw.below(keys)).collect();
                        t.pull(&request, Absent::Zero, &mut out, None).unwrap();
                        for (key, row) in request.iter().zip(out.chunks(DIM)) {
                            // Once per push.
                            let (one, times) = (weights(*key), row[0] / weights(*key)[0]);
                            assert!(
                                row.iter().zip(one).all(|(&w, one)| w == one * times),
                                "key {key}: {row:?}"
                            );
                        }
                    }
                });
            }
            let (_stop, start, mut draw) = (Stop(&stop), Instant::now(), Draw(33));
            while goes_on(start, || t.stats().evicted > 0) {
                match draw.below(20) {
                    0 => t.clear(),
                    1..4 => _ = t.maintain(10_000),
                    4..7 => _ = (0..500).filter(|_| t.remove(draw.below(keys))).count(),
                    7 => _ = t.reserve(draw.below(1000)),
                    8 => {
                        let mut rows = std::collections::HashSet::new();
                        t.for_each_row(|row| assert!(rows.insert(row.key)));
                    }
                    _ if writes == Writes::InPlace => {
                        let mut writer = t.writer(PushScale::default()).unwrap();
                        let (mut handles, key) = (Vec::new(), draw.below(keys));
                        if writer.resolve(&[key], &mut handles).is_ok() {
                            let gradient: Vec<f32> = weights(key).into_iter().map(|w| -w).collect();
                            writer.update(handles[0], &gradient);
                        }
                    }
                    _ => thread::yield_now(),
                }
            }
        });
        let (stats, mut rows) = (t.stats(), 0);
        t.for_each_row(|_| rows += 1);
        assert!(
            stats.rows == rows && stats.evicted > 0 && budget_bytes.is_some_and(|budget| t.bytes() <= budget),
            "{stats:?}"
        );
    }
}

/// Workers learn on cached rows while rows are evicted, removed and reused: the updates of a key are in its own
/// row, or gone with it.
#[test]
fn copies_are_settled_in_rows_of_their_own_key() {
    const KEYS: u64 = 30_000;
    let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
    let budget_bytes = Some(1 << 20);
    let config = TableConfig::single("t", 2, Init::Zero, ftrl);
    let t = Table::new(TableConfig { eviction: Eviction::Clock, budget_bytes, ..config }).unwrap();
    // Squares of these, and their sums, are exact in f32.
    let slope = |key: u64| 1.0 + (key % 7) as f32 / 8.0;
    let (stop, settled) = (AtomicBool::new(false), AtomicBool::new(false));
    let (t, stop, settled) = (&t, &stop, &settled);
    thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                let (mut draw, mut near) = (Draw(thread), CacheBuffers::default());
                while !stop.load(Relaxed) {
                    let mut rows = t.local_cache(PushScale::default(), &mut near).unwrap();
                    let mut handles = Vec::new();
                    let keys: Vec<u64> = (0..300).map(|_| draw.below(KEYS)).collect();
                    rows.resolve(&keys, &mut handles);
                    let gradients: Vec<f32> = keys.iter().flat_map(|&key| [slope(key); 2]).collect();
                    rows.update_all(&handles, &gradients);
                    rows.flush().unwrap();
                    settled.store(true, Relaxed);
                }
            });
        }
        let (_stop, start, mut draw) = (Stop(stop), Instant::now(), Draw(33));
        while goes_on(start, || t.stats().evicted > 0 && settled.load(Relaxed)) {
            match draw.below(800) {
                0 => t.clear(),
                1..300 => _ = (0..200).filter(|_| t.remove(draw.below(KEYS))).count(),
                300..400 => _ = t.maintain(1000),
                400..500 => t.for_each_row(|row| {
                    let n = row.version as f32 * slope(row.key).powi(2);
                    assert_eq!(row.state[2..], [n; 2], "key {}", row.key);
                }),
                _ => {
                    let key = draw.below(KEYS);
                    t.push(&[key], &[slope(key); 2], PushScale::default()).unwrap();
                }
            }
        }
    });
}
