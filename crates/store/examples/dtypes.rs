//! Compares 16-bit weights with f32: `dtypes [KEYS] [DIM] [BATCH] [ROUNDS]`, tiny by default.
//!
//! Pulls, pooled pulls and Adagrad pushes of tables that differ only in the dtype of their weights, in interleaved
//! rounds; prints medians and their ratio to f32.

#![allow(clippy::print_stdout)] // its purpose

use std::time::Instant;

use sanderling_store::{Absent, Dtype, Init, Optimizer, Pooling, PushScale, StoreError, Table, TableConfig};

/// Batches between two readings of the clock.
const BATCHES: usize = 200;
/// Keys pushed at once while filling.
const FILL: usize = 8192;
/// Keys of a sample in the pooled pull.
const POOLED: usize = 8;

fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<usize>());
    let mut next = |default: usize| arguments.next().and_then(Result::ok).unwrap_or(default).max(1);
    let (keys, dim, batch, rounds) = (next(20_000), next(64), next(512).next_multiple_of(POOLED), next(5));
    // One state value per row, because more state would hide the effect of weights.
    let optimizer = Optimizer::RowAdagrad { lr: 0.01, eps: 1e-8, initial: 0.1, l2: 0.0 };
    let gradients = vec![0.5; FILL.max(batch) * dim];
    let mut tables = Vec::new();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let config = TableConfig { dtype, ..TableConfig::single("t", dim, Init::Zero, optimizer) };
        let table = Table::new(config)?;
        for first in (0..keys as u64).step_by(FILL) {
            let all: Vec<u64> = (first..(first + FILL as u64).min(keys as u64)).collect();
            table.push(&all, &gradients[..all.len() * dim], PushScale::default())?;
        }
        tables.push(table);
    }
    let mut state = 7_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(state) * keys as u128) >> 64) as u64
    };
    let mut out = vec![0.0; batch * dim];
    let counts = vec![1; batch];
    let offsets: Vec<u32> = (0..=batch / POOLED).map(|sample| (sample * POOLED) as u32).collect();
    let mut rates = vec![[const { Vec::new() }; 3]; tables.len()];
    for _ in 0..rounds {
        for (table, rates) in tables.iter().zip(&mut rates) {
            for (operation, rates) in rates.iter_mut().enumerate() {
                let requests: Vec<u64> = (0..batch * BATCHES).map(|_| draw()).collect();
                let start = Instant::now();
                for keys in requests.chunks(batch) {
                    match operation {
                        0 => {
                            table.pull(keys, Absent::Zero, &mut out, None)?;
                        }
                        1 => {
                            let sums = &mut out[..batch / POOLED * dim];
                            table.pull_pooled(
                                keys,
                                None,
                                &offsets,
                                Pooling::Sum,
                                Absent::Zero,
                                sums,
                                None,
                            )?;
                        }
                        _ => {
                            let gradients = &gradients[..batch * dim];
                            table.push_unique(keys, &counts, gradients, PushScale::default())?;
                        }
                    }
                }
                rates.push(requests.len() as f64 / start.elapsed().as_secs_f64() / 1e6);
            }
        }
    }
    println!("{keys} keys, dim {dim}, batch {batch}, {rounds} rounds; million keys/s (ratio to f32)");
    let mut base = [0.0; 3];
    for (table, rates) in tables.iter().zip(&mut rates) {
        let dtype = table.config().dtype;
        print!("{:6} {:6.1} B/key", format!("{dtype:?}"), table.bytes() as f64 / keys as f64);
        for ((name, rates), base) in ["pull", "pooled", "push_unique"].iter().zip(rates).zip(&mut base) {
            rates.sort_by(f64::total_cmp);
            let median = rates[rates.len() / 2];
            if dtype == Dtype::F32 {
                *base = median;
            }
            print!("   {name} {median:6.1} ({:.2})", median / *base);
        }
        println!();
    }
    Ok(())
}
