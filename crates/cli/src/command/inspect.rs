//! `sanderling inspect`: describe a model directory, a data file, a server's checkpoint or log, or kept tables.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::quantity;
use crate::reading::ReadArgs;
use crate::saved_model;

mod checkpoint;
mod data;
mod kept;
mod log;
mod model;

/// Describe a model, a data file, a checkpoint or kept tables, and suggest a configuration
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # columns, values, positives
  sanderling inspect clicks.csv
  # first file of a pattern
  sanderling inspect 'clicks-*.csv'
  # propose a configuration
  sanderling inspect clicks.csv --suggest > clicks.toml
  # tables, rows, norms, frequent keys
  sanderling inspect runs/clicks/model
  # a server's checkpoint and its deltas
  sanderling inspect /var/lib/sanderling/latest
  # tables that outlive their server
  sanderling inspect /mnt/tables
  # the delta log of a server
  sanderling inspect /var/log/sanderling")]
pub(crate) struct Args {
    /// Model directory, server's checkpoint, folder or device of ps --kept, folder of --log, data file, URL, or - for standard input; folder or pattern: its first file
    path: PathBuf,
    /// Print a run configuration (TOML) for sanderling train
    #[arg(long)]
    suggest: bool,
    /// Number of rows to read, from the start of the file [default: all]
    #[arg(long, value_name = "N", value_parser = quantity::count)]
    rows: Option<u64>,
    /// Number of most frequent values or keys to show, 1 to 1000
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    top: u64,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long, conflicts_with = "suggest")]
    json: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    if sanderling_store::is_kept_device(&args.path) {
        return kept::show(args, kept::find(&args.path)?);
    }
    if args.path.is_dir() {
        let kept = kept::find(&args.path)?;
        if !kept.is_empty() && !args.suggest {
            return kept::show(args, kept);
        }
        let logs = log::find(&args.path)?;
        if !logs.is_empty() && !args.suggest {
            return log::show(args, logs);
        }
        if let Some(found) = checkpoint::find(&args.path).filter(|_| !args.suggest) {
            return checkpoint::show(args, found);
        }
    }
    if (args.path.is_dir() && !data::is_folder_of_data(args)?) || saved_model::is_missing(&args.path) {
        if args.suggest {
            return Err(Failure::Usage(format!("{}: --suggest needs a data file", args.path.display())));
        }
        model::show(args)
    } else {
        data::show(args)
    }
}
