//! `sanderling predict`: a probability per row of input.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use sanderling_formats::{BadRows, Compression};
use sanderling_learner::{KnownKeys, LearnError, is_deep};

use crate::deep::{DeepModels, Purpose, Scoring};
use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::reading::{ReadArgs, not_an_input, report_bad_rows, report_skipped};
use crate::saved_model;
use crate::scores::ScoreWriter;
use crate::servers::ServerArgs;

/// Write a predicted probability for every input row
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling predict runs/adult_fm/model new.csv -o scores.csv
  zcat clicks.tsv.gz | sanderling predict runs/clicks/model - --format tsv \\
      > scores.csv

Writes one probability per input row, in input order; labels may be missing. A skipped row (--on-bad-row) gives an empty \
line, so line numbers still match.

With --ps, rows are read from the tables that train --ps made on the servers; MODEL supplies only the configuration.

MODEL may be a deep model, with the Python package and PyTorch: pip install 'sanderling[torch]'.")]
pub(crate) struct Args {
    /// Model directory, such as runs/clicks/model
    model: PathBuf,
    /// Input files, patterns or URLs (s3://, gs://, az://, https://); - for standard input
    #[arg(required = true)]
    files: Vec<String>,
    /// Output file: Parquet if it ends in .parquet, otherwise CSV; - for standard output
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    output: PathBuf,
    /// Write a header line in CSV output
    #[arg(long)]
    output_header: bool,
    /// Print a summary as a JSON object on the last line of standard output; needs --output FILE
    #[arg(long)]
    json: bool,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

/// What was predicted, by either kind of model.
struct Scored {
    rows: u64,
    known: Vec<KnownKeys>,
    bad_rows: u64,
}

/// Threads that read rows for a deep model.
const DEEP_THREADS: usize = 2;

pub(crate) fn run(args: &Args, models: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    let to_stdout = args.output.as_os_str() == "-";
    if args.json && to_stdout {
        return Err(Failure::Usage(
            "--json needs --output FILE: the scores themselves go to standard output".into(),
        ));
    }
    if Compression::of_path(&args.output) != Compression::None {
        let name = args.output.display();
        return Err(Failure::Usage(format!(
            "--output {name}: compressed output is not supported; end the name in .csv or .parquet"
        )));
    }
    output::not_a_url("--output", &args.output)?;
    not_an_input("--output", &args.output, &args.files)?;
    if !to_stdout {
        output::check(&args.output)?;
    }
    let bar = Bar::new(args.quiet || (to_stdout && std::io::stdout().is_terminal()));
    let found = if is_deep(&args.model) { deep(args, &bar, models)? } else { built_in(args, &bar)? };
    found.known.iter().filter_map(KnownKeys::remark).for_each(|remark| note!("warning: {remark}"));
    if args.json {
        output::json(&serde_json::json!({
            "examples": found.rows,
            "bad_rows": found.bad_rows,
            "output": args.output,
            "known": found.known,
        }))?;
    } else if !to_stdout && !args.quiet {
        note!("{} scores in {}", output::count(found.rows), args.output.display());
    }
    Ok(0)
}

/// Predicts with a built-in model.
fn built_in(args: &Args, bar: &Bar) -> Result<Scored, Failure> {
    let model = saved_model::open(&args.model, &args.servers)?;
    let mut config = model.config().data.reading.clone();
    args.reading.apply(&mut config);
    args.reading.check_used(&config, &args.files)?;
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row).placeholder(true));
    let stop = crate::stop::flag();
    let not_written = |error| output::not_written(&args.output, &error);
    let mut writer = ScoreWriter::create(&args.output, args.output_header).map_err(not_written)?;
    let found =
        sanderling_learner::predict(&model, &args.files, &config, &bad_rows, &stop, |scores, scan| {
            bar.scan("predicting", scan.bytes_read, scan.bytes_total);
            let failed = |source| LearnError::Io { path: args.output.clone(), source };
            writer.write(scores).map_err(failed)
        });
    bar.finish();
    let found = found?;
    writer.finish().map_err(not_written)?;
    report_bad_rows(&bad_rows);
    Ok(Scored { rows: found.rows, known: found.known, bad_rows: bad_rows.count() })
}

/// Predicts with a deep model.
fn deep(args: &Args, bar: &Bar, models: Option<&dyn DeepModels>) -> Result<Scored, Failure> {
    let stop = crate::stop::flag();
    let scoring = Scoring {
        models,
        path: &args.model,
        files: &args.files,
        servers: &args.servers,
        reading: &args.reading,
        threads: DEEP_THREADS,
        stop: &stop,
    };
    let not_written = |error| output::not_written(&args.output, &error);
    let mut writer = ScoreWriter::create(&args.output, args.output_header).map_err(not_written)?;
    let mut done = 0;
    let end = scoring.run(Purpose::Predictions, bar, |rows| {
        done += rows.scores.len() as u64;
        writer.write(&rows.scores).map_err(|error| match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Output(error),
            _ => output::not_written(&args.output, &error).into(),
        })
    });
    bar.finish();
    let end = end?;
    writer.finish().map_err(not_written)?;
    report_skipped(end.bad_rows, &end.bad_row_messages);
    Ok(Scored { rows: done, known: end.known, bad_rows: end.bad_rows })
}
