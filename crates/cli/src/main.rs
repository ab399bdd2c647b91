//! The `sanderling` binary; everything is in the library, which the Python package calls too.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Python does this itself.
    sanderling_terminal::program::survive_file_size_limit();
    ExitCode::from(sanderling_cli::run(std::env::args_os()))
}
