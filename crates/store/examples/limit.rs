//! How near pull and push come to what the memory allows: `limit [KEYS] [DIM] [BATCH] [ROUNDS]`, tiny by default. The
//! gather limit touches per key one independent random index line and its row, both addresses known in advance, with
//! the best prefetch distance of a sweep; the push limit reads and writes the same rows. Rounds are interleaved, and
//! medians printed. Knows only the public API.

#![allow(clippy::print_stdout)] // its purpose

use std::time::Instant;

use sanderling_store::limit::Limit;
use sanderling_store::{Absent, Init, Optimizer, PushScale, StoreError, Table, TableConfig};

/// Batches between two looks at the clock.
const BATCHES: usize = 200;
/// Prefetch distances that are tried for the limits.
const AHEAD: [usize; 5] = [8, 16, 24, 32, 48];
/// Keys pushed at once while filling.
const FILL: usize = 8192;

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default: usize| arguments.next().and_then(Result::ok).unwrap_or(default).max(1);
    let (keys, dim, batch, rounds) = (next(20_000), next(32), next(512), next(5));
    let adagrad = Optimizer::Adagrad { lr: 0.01, eps: 1e-8, initial: 0.1, l2: 0.0 };
    let table = Table::new(TableConfig::single("t", dim, Init::Zero, adagrad))?;
    let start = Instant::now();
    let gradients = vec![0.5; FILL.max(batch) * dim];
    for first in (0..keys as u64).step_by(FILL) {
        let all: Vec<u64> = (first..(first + FILL as u64).min(keys as u64)).collect();
        table.push(&all, &gradients[..all.len() * dim], PushScale::default())?;
    }
    let fill = keys as f64 / start.elapsed().as_secs_f64() / 1e6;
    let stats = table.stats();
    println!(
        "{keys} keys, dim {dim}, batch {batch}; fill {fill:.1} M/s; index {:.1} B/key, rows {:.1} B/key, {:.0} % on huge pages",
        stats.index_bytes as f64 / keys as f64,
        stats.slab_bytes as f64 / keys as f64,
        100.0 * stats.huge_bytes as f64 / table.bytes() as f64,
    );
    let stride = (2 * dim + 5).next_multiple_of(16);
    let lines = stats.index_bytes as usize / 64;
    let Some(limit) = Limit::new(lines, keys, stride) else { return Ok(()) };

    let mut state = 7_u64;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (((state >> 32) * below as u64) >> 32) as u32
    };
    let mut out = vec![0.0; batch * dim];
    let counts = vec![1; batch];
    let words = 2 * dim + 5;
    let mut measure = |operation: Operation| -> Result<f64, StoreError> {
        // Fresh ones each time, or the second to read them would find them in the cache.
        let rows: Vec<u32> = (0..batch * BATCHES).map(|_| draw(keys)).collect();
        let buckets: Vec<u32> = (0..batch * BATCHES).map(|_| draw(lines)).collect();
        let requests: Vec<u64> = rows.iter().map(|&row| u64::from(row)).collect();
        let start = Instant::now();
        for ((rows, buckets), requests) in
            rows.chunks(batch).zip(buckets.chunks(batch)).zip(requests.chunks(batch))
        {
            match operation {
                Operation::Pull => {
                    table.pull(requests, Absent::Zero, &mut out, None)?;
                }
                Operation::Gather(ahead) => limit.gather(buckets, rows, ahead, &mut out),
                Operation::Push => {
                    let gradients = &gradients[..batch * dim];
                    table.push_unique(requests, &counts, gradients, PushScale::default())?;
                }
                Operation::Rewrite(ahead) => limit.rewrite(rows, words, ahead),
            }
        }
        Ok((batch * BATCHES) as f64 / start.elapsed().as_secs_f64() / 1e6)
    };
    // Reads first, then writes: what was written leaves the cache slowly, at the expense of what comes next.
    for operation in [Operation::Pull, Operation::Push] {
        let (name, limit): (_, fn(usize) -> Operation) = match operation {
            Operation::Pull => ("pull", Operation::Gather),
            _ => ("push_unique", Operation::Rewrite),
        };
        let (mut best, mut best_rate) = (AHEAD[0], 0.0);
        for ahead in AHEAD {
            let mut rates = Vec::new();
            for _ in 0..rounds {
                rates.push(measure(limit(ahead))?);
            }
            if median(&mut rates) > best_rate {
                (best, best_rate) = (ahead, median(&mut rates));
            }
        }
        let (mut rates, mut limits, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds * 4 {
            rates.push(measure(operation)?);
            limits.push(measure(limit(best))?);
            if let (Some(rate), Some(limit)) = (rates.last(), limits.last()) {
                ratios.push(100.0 * rate / limit);
            }
        }
        println!(
            "{name:12} {:6.1} M keys/s, limit {:6.1} (prefetched {best} ahead): {:.0} %",
            median(&mut rates),
            median(&mut limits),
            median(&mut ratios)
        );
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Clone, Copy)]
enum Operation {
    Pull,
    Gather(usize),
    Push,
    Rewrite(usize),
}
