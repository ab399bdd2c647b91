//! `sanderling.connect`: tables on parameter servers, with the requests of `sanderling.Table`. Conversion only.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArray2};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use sanderling_client::{Cluster, ConnectOptions, Hedge, RemoteTable, compression};

use crate::arrays::{Grads, Key, Keys};
use crate::error::{ConfigError, ServerError, of_client};
use crate::interrupt;
use crate::quantity::seconds;
use crate::rates::{Rate, scale};
use crate::renamed;
use crate::requests::{self, PooledArguments};
use crate::sources::{Tls, token_of};
use crate::table::Words;
use crate::table_config::MadeFrom;
use crate::value::{to_python, whole};
use crate::{traces, warnings};

/// Connections to the servers of a cluster; made by `connect`.
#[pyclass(name = "Connection", module = "sanderling", frozen)]
pub(crate) struct PyConnection {
    /// `None` once it was closed.
    cluster: Mutex<Option<Arc<Cluster>>>,
}

impl PyConnection {
    /// A connection to these servers.
    pub(crate) fn of(cluster: Arc<Cluster>) -> PyConnection {
        PyConnection { cluster: Mutex::new(Some(cluster)) }
    }

    /// The servers.
    pub(crate) fn cluster(&self) -> PyResult<Arc<Cluster>> {
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        cluster.clone().ok_or_else(|| ConfigError::new_err("this connection was closed; connect again"))
    }
}

/// A table on parameter servers.
#[pyclass(name = "RemoteTable", module = "sanderling", frozen)]
pub(crate) struct PyRemoteTable {
    pub(crate) table: RemoteTable,
}

impl PyRemoteTable {
    pub(crate) fn made_from(&self) -> PyResult<MadeFrom> {
        serde_json::from_str(self.table.config_json())
            .map_err(|error| ServerError::new_err(format!("table {:?}: {error}", self.table.name())))
    }

    pub(crate) fn rate(&self) -> PyResult<Rate> {
        Ok(Rate::of(self.table.name(), self.made_from()?.optimizers()))
    }
}

/// Reaches all servers of a cluster.
#[pyfunction]
#[pyo3(signature = (address, *, token = None, tls = None, timeout_s = 20.0, prefer_local = true, f16_rows = false,
    compression = None, hedge = None, pull_from = "primary", **unknown), text_signature = "(address, *, token=None, tls=None, timeout_s=20.0, \
    prefer_local=True, f16_rows=False, compression=None, hedge=None, pull_from='primary')")]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub(crate) fn connect(
    py: Python<'_>,
    address: &str,
    token: Option<String>,
    tls: Option<&Bound<'_, PyAny>>,
    timeout_s: f64,
    prefer_local: bool,
    f16_rows: bool,
    compression: Option<&str>,
    hedge: Option<&Bound<'_, PyAny>>,
    pull_from: &str,
    unknown: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyConnection> {
    renamed::refuse("connect", unknown, &RENAMED)?;
    let timeout = seconds("timeout_s", timeout_s)?;
    let tls = Tls::of(tls)?;
    let token = token_of(token, tls.as_ref())?;
    let tls = tls.as_ref().map(Tls::client).transpose()?;
    let compression = compression.map(self::compression).transpose().map_err(ConfigError::new_err)?;
    let hedge = hedge.map(hedge_after).transpose()?;
    let pull_from =
        pull_from.parse().map_err(|error: String| ConfigError::new_err(format!("pull_from: {error}")))?;
    let defaults = ConnectOptions::default();
    let options = ConnectOptions {
        token: token.unwrap_or_default(),
        timeout,
        // A timeout of the caller's own holds for the first connection, too.
        connect_timeout: if timeout == defaults.timeout { defaults.connect_timeout } else { timeout },
        prefer_local,
        tls,
        f16_rows,
        compression,
        hedge,
        pull_from,
        stop: Some(interrupt::stop()),
        on_wait: Some(warnings::on_wait()),
        spans: traces::spans(),
        ..defaults
    };
    let cluster = py.detach(|| Cluster::of(address, options)).map_err(of_client)?;
    Ok(PyConnection::of(cluster))
}

/// Keyword arguments that have another name now.
const RENAMED: [(&str, &str); 2] = [("timeout", "timeout_s"), ("ca_file", "tls=Tls(ca)")];

/// Parses `"p95"`, or a time with a unit.
fn hedge_after(given: &Bound<'_, PyAny>) -> PyResult<Hedge> {
    let Ok(text) = given.cast::<PyString>() else {
        let found = given.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "hedge: must be \"p95\" or text such as \"500us\", not {found}"
        )));
    };
    text.to_str()?.parse().map_err(|error| ConfigError::new_err(format!("hedge: {error}")))
}

#[pymethods]
impl PyConnection {
    /// Addresses over which the servers are talked to, by shard.
    #[getter]
    fn servers(&self) -> PyResult<Vec<String>> {
        Ok(self.cluster()?.servers().iter().map(|server| server.way.to_string()).collect())
    }

    /// Ends it. Tables that were opened stay usable, and the sockets close with the last of them.
    fn close(&self) {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<'_, PyTuple>) {
        let _ = error;
        self.close();
    }

