//! `sanderling.Table`: an embedding table whose requests are numpy arrays. Arrays that are contiguous are read and
//! written in place; the interpreter is released while the table works.

use std::path::PathBuf;
use std::sync::Arc;

use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray, PyReadonlyArray1,
    PyReadonlyArray2, PyReadwriteArray2, PyUntypedArrayMethods,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use sanderling_store::{
    Absent, Block, Checkpoint, CheckpointWriter, Init, Optimizer, Pooling, PushScale, StoreError, Table,
    TableConfig,
};

use crate::error::{LengthError, of_store};
use crate::value::{from_python, to_python};

/// An embedding table: rows of weights, found by 64-bit key, updated by the table's optimizer.
#[pyclass(name = "Table", module = "sanderling", frozen)]
pub(crate) struct PyTable {
    table: Arc<Table>,
}

impl PyTable {
    pub(crate) fn of(table: Arc<Table>) -> PyTable {
        PyTable { table }
    }

    /// One value per row, in the table's own order.
    fn collect<T: Send>(
        &self,
        py: Python<'_>,
        of: impl Fn(&sanderling_store::RowRef<'_>, &mut Vec<T>) + Send,
    ) -> Vec<T> {
        let table = &*self.table;
        py.detach(move || {
            let mut values = Vec::with_capacity(table.len());
            table.for_each_row(|row| of(&row, &mut values));
            values
        })
    }
}

/// The array to fill: the caller's, if it has the right shape, or a new one.
pub(crate) fn output<'py>(
    py: Python<'py>,
    table: &str,
    shape: [usize; 2],
    out: Option<Bound<'py, PyArray2<f32>>>,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    match out {
        None => Ok(PyArray2::zeros(py, shape, false)),
        Some(out) if out.shape() == shape && out.is_c_contiguous() && out.is_aligned() => Ok(out),
        Some(out) => Err(LengthError::new_err(format!(
            "table {table:?}: out must be a C-contiguous array of shape {shape:?}, found {:?}",
            out.shape()
        ))),
    }
}

/// The configuration of a table of one block.
pub(crate) fn config(
    name: &str,
    dim: usize,
    optimizer: Option<&Bound<'_, PyAny>>,
    init: Option<&Bound<'_, PyAny>>,
    seed: u64,
    budget_bytes: Option<u64>,
) -> PyResult<TableConfig> {
    let optimizer = match optimizer {
        None => Optimizer::Sgd { lr: 0.01, l2: 0.0 },
        Some(optimizer) => from_python("optimizer", &typed(optimizer)?)?,
    };
    let init = match init {
        None => Init::Zero,
        Some(init) => from_python("init", &typed(init)?)?,
    };
    let blocks = vec![Block { dims: dim, init, optimizer }];
    Ok(TableConfig { seed, budget_bytes, ..TableConfig::new(name, blocks) })
}

/// The array itself if its elements lie side by side in C order, else a copy of which that is true.
pub(crate) fn side_by_side<'py, T: Element, D: Dimension>(
    array: PyReadonlyArray<'py, T, D>,
) -> PyResult<PyReadonlyArray<'py, T, D>> {
    if array.is_c_contiguous() && array.is_aligned() {
        return Ok(array);
    }
    let copy = array.call_method1("copy", ("C",))?.cast_into::<PyArray<T, D>>()?;
    Ok(copy.try_readonly()?)
}

pub(crate) fn absent(name: &str) -> PyResult<Absent> {
    match name {
        "init" => Ok(Absent::Init),
        "zero" => Ok(Absent::Zero),
        _ => Err(PyValueError::new_err(format!("absent must be 'init' or 'zero', not {name:?}"))),
    }
}

pub(crate) fn pooling(name: &str) -> PyResult<Pooling> {
    match name {
        "sum" => Ok(Pooling::Sum),
        "mean" => Ok(Pooling::Mean),
        _ => Err(PyValueError::new_err(format!("pooling must be 'sum' or 'mean', not {name:?}"))),
    }
}

#[pymethods]
impl PyTable {
    #[new]
    #[pyo3(signature = (name, dim, *, optimizer = None, init = None, seed = 0, budget_bytes = None, dtype = None,
        admission = None, eviction = None, writes = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        name: &str,
        dim: usize,
        optimizer: Option<&Bound<'_, PyAny>>,
        init: Option<&Bound<'_, PyAny>>,
        seed: u64,
        budget_bytes: Option<u64>,
        dtype: Option<&Bound<'_, PyAny>>,
        admission: Option<&Bound<'_, PyAny>>,
        eviction: Option<&Bound<'_, PyAny>>,
        writes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyTable> {
        let mut config = config(name, dim, optimizer, init, seed, budget_bytes)?;
        if let Some(dtype) = dtype {
            config.dtype = from_python("dtype", dtype)?;
        }
        if let Some(admission) = admission {
            config.admission = from_python("admission", &typed(admission)?)?;
        }
        if let Some(eviction) = eviction {
            config.eviction = from_python("eviction", &typed(eviction)?)?;
        }
        if let Some(writes) = writes {
            config.writes = from_python("writes", writes)?;
        }
        Ok(PyTable::of(Arc::new(Table::new(config).map_err(of_store)?)))
    }

