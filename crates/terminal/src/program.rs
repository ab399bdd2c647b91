//! A program from its command line to its exit code, and the description of its command line for shell completion.

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::error::ErrorKind;
use clap::{Command, Parser};

use crate::failure::{Failure, USAGE};
use crate::{command_tree, log, output, renamed};

/// The only argument of a request for a program's command line as JSON, see [`command_tree`].
pub const COMMAND_TREE: &str = "--command-tree";

/// The error line of a program, if there is one, and its exit code.
#[derive(Debug)]
pub struct Ending {
    line: Option<String>,
    code: u8,
}

impl Ending {
    /// An ending with an error: what failed, and which options help.
    pub fn of_error(error: &str, advice: Option<&str>, code: u8) -> Ending {
        let advice = advice.map_or(String::new(), |advice| format!("; {advice}"));
        Ending { line: Some(format!("error: {}{advice}", of_system(error))), code }
    }

    /// An ending without an error line.
    pub fn of_code(code: u8) -> Ending {
        Ending { line: None, code }
    }

    /// Prints the error, waits until all notes are written, and returns the exit code.
    pub fn finish(self) -> u8 {
        if let Some(line) = self.line {
            note!("{line}");
        }
        log::finish();
        self.code
    }
}

/// Errors of the system as it puts them, and what a user can do.
const OF_SYSTEM: [(&str, &str); 5] = [
    (
        "No such file or directory (os error 2)",
        "no such file or folder; check the path, and the current folder",
    ),
    (
        "Permission denied (os error 13)",
        "permission denied; change its mode or owner, or run as another user",
    ),
    ("Is a directory (os error 21)", "is a folder; name a file"),
    ("Not a directory (os error 20)", "part of this path is a file, not a folder; check the path"),
    ("No space left on device (os error 28)", "the disk is full; free some space, or name another folder"),
];

/// The error with advice for errors of the system.
fn of_system(error: &str) -> Cow<'_, str> {
    match OF_SYSTEM.iter().find(|(said, _)| error.contains(said)) {
        Some((said, better)) => Cow::Owned(error.replacen(said, better, 1)),
        None => Cow::Borrowed(error),
    }
}

/// Parses a command line, the program's name first. Help, version and errors are printed; their exit code is returned.
pub fn parse<P: Parser>(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<P, u8> {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    P::try_parse_from(&args).map_err(|error| {
        if let Some(words) = renamed::option(&error) {
            return Ending::of_error(&words, None, USAGE).finish();
        }
        let code = match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => 0,
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => USAGE,
            _ => {
                let words = on_one_line(&error.to_string());
                let help = format!("see {} --help", called(P::command(), &args));
                return Ending::of_error(&words, Some(&help), USAGE).finish();
            }
        };
        // Nothing is left to do if the terminal is gone.
        let _ = error.print();
        code
    })
}

/// Causes of wrong numbers in the words of Rust's standard library, and in ours.
const OF_NUMBERS: [(&str, &str); 5] = [
    ("invalid digit found in string", "not a whole number"),
    ("invalid float literal", "not a number"),
    ("cannot parse integer from empty string", "not a whole number"),
    ("cannot parse float from empty string", "not a number"),
    ("number too large to fit in target type", "too large"),
];

/// The message of a usage error and its suggestion, without the usage.
fn on_one_line(error: &str) -> String {
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = error.split("\n\n");
    let mut words = joined(parts.next().unwrap_or_default().trim_start_matches("error:"));
    for part in parts.filter_map(|part| part.trim().strip_prefix("tip:")) {
        // An escaped option is rarely what was meant.
        if !part.contains("as a value, use '--") {
            words = format!("{words}; {}", joined(part));
        }
    }
    for (theirs, ours) in OF_NUMBERS {
        words = words.replace(theirs, ours);
    }
    words
}

