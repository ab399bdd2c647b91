//! `sanderling.Model`: a saved model that predicts, evaluates and shows its tables; and the metrics by themselves.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyUntypedArrayMethods};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList};
use sanderling_formats::{BadRows, DataConfig};
use sanderling_learner::{
    KnownKeys, LearnError, Metrics, Model, Names, Nearest, SavedRows, Scores, Similarity, evaluate,
    factors_of, predict, remarks,
};

use crate::arrays::{Key, numbers};
use crate::error::{ConfigError, LengthError, NotFoundError, of_learner};
use crate::feed_spec::FeedSpec;
use crate::inputs::Inputs;
use crate::interrupt::while_looking;
use crate::keys::keys_by;
use crate::rows::{RowScorers, is_row};
use crate::table::PyTable;
use crate::value::{merged, to_python, whole};

/// A trained model with its tables in this process.
#[pyclass(name = "Model", module = "sanderling", frozen)]
pub(crate) struct PyModel {
    model: Arc<Model>,
    directory: PathBuf,
    row_scorers: RowScorers,
    /// Names of keys by table, read when they are first asked for.
    names: Mutex<BTreeMap<String, Arc<Names>>>,
}

/// Asks the interpreter now and then whether the user pressed Ctrl-C, and remembers the exception for later.
#[derive(Default)]
pub(crate) struct Interrupt {
    raised: Option<PyErr>,
}

impl Interrupt {
    /// Whether work should stop.
    pub(crate) fn is_raised(&mut self) -> bool {
        if self.raised.is_none() {
            #[expect(
                clippy::redundant_closure_for_method_calls,
                reason = "the method alone is not general enough"
            )]
            let raised = Python::attach(|py| py.check_signals()).err();
            self.raised = raised;
        }
        self.raised.is_some()
    }

    /// Whether it was raised before, and now once more.
    pub(crate) fn is_raised_again(&mut self) -> bool {
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method alone is not general enough"
        )]
        let is_raised_now = |_: &PyErr| Python::attach(|py| py.check_signals()).is_err();
        self.raised.as_ref().is_some_and(is_raised_now)
    }

    /// Calls into Python, unless an exception waits already; one that the call raises ends the work.
    pub(crate) fn unless(&mut self, call: impl FnOnce(Python<'_>) -> PyResult<()>) {
        if self.raised.is_none() {
            self.raised = Python::attach(call).err();
        }
    }

    /// The exception that ended the work, if one has.
    pub(crate) fn first(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }

    /// The result of the work, or the exception that ended it.
    pub(crate) fn or<T>(self, result: Result<T, LearnError>) -> PyResult<T> {
        match self.raised {
            Some(exception) => Err(exception),
            None => result.map_err(of_learner),
        }
    }
}

impl PyModel {
    fn of(model: Arc<Model>, directory: PathBuf) -> PyModel {
        PyModel { model, directory, row_scorers: RowScorers::default(), names: Mutex::default() }
    }

    /// The names of the keys of a table.
    fn names(&self, table: &str) -> Result<Arc<Names>, LearnError> {
        let mut kept = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(names) = kept.get(table) {
            return Ok(Arc::clone(names));
        }
        let names = Arc::new(SavedRows::open(&self.directory)?.names(table)?);
        kept.insert(table.to_owned(), Arc::clone(&names));
        Ok(names)
    }

    /// How the model's training data were read, with the caller's changes.
    fn reading(&self, changes: Option<&Bound<'_, PyDict>>) -> PyResult<DataConfig> {
        let reading = &self.model.config().data.reading;
        changes.map_or_else(|| Ok(reading.clone()), |changes| merged("data", reading, changes))
    }
}

#[pymethods]
impl PyModel {
    /// Description of the model.
    #[getter]
    fn description(&self) -> String {
        self.model.config().describe()
    }

