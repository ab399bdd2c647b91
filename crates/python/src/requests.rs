//! The requests of a table as numpy arrays, wherever the table is: arguments are checked and converted here, once, for
//! tables in this process and on servers. Contiguous arrays are read and written in place; the interpreter is released
//! while the table works.

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadwriteArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use sanderling_client::{ClientError, OpenTable, RemoteTable, RowBlock};
use sanderling_store::{Absent, Pooling, PushScale, Table};

use crate::arrays::{self, Grads, Key, Keys, side_by_side, vector};
use crate::error::{ConfigError, LengthError, of_client};

/// A bag of keys per sample.
pub(crate) struct Bags<'a> {
    keys: &'a [u64],
    offsets: &'a [u32],
    values: Option<&'a [f32]>,
    pooling: Pooling,
}

/// Requests to a table, in this process or on servers; each may block.
pub(crate) trait Requests: Sync {
    fn name(&self) -> &str;
    fn dim(&self) -> usize;
    /// How many of the keys have no row.
    fn pull(&self, keys: &[u64], absent: Absent, out: &mut [f32]) -> Result<usize, ClientError>;
    fn pull_pooled(&self, bags: &Bags<'_>, absent: Absent, out: &mut [f32]) -> Result<usize, ClientError>;
    fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), ClientError>;
    fn contains(&self, key: u64) -> Result<bool, ClientError>;
    /// How many there were.
    fn remove(&self, keys: &[u64]) -> Result<u64, ClientError>;
    fn keys(&self) -> Result<Vec<u64>, ClientError>;
    fn weights(&self) -> Result<Vec<f32>, ClientError>;
    fn frequencies(&self) -> Result<Vec<u32>, ClientError>;
}

impl Requests for Table {
    fn name(&self) -> &str {
        self.name()
    }

    fn dim(&self) -> usize {
        self.dim()
    }

    fn pull(&self, keys: &[u64], absent: Absent, out: &mut [f32]) -> Result<usize, ClientError> {
        Ok(self.pull(keys, absent, out, None)?)
    }

    fn pull_pooled(&self, bags: &Bags<'_>, absent: Absent, out: &mut [f32]) -> Result<usize, ClientError> {
        let &Bags { keys, offsets, values, pooling } = bags;
        Ok(self.pull_pooled(keys, values, offsets, pooling, absent, out, None)?)
    }

    fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), ClientError> {
        Ok(self.push(keys, grads, scale)?)
    }

    fn contains(&self, key: u64) -> Result<bool, ClientError> {
        Ok(self.get(key).is_some())
    }

    fn remove(&self, keys: &[u64]) -> Result<u64, ClientError> {
        Ok(keys.iter().filter(|key| self.remove(**key)).count() as u64)
    }

    fn keys(&self) -> Result<Vec<u64>, ClientError> {
        let mut keys = Vec::with_capacity(self.len());
        self.for_each_row(|row| keys.push(row.key));
        Ok(keys)
    }

    fn weights(&self) -> Result<Vec<f32>, ClientError> {
        let mut weights = Vec::with_capacity(self.len() * self.dim());
        self.for_each_row(|row| weights.extend_from_slice(row.weights));
        Ok(weights)
    }

    fn frequencies(&self) -> Result<Vec<u32>, ClientError> {
        let mut frequencies = Vec::with_capacity(self.len());
        self.for_each_row(|row| frequencies.push(row.frequency));
        Ok(frequencies)
    }
}

impl Requests for RemoteTable {
    fn name(&self) -> &str {
        OpenTable::name(self)
    }

    fn dim(&self) -> usize {
        OpenTable::dim(self)
    }

    fn pull(&self, keys: &[u64], absent: Absent, out: &mut [f32]) -> Result<usize, ClientError> {
        self.pull(keys, absent, out, None)
    }

    fn pull_pooled(&self, bags: &Bags<'_>, absent: Absent, out: &mut [f32]) -> Result<usize, ClientError> {
        let &Bags { keys, offsets, values, pooling } = bags;
        self.pull_pooled(keys, values, offsets, pooling, absent, out, None)
    }

    fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), ClientError> {
        self.push(keys, grads, scale)
    }

    fn contains(&self, key: u64) -> Result<bool, ClientError> {
        let mut row = vec![0.0; self.dim()];
        Ok(self.pull(&[key], Absent::Zero, &mut row, None)? == 0)
    }

    fn remove(&self, keys: &[u64]) -> Result<u64, ClientError> {
        self.remove(keys)
    }

    fn keys(&self) -> Result<Vec<u64>, ClientError> {
        exported(self, |rows, keys| keys.extend_from_slice(rows.keys))
    }

    fn weights(&self) -> Result<Vec<f32>, ClientError> {
        exported(self, |rows, weights| weights.extend_from_slice(rows.weights))
    }

    fn frequencies(&self) -> Result<Vec<u32>, ClientError> {
        exported(self, |rows, frequencies| frequencies.extend_from_slice(rows.frequencies))
    }
}

/// Something of every row, server after server.
fn exported<T>(table: &RemoteTable, of: impl Fn(&RowBlock<'_>, &mut Vec<T>)) -> Result<Vec<T>, ClientError> {
    let mut values = Vec::new();
    table.export(|rows| of(rows, &mut values))?;
    Ok(values)
}

/// Has the key a row?
pub(crate) fn contains(py: Python<'_>, table: &impl Requests, key: Key) -> PyResult<bool> {
    let Key(Some(key)) = key else { return Ok(false) };
    py.detach(|| table.contains(key)).map_err(of_client)
}

/// How many of the keys have a row; repeated keys count each time.
pub(crate) fn count_known(py: Python<'_>, table: &Table, keys: Keys<'_>) -> PyResult<usize> {
    let keys = keys.side_by_side()?;
    let keys = keys.as_slice()?;
    Ok(py.detach(|| keys.iter().filter(|key| table.get(**key).is_some()).count()))
}

/// Rows by key, float32 [len(keys), dim].
pub(crate) fn pull<'py>(
    py: Python<'py>,
    table: &impl Requests,
    keys: Keys<'py>,
    absent: &str,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let absent = self::absent(absent)?;
    let keys = keys.side_by_side()?;
    let keys = keys.as_slice()?;
    fill(py, table, keys.len(), out, |rows| table.pull(keys, absent, rows))
}

