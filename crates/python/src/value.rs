//! Configurations between Python and Rust: dictionaries become the structures that TOML files become, by the same
//! deserializers and with the same complaints. Knows no particular structure.

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use crate::error::ConfigError;

/// Dictionaries and lists may be nested this deep.
const DEPTH_MAX: usize = 32;

/// Reads a structure from a dictionary (or a string, where the structure reads from one).
pub(crate) fn from_python<T: DeserializeOwned>(what: &str, object: &Bound<'_, PyAny>) -> PyResult<T> {
    read(what, &to_json(what, object, 0)?)
}

/// A structure with some of its entries replaced by those of a dictionary.
pub(crate) fn merged<T: Serialize + DeserializeOwned>(
    what: &str,
    structure: &T,
    changes: &Bound<'_, PyDict>,
) -> PyResult<T> {
    let wrong = |error: serde_json::Error| ConfigError::new_err(format!("{what}: {error}"));
    let mut value = serde_json::to_value(structure).map_err(wrong)?;
    if let (Value::Object(map), Value::Object(changes)) = (&mut value, to_json(what, changes, 0)?) {
        map.extend(changes);
    }
    read(what, &value)
}

fn read<T: DeserializeOwned>(what: &str, value: &Value) -> PyResult<T> {
    sanderling_learner::from_json(&value.to_string())
        .map_err(|reason| ConfigError::new_err(format!("{what}: {reason}")))
}

/// A configuration as JSON text, for those who parse it themselves.
pub(crate) fn to_text(what: &str, object: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(to_json(what, object, 0)?.to_string())
}

/// Sets entries of a configuration, `--set` by `--set`, such as `model.dim=16`; returns the changed configuration.
#[pyfunction]
pub(crate) fn set_entries(
    py: Python<'_>,
    config: &Bound<'_, PyDict>,
    entries: Vec<String>,
) -> PyResult<Py<PyAny>> {
    let config = to_json("config", config, 0)?;
    let changed = sanderling_learner::config::set_entries(&config, &entries);
    to_python(py, &changed.map_err(ConfigError::new_err)?)
}

/// Reads a structure from a JSON value.
pub(crate) fn from_json<T: DeserializeOwned>(what: &str, value: &Value) -> PyResult<T> {
    read(what, value)
}

/// A structure as dictionaries, lists and numbers.
pub(crate) fn to_python<T: Serialize>(py: Python<'_>, structure: &T) -> PyResult<Py<PyAny>> {
    // By way of text, which keeps an f32 of 0.1 at 0.1 instead of widening it to 0.10000000149011612.
    let text = serde_json::to_string(structure).map_err(|error| ConfigError::new_err(error.to_string()))?;
    Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
}

fn to_json(path: &str, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEPTH_MAX {
        return Err(ConfigError::new_err(format!("{path}: nested deeper than {DEPTH_MAX} levels")));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if let Ok(value) = object.cast::<PyInt>() {
        if let Ok(value) = value.extract::<i64>() {
            return Ok(Value::from(value));
        }
        let large = value.extract::<u64>();
        return large
            .map(Value::from)
            .map_err(|_| ConfigError::new_err(format!("{path}: a whole number of more than 64 bits")));
    }
    if let Ok(value) = object.cast::<PyFloat>() {
        let number = Number::from_f64(value.value());
        return number
            .map(Value::Number)
            .ok_or_else(|| ConfigError::new_err(format!("{path}: {object} is not finite")));
    }
    if let Ok(value) = object.cast::<PyString>() {
        // Half a surrogate pair, as a file name that is not UTF-8 becomes in Python.
        let text = value.to_str().map(|text| Value::String(text.to_owned()));
        return text.map_err(|_| ConfigError::new_err(format!("{path}: {} is not UTF-8", shown(object))));
    }
    if let Ok(dict) = object.cast::<PyDict>() {
        let mut map = Map::new();
        for (key, value) in dict {
            let name = key.extract::<String>();
            let key =
                name.map_err(|_| ConfigError::new_err(format!("{path}: {} is no name", shown(&key))))?;
            let value = to_json(&format!("{path}.{key}"), &value, depth + 1)?;
            map.insert(key, value);
        }
        return Ok(Value::Object(map));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let items = object.try_iter()?.enumerate();
        let items = items.map(|(at, item)| to_json(&format!("{path}[{at}]"), &item?, depth + 1));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    if let Ok(path) = object.call_method0("__fspath__") {
        return Ok(Value::String(path.extract()?));
    }
    // A number of numpy's: np.float64 is a float, np.float32 and np.int64 are nothing that Python knows.
    let scalar = object.py().import("numpy")?.getattr("generic")?;
    if object.is_instance(&scalar)? {
        let plain = object.call_method0("item")?;
        if !plain.is_instance(&scalar)? {
            return to_json(path, &plain, depth);
        }
    }
    let class = object.get_type().name()?.to_string();
    Err(ConfigError::new_err(format!("{path}: a configuration cannot hold a {class}")))
}

/// An object as an error shows it.
fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| "it".to_owned(), |repr| repr.to_string())
}

/// A whole number that is an argument; one that is out of range is a `ConfigError`.
pub(crate) fn whole<'a, 'py, T: FromPyObject<'a, 'py, Error = PyErr>>(
    value: &'a Bound<'py, PyAny>,
) -> PyResult<T> {
    value.extract::<T>().map_err(|error| match error.is_instance_of::<PyOverflowError>(value.py()) {
        true => ConfigError::new_err(format!("{value}: must be a whole number from 0 on, and not so large")),
        false => error,
    })
}