    /// The configuration it was trained with, spec included.
    #[getter]
    fn config(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, self.model.config())
    }

    /// How its rows are read, as `FeedQueue` takes it.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let config = self.model.config();
        to_python(py, &FeedSpec::of(&config.data.reading, &config.spec()))
    }

    /// Names of the tables.
    #[getter]
    fn tables(&self) -> Vec<String> {
        self.model.client().tables().iter().map(|table| table.name().to_string()).collect()
    }

    /// A table by name.
    fn table(&self, name: &str) -> PyResult<PyTable> {
        let table = self.model.table(name).ok_or_else(|| {
            NotFoundError::new_err(format!(
                "no table named {name:?} (there are: {})",
                self.tables().join(", ")
            ))
        })?;
        Ok(PyTable::of(Arc::clone(table)))
    }

    /// A probability per row, float32, in the order of the rows; of a row by itself a float.
    #[pyo3(signature = (source, *, data = None))]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        source: &Bound<'py, PyAny>,
        data: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(row) = source.cast::<PyDict>()
            && is_row(row)?
        {
            return Ok(PyFloat::new(py, self.row_scorers.row(&self.model, row)?).into_any());
        }
        if let Ok(rows) = source.cast::<PyList>()
            && rows.get_item(0).is_ok_and(|first| first.is_instance_of::<PyDict>())
        {
            return Ok(PyArray1::from_vec(py, self.row_scorers.rows(&self.model, rows)?).into_any());
        }
        let (inputs, reading) = (Inputs::of(source)?, self.reading(data)?);
        let files = &inputs.names;
        let bad_rows = Arc::new(BadRows::new(reading.on_bad_row).placeholder(true));
        let mut interrupt = Interrupt::default();
        let mut probabilities = Vec::new();
        let stop = Arc::new(AtomicBool::new(false));
        let work = || {
            predict(&self.model, files, &reading, &bad_rows, &stop, |rows, _progress| {
                probabilities.extend_from_slice(rows);
                Ok(())
            })
        };
        let result =
            py.detach(|| while_looking(work, || stop.store(interrupt.is_raised(), Ordering::Relaxed)));
        warn_unknown(py, &interrupt.or(result)?.known)?;
        Ok(PyArray1::from_vec(py, probabilities).into_any())
    }

    /// Metrics over labelled rows.
    #[pyo3(signature = (source, *, threads = 1, data = None))]
    fn evaluate<'py>(
        &self,
        py: Python<'py>,
        source: &Bound<'py, PyAny>,
        #[pyo3(from_py_with = whole)] threads: usize,
        data: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        if threads == 0 {
            return Err(ConfigError::new_err("threads = 0: must be at least 1"));
        }
        let (inputs, reading) = (Inputs::of(source)?, self.reading(data)?);
        let files = &inputs.names;
        let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
        let mut interrupt = Interrupt::default();
        let stop = AtomicBool::new(false);
        let found = py.detach(|| {
            let mut progress = |_| stop.store(interrupt.is_raised(), Ordering::Relaxed);
            let threads = threads.min(sanderling_learner::config::THREADS_MAX);
            let found = evaluate(&self.model, files, &reading, &bad_rows, threads, &stop, &mut progress)?;
            Ok((found.scores.metrics(), found.scores.auc_interval(), found))
        });
        let (metrics, interval, found) = interrupt.or(found)?;
        let dict = as_dict(py, &metrics)?;
        dict.set_item("auc_low", interval.map_or(f64::NAN, |interval| interval.low))?;
        dict.set_item("auc_high", interval.map_or(f64::NAN, |interval| interval.high))?;
        dict.set_item("positives", found.positives)?;
        dict.set_item("bad_rows", bad_rows.count())?;
        dict.set_item("known", to_python(py, &found.known)?)?;
        dict.set_item("warnings", remarks(&metrics, Some(&found.scores)))?;
        warn_unknown(py, &found.known)?;
        Ok(dict)
    }

    /// The key of a value of a feature, or an array with the keys of a list of values.
    fn key<'py>(
        &self,
        py: Python<'py>,
        feature: &str,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let config = self.model.config();
        keys_by(py, &config.spec(), &config.data.reading, feature, value)
    }

    /// The nearest rows to that of a value or key: key, name, score and frequency of each, the best first.
    #[pyo3(signature = (feature, value = None, *, key = None, top = 10, by = "cosine"))]
    fn similar(
        &self,
        py: Python<'_>,
        feature: &str,
        value: Option<&Bound<'_, PyAny>>,
        key: Option<Key>,
        #[pyo3(from_py_with = whole)] top: usize,
        by: &str,
    ) -> PyResult<Vec<Py<PyDict>>> {
        let by: Similarity = by.parse().map_err(|error| ConfigError::new_err(format!("by = {error}")))?;
        let config = self.model.config();
        let table = config.feature.iter().find(|it| it.name == feature).map_or(feature, |it| it.table());
        let key = match (key, value) {
            (Some(key), None) => key.0.ok_or_else(|| ConfigError::new_err("key: must have 64 bits"))?,
            (None, Some(value)) => {
                keys_by(py, &config.spec(), &config.data.reading, feature, value)?.extract()?
            }
            _ => return Err(ConfigError::new_err("similar: give a value or key=")),
        };
        let rows = self.model.table(table).ok_or_else(|| {
            let tables = self.tables().join(", ");
            NotFoundError::new_err(format!("no table or feature {feature:?} (there are: {tables})"))
        })?;
        let (factors, none) = (factors_of(&rows.config().blocks), format!("table {table:?}"));
        if rows.dim() == 1 {
            return Err(ConfigError::new_err(format!(
                "{none} has one weight per key, no embedding: train an fm"
            )));
        }
        let Some(like) = rows.get(key) else {
            return Err(NotFoundError::new_err(format!("{none} has no row of key {key}")));
        };
        let near = py.detach(|| {
            let mut nearest = Nearest::new(&like.weights[factors.clone()], Some(key), by, top)?;
            rows.for_each_row(|row| nearest.add(row.key, row.frequency, &row.weights[factors.clone()]));
            Ok::<_, &str>(nearest.finish())
        });
        let near = near.map_err(|reason| ConfigError::new_err(format!("{none}, key {key}: {reason}")))?;
        let names = self.names(table).map_err(of_learner)?;
        let found = near.into_iter().map(|near| {
            let found = PyDict::new(py);
            found.set_item("key", near.key)?;
            found.set_item("name", names.get(near.key))?;
            found.set_item("score", near.score)?;
            found.set_item("frequency", near.frequency)?;
            Ok(found.unbind())
        });
        found.collect()
    }

    fn __repr__(&self) -> String {
        format!(
            "Model({}, tables={}, rows={}, bytes={})",
            self.model.config().describe(),
            self.model.client().tables().len(),
            self.model.rows(),
            self.model.table_bytes()
        )
    }
}