    /// The table's name in errors and checkpoints.
    #[getter]
    fn name(&self) -> &str {
        self.table.name()
    }

    /// Weights per row.
    #[getter]
    fn dim(&self) -> usize {
        self.table.dim()
    }

    /// Bytes of memory, index and rows.
    #[getter]
    fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// What a row consists of: per block its `dims`, `init` and `optimizer`.
    #[getter]
    fn blocks(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let blocks = self.table.config().blocks.iter();
        let blocks = blocks.map(|block| {
            serde_json::json!({ "dims": block.dims, "init": text(&block.init), "optimizer": text(&block.optimizer) })
        });
        to_python(py, &blocks.collect::<Vec<_>>())
    }

    /// Sizes, and what has happened: rows, free_rows, pushes, index_bytes, slab_bytes, huge_bytes, admitted, rejected,
    /// evicted, full, moved_home.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &text(&py.detach(|| self.table.stats())))
    }

    /// Makes room in the index for so many rows in all; False when there is none.
    fn reserve(&self, py: Python<'_>, rows: u64) -> bool {
        py.detach(|| self.table.reserve(rows))
    }

    /// Moves up to `budget` hot keys home and lets up to as many rows go that are too old or too small.
    #[pyo3(signature = (budget = 4096))]
    fn maintain(&self, py: Python<'_>, budget: usize) -> PyResult<Py<PyAny>> {
        to_python(py, &text(&py.detach(|| self.table.maintain(budget))))
    }

    fn __len__(&self) -> usize {
        self.table.len()
    }

    fn __contains__(&self, py: Python<'_>, key: u64) -> bool {
        py.detach(|| self.table.get(key).is_some())
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
        keys: PyReadonlyArray1<'py, u64>,
        absent: &str,
        out: Option<Bound<'py, PyArray2<f32>>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let absent = self::absent(absent)?;
        let keys = side_by_side(keys)?;
        let keys = keys.as_slice()?;
        let array = output(py, self.name(), [keys.len(), self.table.dim()], out)?;
        let mut rows: PyReadwriteArray2<'_, f32> = array.try_readwrite()?;
        let into = rows.as_slice_mut()?;
        py.detach(|| self.table.pull(keys, absent, into, None)).map_err(of_store)?;
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
        let array = output(py, self.name(), [offsets.len().saturating_sub(1), self.table.dim()], out)?;
        let mut rows: PyReadwriteArray2<'_, f32> = array.try_readwrite()?;
        let into = rows.as_slice_mut()?;
        py.detach(|| self.table.pull_pooled(keys, values, offsets, pooling, absent, into, None))
            .map_err(of_store)?;
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
        let expected = [keys.len(), self.table.dim()];
        if grads.shape() != expected {
            return Err(LengthError::new_err(format!(
                "table {:?}: grads must have shape {expected:?}, found {:?}",
                self.table.name(),
                grads.shape()
            )));
        }
        let (keys, grads) = (side_by_side(keys)?, side_by_side(grads)?);
        let (keys, grads) = (keys.as_slice()?, grads.as_slice()?);
        py.detach(|| self.table.push(keys, grads, PushScale { lr })).map_err(of_store)
    }

    /// Keys of all rows, uint64 [rows].
    fn keys<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_vec(py, self.collect(py, |row, keys| keys.push(row.key)))
    }

    /// Weights of all rows, float32 [rows, dim].
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let weights = self.collect(py, |row, weights| weights.extend_from_slice(row.weights));
        let rows = weights.len() / self.table.dim();
        PyArray1::from_vec(py, weights).reshape([rows, self.table.dim()])
    }

    /// How often each key was pushed, uint32 [rows].
    fn frequency<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u32>> {
        PyArray1::from_vec(py, self.collect(py, |row, counts| counts.push(row.frequency)))
    }

    /// Forgets rows; returns how many there were.
    fn remove(&self, py: Python<'_>, keys: PyReadonlyArray1<'_, u64>) -> PyResult<usize> {
        let keys = side_by_side(keys)?;
        let keys = keys.as_slice()?;
        Ok(py.detach(|| keys.iter().filter(|key| self.table.remove(**key)).count()))
    }

    /// Forgets all rows.
    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.table.clear());
    }

    /// Writes a checkpoint that holds this table alone.
    fn save(&self, py: Python<'_>, directory: PathBuf) -> PyResult<()> {
        py.detach(|| write(&directory, [&*self.table])).map_err(of_store)
    }

    /// Reads a table from a checkpoint; the name may be left out if there is only one.
    #[staticmethod]
    #[pyo3(signature = (directory, name = None))]
    fn load(py: Python<'_>, directory: PathBuf, name: Option<&str>) -> PyResult<PyTable> {
        let table = py.detach(|| {
            let checkpoint = Checkpoint::open(&directory)?;
            let only = match checkpoint.tables() {
                [only] => only.name.clone(),
                _ => String::new(),
            };
            checkpoint.load_table(name.unwrap_or(&only))
        });
        Ok(PyTable::of(Arc::new(table.map_err(of_store)?)))
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
