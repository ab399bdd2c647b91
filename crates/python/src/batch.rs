//! `sanderling.Batch`: a minibatch of samples in columns, as numpy sees it. Knows neither where it came from nor what is
//! looked up.

use std::collections::HashSet;
use std::sync::Arc;

use numpy::{PyArray1, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use sanderling_feed::{Recycled, Recycler, Sampled};
use sanderling_sample::Batch;

use crate::arrays::{Keys, vector};
use crate::error::{ConfigError, LengthError, OffsetsError, of_feed};
use crate::lookup::PyLookup;
use crate::view::{of_batch, of_rows};

/// Samples in columns: labels, weights, and per feature keys and offsets.
#[pyclass(name = "Batch", module = "sanderling", frozen)]
pub(crate) struct PyBatch {
    pub(crate) sampled: Arc<Recycled<Sampled>>,
    pub(crate) lookup: Option<Py<PyLookup>>,
}

/// A column as Python gives it: name, keys, offsets, values.
type GivenColumn<'py> = (String, Keys<'py>, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// The first name that an earlier column has.
fn repeated<'a>(columns: &'a [GivenColumn<'_>]) -> Option<&'a str> {
    let mut seen = HashSet::with_capacity(columns.len());
    columns.iter().map(|(name, ..)| &**name).find(|name| !seen.insert(*name))
}

#[pymethods]
impl PyBatch {
    #[new]
    #[pyo3(signature = (columns, labels = None, weights = None))]
    fn new(
        columns: Vec<GivenColumn<'_>>,
        labels: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyBatch> {
        if let Some(name) = repeated(&columns) {
            return Err(ConfigError::new_err(format!("feature {name:?} is there twice")));
        }
        let mut names: Vec<String> = Vec::new();
        let mut rows = None;
        let weighted: Vec<bool> = columns.iter().map(|(_, _, _, values)| values.is_some()).collect();
        let mut batch = Batch::new(&weighted);
        for ((name, keys, offsets, values), column) in columns.into_iter().zip(&mut batch.columns) {
            let what = |what: &str| format!("feature {name:?}: {what}");
            let (keys, offsets) = (keys.side_by_side()?, vector(&what("offsets"), &offsets)?);
            let (keys, offsets) = (keys.as_slice()?, offsets.as_slice()?);
            let whole = offsets.first() == Some(&0)
                && offsets.is_sorted()
                && offsets.last().map(|&last| last as usize) == Some(keys.len());
            if !whole {
                let keys = keys.len();
                return Err(OffsetsError::new_err(format!(
                    "feature {name:?}: offsets must ascend from 0 to the number of keys, {keys}"
                )));
            }
            let found = offsets.len() - 1;
            if *rows.get_or_insert(found) != found {
                return Err(LengthError::new_err(format!(
                    "feature {name:?} has {found} samples, the features before it {}",
                    rows.unwrap_or_default()
                )));
            }
            column.keys.extend_from_slice(keys);
            column.offsets.splice(.., offsets.iter().copied());
            if let Some(values) = values {
                let values = vector(&what("values"), &values)?;
                let values = values.as_slice()?;
                if values.len() != keys.len() {
                    return Err(LengthError::new_err(format!(
                        "feature {name:?}: {} values for {} keys",
                        values.len(),
                        keys.len()
                    )));
                }
                column.values.extend_from_slice(values);
            }
            names.push(name);
        }
        let labels = labels.map(|labels| vector("labels", labels)).transpose()?;
        let weights = weights.map(|weights| vector("weights", weights)).transpose()?;
        let given = labels.as_ref().or(weights.as_ref()).map(|given| given.len());
        let rows = rows.or(given).unwrap_or(0);
        let of_rows = |what: &str, given: Option<PyReadonlyArray1<'_, f32>>, default: f32| {
            let Some(given) = given else { return Ok(vec![default; rows]) };
            let given = given.as_slice()?.to_vec();
            if given.len() == rows {
                return Ok(given);
            }
            Err(LengthError::new_err(format!("{} {what} for {rows} samples", given.len())))
        };
        batch.labels = of_rows("labels", labels, f32::NAN)?;
        batch.weights = of_rows("weights", weights, 1.0)?;
        let new = || Sampled::new(names.into(), batch);
        Ok(PyBatch { sampled: Arc::new(Recycler::new(0).take(new)), lookup: None })
    }

    fn __len__(&self) -> usize {
        self.sampled.rows().len()
    }

    fn __repr__(&self) -> String {
        format!("Batch({} samples, features={:?})", self.sampled.rows().len(), self.sampled.names)
    }

    /// Names of the columns.
    #[getter]
    fn features(&self) -> Vec<String> {
        self.sampled.names.to_vec()
    }

    /// Number of the minibatch in its source.
    #[getter]
    fn number(&self) -> u64 {
        self.sampled.number
    }

    /// Number of the pass over the source.
    #[getter(pass_number)]
    fn pass(&self) -> u64 {
        self.sampled.pass
    }

    /// float32 [samples]: 0 or 1, NaN where there is none.
    #[getter]
    fn labels<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyArray1<f32>> {
        of_rows(slf, |rows| rows.labels())
    }

    /// float32 [samples].
    #[getter]
    fn weights<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyArray1<f32>> {
        of_rows(slf, |rows| rows.weights())
    }

    /// uint64 [keys] of a feature, all samples one after the other.
    fn keys<'py>(slf: &Bound<'py, Self>, feature: &str) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let at = slf.get().sampled.column(feature).map_err(of_feed)?;
        of_batch(slf, |rows| rows.keys(at))
    }

    /// uint32 [samples + 1] of a feature.
    fn offsets<'py>(slf: &Bound<'py, Self>, feature: &str) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let at = slf.get().sampled.column(feature).map_err(of_feed)?;
        of_batch(slf, |rows| rows.offsets(at))
    }

    /// float32 [keys] of a feature, or None where every key counts as 1.
    fn values<'py>(slf: &Bound<'py, Self>, feature: &str) -> PyResult<Option<Bound<'py, PyArray1<f32>>>> {
        let at = slf.get().sampled.column(feature).map_err(of_feed)?;
        if slf.get().sampled.rows().values(at).is_none() {
            return Ok(None);
        }
        of_batch(slf, |rows| rows.values(at).unwrap_or(&[])).map(Some)
    }

    /// Rows of the batch, if a queue looked them up.
    #[getter]
    fn lookup(&self, py: Python<'_>) -> Option<Py<PyLookup>> {
        self.lookup.as_ref().map(|lookup| lookup.clone_ref(py))
    }
}
