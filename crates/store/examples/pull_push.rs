//! Micro-benchmark of one table on one thread: million keys per second for pull, pooled pull, dedup and push.
//!
//! `cargo run --release -p sanderling-store --example pull_push -- [KEYS] [BATCH] [ROUNDS]`; tiny by default. Knows
//! only the public API.

#![allow(clippy::print_stdout)] // its purpose

use std::hint::black_box;
use std::time::Instant;

use sanderling_store::{
    Absent, Block, Dedup, Init, Optimizer, Pooling, PushScale, StoreError, Table, TableConfig,
};

/// Features of a sample in the pooled pull.
const FEATURES: usize = 39;

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default: usize| arguments.next().and_then(Result::ok).unwrap_or(default).max(FEATURES);
    let (keys, batch, rounds) = (next(10_000), next(1024), next(100));
    println!("{keys} keys, batches of {batch}, {rounds} rounds; million keys/s");
    let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 1.0, l2: 1.0 };
    let adagrad = Optimizer::Adagrad { lr: 0.01, eps: 1e-8, initial: 0.1, l2: 0.0 };
    for (what, optimizer, dims) in [("ftrl", ftrl, 1), ("ftrl", ftrl, 16), ("adagrad", adagrad, 16)] {
        for (distribution, power) in [("uniform", 1), ("skewed", 6)] {
            let block = Block { dims, init: Init::Zero, optimizer };
            let config =
                TableConfig { name: what.to_string(), blocks: vec![block], seed: 1, budget_bytes: None };
            measure(&format!("{what} dim {dims} {distribution}"), config, keys, batch, rounds, power)?;
        }
    }
    Ok(())
}

/// Keys `keys * u^power` for uniform `u`: the higher the power, the hotter the first keys.
fn measure(
    what: &str,
    config: TableConfig,
    keys: usize,
    batch: usize,
    rounds: usize,
    power: i32,
) -> Result<(), StoreError> {
    let table = Table::new(config)?;
    let dim = table.dim();
    let all: Vec<u64> = (0..keys as u64).map(|key| key << 20).collect();
    let start = Instant::now();
    for keys in all.chunks(batch) {
        table.push(keys, &vec![0.5; keys.len() * dim], PushScale::default())?;
    }
    let fill_s = start.elapsed().as_secs_f64();
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 / (1_u64 << 53) as f64).powi(power)
    };
    let requests: Vec<u64> = (0..batch * rounds).map(|_| all[(draw() * keys as f64) as usize]).collect();
    let mut out = vec![0.0; batch * dim];
    let gradients = vec![0.01; batch * dim];
    let offsets: Vec<u32> = (0..=batch / FEATURES).map(|sample| (sample * FEATURES) as u32).collect();
    let pooled = batch / FEATURES * FEATURES;
    let mut dedup = Dedup::new();
    let mut seconds = [0.0; 6];
    let mut unique = 0;
    for keys in requests.chunks_exact(batch) {
        let mut at = 0;
        let mut lap = |start: Instant| {
            seconds[at] += start.elapsed().as_secs_f64();
            at += 1;
        };
        let start = Instant::now();
        table.pull(keys, Absent::Zero, &mut out, None)?;
        lap(start);
        let start = Instant::now();
        let sums = &mut out[..batch / FEATURES * dim];
        table.pull_pooled(&keys[..pooled], None, &offsets, Pooling::Sum, Absent::Zero, sums, None)?;
        lap(start);
        let start = Instant::now();
        dedup.assign(keys);
        lap(start);
        let start = Instant::now();
        table.pull(&dedup.unique, Absent::Zero, &mut out[..dedup.unique.len() * dim], None)?;
        lap(start);
        let start = Instant::now();
        let distinct = dedup.unique.len();
        unique += distinct;
        table.push_unique(
            &dedup.unique,
            &dedup.counts,
            &gradients[..distinct * dim],
            PushScale::default(),
        )?;
        lap(start);
        let start = Instant::now();
        table.push(keys, &gradients, PushScale::default())?;
        lap(start);
        black_box(&out);
    }
    let total = (batch * rounds) as f64;
    let rate = |keys: f64, seconds: f64| keys / seconds / 1e6;
    let occurrences_per_s = rate(total, seconds[2] + seconds[3] + seconds[4]);
    println!(
        "{what:24} fill {:6.1}  pull {:6.1}  pooled {:6.1}  dedup {:6.1}  push {:6.1}  push_unique {:6.1}  dedup+pull+push_unique {occurrences_per_s:6.1}  ({:.0} % distinct)",
        rate(keys as f64, fill_s),
        rate(total, seconds[0]),
        rate((pooled * rounds) as f64, seconds[1]),
        rate(total, seconds[2]),
        rate(total, seconds[5]),
        rate(unique as f64, seconds[4]),
        100.0 * unique as f64 / total,
    );
    Ok(())
}
