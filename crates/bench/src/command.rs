//! `sanderling bench`: what this machine can do, one subcommand per part of the system.

use std::path::Path;

use serde::Serialize;

use crate::failure::Failure;
use crate::output;

mod rpc;
mod rpc_server;
mod store;

/// Measure what this machine can do
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  # the embedding table beside the limit of the memory
  sanderling bench store
  # pulls over all transports, and over gRPC
  sanderling bench rpc
  # its options
  sanderling bench rpc --help")]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    Store(store::Args),
    Rpc(rpc::Args),
    #[command(name = rpc_server::NAME, hide = true)]
    RpcServer(rpc_server::Args),
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.part {
        Part::Store(args) => store::run(args),
        Part::Rpc(args) => rpc::run(args),
        Part::RpcServer(args) => rpc_server::run(args),
    }
}

/// Refuses a place where the result cannot be written.
fn check(json: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = json.filter(|path| path.as_os_str() != "-") else { return Ok(()) };
    output::not_a_url("--json", path)?;
    output::check(path)
}

/// Prints a report for people, and writes it as JSON if that is asked for: to standard output alone, if it is `-`.
fn show<R: Serialize>(
    report: &R,
    json: Option<&Path>,
    describe: impl FnOnce(&R) -> String,
) -> Result<(), Failure> {
    if json.is_some_and(|path| path.as_os_str() == "-") {
        return output::json(report);
    }
    output::text(&describe(report))?;
    if let Some(path) = json {
        let json = serde_json::to_string_pretty(report).map_err(std::io::Error::from)?;
        output::save(path, (json + "\n").as_bytes())?;
    }
    Ok(())
}
