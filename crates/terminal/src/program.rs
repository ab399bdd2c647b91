//! A program from its command line to its exit code, and the description of its command line for shell completion.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use clap::error::ErrorKind;

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
        Ending { line: Some(format!("error: {error}{advice}")), code }
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

/// Parses a command line, the program's name first. Help, version and errors are printed; their exit code is returned.
pub fn parse<P: Parser>(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<P, u8> {
    P::try_parse_from(args).map_err(|error| {
        if let Some(words) = renamed::option(&error) {
            return Ending::of_error(&words, None, USAGE).finish();
        }
        // Nothing is left to do if the terminal is gone.
        let _ = error.print();
        let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        if asked { 0 } else { USAGE }
    })
}

/// Runs a program of its own: parses the command line of this process, works, and prints the error if there is one.
pub fn run<P: Parser>(work: impl FnOnce(&P) -> Result<u8, Failure>) -> ExitCode {
    survive_file_size_limit();
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
