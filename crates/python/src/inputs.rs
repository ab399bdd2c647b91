//! Inputs as Python gives them: paths, or rows in memory, alone or in a list. Conversion only.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use sanderling_formats::in_memory::InMemory;

use crate::error::{ConfigError, FileError};
use crate::frames::{is_rows, register};

/// Names of inputs; those in memory are registered until this is dropped.
#[derive(Default)]
pub(crate) struct Inputs {
    pub(crate) names: Vec<String>,
    registered: Vec<InMemory>,
}

impl Inputs {
    /// One input, or a list of inputs.
    pub(crate) fn of(given: &Bound<'_, PyAny>) -> PyResult<Inputs> {
        let mut inputs = Inputs::default();
        if is_path(given)? || !inputs.is_registered(given)? {
            inputs.paths(given)?;
        }
        Ok(inputs)
    }

    fn paths(&mut self, given: &Bound<'_, PyAny>) -> PyResult<()> {
        if is_path(given)? {
            self.names.push(path(given)?);
            return Ok(());
        }
        for input in given.try_iter()? {
            let input = input?;
            if is_path(&input)? || !self.is_registered(&input)? {
                self.names.push(path(&input)?);
            }
        }
        if self.names.is_empty() {
            return Err(ConfigError::new_err(
                "source: an empty list; give a path, a pattern, or a list of them",
            ));
        }
        Ok(())
    }

    /// Registers rows in memory; false if the object is none.
    fn is_registered(&mut self, given: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(input) = register(given)? else { return Ok(false) };
        self.names.push(input.name().to_owned());
        self.registered.push(input);
        Ok(true)
    }

    /// Whether some of them are rows in memory.
    pub(crate) fn is_in_memory(&self) -> bool {
        !self.registered.is_empty()
    }

    /// Whether an object, or a part of a list, is rows in memory.
    pub(crate) fn has_rows(given: &Bound<'_, PyAny>) -> PyResult<bool> {
        if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
            for input in given.try_iter()? {
                if is_rows(&input?)? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        is_rows(given)
    }
}

fn is_path(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(given.is_instance_of::<PyString>() || given.hasattr("__fspath__")?)
}

fn path(given: &Bound<'_, PyAny>) -> PyResult<String> {
    let path: std::path::PathBuf = given.extract()?;
    path.into_os_string().into_string().map_err(|path| {
        let reason = "is not UTF-8, and no other path is read: give the file or folder another name";
        FileError::new_err(format!("{path:?} {reason}"))
    })
}
