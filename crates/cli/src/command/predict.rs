//! `sanderling predict`: a probability per row of input.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;

use sanderling_formats::{BadRows, Compression};
use sanderling_learner::{KnownKeys, LearnError};

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::reading::{ReadArgs, not_an_input, report_bad_rows};
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

With --ps, rows are read from the tables that train --ps made on the servers; MODEL supplies only the configuration.")]
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
            "--output {name}: compressed output is not supported; end the name in .csv or .parquet"
        )));
    }
    output::not_a_url("--output", &args.output)?;
    not_an_input("--output", &args.output, &args.files)?;
    if !to_stdout {
        output::check(&args.output)?;
    }
    let model = saved_model::open(&args.model, &args.servers)?;
    let mut config = model.config().data.reading.clone();
    args.reading.apply_all(&mut config)?;
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
