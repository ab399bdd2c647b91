//! `sanderling.Table`: an embedding table in this process, and how Python says what a table is made from. How arrays
//! become requests is not known here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use numpy::{PyArray1, PyArray2};
use pyo3::prelude::*;
use pyo3::types::PyString;
use sanderling_store::{
    Attached, Checkpoint, CheckpointWriter, DeltaWriter, Init, Optimizer, SkippedRows, StoreError, Table,
    TableConfig,
};

use crate::arrays::{Grads, Key, Keys};
use crate::error::{NotFoundError, of_store};
use crate::rates::{Rate, scale};
use crate::requests::{self, PooledArguments};
use crate::table_config::MadeFrom;
use crate::value::{from_python, to_python, whole};

/// An embedding table: rows of weights, found by 64-bit key, updated by the table's optimizer.
#[pyclass(name = "Table", module = "sanderling", frozen)]
pub(crate) struct PyTable {
    pub(crate) table: Arc<Table>,
    /// State of the folder that keeps it.
    attached: Option<Attached>,
}

impl PyTable {
    pub(crate) fn of(table: Arc<Table>) -> PyTable {
        PyTable { table, attached: None }
    }

    /// Opens the table that a folder keeps, or creates it there.
    fn open_kept(config: TableConfig, root: &Path) -> Result<PyTable, StoreError> {
        let (table, attached) = Table::kept(config, root, "")?;
        let table = Arc::new(table);
        if attached.is_searching {
            let searched = Arc::clone(&table);
            // Otherwise the first push that needs a free row searches for it.
            let search = move || _ = searched.find_free_rows();
            drop(std::thread::Builder::new().name("free rows".to_owned()).spawn(search));
        }
        Ok(PyTable { table, attached: Some(attached) })
    }

    pub(crate) fn rate(&self) -> Rate {
        rate_of(&self.table)
    }
}

/// The learning rate of a table in this process.
pub(crate) fn rate_of(table: &Table) -> Rate {
    Rate::of(table.name(), table.config().blocks.iter().map(|block| block.optimizer))
}

/// Arguments of a table of one block.
pub(crate) struct Words<'py, 'a> {
    pub(crate) optimizer: Option<&'a Bound<'py, PyAny>>,
    pub(crate) init: Option<&'a Bound<'py, PyAny>>,
    pub(crate) seed: u64,
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) dtype: Option<&'a Bound<'py, PyAny>>,
    pub(crate) admission: Option<&'a Bound<'py, PyAny>>,
    pub(crate) eviction: Option<&'a Bound<'py, PyAny>>,
    pub(crate) writes: Option<&'a Bound<'py, PyAny>>,
    pub(crate) packing: Option<&'a Bound<'py, PyAny>>,
}

impl Words<'_, '_> {
    pub(crate) fn config(&self, name: &str, dim: usize) -> PyResult<TableConfig> {
        let optimizer = match self.optimizer {
            None => Optimizer::Sgd { lr: 0.01, l2: 0.0 },
            Some(optimizer) => from_python("optimizer", &typed(optimizer)?)?,
        };
        let init = match self.init {
            None => Init::Zero,
            Some(init) => from_python("init", &typed(init)?)?,
        };
        let mut config = TableConfig::single(name, dim, init, optimizer);
        (config.seed, config.budget_bytes) = (self.seed, self.budget_bytes);
        if let Some(dtype) = self.dtype {
            config.dtype = from_python("dtype", dtype)?;
        }
        if let Some(admission) = self.admission {
            config.admission = from_python("admission", &typed(admission)?)?;
        }
        if let Some(eviction) = self.eviction {
            config.eviction = from_python("eviction", &typed(eviction)?)?;
        }
        if let Some(writes) = self.writes {
            config.writes = from_python("writes", writes)?;
        }
        if let Some(packing) = self.packing {
            config.packing = from_python("packing", packing)?;
        }
        Ok(config)
    }
}