/// Opens a saved model and verifies every byte of it.
#[pyfunction]
pub(crate) fn load(py: Python<'_>, directory: PathBuf) -> PyResult<PyModel> {
    let model = py.detach(|| Model::load(&directory)).map_err(of_learner)?;
    Ok(PyModel::of(Arc::new(model), directory))
}

/// AUC, logloss and calibration of probabilities, or logits, against labels.
#[pyfunction]
#[pyo3(signature = (labels, probabilities, weights = None, *, from_logits = false))]
pub(crate) fn metrics<'py>(
    py: Python<'py>,
    labels: &Bound<'py, PyAny>,
    probabilities: &Bound<'py, PyAny>,
    weights: Option<&Bound<'py, PyAny>>,
    from_logits: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let scores = scores_of(py, labels, probabilities, weights, from_logits)?;
    let metrics = py.detach(|| scores.metrics());
    as_dict(py, &metrics)
}

/// Scored rows, from arrays of equal lengths: probabilities, or logits.
pub(crate) fn scores_of(
    py: Python<'_>,
    labels: &Bound<'_, PyAny>,
    predictions: &Bound<'_, PyAny>,
    weights: Option<&Bound<'_, PyAny>>,
    from_logits: bool,
) -> PyResult<Scores> {
    let what = if from_logits { "logits" } else { "probabilities" };
    let labels = numbers("labels", labels)?;
    let predictions = numbers(what, predictions)?;
    let weights = weights.map(|weights| numbers("weights", weights)).transpose()?;
    let weight_count = weights.as_ref().map_or(labels.len(), |weights| weights.len());
    if predictions.len() != labels.len() || weight_count != labels.len() {
        return Err(LengthError::new_err(format!(
            "metrics: {} labels, {} {what}, {weight_count} weights: must be equally many",
            labels.len(),
            predictions.len()
        )));
    }
    let (labels, predictions) = (labels.as_slice()?, predictions.as_slice()?);
    let weights = weights.as_ref().map(|weights| weights.as_slice()).transpose()?;
    let fits: fn(f32) -> bool = if from_logits { |x| !x.is_nan() } else { |p| (0.0..=1.0).contains(&p) };
    let wanted = if from_logits {
        "a logit is a number; leave out rows that have none"
    } else {
        "a probability is a number from 0 to 1; for logits, say from_logits=True; leave out rows that have none"
    };
    for (name, values, fits, wanted) in [
        ("labels", labels, (|label| label == 0.0 || label == 1.0) as fn(f32) -> bool, "a label is 0 or 1"),
        (what, predictions, fits, wanted),
        (
            "weights",
            weights.unwrap_or_default(),
            |weight| weight.is_finite() && weight >= 0.0,
            "a weight is finite and not negative",
        ),
    ] {
        if let Some(row) = values.iter().position(|&value| !fits(value)) {
            return Err(ConfigError::new_err(format!("{name}[{row}] = {}: {wanted}", values[row])));
        }
    }
    Ok(py.detach(|| {
        let mut scores = Scores::new();
        for (row, (label, prediction)) in labels.iter().zip(predictions).enumerate() {
            let weight = weights.map_or(1.0, |weights| weights[row]);
            if from_logits {
                scores.push(*prediction, *label, weight);
            } else {
                scores.push_probability(*prediction, *label, weight);
            }
        }
        scores
    }))
}

