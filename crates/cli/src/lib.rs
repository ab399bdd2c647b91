//! The `sanderling` command: one file per subcommand, and what they share.
//!
//! Arguments in, exit code out; the result goes to standard output, everything else to standard error. The crate
//! decides nothing about training or data: it calls the learner and the readers.

use std::ffi::OsString;

use clap::{Parser, Subcommand};
use sanderling_terminal::program::{self, Ending};
use sanderling_terminal::{log, output, progress, quantity, renamed, servers, stop, token, width};

#[macro_use(note, note_line)]
extern crate sanderling_terminal;

mod command;
mod deep;
mod failure;
mod flags;
mod jobs;
mod listening;
#[cfg(test)]
mod names;
mod profile;
mod quality;
mod reading;
mod run_config;
mod run_pages;
mod saved_model;
mod scores;
mod timing;
mod traces;

pub use command::train::{DEEP_MODELS, RETRIEVAL_MODELS};
pub use deep::{DeepEnd, DeepError, DeepModel, DeepModels, DeepRows, OnnxExport, Purpose};
pub use run_pages::show_run;
pub use sanderling_terminal::renamed::OPTIONS as RENAMED_OPTIONS;

/// Parameter server, feature hub and trainers for click models with large embedding tables.
#[derive(Debug, Parser)]
#[command(name = "sanderling", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  # propose a configuration for a data file
  sanderling inspect clicks.csv --suggest > clicks.toml
  # train a model; writes metrics and a report
  sanderling train clicks.toml
  # AUC and logloss on held-out rows
  sanderling eval runs/clicks/model held_out.csv
  sanderling predict runs/clicks/model new.csv -o scores.csv

Output files are written under a temporary name and renamed when complete. Pipes and devices are written directly.

Exit codes: 0 success; 1 failure; 2 wrong arguments or configuration; 3 bad data; 4 damaged or unsuitable model; \
130 interrupted (the run is saved; continue it with train --resume).";

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<command::train::Args>),
    Eval(command::eval::Args),
    Predict(command::predict::Args),
    Inspect(command::inspect::Args),
    Key(command::key::Args),
    Similar(command::similar::Args),
    Export(command::export::Args),
    Compare(command::compare::Args),
    Runs(command::runs::Args),
    Watch(command::watch::Args),
    Download(command::download::Args),
    Convert(command::convert::Args),
    Hub(Box<command::hub::Args>),
    Ps(Box<command::ps::Args>),
    Keeper(command::keeper::Args),
    Serve(Box<command::serve::Args>),
    Ctl(command::ctl::Args),
    Synth(command::synth::Args),
    /// Run scripted load against tables and report throughput and latency
    #[command(disable_help_flag = true, after_help = "Subcommands and options: sanderling load --help")]
    Load(command::external::Args),
    /// Measure what this machine can do: table operations, transports
    #[command(disable_help_flag = true, after_help = "Subcommands and options: sanderling bench --help")]
    Bench(command::external::Args),
    Completions(command::completions::Args),
}

/// Runs one command line, the program's name first, and returns the exit code.
pub fn run<I, T>(args: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    run_with(args, None)
}

/// [`run`] with a reader of deep models.
pub fn run_with<I, T>(args: I, deep: Option<&dyn DeepModels>) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    log::start_unless_terminal();
    let cli: Cli = match program::parse(&args) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let line = flags::CommandLine(&args);
    let programs = command::external::Programs::beside(args.first());
    let result = match cli.command {
        Command::Train(args) => command::train::run(&args, &line),
        Command::Eval(args) => command::eval::run(&args, deep),
        Command::Predict(args) => command::predict::run(&args, deep),
        Command::Inspect(args) => command::inspect::run(&args),
        Command::Key(args) => command::key::run(&args),
        Command::Similar(args) => command::similar::run(&args),
        Command::Export(args) => command::export::run(&args, deep),
        Command::Compare(args) => command::compare::run(&args),
        Command::Runs(args) => command::runs::run(&args),
        Command::Watch(args) => command::watch::run(&args),
        Command::Download(args) => command::download::run(&args, deep),
        Command::Convert(args) => command::convert::run(&args),
        Command::Hub(args) => command::hub::run(&args, &line),
        Command::Ps(args) => command::ps::run(*args, &line),
        Command::Keeper(args) => command::keeper::run(&args, &line),
        Command::Serve(args) => command::serve::run(&args, &line, deep),
        Command::Ctl(args) => command::ctl::run(&args),
        Command::Synth(args) => command::synth::run(&args),
        Command::Load(args) => programs.run("load", &args),
        Command::Bench(args) => programs.run("bench", &args),
        Command::Completions(args) => command::completions::run(&args, &programs),
    };
    let ending = match result {
        Ok(code) => Ending::of_code(code),
        // The reader of the output has gone, as `head` does.
        Err(failure) if failure.is_broken_pipe() => Ending::of_code(0),
        Err(failure) => Ending::of_error(&failure.words(), failure.advice(), failure.exit_code()),
    };
    ending.finish()
}
