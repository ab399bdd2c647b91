//! `sanderling.train`: a run from a configuration to a model and its report, as the command does it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_learner::{Config, Event, RunOptions, Summary, train as run};

use crate::error::{ConfigError, of_learner};
use crate::model::{Interrupt, PyModel, load};
use crate::value::{to_python, to_text};

/// Result of a run.
#[pyclass(name = "TrainResult", module = "sanderling", frozen)]
pub(crate) struct PyTrainResult {
    summary: Summary,
}

#[pymethods]
impl PyTrainResult {
    /// Area under the ROC curve; NaN if there was only one class.
    #[getter]
    fn auc(&self) -> f64 {
        self.summary.auc.unwrap_or(f64::NAN)
    }

    /// Mean logistic loss.
    #[getter]
    fn logloss(&self) -> f64 {
        self.summary.logloss.unwrap_or(f64::NAN)
    }

    /// The model's directory.
    #[getter]
    fn model_dir(&self) -> PathBuf {
        self.summary.model.clone()
    }

    /// The HTML report.
    #[getter]
    fn report(&self) -> PathBuf {
        self.summary.report.clone()
    }

    /// Everything the command prints with `--json`.
    #[getter]
    fn summary(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.summary)
    }

    /// Opens the saved model.
    fn load(&self, py: Python<'_>) -> PyResult<PyModel> {
        load(py, self.model_dir())
    }

    fn __repr__(&self) -> String {
        format!(
            "TrainResult(auc={:.5}, logloss={:.5}, model_dir={:?})",
            self.auc(),
            self.logloss(),
            self.summary.model.display().to_string()
        )
    }
}

/// Trains as the configuration says: a dictionary, or the path of a TOML file.
#[pyfunction]
#[pyo3(signature = (config, *, name = None, runs_dir = None, resume = false, from_model = None, on_line = None))]
pub(crate) fn train(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    name: Option<String>,
    runs_dir: Option<PathBuf>,
    resume: bool,
    from_model: Option<PathBuf>,
    on_line: Option<Py<PyAny>>,
) -> PyResult<PyTrainResult> {
    if resume && from_model.is_some() {
        return Err(ConfigError::new_err(
            "resume and from_model: a run that goes on has begun; give one of them",
        ));
    }
    let mut options =
        RunOptions { resume, from: from_model, keeps_earlier: name.is_none(), ..RunOptions::default() };
    let config = read(config, name)?;
    if let Some(runs_dir) = runs_dir {
        options.runs_dir = runs_dir;
    }
    let stop = AtomicBool::new(false);
    let mut interrupt = Interrupt::default();
    let result = py.detach(|| {
        let mut observe = |event: &Event<'_>| {
            if let Some(on_line) = &on_line {
                interrupt.unless(|py| tell(py, on_line, event));
            }
            stop.store(interrupt.is_raised(), Ordering::Relaxed);
        };
        run(config, &options, &stop, &mut observe)
    });
    Ok(PyTrainResult { summary: interrupt.or(result)? })
}

/// The configuration that Python gives; a run that has no name is named after its first training file.
fn read(given: &Bound<'_, PyAny>, name: Option<String>) -> PyResult<Config> {
    let adjust = |config: &mut Config| {
        if let Some(name) = name {
            config.name = name;
        }
    };
    let config = if given.is_instance_of::<PyDict>() {
        Config::from_json(&to_text("config", given)?, adjust)
    } else {
        Config::read(&given.extract::<PathBuf>()?, &[], adjust)
    };
    config.map_err(|error| match deep_type(given) {
        Some(model) => ConfigError::new_err(format!(
            "model.type = {model:?} is a deep model, which sanderling.torch.train trains; see docs/torch.md"
        )),
        None => of_learner(error),
    })
}

/// The `model.type` of a configuration, if it is a deep one.
fn deep_type(config: &Bound<'_, PyAny>) -> Option<String> {
    let config = match config.extract::<PathBuf>() {
        Ok(path) => {
            let text = std::fs::read_to_string(path).ok()?;
            config.py().import("tomllib").ok()?.call_method1("loads", (text,)).ok()?
        }
        Err(_) => config.clone(),
    };
    let model: String = config.get_item("model").ok()?.get_item("type").ok()?.extract().ok()?;
    sanderling_cli::DEEP_MODELS.contains(&&*model).then_some(model)
}

/// Passes a line of metrics on, as the dictionary that `metrics.jsonl` has in that line.
fn tell(py: Python<'_>, on_line: &Py<PyAny>, event: &Event<'_>) -> PyResult<()> {
    let (kind, line) = match event {
        Event::Step(line) => ("step", to_python(py, line)?),
        Event::PredictedFirst(line) => ("predicted_first", to_python(py, line)?),
        Event::Tested(line) => ("test", to_python(py, line)?),
        Event::Valid(line) => ("valid", to_python(py, line)?),
        _ => return Ok(()),
    };
    line.bind(py).set_item("kind", kind)?;
    on_line.call1(py, (line,))?;
    Ok(())
}
