//! What the shuffle of a pass costs: text of 39 keys per row is read in the order of the input and shuffled, by one worker
//! and by two, with all rows in memory and with most of them in temporary files.
//!
//! `cargo run --release -p sanderling-job --example exchange_speed [-- --tiny | FILE.libsvm]`
//!
//! Rounds of all settings in turns; medians of nanoseconds per row and worker, by stage. It makes its own text unless a file
//! is named.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use sanderling_formats::{BadRows, DataConfig};
use sanderling_job::{Input, JobError, Options, Order, STAGES, Tables, run};
use sanderling_observe::Stages;
use sanderling_random::Rng;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

const ROWS: u64 = 500_000;
const TINY_ROWS: u64 = 2_000;
const KEYS: u64 = 39;
const KEY_MAX: u64 = 1 << 30;
const BATCH: usize = 1024;
const ROUNDS: usize = 5;
const SMALL_BYTES: u64 = 16 << 20;

type Failure = Box<dyn std::error::Error>;

fn text(rows: u64) -> Result<String, Failure> {
    let (mut rng, mut text) = (Rng::new(1, 0, 0), String::new());
    for row in 0..rows {
        write!(text, "{}", row & 1)?;
        for _ in 0..KEYS {
            write!(text, " {}:1", rng.next() % KEY_MAX)?;
        }
        text.push('\n');
    }
    Ok(text)
}

/// One pass: rows, bytes that went through files, and per stage and in all the nanoseconds per row and worker.
fn pass(input: &Input, options: &Options, order: Order, pass: u64) -> Result<(u64, u64, Vec<f64>), Failure> {
    let stages = Stages::new(&STAGES);
    let start = Instant::now();
    let tables = Tables::Embedded(Vec::new());
    let ends = run(options, &tables, &stages, |worker| -> Result<(u64, u64), JobError> {
        let (mut share, mut rows) = (worker.share(input, pass, order)?, 0);
        while let Some(minibatch) = share.next(worker, BATCH)? {
            rows += minibatch.len() as u64;
        }
        worker.timer().stop();
        Ok((rows, share.stored_bytes()))
    })?;
    let wall = start.elapsed().as_secs_f64();
    let rows: u64 = ends.iter().map(|end| end.0).sum();
    let per_row = |seconds: f64| seconds * 1e9 / rows as f64;
    let mut times: Vec<f64> = stages.totals().iter().map(|total| per_row(total.seconds)).collect();
    times.push(per_row(wall * f64::from(options.workers)));
    Ok((rows, ends.iter().map(|end| end.1).sum(), times))
}

fn main() -> Result<(), Failure> {
    let argument = std::env::args().nth(1);
    let is_tiny = argument.as_deref() == Some("--tiny");
    let dir = tempfile::tempdir()?;
    let file = match argument.filter(|_| !is_tiny) {
        Some(file) => file,
        None => {
            let path = dir.path().join("rows.libsvm");
            std::fs::write(&path, text(if is_tiny { TINY_ROWS } else { ROWS })?)?;
            path.to_string_lossy().into_owned()
        }
    };
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Arc::new(Encoder::new(&Spec::libsvm(), &options)?);
    let reading = DataConfig::default();
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let input = Input { inputs: vec![file], reading, encoder, bad_rows };
    let settings = [
        ("input order", Order::Input, u64::MAX),
        ("shuffled, in memory", Order::Shuffled, 4 << 30),
        ("shuffled, in files", Order::Shuffled, SMALL_BYTES),
    ];
    println!("ns per row and worker          {}  in all", STAGES.map(|stage| format!("{stage:>9}")).concat());
    let mut all: Vec<Vec<Vec<f64>>> = vec![Vec::new(); 2 * settings.len()];
    for round in 0..if is_tiny { 1 } else { ROUNDS } {
        for (at, times) in all.iter_mut().enumerate() {
            let ((_, order, bytes_max), workers) = (settings[at / 2], at as u32 % 2 + 1);
            let options = Options { workers, shuffle_bytes_max: bytes_max, ..Options::default() };
            times.push(pass(&input, &options, order, round as u64)?.2);
        }
    }
    for (at, rounds) in all.iter().enumerate() {
        let median = |stage: usize| {
            let mut times: Vec<f64> = rounds.iter().map(|times| times[stage]).collect();
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let medians: String = (0..=STAGES.len()).map(|stage| format!("{:9.1}", median(stage))).collect();
        println!("{:20} {} workers {medians}", settings[at / 2].0, at % 2 + 1);
    }
    Ok(())
}
