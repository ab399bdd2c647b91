//! `sanderling synth`: synthetic Criteo-like data with a known best AUC.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sanderling_synth::{SynthConfig, SynthFormat, generate};

use crate::failure::{Failure, INTERRUPTED};
use crate::output;
use crate::quantity;

/// Generate Criteo-like data: 13 counts, 26 Zipf-distributed ids, labels from a hidden factorization machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling synth train.libsvm --rows 1000000
  # the rows after these
  sanderling synth valid.libsvm --rows 100000 --first-row 1000000
  # the second day of labels that drift by day
  sanderling synth day2.csv --rows 100000 --first-row 100000 --drift 0.2
  sanderling synth clicks.parquet --rows 100000 --multi-valued 3

A seed gives equal bytes on any number of threads. The file is renamed into place when it is complete.")]
pub(crate) struct Args {
    /// Output file: .libsvm, .tsv (Criteo layout), .csv (text also .gz or .zst), .parquet; - for standard output
    output: PathBuf,
    /// Number of rows
    #[arg(long, default_value_t = SynthConfig::default().rows, value_parser = quantity::count)]
    rows: u64,
    /// Index of the first row, from 0, to continue the rows of an earlier file
    #[arg(long, default_value_t = 0, value_parser = quantity::count)]
    first_row: u64,
    /// Random seed of features and labels
    #[arg(long, default_value_t = SynthConfig::default().seed)]
    seed: u64,
    /// Output format: libsvm, tsv, csv or parquet [default: by file extension]
    #[arg(long)]
    format: Option<String>,
    /// Number of distinct ids over all categorical features
    #[arg(long, default_value_t = SynthConfig::default().vocabulary, value_parser = vocabulary)]
    vocabulary: u32,
    /// Zipf exponent of the id frequencies; larger: more skewed
    #[arg(long, default_value_t = SynthConfig::default().zipf_exponent)]
    zipf_exponent: f64,
    /// Number of categorical features with several values, 0 to 26
    #[arg(long, default_value_t = 0)]
    multi_valued: usize,
    /// Maximum values per row of a multi-valued feature
    #[arg(long, default_value_t = SynthConfig::default().values_max)]
    values_max: u32,
    /// Expected fraction of positive labels, between 0 and 1
    #[arg(long, default_value_t = SynthConfig::default().positive_rate)]
    positive_rate: f64,
    /// Change of the hidden model per day, 0 to 1; 0: labels of all days follow one model
    #[arg(long, default_value_t = 0.0, value_name = "D")]
    drift: f64,
    /// Rows per day, for --drift [default: --rows]
    #[arg(long, value_name = "N", value_parser = quantity::count)]
    day_rows: Option<u64>,
    /// Number of threads; 0: one per processor
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
}

fn vocabulary(text: &str) -> Result<u32, String> {
    quantity::count(text).and_then(|ids| u32::try_from(ids).map_err(|_| "must be below 2^32".to_owned()))
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    output::not_a_url("OUTPUT", &args.output)?;
    let to_stdout = args.output.as_os_str() == "-";
    if args.json && to_stdout {
        return Err(Failure::Usage(
            "--json needs an output file: the data itself goes to standard output".into(),
        ));
    }
    let format = args.format.as_ref().map(|name| serde_json::from_value::<SynthFormat>(name.as_str().into()));
    let format = format.transpose().map_err(|error| Failure::Usage(format!("--format: {error}")))?;
    let config = SynthConfig {
        rows: args.rows,
        first_row: args.first_row,
        seed: args.seed,
        format,
        vocabulary: args.vocabulary,
        zipf_exponent: args.zipf_exponent,
        multi_valued: args.multi_valued,
        values_max: args.values_max,
        positive_rate: args.positive_rate,
        drift: args.drift,
        day_rows: args.day_rows.unwrap_or(0),
        threads: args.threads,
        ..SynthConfig::default()
    };
    let shown = !args.quiet && !to_stdout && std::io::stderr().is_terminal();
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(args.rows), target);
    if let Ok(style) =
        ProgressStyle::with_template("writing [{wide_bar}] {pos}/{len} rows {per_sec} eta {eta}")
    {
        bar.set_style(style.progress_chars("=> "));
    }
    let (start, stop) = (Instant::now(), crate::stop::flag());
    let report = generate(&config, &args.output, &mut |rows, _bytes| {
        bar.set_position(rows);
        !stop.load(Ordering::Relaxed)
    });
    bar.finish_and_clear();
    let Some(report) = report? else {
        note!("interrupted: {} was not written", args.output.display());
        return Ok(INTERRUPTED);
    };
    let seconds = start.elapsed().as_secs_f64();
    if args.json {
        output::json(&report)?;
    } else if !to_stdout {
        let rate = report.bytes as f64 / seconds.max(1e-9);
        output::text(&output::pairs(&[
            ("rows", format!("{}, {} positive", output::count(report.rows), output::count(report.positives))),
            ("bytes", format!("{} at {}/s", output::bytes(report.bytes), output::bytes(rate as u64))),
            (
                "best AUC",
                format!(
                    "{}  by the probabilities the labels were drawn from",
                    output::metric(report.best_auc)
                ),
            ),
            ("best logloss", output::metric(report.best_logloss)),
        ]))?;
    }
    Ok(0)
}
