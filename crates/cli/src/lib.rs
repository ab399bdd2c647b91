//! The `sanderling` command: one file per subcommand, and what they share.
//!
//! Arguments in, exit code out; the result goes to standard output, everything else to standard error. The crate
//! decides nothing about training or data: it calls the learner and the readers.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

#[macro_use]
mod output;
mod command;
mod failure;
mod jobs;
mod log;
mod profile;
mod progress;
mod reading;
mod scores;
mod servers;
mod stop;
mod timing;
mod token;
mod width;

pub use command::train::DEEP_MODELS;

/// Train, evaluate and look into CTR models whose embedding tables outgrow a laptop.
#[derive(Debug, Parser)]
#[command(name = "sanderling", version, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  # a first configuration from a file
  sanderling inspect clicks.csv --suggest > clicks.toml
  # a model, its metrics and a report
  sanderling train clicks.toml
  # AUC and logloss on other rows
  sanderling eval runs/clicks/model held_out.csv
  sanderling predict runs/clicks/model new.csv -o scores.csv

A file that is named as output has its name when it is whole; pipes and devices are written as they are.

Exit codes: 0 done; 1 failed; 2 wrong arguments or configuration; 3 bad data; 4 damaged or unfit model; \
130 interrupted (what was trained is saved, go on with train --resume).";

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<command::train::Args>),
    Eval(command::eval::Args),
    Predict(command::predict::Args),
    Inspect(command::inspect::Args),
    Compare(command::compare::Args),
    Convert(command::convert::Args),
    Hub(Box<command::hub::Args>),
    Ps(Box<command::ps::Args>),
    Ctl(command::ctl::Args),
    Synth(command::synth::Args),
    Load(command::load::Args),
    Bench(command::bench::Args),
    Completions(command::completions::Args),
}

/// Runs one command line, the program's name first, and returns the exit code.
pub fn run<I, T>(args: I) -> u8
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // `--help` and `--version` are no errors. Nothing is left to do if the terminal is gone.
            let _ = error.print();
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if asked { 0 } else { failure::USAGE };
        }
    };
    let result = match cli.command {
        Command::Train(args) => command::train::run(&args),
        Command::Eval(args) => command::eval::run(&args),
        Command::Predict(args) => command::predict::run(&args),
        Command::Inspect(args) => command::inspect::run(&args),
        Command::Compare(args) => command::compare::run(&args),
        Command::Convert(args) => command::convert::run(&args),
        Command::Hub(args) => command::hub::run(&args),
        Command::Ps(args) => command::ps::run(*args),
        Command::Ctl(args) => command::ctl::run(&args),
        Command::Synth(args) => command::synth::run(&args),
        Command::Load(args) => command::load::run(&args),
        Command::Bench(args) => command::bench::run(&args),
        Command::Completions(args) => command::completions::run(&args),
    };
    let code = match result {
        Ok(code) => code,
        // Whoever read our output has seen enough, as `head` does.
        Err(failure) if failure.is_broken_pipe() => 0,
        Err(failure) => {
            let advice = failure.advice().map_or(String::new(), |advice| format!("; {advice}"));
            note!("error: {}{advice}", failure.words());
            failure.exit_code()
        }
    };
    log::finish();
    code
}