    /// Makes a table, or opens the one that is there with the same configuration.
    #[pyo3(signature = (name, dim, *, optimizer = None, init = None, seed = 42, budget_bytes = None, dtype = None,
        admission = None, eviction = None, writes = None, packing = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn table(
        &self,
        py: Python<'_>,
        name: &str,
        #[pyo3(from_py_with = whole)] dim: usize,
        optimizer: Option<&Bound<'_, PyAny>>,
        init: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole)] seed: u64,
        #[pyo3(from_py_with = whole)] budget_bytes: Option<u64>,
        dtype: Option<&Bound<'_, PyAny>>,
        admission: Option<&Bound<'_, PyAny>>,
        eviction: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
        packing: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRemoteTable> {
        let words =
            Words { optimizer, init, seed, budget_bytes, dtype, admission, eviction, writes, packing };
        let config = words.config(name, dim)?;
        let cluster = self.cluster()?;
        let table = py.detach(|| RemoteTable::create(&cluster, &config)).map_err(of_client)?;
        Ok(PyRemoteTable { table })
    }

    /// Opens a table that is there.
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<PyRemoteTable> {
        let cluster = self.cluster()?;
        let table = py.detach(|| RemoteTable::open(&cluster, name)).map_err(of_client)?;
        Ok(PyRemoteTable { table })
    }

    /// Drops a table on all servers; was it there?
    fn drop(&self, py: Python<'_>, name: &str) -> PyResult<bool> {
        let cluster = self.cluster()?;
        py.detach(|| RemoteTable::drop_named(&cluster, name)).map_err(of_client)
    }

    /// Has every server save all its tables under a name; returns how many rows there were.
    #[pyo3(signature = (checkpoint, *, timeout_s = 600.0, **unknown),
        text_signature = "($self, checkpoint, *, timeout_s=600.0)")]
    fn save(
        &self,
        py: Python<'_>,
        checkpoint: &str,
        timeout_s: f64,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        renamed::refuse("save", unknown, &RENAMED[..1])?;
        let timeout = seconds("timeout_s", timeout_s)?;
        let cluster = self.cluster()?;
        Ok(py.detach(|| cluster.save(checkpoint, timeout)).map_err(of_client)?.rows)
    }

    /// Has every server restore all its tables from what was saved under a name; returns how many rows there are.
    #[pyo3(signature = (checkpoint, *, timeout_s = 600.0, **unknown),
        text_signature = "($self, checkpoint, *, timeout_s=600.0)")]
    fn restore(
        &self,
        py: Python<'_>,
        checkpoint: &str,
        timeout_s: f64,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        renamed::refuse("restore", unknown, &RENAMED[..1])?;
        let timeout = seconds("timeout_s", timeout_s)?;
        let cluster = self.cluster()?;
        Ok(py.detach(|| cluster.restore(checkpoint, timeout)).map_err(of_client)?.rows)
    }

    fn __repr__(&self) -> String {
        format!(
            "Connection({})",
            self.servers().map_or_else(|_| "closed".to_owned(), |servers| servers.join(", "))
        )
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

    /// The learning rate of its optimizer; None if that has none (FTRL), or its blocks have several.
    #[getter]
    fn lr(&self) -> PyResult<Option<f32>> {
        Ok(self.rate()?.lr())
    }

    /// Bytes of memory on all servers.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| self.table.size()).map_err(of_client)?.1)
    }

    /// Blocks of a row, each with `dims`, `init` and `optimizer`.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let config: serde_json::Value = serde_json::from_str(self.table.config_json()).unwrap_or_default();
        to_python(py, &config["blocks"])
    }

    /// All that it was made from but its name and width; `budget_bytes` is one server's part.
    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.made_from()?)
    }

    /// Sizes over all servers: rows, bytes.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (rows, bytes) = py.detach(|| self.table.size()).map_err(of_client)?;
        to_python(py, &serde_json::json!({ "rows": rows, "bytes": bytes }))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| self.table.size()).map_err(of_client)?.0 as usize)
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        requests::contains(py, &self.table, key)
    }

    fn __repr__(&self) -> String {
        format!("RemoteTable({:?}, dim={})", self.name(), self.dim())
    }

    /// Rows by key, float32 [len(keys), dim].
    #[pyo3(signature = (keys, *, absent = "init", out = None))]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        keys: Keys<'py>,
        absent: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        requests::pull(py, &self.table, keys, absent, out)
    }

    /// One row per bag of keys, float32 [len(offsets) - 1, dim].
    #[pyo3(signature = (keys, offsets, *, values = None, pooling = "sum", absent = "init", out = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn pull_pooled<'py>(
        &self,
        py: Python<'py>,
        keys: Keys<'py>,
        offsets: &Bound<'py, PyAny>,
        values: Option<&Bound<'py, PyAny>>,
        pooling: &str,
        absent: &str,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let arguments = PooledArguments { keys, offsets, values, pooling, absent };
        requests::pull_pooled(py, &self.table, arguments, out)
    }

    /// Applies gradients, float32 [len(keys), dim]; those of a repeated key are summed first.
    #[pyo3(signature = (keys, grads, *, lr = None, lr_scale = 1.0))]
    fn push(
        &self,
        py: Python<'_>,
        keys: Keys<'_>,
        grads: Grads<'_>,
        lr: Option<f64>,
        lr_scale: f64,
    ) -> PyResult<()> {
        let scale = scale(|| self.rate(), lr, lr_scale)?;
        requests::push(py, &self.table, keys, grads, scale)
    }

    /// Keys of all rows, uint64 [rows].
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        requests::keys(py, &self.table)
    }

    /// Weights of all rows, float32 [rows, dim].
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        requests::rows(py, &self.table)
    }

    /// How often each key was pushed, uint32 [rows].
    fn frequency<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        requests::frequency(py, &self.table)
    }

    /// Forgets rows; returns how many there were, at least: a connection that breaks before the answer has it told anew.
    fn remove(&self, py: Python<'_>, keys: Keys<'_>) -> PyResult<u64> {
        requests::remove(py, &self.table, keys)
    }

    /// Forgets all rows, those that are pushed meanwhile perhaps not.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.table.clear()).map(|_| ()).map_err(of_client)
    }
}
