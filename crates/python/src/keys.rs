//! Keys of values and neighbours of rows, by the feature spec. Conversion only.

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_formats::DataConfig;
use sanderling_sample::spec::Feature;
use sanderling_sample::{FeatureEncoder, Field, Spec};

use crate::error::{BadRowError, ConfigError};
use crate::feed_spec::source_of;
use crate::frames::{Cell, cells_of, is_column};

/// The key of a value of a feature, or an array with the keys of a list of values.
#[pyfunction]
#[pyo3(signature = (feature, value, *, spec = None))]
pub(crate) fn key<'py>(
    py: Python<'py>,
    feature: &str,
    value: &Bound<'py, PyAny>,
    spec: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (data, spec) = match spec {
        Some(_) => source_of(spec)?,
        None => {
            let one = Feature { name: feature.to_owned(), ..Feature::default() };
            (DataConfig::default(), Spec { feature: vec![one], ..Spec::default() })
        }
    };
    keys_by(py, &spec, &data, feature, value)
}

/// The keys of one value or several, by a spec.
pub(crate) fn keys_by<'py>(
    py: Python<'py>,
    spec: &Spec,
    data: &DataConfig,
    feature: &str,
    value: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let encoder = FeatureEncoder::new(spec, feature, &data.missing);
    let mut encoder = encoder.map_err(|error| ConfigError::new_err(error.to_string()))?;
    if !is_column(value)? {
        return Ok(key_of(&mut encoder, feature, &Cell::of(feature, value)?)?.into_pyobject(py)?.into_any());
    }
    let cells = cells_of(feature, value)?;
    let keys =
        cells.iter().map(|cell| key_of(&mut encoder, feature, cell)).collect::<PyResult<Vec<u64>>>()?;
    Ok(PyArray1::from_vec(py, keys).into_any())
}

/// The one key of a value.
pub(crate) fn key_of(encoder: &mut FeatureEncoder, feature: &str, value: &Cell) -> PyResult<u64> {
    let elements: Vec<Field<'_>> = value.elements();
    match encoder.keys(value.field(&elements)) {
        Ok(&[key]) => Ok(key),
        Ok(keys) => Err(BadRowError::new_err(format!(
            "feature {feature:?}: a value has {} keys, not one",
            keys.len()
        ))),
        Err(error) => {
            let (expected, found) = (error.expected, error.found);
            Err(BadRowError::new_err(format!("feature {feature:?}: expected {expected}, found {found}")))
        }
    }
}
