//! `sanderling.Embedding` and `sanderling.Lookup`: rows of a minibatch as numpy sees them, and gradients on their way back.
//! Conversion only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::PyDict;
use sanderling_client::{FeatureSnapshots, RemoteTable};
use sanderling_feed::{Embedding, EmbeddingOptions, Feature, FeaturePooling, LookedUp, PoolAt};
use sanderling_store::Table;

use crate::arrays::{rows, side_by_side};
use crate::batch::PyBatch;
use crate::error::{ConfigError, LengthError, of_feed};
use crate::rates::{OneOrEach, Rate, scales};
use crate::remote::PyRemoteTable;
use crate::requests::absent;
use crate::table::PyTable;
use crate::value::{from_python, to_python};
use crate::view::of_lookup;

/// Tables, and which feature of a minibatch reads which and how.
#[pyclass(name = "Embedding", module = "sanderling", frozen)]
pub(crate) struct PyEmbedding {
    pub(crate) embedding: Arc<Embedding>,
    /// Of the tables, in order.
    pub(crate) rates: Arc<[Rate]>,
}

#[pymethods]
impl PyEmbedding {
    #[new]
    #[pyo3(signature = (tables, features, *, absent = "init", pushes = 8, pool_at = "trainer"))]
    fn new(
        tables: Vec<Bound<'_, PyAny>>,
        features: Vec<(String, usize, String)>,
        absent: &str,
        pushes: usize,
        pool_at: &str,
    ) -> PyResult<PyEmbedding> {
        let features = features
            .into_iter()
            .map(|(name, table, pooling)| Ok(Feature { name, table, pooling: self::pooling(&pooling)? }));
        let features = features.collect::<PyResult<Vec<_>>>()?;
        let options =
            EmbeddingOptions { absent: self::absent(absent)?, pushes, pool_at: self::pool_at(pool_at)? };
        let mut here: Vec<Arc<Table>> = Vec::new();
        let mut remote: Vec<RemoteTable> = Vec::new();
        let mut rates = Vec::new();
        for table in tables {
            if let Ok(table) = table.cast::<PyTable>() {
                rates.push(table.get().rate());
                here.push(Arc::clone(&table.get().table));
            } else {
                let table = table.cast::<PyRemoteTable>()?.get();
                rates.push(table.rate()?);
                remote.push(table.table.clone());
            }
        }
        if !here.is_empty() && !remote.is_empty() {
            return Err(ConfigError::new_err("tables: some are in this process and some on servers"));
        }
        let embedding = if remote.is_empty() {
            Embedding::embedded(here, features, options)
        } else {
            Embedding::remote(remote, features, options)
        };
        Ok(PyEmbedding { embedding: embedding.map_err(of_feed)?, rates: rates.into() })
    }

    /// Per feature, the width of its rows.
    #[getter]
    fn dims(&self) -> Vec<usize> {
        (0..self.embedding.features().len()).map(|feature| self.embedding.dim(feature)).collect()
    }

    /// Columns of `Lookup.pooled`.
    #[getter]
    fn width(&self) -> usize {
        self.embedding.width()
    }

    /// Looks a minibatch up. Up to `pushes` of the last pushes may not be seen yet; an error may be that of one of them.
    fn lookup(&self, py: Python<'_>, batch: &Bound<'_, PyBatch>) -> PyResult<PyLookup> {
        let sampled = Arc::clone(&batch.get().sampled);
        let looked_up = py.detach(|| {
            self.embedding.check_pushed()?;
            self.embedding.look_up(sampled)
        });
        Ok(PyLookup::of(looked_up.map_err(of_feed)?, Arc::clone(&self.rates)))
    }

    /// Waits until everything that was pushed has been applied.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.embedding.finish()).map_err(of_feed)
    }

    /// Counts of rows pooled by trainer and servers.
    #[getter]
    fn pooled_at(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.embedding.pooled_at())
    }

    /// The numbers of each feature, from sampled minibatches.
    fn feature_stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = py.detach(|| self.embedding.feature_stats());
        to_python(py, &stats)
    }

    /// The distribution of each feature's keys so far, for a checkpoint.
    fn feature_keys(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.embedding.feature_watch().snapshots())
    }

    /// Goes on from the distributions of a checkpoint of the same run, or compares with those of another model.
    #[pyo3(signature = (keys, *, resume))]
    fn compare_keys(&self, keys: &Bound<'_, PyAny>, resume: bool) -> PyResult<()> {
        let keys: FeatureSnapshots = from_python("keys", keys)?;
        match resume {
            true => self.embedding.feature_watch().resume(&keys),
            false => self.embedding.feature_watch().compare_with(&keys.features),
        }
        Ok(())
    }

    /// Pushes that were handed over so far.
    #[getter]
    fn pushed(&self) -> u64 {
        self.embedding.pushed()
    }

    /// Pushes that have been applied, or have failed.
    #[getter]
    fn applied(&self) -> u64 {
        self.embedding.applied()
    }
}

