//! How often each feature value occurs in libsvm text: every worker counts in its share of the input, then each key's counts
//! meet at one worker, which adds them up.
//!
//! `cargo run --release -p sanderling-job --example feature_count -- FILE.libsvm [WORKERS]`
//!
//! Prints the ten keys that occur most often. The file may be larger than memory; the distinct keys may not.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::collections::HashMap;
use std::sync::Arc;

use sanderling_formats::{BadRows, DataConfig};
use sanderling_job::{Input, JobError, Options, Order, STAGES, Tables, Worker, run};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

const ROWS: usize = 4096;
const PRINTED: usize = 10;

/// Keys and how often they occur, as bytes on their way to another worker.
fn to_bytes(counts: impl IntoIterator<Item = (u64, u64)>) -> Vec<u8> {
    counts.into_iter().flat_map(|(key, count)| [key.to_le_bytes(), count.to_le_bytes()]).flatten().collect()
}

fn from_bytes(bytes: &[u8]) -> impl Iterator<Item = (u64, u64)> {
    let (pairs, _) = bytes.as_chunks::<16>();
    pairs.iter().map(|pair| {
        let both = u128::from_le_bytes(*pair);
        (both as u64, (both >> 64) as u64)
    })
}

fn most_frequent(counts: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut counts: Vec<(u64, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|&(key, count)| (std::cmp::Reverse(count), key));
    counts.truncate(PRINTED);
    counts
}

fn count(worker: &mut Worker, input: &Input) -> Result<Vec<(u64, u64)>, JobError> {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let mut share = worker.share(input, 0, Order::Input)?;
    while let Some(rows) = share.next(worker, ROWS)? {
        for key in rows.keys(0) {
            *counts.entry(*key).or_default() += 1;
        }
    }
    // Each key is added up by one worker.
    let mut parts: Vec<Vec<(u64, u64)>> = vec![Vec::new(); worker.workers() as usize];
    for (key, count) in counts {
        let owner = key % parts.len() as u64;
        parts[owner as usize].push((key, count));
    }
    let parts = worker.all_to_all("counts", parts.into_iter().map(to_bytes).collect())?;
    let mut sums: HashMap<u64, u64> = HashMap::new();
    for (key, count) in parts.iter().flat_map(|part| from_bytes(part)) {
        *sums.entry(key).or_default() += count;
    }
    // The most frequent of all are among the most frequent of each.
    let best = worker.all_gather("most frequent", &to_bytes(most_frequent(sums)))?;
    Ok(most_frequent(best.iter().flat_map(|part| from_bytes(part))))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: feature_count FILE.libsvm [WORKERS]")?;
    let workers = arguments.next().map_or(Ok(2), |workers| workers.parse())?;
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Arc::new(Encoder::new(&Spec::libsvm(), &options)?);
    let reading = DataConfig::default();
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let input = Input { inputs: vec![file], reading, encoder, bad_rows };
    let options = Options { workers, ..Options::default() };
    let tables = Tables::Embedded(Vec::new());
    let counts = run(&options, &tables, &Stages::new(&STAGES), |worker| count(worker, &input))?;
    // All workers know the same.
    for (key, count) in &counts[0] {
        println!("{key} {count}");
    }
    Ok(())
}
