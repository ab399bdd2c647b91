//! Several writers and readers at once: rows are seen whole, keys that are there are found while the index grows and
//! others are removed. Knows only the public API. `SANDERLING_TEST_SECONDS` makes each test longer than a second.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

const DIM: usize = 37;
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };

fn table(dim: usize) -> Table {
    Table::new(TableConfig::single("t", dim, Init::Zero, SGD)).unwrap()
}

fn duration() -> Duration {
    let seconds = std::env::var("SANDERLING_TEST_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(1.0))
}

/// Random numbers of a thread.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The weights are small integers, exact in f32, and the last is the checksum of the others: whatever is pushed keeps
/// that, so that any mixture of two states of a row is noticed.
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
    let (t, stop) = (table(DIM), AtomicBool::new(false));
    let keys = 50;
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
        // One more changes rows by handle, alone.
        scope.spawn(|| {
            let (mut draw, start, mut handles) = (Draw(99), Instant::now(), Vec::new());
            while start.elapsed() < duration() {
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
            stop.store(true, Relaxed);
        });
    });
    t.for_each_row(|row| assert_whole(row.weights));
}

/// Keys that are there stay found, with their weights, while others come by the hundred thousand and the index is
/// replaced again and again.
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
                            // Both threads make every other key.
                            let new: Vec<u64> =
                                (first..first + 1000).map(|i| (i << 30) + i % 2 * (thread + 1)).collect();
                            t.push(&new, &vec![1.0; new.len()], PushScale::default()).unwrap();
                        }
                    })
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            stop.store(true, Relaxed);
        });
        // The keys of both, those of each, and the known ones.
        assert_eq!(t.len(), 75_000 + 2 * 75_000 + known.len());
    }
}

/// Rows come, go, and are reused for other keys under readers: a key's weights are its own or zero.
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
            stop.store(true, Relaxed);
        });
    });
    let (stats, bytes) = (t.stats(), t.bytes());
    assert!(stats.rows + stats.free_rows <= keys + 300, "rows are reused: {stats:?}");
    assert_eq!(stats.index_bytes + stats.slab_bytes, bytes);
}
