//! The `sanderling` binary; everything is in the library, which the Python package calls too.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

fn main() -> ExitCode {
    // Beyond a limit to the size of files (ulimit -f) a write is to fail, as on a full disk, and not to end the process. Python
    // sees to that itself. Nothing is lost where it cannot be heard.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    ExitCode::from(sanderling_cli::run(std::env::args_os()))
}
