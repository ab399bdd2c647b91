//! `sanderling.connect`: tables on parameter servers, with the requests of `sanderling.Table`. Conversion only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numpy::{
    PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray2,
    PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use sanderling_client::{Cluster, ConnectOptions, RemoteTable, TlsClient, addresses};
use sanderling_store::{Absent, PushScale};

use crate::error::{FileError, LengthError, of_client};
use crate::table::{absent, config, output, pooling, side_by_side};

/// Connections to the servers of a cluster; made by `connect`.
#[pyclass(name = "Connection", module = "sanderling", frozen)]
pub(crate) struct PyConnection {
    cluster: Arc<Cluster>,
}

/// A table on parameter servers.
#[pyclass(name = "RemoteTable", module = "sanderling", frozen)]
pub(crate) struct PyRemoteTable {
    table: RemoteTable,
}

/// Reaches all servers of a cluster.
#[pyfunction]
#[pyo3(signature = (address, *, token = None, ca_file = None, timeout = 20.0, prefer_local = true))]
pub(crate) fn connect(
    py: Python<'_>,
    address: &str,
    token: Option<String>,
    ca_file: Option<PathBuf>,
    timeout: f64,
    prefer_local: bool,
) -> PyResult<PyConnection> {
    let timeout = Duration::try_from_secs_f64(timeout)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(format!("timeout = {timeout}: {error}")))?;
    let tls = ca_file.map(|path| TlsClient::from_ca_file(&path)).transpose();
    let tls = tls.map_err(|error| FileError::new_err(error.to_string()))?;
    let defaults = ConnectOptions::default();
    let options = ConnectOptions {
        token: token.unwrap_or_default(),
        timeout,
        connect_timeout: defaults.connect_timeout.min(timeout),
        prefer_local,
        tls,
        ..defaults
    };
    let cluster = py.detach(|| Cluster::connect(&addresses(address)?, options)).map_err(of_client)?;
    Ok(PyConnection { cluster })
}

#[pymethods]
impl PyConnection {
    /// Addresses over which the servers are talked to, by shard.
    #[getter]
    fn servers(&self) -> Vec<String> {
        self.cluster.servers().iter().map(|server| server.way.to_string()).collect()
    }

    /// Makes a table, or opens the one that is there with the same configuration.
    #[pyo3(signature = (name, dim, *, optimizer = None, init = None, seed = 0, budget_bytes = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        dim: usize,
        optimizer: Option<&Bound<'_, PyAny>>,
        init: Option<&Bound<'_, PyAny>>,
        seed: u64,
        budget_bytes: Option<u64>,
    ) -> PyResult<PyRemoteTable> {
        let config = config(name, dim, optimizer, init, seed, budget_bytes)?;
        let table = py.detach(|| RemoteTable::create(&self.cluster, &config)).map_err(of_client)?;
        Ok(PyRemoteTable { table })
    }

    /// Opens a table that is there.
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<PyRemoteTable> {
        let table = py.detach(|| RemoteTable::open(&self.cluster, name)).map_err(of_client)?;
        Ok(PyRemoteTable { table })
    }

    /// Drops a table on all servers; was it there?
    fn drop(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        py.detach(|| RemoteTable::drop_named(&self.cluster, name)).map_err(of_client)
    }

    fn __repr__(&self) -> String {
        format!("Connection({})", self.servers().join(", "))
    }
}

impl PyRemoteTable {
    /// One value per row, server after server.
    fn collect<T: Send>(
        &self,
        py: Python<'_>,
        of: impl Fn(&sanderling_client::RowBlock<'_>, &mut Vec<T>) + Send,
    ) -> PyResult<Vec<T>> {
        let table = &self.table;
        py.detach(move || {
            let mut values = Vec::new();
            table.export(|rows| of(rows, &mut values)).map(|()| values)
        })
        .map_err(of_client)
    }
}

#[pymethods]
impl PyRemoteTable {
    /// The table's name on the servers.
    #[getter]
    fn name(&self) -> &str {
        self.table.name()
    }

    /// Weights per row.
    #[getter]
    fn dim(&self) -> usize {
        self.table.dim()
    }

    /// Bytes of memory on all servers.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.table.size()).map_err(of_client)?.1)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.table.size()).map_err(of_client)?.0 as usize)
    }

