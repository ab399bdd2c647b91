//! `sanderling bench`: what this machine can do, one subcommand per part of the system.

use std::path::Path;

use sanderling_bench::BenchError;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

mod lookup;
mod rpc;
mod rpc_server;
mod store;

/// Measure what this machine can do: table operations, transports, reads from servers
#[derive(Debug, clap::Parser)]
#[command(
    name = "sanderling-bench",
    bin_name = "sanderling bench",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  # table operations, beside the limit of the memory
  sanderling bench store
  # pulls over all transports, and over gRPC
  sanderling bench rpc
  # in seconds, on a small table
  sanderling bench store --keys 100000 --rounds 2 --threads 1 --ops pull"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    Store(store::Args),
    Rpc(rpc::Args),
    Lookup(lookup::Args),
    #[command(name = rpc_server::NAME, hide = true)]
    RpcServer(rpc_server::Args),
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.part {
        Part::Store(args) => store::run(args),
        Part::Rpc(args) => rpc::run(args),
        Part::Lookup(args) => lookup::run(args),
        Part::RpcServer(args) => rpc_server::run(args),
    }
}

/// An error of a benchmark as one of this program.
fn failed(error: BenchError) -> Failure {
    match error {
        BenchError::Options(_) => Failure::Usage(error.to_string()),
        BenchError::Client(error) => Failure::Client(error),
        error => Failure::Run(error.to_string()),
    }
}

/// Refuses a path that the result cannot be written to.
fn check(json: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = json.filter(|path| path.as_os_str() != "-") else { return Ok(()) };
    output::not_a_url("--json", path)?;
    output::check(path)
}

/// Prints a report as text, and writes it as JSON if a path is named; with `-` prints only JSON.
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
