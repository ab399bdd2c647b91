//! `sanderling._native.cores_usable`: what a trainer shares out to its threads. Conversion only.

use pyo3::prelude::*;

/// Physical cores that this process may use, at least 1.
#[pyfunction]
pub(crate) fn cores_usable() -> usize {
    sanderling_observe::cores_usable()
}