#[pymethods]
impl PyTable {
    #[new]
    #[pyo3(signature = (name, dim, *, optimizer = None, init = None, seed = 42, budget_bytes = None, dtype = None,
        admission = None, eviction = None, writes = None, packing = None, kept = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
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
        kept: Option<PathBuf>,
    ) -> PyResult<PyTable> {
        let words =
            Words { optimizer, init, seed, budget_bytes, dtype, admission, eviction, writes, packing };
        let config = words.config(name, dim)?;
        if let Some(root) = kept {
            return py.detach(|| PyTable::open_kept(config, &root)).map_err(of_store);
        }
        Ok(PyTable::of(Arc::new(Table::new(config).map_err(of_store)?)))
    }

    /// The table's name in errors and checkpoints.
    #[getter]
    fn name(&self) -> &str {
        self.table.name()
    }

    /// The folder that keeps it; None for a table in private memory.
    #[getter]
    fn kept(&self) -> Option<&Path> {
        self.table.kept_in()
    }

    /// State of that folder when it was opened: attached or created, rows, repairs, and the cost of its pages.
    #[getter]
    fn attached(&self) -> Option<String> {
        let attached = self.attached.as_ref()?;
        let pages = attached.pages.map(|pages| format!("; {pages}")).unwrap_or_default();
        Some(attached.summary() + &pages)
    }

    /// Weights per row.
    #[getter]
    fn dim(&self) -> usize {
        self.table.dim()
    }

    /// The learning rate of its optimizer; None if that has none (FTRL), or its blocks have several.
    #[getter]
    fn lr(&self) -> Option<f32> {
        self.rate().lr()
    }

    /// Bytes of memory, index and rows.
    #[getter]
    fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Blocks of a row, each with `dims`, `init` and `optimizer`.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let blocks = self.table.config().blocks.iter();
        let blocks = blocks.map(|block| {
            serde_json::json!({ "dims": block.dims, "init": text(&block.init), "optimizer": text(&block.optimizer) })
        });
        to_python(py, &blocks.collect::<Vec<_>>())
    }

    /// All that it was made from but its name and width.
    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &MadeFrom::of(self.table.config()))
    }

    /// Sizes, and what has happened: rows, free_rows, pushes, index_bytes, slab_bytes, huge_bytes, admitted, rejected,
    /// evicted, rejected_full, promoted.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &text(&py.detach(|| self.table.stats())))
    }

    /// Makes room in the index for so many rows in all; False when there is none.
    fn reserve(&self, py: Python<'_>, rows: u64) -> bool {
        py.detach(|| self.table.reserve(rows))
    }

    /// Moves up to `rows` hot keys home and lets up to as many rows go that are too old or too small.
    #[pyo3(signature = (rows = 4096))]
    fn maintain(&self, py: Python<'_>, rows: usize) -> PyResult<Py<PyAny>> {
        to_python(py, &text(&py.detach(|| self.table.maintain(rows))))
    }

    fn __len__(&self) -> usize {
        self.table.len()
    }

    /// How many of the keys have a row.
    fn count_known(&self, py: Python<'_>, keys: Keys<'_>) -> PyResult<usize> {
        requests::count_known(py, &self.table, keys)
    }

    fn __contains__(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        requests::contains(py, &*self.table, key)
    }

    fn __repr__(&self) -> String {
        format!(
            "Table({:?}, dim={}, rows={}, bytes={})",
            self.name(),
            self.dim(),
            self.table.len(),
            self.bytes()
        )
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
        requests::pull(py, &*self.table, keys, absent, out)
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
        requests::pull_pooled(py, &*self.table, arguments, out)
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
        let scale = scale(|| Ok(self.rate()), lr, lr_scale)?;
        requests::push(py, &*self.table, keys, grads, scale)
    }

    /// Keys of all rows, uint64 [rows].
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        requests::keys(py, &*self.table)
    }

    /// Weights of all rows, float32 [rows, dim].
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        requests::rows(py, &*self.table)
    }

    /// How often each key was pushed, uint32 [rows].
    fn frequency<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u32>>> {
        requests::frequency(py, &*self.table)
    }

    /// Forgets rows; returns how many there were.
    fn remove(&self, py: Python<'_>, keys: Keys<'_>) -> PyResult<u64> {
        requests::remove(py, &*self.table, keys)
    }

    /// Forgets all rows.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.table.clear());
    }

    /// Writes a checkpoint that holds this table alone, or adds what changed to it.
    #[pyo3(signature = (directory, *, delta = false))]
    fn save(&self, py: Python<'_>, directory: PathBuf, delta: bool) -> PyResult<()> {
        py.detach(|| match delta {
            true => write_delta(&directory, &self.table),
            false => write(&directory, [&*self.table]),
        })
        .map_err(of_store)
    }

    /// Reads a table from a checkpoint; the name may be left out if there is only one.
    #[staticmethod]
    #[pyo3(signature = (directory, name = None))]
    fn load(py: Python<'_>, directory: PathBuf, name: Option<&str>) -> PyResult<PyTable> {
        let table = py.detach(|| {
            let checkpoint = Checkpoint::open(&directory).map_err(of_store)?;
            let name = match (name, checkpoint.tables()) {
                (Some(name), _) => name,
                (None, [only]) => &only.name,
                (None, tables) => {
                    let names: Vec<&str> = tables.iter().map(|table| &*table.name).collect();
                    return Err(NotFoundError::new_err(format!(
                        "{}: give the name of the table to load (there are: {})",
                        directory.display(),
                        names.join(", ")
                    )));
                }
            };
            checkpoint.load_table(name).map_err(of_store)
        });
        Ok(PyTable::of(Arc::new(table?)))
    }
}

