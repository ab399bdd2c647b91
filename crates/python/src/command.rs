//! The `sanderling` command inside the interpreter: arguments in, exit code out.

use std::ffi::OsString;

use pyo3::prelude::*;

use crate::deep::TorchModels;

/// Runs a command line, the program's name first; returns its exit code.
#[pyfunction]
pub(crate) fn cli_main(py: Python<'_>, argv: Vec<OsString>) -> u8 {
    py.detach(|| sanderling_cli::run_with(argv, Some(&TorchModels)))
}
