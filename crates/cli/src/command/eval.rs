//! `sanderling eval`: a model against labelled files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sanderling_learner::evaluate;
use sanderling_sample::BadRows;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::reading::{ReadArgs, report_bad_rows};
use crate::servers::ServerArgs;

/// Measure a model on labelled files
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling eval runs/adult_fm/model data/adult/adult.test.gz --format csv \\
      --json
  sanderling eval runs/clicks/model held_out.csv \\
      --ps 127.0.0.1:7000,127.0.0.1:7001

With --ps the rows are those that the servers have at present, in the tables that train --ps made; of MODEL only the \
configuration is used.")]
pub(crate) struct Args {
    /// Directory of the model
    model: PathBuf,
    /// Files, patterns, urls (s3://, gs://, az://, http://, https://), or - for standard input
    #[arg(required = true)]
    files: Vec<String>,
    /// Print the result as one JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
    /// Threads
    #[arg(long, default_value_t = default_threads(), value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

fn default_threads() -> u16 {
    std::thread::available_parallelism().map_or(1, |threads| threads.get().min(64) as u16)
}

#[derive(Serialize)]
struct Evaluation {
    auc: Option<f64>,
    logloss: Option<f64>,
    prob_mean: Option<f64>,
    real_mean: Option<f64>,
    normalized_entropy: Option<f64>,
    examples: u64,
    examples_per_s: f64,
    rows: u64,
    table_bytes: u64,
    bad_rows: u64,
    auc_exact: bool,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let model = args.servers.model(&args.model)?;
    let mut config = model.config().data.reading.clone();
    args.reading.apply(&mut config);
    args.reading.check_used(&config, &args.files)?;
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
    let bar = Bar::new(args.quiet);
    let stop = crate::stop::flag();
    let start = Instant::now();
    let scores =
        evaluate(&model, &args.files, &config, &bad_rows, usize::from(args.threads), &stop, &mut |scan| {
            bar.scan("evaluating", scan);
        });
    bar.finish();
    let metrics = scores?.metrics();
    let seconds = start.elapsed().as_secs_f64();
    report_bad_rows(&bad_rows);
    let number = |value: f64| value.is_finite().then_some(value);
    let (rows, table_bytes) = model.size()?;
    let result = Evaluation {
        auc: number(metrics.auc),
        logloss: number(metrics.logloss),
        prob_mean: number(metrics.prob_mean),
        real_mean: number(metrics.real_mean),
        normalized_entropy: number(metrics.normalized_entropy),
        examples: metrics.examples,
        examples_per_s: metrics.examples as f64 / seconds.max(1e-9),
        rows,
        table_bytes,
        bad_rows: bad_rows.count(),
        auc_exact: metrics.auc_exact,
    };
    if args.json {
        output::json(&result)?;
    } else {
        let (scores, means) = ((result.auc, result.logloss), (result.prob_mean, result.real_mean));
        let mut rows = output::quality(scores, means, "");
        rows.extend([
            (
                "examples",
                format!(
                    "{}, {} examples/s",
                    output::count(result.examples),
                    output::per_s(result.examples_per_s)
                ),
            ),
            ("table rows", format!("{}, {}", output::count(result.rows), output::bytes(result.table_bytes))),
            ("bad rows", output::count(result.bad_rows)),
        ]);
        output::text(&output::pairs(&rows))?;
    }
    Ok(0)
}
