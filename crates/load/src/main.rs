//! The `sanderling-load` program; `sanderling load` starts it.

use std::process::ExitCode;

#[macro_use(note, note_line)]
extern crate sanderling_terminal;
use sanderling_terminal::{failure, output, program, progress, quantity, servers, stop, width};

mod command;

fn main() -> ExitCode {
    program::run(command::run)
}
