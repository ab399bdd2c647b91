//! `sanderling bench`: what this machine can do, one subcommand per part of the system.

use crate::failure::Failure;

mod store;

/// Measure what this machine can do
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling bench store                            the embedding table beside the limit of the memory
  sanderling bench store --help                     its options")]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    Store(store::Args),
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.part {
        Part::Store(args) => store::run(args),
    }
}
