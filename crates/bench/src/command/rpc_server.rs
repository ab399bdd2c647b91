//! `sanderling bench rpc-server`: a server's process of `bench rpc`, which starts and ends it.

use std::io::Read;

use sanderling_bench::rpc::{ServeOptions, serve};

use crate::failure::Failure;
use crate::output;

/// The name of the command.
pub(super) const NAME: &str = "rpc-server";

/// Serve for `bench rpc`, until standard input ends
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling bench rpc    starts it")]
pub(super) struct Args {
    /// Options of the server, as JSON
    serve: String,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let options: ServeOptions =
        serde_json::from_str(&args.serve).map_err(|error| Failure::Usage(error.to_string()))?;
    let serving = serve(&options).map_err(super::failed)?;
    output::json(&serving.places)?;
    // The starting process holds the other end, which closes when that process ends.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(0)
}