/// Of one table: distinct keys, how often each occurs, and their gradients.
type Gradients<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<u32>>, Bound<'py, PyArray2<f32>>);

/// The rows of one minibatch, and room for their gradients.
#[pyclass(name = "Lookup", module = "sanderling", frozen)]
pub(crate) struct PyLookup {
    looked_up: Mutex<LookedUp>,
    width: usize,
    rates: Arc<[Rate]>,
}

impl PyLookup {
    pub(crate) fn of(looked_up: LookedUp, rates: Arc<[Rate]>) -> PyLookup {
        let width = looked_up.embedding().width();
        PyLookup { looked_up: Mutex::new(looked_up), width, rates }
    }

    /// For who has let go of the interpreter.
    fn lock(&self) -> MutexGuard<'_, LookedUp> {
        self.looked_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// [keys, dim] of a feature that is not pooled.
    fn shape_of_rows(&self, py: Python<'_>, feature: usize) -> Option<[usize; 2]> {
        let mut looked_up = self.lock_attached(py);
        let weights = looked_up.rows(feature)?.len();
        let dim = looked_up.embedding().dim(feature);
        Some([weights / dim, dim])
    }

    /// For who has not: a push that waits for servers asks for the interpreter now and then, to hear signals, so the interpreter
    /// is let go of while another has the lookup.
    pub(crate) fn lock_attached(&self, py: Python<'_>) -> MutexGuard<'_, LookedUp> {
        self.looked_up.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl PyLookup {
    /// float32 [samples, width]: the pooled rows of all features side by side.
    #[getter]
    fn pooled<'py>(slf: &Bound<'py, Self>) -> Bound<'py, PyArray2<f32>> {
        let width = slf.get().width;
        let pooled = of_lookup(slf, width, |looked_up| Some(looked_up.pooled()));
        pooled.unwrap_or_else(|| PyArray2::zeros(slf.py(), [0, width], false))
    }

    /// float32 [keys, dim]: a row per key of a feature that is not pooled.
    fn rows<'py>(slf: &Bound<'py, Self>, feature: usize) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let embedding = Arc::clone(slf.get().lock_attached(slf.py()).embedding());
        if feature >= embedding.features().len() {
            let features = embedding.features().len();
            return Err(PyIndexError::new_err(format!("feature {feature}: there are {features}")));
        }
        let name = &embedding.features()[feature].name;
        of_lookup(slf, embedding.dim(feature), |looked_up| looked_up.rows(feature)).ok_or_else(|| {
            ConfigError::new_err(format!("feature {name:?} is pooled; its rows are in `pooled`"))
        })
    }

    /// Whether the rows are those of this embedding's tables.
    fn is_of(&self, py: Python<'_>, embedding: &PyEmbedding) -> bool {
        Arc::ptr_eq(self.lock_attached(py).embedding(), &embedding.embedding)
    }

    /// Adds to the gradients of the rows.
    #[pyo3(signature = (pooled = None, rows = None))]
    fn add_grads(
        &self,
        py: Python<'_>,
        pooled: Option<&Bound<'_, PyAny>>,
        rows: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let pooled = pooled.map(|pooled| grads_of("pooled", pooled)).transpose()?;
        if let Some(pooled) = &pooled {
            let samples = self.lock_attached(py).sampled().rows().len();
            check_shape(|| "the pooled rows".to_owned(), [samples, self.width], pooled.shape())?;
        }
        let mut of_keys = Vec::new();
        for (feature, grads) in rows.into_iter().flatten() {
            let Ok(at) = feature.extract::<usize>() else {
                let reason = format!("rows: features are numbered from 0; there is none {}", feature.repr()?);
                return Err(PyTypeError::new_err(reason));
            };
            let grads = grads_of(&format!("rows[{at}]"), &grads)?;
            if let Some(shape) = self.shape_of_rows(py, at) {
                check_shape(|| format!("the rows of feature number {at}"), shape, grads.shape())?;
            }
            of_keys.push((at, grads));
        }
        let pooled = pooled.as_ref().map(|pooled| pooled.as_slice()).transpose()?;
        let of_keys = of_keys.iter().map(|(feature, grads)| Ok((*feature, grads.as_slice()?)));
        let of_keys = of_keys.collect::<PyResult<Vec<(usize, &[f32])>>>()?;
        py.detach(|| self.lock().add_grads(pooled, &of_keys)).map_err(of_feed)
    }

    /// The sum of the squares of the gradients of all distinct rows.
    fn grad_norm_squared(&self, py: Python<'_>) -> PyResult<f64> {
        py.detach(|| self.lock().grad_norm_squared()).map_err(of_feed)
    }

    /// Multiplies the gradients.
    fn scale_grads(&self, py: Python<'_>, factor: f32) -> PyResult<()> {
        py.detach(|| self.lock().scale_grads(factor)).map_err(of_feed)
    }

    /// Takes the gradients away instead of a push: per table keys, counts and gradients of its distinct rows.
    fn take_gradients<'py>(&self, py: Python<'py>) -> PyResult<Vec<Gradients<'py>>> {
        let (dims, tables) = py
            .detach(|| {
                let (mut looked_up, mut tables) = (self.lock(), Vec::new());
                looked_up.take_gradients(|table, keys, counts, grads| {
                    tables.push((table, keys.to_vec(), counts.to_vec(), grads.to_vec()));
                })?;
                Ok((looked_up.embedding().table_dims().to_vec(), tables))
            })
            .map_err(of_feed)?;
        let arrays = tables.into_iter().map(|(table, keys, counts, grads)| {
            let shape = [keys.len(), dims[table]];
            let grads = PyArray1::from_vec(py, grads).reshape(shape)?;
            Ok((PyArray1::from_vec(py, keys), PyArray1::from_vec(py, counts), grads))
        });
        arrays.collect()
    }

    /// Reports that the taken gradients were applied.
    fn note_applied(&self, py: Python<'_>) {
        self.lock_attached(py).note_applied();
    }

    /// Hands the gradients over, to be applied in the background; once.
    #[pyo3(signature = (*, lr = None, lr_scale = None))]
    fn push(&self, py: Python<'_>, lr: Option<OneOrEach>, lr_scale: Option<OneOrEach>) -> PyResult<()> {
        let scales = scales(&self.rates, lr.as_ref(), lr_scale.as_ref())?;
        py.detach(|| self.lock().push(scales)).map_err(of_feed)
    }

    /// Distinct keys.
    #[getter]
    fn unique_keys(&self, py: Python<'_>) -> usize {
        self.lock_attached(py).unique_keys()
    }

    /// Distinct keys that had no row.
    #[getter]
    fn missing(&self, py: Python<'_>) -> usize {
        self.lock_attached(py).missing()
    }

    /// Pushes of other minibatches that were applied between this lookup and its push, or until now.
    #[getter]
    fn staleness(&self, py: Python<'_>) -> u64 {
        self.lock_attached(py).staleness()
    }
}

/// float32 [n, dim], side by side, for the argument of this name.
fn grads_of<'py>(what: &str, grads: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray2<'py, f32>> {
    side_by_side(rows(what, grads)?.try_readonly()?)
}

fn check_shape(of_what: impl FnOnce() -> String, expected: [usize; 2], found: &[usize]) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    let of_what = of_what();
    Err(LengthError::new_err(format!("gradients of {of_what} must have shape {expected:?}, found {found:?}")))
}

fn pool_at(name: &str) -> PyResult<PoolAt> {
    match name {
        "auto" => Ok(PoolAt::Auto),
        "trainer" => Ok(PoolAt::Trainer),
        "servers" => Ok(PoolAt::Servers),
        _ => {
            Err(ConfigError::new_err(format!("pool_at must be 'auto', 'trainer' or 'servers', not {name:?}")))
        }
    }
}

fn pooling(name: &str) -> PyResult<FeaturePooling> {
    FeaturePooling::named(name).ok_or_else(|| {
        ConfigError::new_err(format!("pooling must be 'sum', 'mean', 'max' or 'none', not {name:?}"))
    })
}
