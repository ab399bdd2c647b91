//! The `sanderling-bench` program; `sanderling bench` starts it.

use std::process::ExitCode;

use sanderling_terminal::{failure, output, program, progress, quantity};

mod command;

fn main() -> ExitCode {
    program::run(command::run)
}
