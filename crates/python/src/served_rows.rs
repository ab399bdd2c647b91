//! The client of `sanderling serve` for rows. Conversion only.

use std::time::Duration;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_rows::{Options, Rows, RowsClient, RowsError};

use crate::arrays::Keys;
use crate::error::{ConfigError, NotFoundError, ServerError, ServerTimeoutError};
use crate::sources::{Tls, token_of};

/// Reads rows from servers of predictions.
#[pyclass(name = "RowsClient", module = "sanderling")]
pub(crate) struct PyRowsClient(RowsClient);

/// Weights [n, dim], whether each key has a row, and the version.
type Answer<'py> = (Bound<'py, PyArray2<f32>>, Bound<'py, PyArray1<bool>>, u64);

#[pymethods]
impl PyRowsClient {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    #[pyo3(signature = (replicas, *, model = "", token = None, tls = None, timeout_s = 1.0, max_age_s = 0.0, cache_bytes = 67_108_864, hedge = None))]
    fn new(
        replicas: Vec<String>,
        model: &str,
        token: Option<String>,
        tls: Option<&Bound<'_, PyAny>>,
        timeout_s: f64,
        max_age_s: f64,
        cache_bytes: usize,
        hedge: Option<&str>,
    ) -> PyResult<PyRowsClient> {
        let time = |name: &str, seconds: f64| {
            let wrong = |_| ConfigError::new_err(format!("{name} = {seconds}: seconds are expected"));
            Duration::try_from_secs_f64(seconds).map_err(wrong)
        };
        let tls = Tls::of(tls)?;
        let options = Options {
            model: model.to_owned(),
            token: token_of(token, tls.as_ref())?,
            tls: tls.as_ref().map(Tls::client).transpose()?,
            timeout: time("timeout_s", timeout_s)?,
            age_max: time("max_age_s", max_age_s)?,
            cache_bytes,
            hedge: hedge.map(str::parse).transpose().map_err(ConfigError::new_err::<String>)?,
            ..Options::new(replicas)
        };
        RowsClient::new(options).map(PyRowsClient).map_err(|error| of_rows(&error))
    }

    #[pyo3(signature = (table, keys, *, user = None))]
    fn rows<'py>(
        &mut self,
        py: Python<'py>,
        table: &str,
        keys: Keys<'py>,
        user: Option<u64>,
    ) -> PyResult<Answer<'py>> {
        let keys = keys.side_by_side()?;
        let keys = keys.as_slice()?.to_vec();
        let client = &mut self.0;
        let read = py.detach(|| client.rows(table, &keys, user));
        let Rows { version, dim, weights, absent } = read.map_err(|error| of_rows(&error))?;
        let mut found = vec![true; keys.len()];
        absent.iter().for_each(|at| found[*at] = false);
        let weights = PyArray1::from_vec(py, weights).reshape([keys.len(), dim])?;
        Ok((weights, PyArray1::from_vec(py, found), version))
    }

    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.statistics();
        let counted = PyDict::new(py);
        for (name, count) in [
            ("hits", counts.hits),
            ("misses", counts.misses),
            ("flips", counts.flips),
            ("requests", counts.requests),
            ("hedged", counts.hedged),
            ("hedges_won", counts.hedges_won),
        ] {
            counted.set_item(name, count)?;
        }
        Ok(counted)
    }
}

fn of_rows(error: &RowsError) -> PyErr {
    let text = error.to_string();
    match error {
        RowsError::Options(_) => ConfigError::new_err(text),
        RowsError::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut => {
            ServerTimeoutError::new_err(text)
        }
        RowsError::Refused { status: 404, .. } => NotFoundError::new_err(text),
        RowsError::Refused { status: 504, .. } => ServerTimeoutError::new_err(text),
        _ => ServerError::new_err(text),
    }
}
