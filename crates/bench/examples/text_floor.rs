//! What learning logistic regression by FTRL from libsvm text cannot be faster than: reading the text, and reading it and
//! updating a table that is indexed by the key itself, without a look-up, sample by sample, in one thread. The table's lines
//! are asked for before they are used, and coordinates are updated several at once.
//!
//! `cargo run --release -p sanderling-bench --example text_floor -- FILE.libsvm [ROUNDS]`
//!
//! Medians over rounds of one pass each, from a new table. The table is as large as the largest key. Knows no table of the store.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use sanderling_bench::median;
use sanderling_sample::{Batch, DataConfig, EncodeOptions, Encoder, Format, LabelUse, Reader, Spec};
use sanderling_store::{PrefetchHint, prefetch};

const ROUNDS: usize = 5;
const ALPHA_INVERSE: f32 = 20.0;
const BETA: f32 = 1.0;
/// Coordinates that are updated at once.
const LANES: usize = 8;
/// Rows from asking for a coordinate to using it.
const AHEAD_ROWS: usize = 3;
/// Largest key that the table is made for: 16 GiB.
const KEY_MAX: u64 = 1 << 30;

type Failure = Box<dyn std::error::Error>;

/// A coordinate: w, z, n, and the root of n.
type Coordinate = [f32; 4];

const PAGE_COORDINATES: usize = 4096 / size_of::<Coordinate>();

/// One sample: its prediction, then the updates. The logit. (Of a key that is there twice in a group, one update stays.)
#[inline(always)]
fn learn(table: &mut [Coordinate], keys: &[u64], values: &[f32], label: f32) -> f32 {
    let logit: f32 = keys.iter().zip(values).map(|(&key, x)| table[key as usize][0] * x).sum();
    let error = 1.0 / (1.0 + (-logit).exp()) - label;
    for (keys, values) in keys.chunks(LANES).zip(values.chunks(LANES)) {
        let [mut w, mut z, mut n, mut root, mut g] = [[0.0; LANES]; 5];
        for (lane, (&key, x)) in keys.iter().zip(values).enumerate() {
            [w[lane], z[lane], n[lane], root[lane]] = table[key as usize];
            g[lane] = error * x;
        }
        // By itself, so that it vectorises.
        for lane in 0..LANES {
            n[lane] += g[lane] * g[lane];
            let new_root = n[lane].sqrt();
            z[lane] += g[lane] - (new_root - root[lane]) * ALPHA_INVERSE * w[lane];
            w[lane] = -z[lane] / ((BETA + new_root) * ALPHA_INVERSE);
            root[lane] = new_root;
        }
        for (lane, &key) in keys.iter().enumerate() {
            table[key as usize] = [w[lane], z[lane], n[lane], root[lane]];
        }
    }
    logit
}

/// One pass over the file, with a table or without; seconds, rows, keys.
fn pass(
    file: &str,
    encoder: &Arc<Encoder>,
    table: Option<&mut [Coordinate]>,
) -> Result<(f64, usize, usize), Failure> {
    let config = DataConfig { format: Some(Format::Libsvm), ..DataConfig::default() };
    let start = Instant::now();
    let mut reader = Reader::open(&[file.to_string()], &config, encoder)?;
    let mut batch: Batch = encoder.new_batch();
    let (mut rows, mut keys, mut logits) = (0, 0, 0.0);
    let mut table = table;
    while reader.next(&mut batch)? {
        rows += batch.len();
        keys += batch.columns[0].keys.len();
        if let Some(table) = &mut table {
            let column = &batch.columns[0];
            let mut asked = 0;
            for (row, label) in batch.labels.iter().enumerate() {
                let ahead = column.offsets[(row + AHEAD_ROWS).min(batch.len())] as usize;
                column.keys[asked..ahead]
                    .iter()
                    .for_each(|&key| prefetch(table, key as usize, PrefetchHint::Write));
                asked = ahead;
                let span = column.offsets[row] as usize..column.offsets[row + 1] as usize;
                logits += learn(table, &column.keys[span.clone()], &column.values[span], *label);
            }
        }
        batch.clear();
    }
    black_box(logits);
    Ok((start.elapsed().as_secs_f64(), rows, keys))
}

/// The largest key of the file.
fn key_max(file: &str, encoder: &Arc<Encoder>) -> Result<u64, Failure> {
    let config = DataConfig { format: Some(Format::Libsvm), ..DataConfig::default() };
    let mut reader = Reader::open(&[file.to_string()], &config, encoder)?;
    let (mut batch, mut largest) = (encoder.new_batch(), 0);
    while reader.next(&mut batch)? {
        largest = batch.columns[0].keys.iter().copied().fold(largest, u64::max);
        batch.clear();
    }
    Ok(largest)
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("name a file of libsvm text")?;
    let rounds = arguments.next().map_or(Ok(ROUNDS), |rounds| rounds.parse())?.max(1);
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    let encoder = Arc::new(Encoder::new(&Spec::libsvm(), &options)?);
    let largest = key_max(&file, &encoder)?;
    if largest > KEY_MAX {
        return Err(format!("key {largest}: a table that is indexed by it has no room").into());
    }
    let (mut parsed, mut learned, mut counts) = (Vec::new(), Vec::new(), (0, 0));
    for _ in 0..rounds {
        let (parse_s, rows, keys) = pass(&file, &encoder, None)?;
        let mut table = vec![[0.0; 4]; largest as usize + 1];
        // Or the system's handing out pages would be timed.
        table.iter_mut().step_by(PAGE_COORDINATES).for_each(|coordinate| *coordinate = black_box([0.0; 4]));
        let (learn_s, _, _) = pass(&file, &encoder, Some(&mut table))?;
        counts = (rows, keys);
        parsed.push(parse_s);
        learned.push(learn_s);
    }
    let (rows, keys) = (counts.0 as f64, counts.1 as f64);
    for (name, seconds) in [("parse", median(&parsed)), ("parse and learn", median(&learned))] {
        let (rate, ns) = (rows / seconds, seconds * 1e9 / keys);
        println!("{name:16} {rate:12.0} rows/s {ns:8.2} ns per feature");
    }
    Ok(())
}
