//! `sanderling inspect`: what is in a model's directory, or in a data file.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::reading::ReadArgs;

mod data;
mod model;

/// Look into a model or a data file
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  # columns, values, positives
  sanderling inspect clicks.csv
  # the first file of many
  sanderling inspect 'clicks-*.csv'
  # a first configuration
  sanderling inspect clicks.csv --suggest > clicks.toml
  # tables, rows, norms, frequent keys
  sanderling inspect runs/clicks/model")]
pub(crate) struct Args {
    /// Directory of a model, or a data file or its url, or - for standard input; of a folder or pattern, the first file
    path: PathBuf,
    /// Print a configuration for `sanderling train` that fits the file
    #[arg(long)]
    suggest: bool,
    /// Look at the first rows of a data file only
    #[arg(long, value_name = "N")]
    rows: Option<u64>,
    /// Frequent values or keys to show
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    top: u64,
    /// Print the result as one JSON object on the last line of standard output
    #[arg(long, conflicts_with = "suggest")]
    json: bool,
    #[command(flatten)]
    reading: ReadArgs,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    if args.path.is_dir() && !data::is_folder_of_data(args) {
        if args.suggest {
            return Err(Failure::Usage(format!("{}: --suggest needs a data file", args.path.display())));
        }
        model::show(args)
    } else {
        data::show(args)
    }
}