/// The arguments of a pooled pull.
pub(crate) struct PooledArguments<'py, 'a> {
    pub(crate) keys: Keys<'py>,
    pub(crate) offsets: &'a Bound<'py, PyAny>,
    pub(crate) values: Option<&'a Bound<'py, PyAny>>,
    pub(crate) pooling: &'a str,
    pub(crate) absent: &'a str,
}

/// One row per bag of keys, float32 [len(offsets) - 1, dim].
pub(crate) fn pull_pooled<'py>(
    py: Python<'py>,
    table: &impl Requests,
    arguments: PooledArguments<'py, '_>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let PooledArguments { keys, offsets, values, pooling, absent } = arguments;
    let (pooling, absent) = (self::pooling(pooling)?, self::absent(absent)?);
    let (keys, offsets) = (keys.side_by_side()?, vector("offsets", offsets)?);
    let values = values.map(|values| vector("values", values)).transpose()?;
    let values = values.as_ref().map(|values| values.as_slice()).transpose()?;
    let bags = Bags { keys: keys.as_slice()?, offsets: offsets.as_slice()?, values, pooling };
    let samples = bags.offsets.len().saturating_sub(1);
    fill(py, table, samples, out, |rows| table.pull_pooled(&bags, absent, rows))
}

/// Applies gradients, float32 [len(keys), dim]; those of a repeated key are summed first.
pub(crate) fn push(
    py: Python<'_>,
    table: &impl Requests,
    keys: Keys<'_>,
    Grads(grads): Grads<'_>,
    scale: PushScale,
) -> PyResult<()> {
    let expected = [keys.len(), table.dim()];
    if grads.shape() != expected {
        return Err(LengthError::new_err(format!(
            "table {:?}: grads must have shape {expected:?}, found {:?}",
            table.name(),
            grads.shape()
        )));
    }
    let (keys, grads) = (keys.side_by_side()?, side_by_side(grads)?);
    let (keys, grads) = (keys.as_slice()?, grads.as_slice()?);
    py.detach(|| table.push(keys, grads, scale)).map_err(of_client)
}

/// Forgets rows; how many there were.
pub(crate) fn remove(py: Python<'_>, table: &impl Requests, keys: Keys<'_>) -> PyResult<u64> {
    let keys = keys.side_by_side()?;
    let keys = keys.as_slice()?;
    py.detach(|| table.remove(keys)).map_err(of_client)
}

/// Keys of all rows, uint64 [rows].
pub(crate) fn keys<'py>(py: Python<'py>, table: &impl Requests) -> PyResult<Bound<'py, PyArray1<u64>>> {
    Ok(PyArray1::from_vec(py, py.detach(|| table.keys()).map_err(of_client)?))
}

/// Weights of all rows, float32 [rows, dim].
pub(crate) fn rows<'py>(py: Python<'py>, table: &impl Requests) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let weights = py.detach(|| table.weights()).map_err(of_client)?;
    let rows = weights.len() / table.dim();
    PyArray1::from_vec(py, weights).reshape([rows, table.dim()])
}

/// How often each key was pushed, uint32 [rows].
pub(crate) fn frequency<'py>(py: Python<'py>, table: &impl Requests) -> PyResult<Bound<'py, PyArray1<u32>>> {
    Ok(PyArray1::from_vec(py, py.detach(|| table.frequencies()).map_err(of_client)?))
}

/// Lets `work` fill an array of so many rows: the caller's, if it has the right shape, or a new one.
fn fill<'py>(
    py: Python<'py>,
    table: &impl Requests,
    rows: usize,
    out: Option<&Bound<'py, PyAny>>,
    work: impl FnOnce(&mut [f32]) -> Result<usize, ClientError> + Send,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let shape = [rows, table.dim()];
    let array = match out {
        None => PyArray2::zeros(py, shape, false),
        Some(out) => {
            let out = arrays::rows("out", out)?;
            let reason = if out.shape() != shape {
                format!("must have shape {shape:?}, found {:?}", out.shape())
            } else if !out.is_c_contiguous() || !out.is_aligned() {
                "must be C-contiguous, row after row, as numpy.empty makes it; it is strided or in Fortran order".to_owned()
            } else {
                String::new()
            };
            if !reason.is_empty() {
                return Err(LengthError::new_err(format!("table {:?}: out {reason}", table.name())));
            }
            out.clone()
        }
    };
    let mut rows: PyReadwriteArray2<'_, f32> = array.try_readwrite()?;
    let into = rows.as_slice_mut()?;
    py.detach(|| work(into)).map_err(of_client)?;
    drop(rows);
    Ok(array)
}

pub(crate) fn absent(name: &str) -> PyResult<Absent> {
    match name {
        "init" => Ok(Absent::Init),
        "zero" => Ok(Absent::Zero),
        _ => Err(ConfigError::new_err(format!("absent must be 'init' or 'zero', not {name:?}"))),
    }
}

fn pooling(name: &str) -> PyResult<Pooling> {
    Pooling::named(name)
        .ok_or_else(|| ConfigError::new_err(format!("pooling must be 'sum' or 'mean', not {name:?}")))
}
