//! Keyword arguments that have another name now. An old name is a TypeError that says the new one.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Refuses every keyword argument that a function does not have; `renamed` lists old and new names.
pub(crate) fn refuse(
    function: &str,
    unknown: Option<&Bound<'_, PyDict>>,
    renamed: &[(&str, &str)],
) -> PyResult<()> {
    let Some((name, _)) = unknown.and_then(|unknown| unknown.iter().next()) else { return Ok(()) };
    let name: String = name.extract()?;
    Err(PyTypeError::new_err(match renamed.iter().find(|(old, _)| *old == name) {
        Some((old, new)) => format!("{function}(): `{old}` is now `{new}`"),
        None => format!("{function}() got an unexpected keyword argument '{name}'"),
    }))
}
