//! `sanderling load`: scripted load against tables at any address, and what its results say.

use sanderling_load::engine::{EngineError, Progress};

use crate::failure::Failure;
use crate::progress::Bar;
use crate::stop;

mod creation;
mod many;
mod plan;
mod results;
mod run;
mod selftest;

/// Run scripted load against tables and report throughput and latency
#[derive(Debug, clap::Parser)]
#[command(
    name = "sanderling-load",
    bin_name = "sanderling load",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  # the serving workload, on tables in this process
  sanderling load run
  # against a server; prints two lines and writes the whole result to a file
  sanderling load run --ps 127.0.0.1:7000 --create -o run.json
  # an open loop at 20,000 calls/s: latency counts from the due time of a call
  sanderling load run ycsb_a --ps 127.0.0.1:7000 --create --rate 20k
  sanderling load search --slo 'p99<5ms' --ps 127.0.0.1:7000 --create
  sanderling load sweep --rates 5k..200k:log12 --ps 127.0.0.1:7000 --create \\
      -o sweep.json
  sanderling load plot sweep.json -o sweep.svg
  sanderling load ab 127.0.0.1:7000 127.0.0.1:7001 --create --runs 10
  # workloads, their parameters and functions
  sanderling load list

docs/load-scripts.md describes how to write a workload. \
To compare training runs, use sanderling compare."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    Schema(run::SchemaArgs),
    Load(run::LoadArgs),
    Run(Box<run::RunArgs>),
    Sweep(Box<many::SweepArgs>),
    Search(Box<many::SearchArgs>),
    Ab(Box<many::AbArgs>),
    Show(results::ShowArgs),
    Plot(results::PlotArgs),
    List(results::ListArgs),
    Selftest(selftest::Args),
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    match &args.part {
        Part::Schema(args) => run::schema(args),
        Part::Load(args) => run::load(args),
        Part::Run(args) => run::run(args),
        Part::Sweep(args) => many::sweep(args),
        Part::Search(args) => many::search(args),
        Part::Ab(args) => many::ab(args),
        Part::Show(args) => results::show(args),
        Part::Plot(args) => results::plot(args),
        Part::List(args) => results::list(args),
        Part::Selftest(args) => selftest::run(args),
    }
}

/// Shows progress; false after Ctrl-C.
fn watched(bar: &Bar, what: &str, progress: Progress) -> bool {
    const STEPS: f64 = 1000.0;
    let rate = progress.calls as f64 / progress.elapsed.as_secs_f64().max(0.1);
    let failed = if progress.failed > 0 { format!(", {} failed", progress.failed) } else { String::new() };
    let said = format!("{what}: {rate:.0} calls/s{failed}");
    bar.steps(&said, (progress.share * STEPS) as usize, STEPS as usize);
    !stop::flag().load(std::sync::atomic::Ordering::Relaxed)
}

/// A request that Ctrl-C ended is not a failure of the server.
fn unreached(failure: sanderling_load::request::Failure) -> Failure {
    if failure.kind == "stopped" { Failure::Stopped } else { Failure::Run(failure.reason) }
}

/// Separates wrong arguments from failures of the work.
fn failed(error: EngineError) -> Failure {
    match error {
        EngineError::Script(_)
        | EngineError::Mix(_)
        | EngineError::Generate(_)
        | EngineError::Number { .. } => Failure::Usage(error.to_string()),
        EngineError::Stopped(_) => Failure::Stopped,
        EngineError::Target(failure) => unreached(failure),
        error => Failure::Run(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// A heading of flattened options also covers the options after them, unless these name their own.
    #[test]
    fn options_stand_below_the_heading_that_they_belong_to() {
        for part in Args::command().get_subcommands() {
            for arg in part.get_arguments() {
                let (Some(name), Some(heading)) = (arg.get_long(), arg.get_help_heading()) else { continue };
                let belongs = match heading {
                    "Parameter servers" => name == "ps" || name.starts_with("ps-"),
                    "Tables on servers" => ["create", "keep"].contains(&name),
                    "Result" => ["output", "full", "json", "slo"].contains(&name),
                    "Search" => ["slo", "trial", "precision"].contains(&name),
                    _ => !["output", "full", "json", "slo", "create", "keep"].contains(&name),
                };
                assert!(belongs, "load {} --{name} is below {heading:?}", part.get_name());
            }
        }
    }
}
