//! `sanderling synth`: Criteo-like data whose best possible AUC is known.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sanderling_synth::{SynthConfig, SynthFormat, generate};

use crate::failure::{Failure, INTERRUPTED};
use crate::output;

/// Generate Criteo-like data: 13 counts, 26 zipf-distributed ids, labels drawn from a hidden factorization machine
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling synth train.libsvm --rows 1000000
  # more of the same stream
  sanderling synth valid.libsvm --rows 100000 --first-row 1000000
  sanderling synth clicks.parquet --multi-valued 3

The same seed gives the same bytes on any number of threads. The file has its name when it is whole.")]
pub(crate) struct Args {
    /// Output: .libsvm, .tsv (Criteo's layout), .csv or .parquet, text also with .gz or .zst; - for standard output
    output: PathBuf,
    /// Rows to write
    #[arg(long, default_value_t = SynthConfig::default().rows)]
    rows: u64,
    /// Number of the first row: a held-out file goes on where the training file ended
    #[arg(long, default_value_t = 0)]
    first_row: u64,
    /// Seed of everything
    #[arg(long, default_value_t = SynthConfig::default().seed)]
    seed: u64,
    /// libsvm, tsv, csv or parquet [default: by the extension]
    #[arg(long)]
    format: Option<String>,
    /// Distinct ids over all categorical features
    #[arg(long, default_value_t = SynthConfig::default().vocabulary)]
    vocabulary: u32,
    /// Exponent of the ids' zipf distribution
    #[arg(long, default_value_t = SynthConfig::default().zipf_exponent)]
    zipf_exponent: f64,
    /// How many of the 26 categorical features hold several values
    #[arg(long, default_value_t = 0)]
    multi_valued: usize,
    /// Most values of such a feature
    #[arg(long, default_value_t = SynthConfig::default().values_max)]
    values_max: u32,
    /// Share of positives
    #[arg(long, default_value_t = SynthConfig::default().positive_rate)]
    positive_rate: f64,
    /// Threads; 0: all
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Print the result as one JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
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