    fn __contains__(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        let mut row = vec![0.0; self.table.dim()];
        let pulled = py.detach(|| self.table.pull(&[key], Absent::Zero, &mut row, None));
        Ok(pulled.map_err(of_client)? == 0)
    }

    fn __repr__(&self) -> String {
        format!("RemoteTable({:?}, dim={})", self.name(), self.dim())
    }

    /// Rows by key, float32 [len(keys), dim].
    #[pyo3(signature = (keys, *, absent = "init", out = None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        keys: PyReadonlyArray1<'py, u64>,
        absent: &str,
        out: Option<Bound<'py, PyArray2<f32>>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let absent = self::absent(absent)?;
        let keys = side_by_side(keys)?;
        let keys = keys.as_slice()?;
        let array = output(py, self.name(), [keys.len(), self.dim()], out)?;
        let mut rows: PyReadwriteArray2<'_, f32> = array.try_readwrite()?;
        let into = rows.as_slice_mut()?;
        py.detach(|| self.table.pull(keys, absent, into, None)).map_err(of_client)?;
        drop(rows);
        Ok(array)
    }

    /// One row per bag of keys, float32 [len(offsets) - 1, dim].
    #[pyo3(signature = (keys, offsets, *, values = None, pooling = "sum", absent = "init", out = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn pull_pooled<'py>(
        &self,
        py: Python<'py>,
        keys: PyReadonlyArray1<'py, u64>,
        offsets: PyReadonlyArray1<'py, u32>,
        values: Option<PyReadonlyArray1<'py, f32>>,
        pooling: &str,
        absent: &str,
        out: Option<Bound<'py, PyArray2<f32>>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let (pooling, absent) = (self::pooling(pooling)?, self::absent(absent)?);
        let (keys, offsets) = (side_by_side(keys)?, side_by_side(offsets)?);
        let (keys, offsets) = (keys.as_slice()?, offsets.as_slice()?);
        let values = values.map(side_by_side).transpose()?;
        let values = values.as_ref().map(|values| values.as_slice()).transpose()?;
        let array = output(py, self.name(), [offsets.len().saturating_sub(1), self.dim()], out)?;
        let mut rows: PyReadwriteArray2<'_, f32> = array.try_readwrite()?;
        let into = rows.as_slice_mut()?;
        py.detach(|| self.table.pull_pooled(keys, values, offsets, pooling, absent, into, None))
            .map_err(of_client)?;
        drop(rows);
        Ok(array)
    }

    /// Applies gradients, float32 [len(keys), dim]; those of a repeated key are summed first.
    #[pyo3(signature = (keys, grads, *, lr = 1.0))]
    fn push(
        &self,
        py: Python<'_>,
        keys: PyReadonlyArray1<'_, u64>,
        grads: PyReadonlyArray2<'_, f32>,
        lr: f32,
    ) -> PyResult<()> {
        let expected = [keys.len(), self.dim()];
        if grads.shape() != expected {
            return Err(LengthError::new_err(format!(
                "table {:?}: grads must have shape {expected:?}, found {:?}",
                self.name(),
                grads.shape()
            )));
        }
        let (keys, grads) = (side_by_side(keys)?, side_by_side(grads)?);
        let (keys, grads) = (keys.as_slice()?, grads.as_slice()?);
        py.detach(|| self.table.push(keys, grads, PushScale { lr })).map_err(of_client)
    }

    /// Keys of all rows, uint64 [rows].
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let keys = self.collect(py, |rows, keys| keys.extend_from_slice(rows.keys))?;
        Ok(PyArray1::from_vec(py, keys))
    }

    /// Weights of all rows, float32 [rows, dim].
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let weights = self.collect(py, |rows, weights| weights.extend_from_slice(rows.weights))?;
        let rows = weights.len() / self.dim();
        PyArray1::from_vec(py, weights).reshape([rows, self.dim()])
    }

    /// How often each key was pushed, uint32 [rows].
    fn frequency<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let counts = self.collect(py, |rows, counts| counts.extend_from_slice(rows.frequencies))?;
        Ok(PyArray1::from_vec(py, counts))
    }

    /// Forgets rows; returns how many there were.
    fn remove(&self, py: Python<'_>, keys: PyReadonlyArray1<'_, u64>) -> PyResult<u64> {
        let keys = side_by_side(keys)?;
        let keys = keys.as_slice()?;
        py.detach(|| self.table.remove(keys)).map_err(of_client)
    }
}
