//! `sanderling predict`: a score per line of input.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use sanderling_learner::{KnownKeys, LearnError};
use sanderling_sample::{BadRows, Compression};

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::reading::{ReadArgs, not_an_input, report_bad_rows};
use crate::saved_model;
use crate::scores::ScoreWriter;
use crate::servers::ServerArgs;

/// Write a model's prediction for every row of the input
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling predict runs/adult_fm/model new.csv -o scores.csv
  zcat clicks.tsv.gz | sanderling predict runs/clicks/model - --format tsv \\
      > scores.csv

One score (probability) per row of input, in its order; labels may be missing. A row that --on-bad-row skips gets an \
empty score, so that lines still match.

With --ps the rows are those that the servers have at present, in the tables that train --ps made; of MODEL only the \
configuration is used.")]
pub(crate) struct Args {
    /// Directory of the model
    model: PathBuf,
    /// Files, patterns, urls (s3://, gs://, az://, http://, https://), or - for standard input
    #[arg(required = true)]
    files: Vec<String>,
    /// Output: .parquet for Parquet, anything else CSV, - for standard output
    #[arg(long, short, default_value = "-", value_name = "FILE")]
    output: PathBuf,
    /// Begin CSV output with a line that names the column
    #[arg(long)]
    output_header: bool,
    /// Print a summary as one JSON object on the last line of standard output (needs --output FILE)
    #[arg(long)]
    json: bool,
    /// No progress
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    servers: ServerArgs,
    #[command(flatten)]
    reading: ReadArgs,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let to_stdout = args.output.as_os_str() == "-";
    if args.json && to_stdout {
        return Err(Failure::Usage(
            "--json needs --output FILE: the scores themselves go to standard output".into(),
        ));
    }
    if Compression::of_path(&args.output) != Compression::None {
        let name = args.output.display();
        return Err(Failure::Usage(format!(
            "--output {name}: scores are written as CSV or Parquet, not compressed"
        )));
    }
    output::not_a_url("--output", &args.output)?;
    not_an_input("--output", &args.output, &args.files)?;
    if !to_stdout {
        output::check(&args.output)?;
    }
    let model = saved_model::open(&args.model, &args.servers)?;
    let mut config = model.config().data.reading.clone();
    args.reading.apply(&mut config);
    args.reading.check_used(&config, &args.files)?;
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row).placeholder(true));
    let bar = Bar::new(args.quiet || (to_stdout && std::io::stdout().is_terminal()));
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
    let rows = found.rows;
    writer.finish().map_err(not_written)?;
    report_bad_rows(&bad_rows);
    found.known.iter().filter_map(KnownKeys::remark).for_each(|remark| note!("warning: {remark}"));
    if args.json {
        output::json(&serde_json::json!({
            "examples": rows,
            "bad_rows": bad_rows.count(),
            "output": args.output,
            "known": found.known,
        }))?;
    } else if !to_stdout && !args.quiet {
        note!("{} scores in {}", output::count(rows), args.output.display());
    }
    Ok(0)
}
