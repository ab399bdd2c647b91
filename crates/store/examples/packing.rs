//! Measures a layout of rows: `packing [OPTIMIZER] [DIM] [KEYS] [THREADS] [PACKING] [ROUNDS]`, tiny by default.
//!
//! It fills a table twice, because the system provides memory at its first use, and prints the rate of new keys at the
//! second time. Then it prints the medians of pulls, pooled pulls and pushes of 512 uniform keys, in interleaved rounds;
//! for FTRL, those of a local cache instead of pooled pulls. Rates are millions of keys per second, of all threads.

#![allow(clippy::print_stdout)] // its purpose

use std::sync::Barrier;
use std::time::Instant;

use sanderling_random::SplitMix64;
use sanderling_store::{
    Absent, CacheBuffers, Init, Optimizer, Packing, Pooling, PushScale, Table, TableConfig,
};

/// Keys per request.
const BATCH: usize = 512;
/// Requests of a thread in a round.
const BATCHES: usize = 400;

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let text = |at: usize, default: &str| args.get(at).map_or(default.to_string(), String::clone);
    let number = |at: usize, default: &str| text(at, default).parse::<u64>().expect("a number");
    let (optimizer, dim, keys) = (text(0, "adagrad"), number(1, "8") as usize, number(2, "10000"));
    let (threads, packing, rounds) = (number(3, "1") as usize, text(4, "fast"), number(5, "3"));
    let optimizer = match optimizer.as_str() {
        "sgd" => Optimizer::Sgd { lr: 0.01, l2: 0.0 },
        "adagrad" => Optimizer::Adagrad { lr: 0.01, eps: 1e-10, initial: 0.1, l2: 0.0 },
        "row_adagrad" => Optimizer::RowAdagrad { lr: 0.01, eps: 1e-10, initial: 0.1, l2: 0.0 },
        "ftrl" => Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 },
        other => panic!("no optimizer {other}"),
    };
    let is_ftrl = matches!(optimizer, Optimizer::Ftrl { .. });
    let config = TableConfig::single("t", dim, Init::Zero, optimizer);
    let packing = if packing == "compact" { Packing::Compact } else { Packing::Fast };
    let config = TableConfig { packing, ..config };
    let mut new_keys = 0.0;
    let mut filled = None;
    for _ in 0..2 {
        drop(filled.take());
        let table = Table::new(config.clone()).expect("a table");
        new_keys = fill(&table, keys, threads, dim);
        filled = Some(table);
    }
    let table = filled.expect("filled");
    let stats = table.stats();
    let per_key = |bytes: u64| bytes as f64 / keys as f64;
    let sample: Vec<u64> = (0..keys).step_by(97).map(key).collect();
    println!(
        "bytes/key {:.1} (rows {:.1}, index {:.1}), index lines {:.3}",
        per_key(table.bytes()),
        per_key(stats.slab_bytes),
        per_key(stats.index_bytes),
        table.lines_per_search(&sample)
    );
    println!("new_keys {new_keys:.2}");
    let ops: &[&str] = if is_ftrl { &["pull", "push", "cache"] } else { &["pull", "pooled", "push"] };
    let mut rates = vec![Vec::new(); ops.len()];
    for round in 0..rounds {
        for (op, rates) in ops.iter().zip(&mut rates) {
            rates.push(measure(&table, op, keys, threads, dim, round));
        }
    }
    for (op, rates) in ops.iter().zip(&mut rates) {
        rates.sort_by(f64::total_cmp);
        println!("{op} {:.2}", rates[rates.len() / 2]);
    }
}

fn fill(table: &Table, keys: u64, threads: usize, dim: usize) -> f64 {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            scope.spawn(move || {
                let (gradients, ones) = (vec![0.01; 4096 * dim], vec![1; 4096]);
                let (first, end) = (keys * thread / threads as u64, keys * (thread + 1) / threads as u64);
                for first in (first..end).step_by(4096) {
                    let ids: Vec<u64> = (first..end.min(first + 4096)).map(key).collect();
                    let gradients = &gradients[..ids.len() * dim];
                    table
                        .push_unique(&ids, &ones[..ids.len()], gradients, PushScale::default())
                        .expect("room");
                }
            });
        }
    });
    keys as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn measure(table: &Table, op: &str, keys: u64, threads: usize, dim: usize, round: u64) -> f64 {
    let barrier = Barrier::new(threads + 1);
    let mut start = Instant::now();
    std::thread::scope(|scope| {
        let barrier = &barrier;
        for thread in 0..threads as u64 {
            scope.spawn(move || {
                let mut random = SplitMix64::new(1 + round * 7919 + thread * 104_729);
                (0..10).for_each(|_| _ = random.next());
                let ids: Vec<Vec<u64>> =
                    (0..BATCHES).map(|_| (0..BATCH).map(|_| key(random.next() % keys)).collect()).collect();
                let (mut out, ones) = (vec![0.0; BATCH * dim], vec![1; BATCH]);
                let gradients = vec![0.01; BATCH * dim];
                let offsets: Vec<u32> = (0..=BATCH as u32 / 16).map(|at| at * 16).collect();
                let mut pooled = vec![0.0; BATCH / 16 * dim];
                let (mut buffers, mut handles) = (CacheBuffers::default(), Vec::new());
                let scale = PushScale::default();
                barrier.wait();
                for ids in &ids {
                    match op {
                        "pull" => _ = table.pull(ids, Absent::Zero, &mut out, None).expect("a pull"),
                        "push" => table.push_unique(ids, &ones, &gradients, scale).expect("a push"),
                        "pooled" => pool(table, ids, &offsets, &mut pooled),
                        _ => {
                            let mut cache = table.local_cache(scale, &mut buffers).expect("a cache");
                            handles.clear();
                            cache.resolve(ids, &mut handles);
                            cache.update_all(&handles, &gradients);
                            cache.flush().expect("flushed");
                        }
                    }
                }
            });
        }
        barrier.wait();
        start = Instant::now();
    });
    (threads * BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn pool(table: &Table, ids: &[u64], offsets: &[u32], out: &mut [f32]) {
    out.fill(0.0);
    table.pull_pooled(ids, None, offsets, Pooling::Sum, Absent::Zero, out, None).expect("a pull");
}
