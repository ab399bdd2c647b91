//! The `sanderling` binary; everything is in the library, which the Python package calls too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sanderling_cli::run(std::env::args_os()))
}