/// Writes a checkpoint of several tables.
#[pyfunction]
pub(crate) fn save_tables(
    py: Python<'_>,
    directory: PathBuf,
    tables: Vec<PyRef<'_, PyTable>>,
) -> PyResult<()> {
    let tables: Vec<Arc<Table>> = tables.iter().map(|table| table.table.clone()).collect();
    py.detach(|| write(&directory, tables.iter().map(|table| &**table))).map_err(of_store)
}

/// Names of a checkpoint's tables.
#[pyfunction]
pub(crate) fn checkpoint_tables(py: Python<'_>, directory: PathBuf) -> PyResult<Vec<String>> {
    let checkpoint = py.detach(|| Checkpoint::open(&directory)).map_err(of_store)?;
    Ok(checkpoint.tables().iter().map(|table| table.name.clone()).collect())
}

fn write<'a>(
    directory: &std::path::Path,
    tables: impl IntoIterator<Item = &'a Table>,
) -> Result<(), StoreError> {
    let mut writer = CheckpointWriter::create(directory)?;
    for table in tables {
        writer.table(table)?;
    }
    writer.commit()?;
    Ok(())
}

/// Adds a delta to the table's checkpoint; where that is not possible, writes a full one that deltas can follow.
fn write_delta(directory: &std::path::Path, table: &Table) -> Result<(), StoreError> {
    let add = || {
        let mut writer = DeltaWriter::create(directory)?;
        if let Some(SkippedRows { key, reason, .. }) = writer.changes(table)? {
            return Err(StoreError::Diverged { table: table.name().to_owned(), key, reason });
        }
        writer.commit()
    };
    match add() {
        Err(StoreError::NoDelta { .. } | StoreError::StreamTooLate { .. }) => {
            let mut writer = CheckpointWriter::create(directory)?;
            writer.begin_chain(Table::CHANGE_KEYS);
            writer.table(table)?;
            writer.commit().map(drop)
        }
        added => added.map(drop),
    }
}

/// "adam" is short for {"type": "adam"}.
fn typed<'py>(config: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if !config.is_instance_of::<PyString>() {
        return Ok(config.clone());
    }
    let dict = pyo3::types::PyDict::new(config.py());
    dict.set_item("type", config)?;
    Ok(dict.into_any())
}

/// A configuration as JSON, by way of text: see `value::to_python`.
fn text<T: serde::Serialize>(config: &T) -> serde_json::Value {
    serde_json::to_string(config).and_then(|text| serde_json::from_str(&text)).unwrap_or_default()
}
