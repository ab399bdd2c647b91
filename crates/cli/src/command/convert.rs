//! `sanderling convert`: encode the input of a configuration once into a batch file.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sanderling_formats::batch_file::{BLOCK_ROWS, BatchFileOptions, BatchFileWriter, BlockCompression};
use sanderling_formats::fit::fit;
use sanderling_formats::{BLOCK_BYTES, BadRows, Format};
use sanderling_learner::config::Inputs;
use sanderling_learner::{Config, LearnError};
use sanderling_loader::{Pass, PassOptions, STAGES};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse};
use serde::Serialize;

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use crate::progress::Bar;
use crate::reading::{ReadArgs, not_an_input, report_bad_rows};

/// Time between updates of the progress bar.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Encode input files once into a batch file, which is read many times faster
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # the input of data.train
  sanderling convert clicks.toml clicks.batch
  # the input of data.valid
  sanderling convert clicks.toml held_out.batch --valid
  sanderling convert clicks.toml day2.batch --input day2.csv.gz \\
      --compression zstd
  sanderling train clicks.toml --train clicks.batch --valid held_out.batch

A batch file holds labels, weights, keys and values, but no text. A run whose label, weight or features differ from the \
configuration here refuses the file. Uncompressed blocks are memory-mapped. All rows are written; negatives.keep applies \
when the file is read. The file is renamed into place when it is complete.")]
pub(crate) struct Args {
    /// Run configuration (TOML)
    config: PathBuf,
    /// Batch file to write
    #[arg(value_name = "OUT.batch")]
    output: PathBuf,
    /// Input files or patterns; - for standard input [default: data.train]
    #[arg(long, num_args = 1.., value_name = "FILE", conflicts_with = "valid")]
    input: Vec<String>,
    /// Encode data.valid instead of data.train
    #[arg(long)]
    valid: bool,
    /// Compression codec of the blocks: none, lz4 or zstd
    #[arg(long, default_value_t)]
    compression: BlockCompression,
    /// Rows per block, 1 to 1048576; a batch size that divides it avoids a copy
    #[arg(long, default_value_t = BLOCK_ROWS as u32, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    block_rows: u32,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

#[derive(Serialize)]
struct Converted {
    rows: u64,
    bad_rows: u64,
    blocks: u64,
    bytes: u64,
    bytes_per_row: f64,
    source_bytes: u64,
    /// Of the blocks before they were compressed, to those after.
    compression_ratio: f64,
    rows_per_s: f64,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    output::not_a_url("OUT.batch", &args.output)?;
    if Format::of_path(&args.output) != Some(Format::Batch) {
        let path = args.output.display();
        return Err(Failure::Usage(format!("{path}: the output must end in .batch; rename it")));
    }
    output::not_there(&args.output, args.force)?;
    let config = Config::read(&args.config, &args.reading.set, |config| {
        args.reading.apply(&mut config.data.reading);
        if config.data.train.is_empty() {
            config.data.train = Inputs(args.input.clone());
        }
    })?;
    let (data, reading) = (&config.data, &config.data.reading);
    if config.label.number {
        return Err(Failure::Usage(format!(
            "{}: train.loss = \"mse\": batch files hold labels of 0 and 1, not numbers; train on the files themselves",
            args.config.display()
        )));
    }
    let inputs = match args.valid {
        _ if !args.input.is_empty() => &args.input,
        true if data.holdout.is_some() => {
            return Err(Failure::Usage(format!(
                "{}: data.valid holds rows out of data.train, which is converted whole; leave --valid out",
                args.config.display()
            )));
        }
        true => &data.valid.0,
        false => &data.train.0,
    };
    if inputs.is_empty() {
        return Err(Failure::Usage(format!("{}: data.valid names no input", args.config.display())));
    }
    args.reading.check_used(reading, inputs)?;
    // Boundaries are always those of the training data.
    let spec = fit(&config.spec(), &data.train.0, reading)?;
    let label = LabelUse::Required;
    let encoding = EncodeOptions { missing: &reading.missing, label, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &encoding)?);
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let order =
        PassOptions { shuffle: 0, seed: 0, number: 0, workers: 1, used_rows: 0, unit_bytes: BLOCK_BYTES };
    let options = BatchFileOptions { compression: args.compression, overwrite: args.force };
    not_an_input("OUT.batch", &args.output, inputs)?;
    let mut out = BatchFileWriter::create(&args.output, encoder.spec(), options)?;
    let (stages, stop, bar) = (Stages::new(&STAGES), crate::stop::flag(), Bar::new(args.quiet));
    let pass = Pass::open_until(inputs, reading, &encoder, &bad_rows, order, Arc::clone(&stop))?;
    let start = Instant::now();
    let mut shown = start;
    let mut feed = pass.feed_ahead(stages.timer());
    let mut timer = stages.timer();
    while !stop.load(Ordering::Relaxed)
        && let Some(rows) = feed.next(args.block_rows as usize, &mut timer)?
    {
        out.write(&rows)?;
        if shown.elapsed() >= PROGRESS_INTERVAL {
            shown = Instant::now();
            let (bytes_read, bytes_total) = (pass.bytes_read(), pass.bytes_total());
            bar.scan("converting", bytes_read, bytes_total);
        }
    }
    bar.finish();
    // Ctrl-C ends what writes to our standard input, too: then the end of that is not the end of the rows.
    if stop.load(Ordering::Relaxed) {
        note!("interrupted: {} was not written", args.output.display());
        return Ok(INTERRUPTED);
    }
    if out.rows() == 0 {
        return Err(LearnError::no_rows(inputs, &bad_rows).into());
    }
    let written = out.finish()?;
    report_bad_rows(&bad_rows);
    let seconds = start.elapsed().as_secs_f64().max(1e-9);
    let result = Converted {
        rows: written.rows,
        bad_rows: bad_rows.count(),
        blocks: written.blocks,
        bytes: written.bytes,
        bytes_per_row: written.bytes as f64 / written.rows.max(1) as f64,
        source_bytes: pass.bytes_read(),
        compression_ratio: written.raw_bytes as f64 / written.stored_bytes.max(1) as f64,
        rows_per_s: written.rows as f64 / seconds,
    };
    if args.json {
        output::json(&result)?;
    } else {
        output::text(&for_people(args, &result))?;
    }
    Ok(0)
}

fn for_people(args: &Args, result: &Converted) -> String {
    let ratio = result.bytes as f64 / result.source_bytes.max(1) as f64;
    let packed = match args.compression {
        BlockCompression::None => "not compressed".to_string(),
        compression => format!("{compression}, {:.2} times smaller", result.compression_ratio),
    };
    output::pairs(&[
        ("rows", format!("{} in {} blocks", output::count(result.rows), output::count(result.blocks))),
        (
            "bytes",
            format!(
                "{}, {:.1} a row, {ratio:.2} times the source",
                output::bytes(result.bytes),
                result.bytes_per_row
            ),
        ),
        ("blocks", packed),
        ("speed", format!("{} rows/s", output::count(result.rows_per_s as u64))),
        ("bad rows", output::count(result.bad_rows)),
        ("file", args.output.display().to_string()),
    ])
}