/// The name of the subcommand that a command line calls.
fn called(mut command: Command, args: &[OsString]) -> String {
    command.build();
    let mut called = &command;
    for arg in args.iter().skip(1) {
        if let Some(sub) = arg.to_str().and_then(|name| called.find_subcommand(name)) {
            called = sub;
        }
    }
    called.get_bin_name().unwrap_or_else(|| called.get_name()).to_owned()
}

/// Runs a program of its own: parses the command line of this process, works, and prints the error if there is one.
pub fn run<P: Parser>(work: impl FnOnce(&P) -> Result<u8, Failure>) -> ExitCode {
    survive_file_size_limit();
    log::start_unless_terminal();
    let ended = if std::env::args_os().skip(1).eq([COMMAND_TREE]) {
        output::json(&command_tree::of(&P::command())).map(|()| 0)
    } else {
        match parse(std::env::args_os()) {
            Ok(args) => work(&args),
            Err(code) => Ok(code),
        }
    };
    let ending = ended.map_or_else(|failure| failure.ending(), Ending::of_code);
    ExitCode::from(ending.finish())
}

/// Lets a write beyond a limit to the size of files (ulimit -f) fail, as on a full disk, instead of ending the process.
pub fn survive_file_size_limit() {
    // Without a handler such a write ends the process as it would have before.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
}

#[cfg(test)]
mod tests {
    use clap::{Args, CommandFactory, Subcommand};

    use super::*;

    /// A program with one subcommand.
    #[derive(Debug, Parser)]
    #[command(name = "tool-sub", bin_name = "tool sub")]
    struct Tool {
        #[command(subcommand)]
        command: Sub,
    }

    #[derive(Debug, Subcommand)]
    enum Sub {
        Run(Run),
    }

    #[derive(Debug, Args)]
    struct Run {
        file: String,
        #[arg(long)]
        batch_size: Option<u32>,
        #[arg(long, value_parser = ["fast", "exact"])]
        mode: Option<String>,
        #[arg(long, requires = "mode")]
        rank: Option<u32>,
    }

    #[test]
    fn usage_errors_are_one_line_with_advice() {
        for (line, expected) in [
            ("run", "the following required arguments were not provided: <FILE>; see tool sub run --help"),
            ("run a --foo", "unexpected argument '--foo' found; see tool sub run --help"),
            (
                "run a --bat 3",
                "unexpected argument '--bat' found; a similar argument exists: '--batch-size'; see tool sub run --help",
            ),
            (
                "run a --batch-size x",
                "invalid value 'x' for '--batch-size <BATCH_SIZE>': not a whole number; see tool sub run --help",
            ),
            (
                "run a --mode fas",
                "invalid value 'fas' for '--mode <MODE>' [possible values: fast, exact]; a similar value exists: 'fast'; see \
                 tool sub run --help",
            ),
            (
                "run a --rank 1",
                "the following required arguments were not provided: --mode <MODE>; see tool sub run --help",
            ),
            (
                "ran a",
                "unrecognized subcommand 'ran'; a similar subcommand exists: 'run'; see tool sub --help",
            ),
        ] {
            let args: Vec<OsString> =
                std::iter::once("tool").chain(line.split(' ')).map(Into::into).collect();
            let error = Tool::try_parse_from(&args).expect_err(line).to_string();
            let help = format!("see {} --help", called(Tool::command(), &args));
            let ending = Ending::of_error(&on_one_line(&error), Some(&help), USAGE);
            assert_eq!(ending.line, Some(format!("error: {expected}")), "{line}");
        }
    }

    #[test]
    fn errors_of_the_system_come_with_advice() {
        let missing = std::fs::read("/nowhere/a").expect_err("it is not there");
        for (error, expected) in [
            (
                format!("a.csv: {missing}"),
                "a.csv: no such file or folder; check the path, and the current folder",
            ),
            (
                "x: Permission denied (os error 13); or y".to_owned(),
                "x: permission denied; change its mode or owner, or run as another user; or y",
            ),
            ("all is well".to_owned(), "all is well"),
        ] {
            assert_eq!(of_system(&error), expected);
        }
    }
}