/// Warns of features of whose keys the model knows none.
fn warn_unknown(py: Python<'_>, known: &[KnownKeys]) -> PyResult<()> {
    for remark in known.iter().filter_map(KnownKeys::remark) {
        let remark = std::ffi::CString::new(remark.replace('\0', " "))?;
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &remark, 1)?;
    }
    Ok(())
}

/// Warnings about scored rows, for runs led by Python.
#[pyfunction]
pub(crate) fn remarks_of(
    py: Python<'_>,
    labels: &Bound<'_, PyAny>,
    logits: &Bound<'_, PyAny>,
    weights: &Bound<'_, PyAny>,
) -> PyResult<Vec<String>> {
    let scores = scores_of(py, labels, logits, Some(weights), true)?;
    Ok(py.detach(|| remarks(&scores.metrics(), Some(&scores))))
}

/// Metrics as a dictionary; what is undefined is NaN.
pub(crate) fn as_dict<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("examples", metrics.examples)?;
    dict.set_item("auc", metrics.auc)?;
    dict.set_item("logloss", metrics.logloss)?;
    dict.set_item("prob_mean", metrics.prob_mean)?;
    dict.set_item("real_mean", metrics.real_mean)?;
    dict.set_item("normalized_entropy", metrics.normalized_entropy)?;
    dict.set_item("auc_exact", metrics.auc_exact)?;
    if let Some(numbers) = metrics.numbers {
        dict.set_item("mse", numbers.mse)?;
        dict.set_item("rmse", numbers.rmse)?;
        dict.set_item("mae", numbers.mae)?;
    }
    Ok(dict)
}
