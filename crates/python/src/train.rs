//! `sanderling.train`: a run from a configuration to a model and its report, as the command does it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_learner::config::Inputs as ConfigInputs;
use sanderling_learner::{Config, Event, RunOptions, Summary, train as run};

use crate::error::{ConfigError, of_learner};
use crate::inputs::Inputs;
use crate::model::{Interrupt, PyModel, load};
use crate::report::show;
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

    /// Root mean squared error of a regression; NaN of other models.
    #[getter]
    fn rmse(&self) -> f64 {
        self.summary.numbers.map_or(f64::NAN, |numbers| numbers.rmse)
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
        let scores = match self.summary.numbers {
            Some(numbers) => format!("rmse={:.5}, mae={:.5}", numbers.rmse, numbers.mae),
            None => format!("auc={:.5}, logloss={:.5}", self.auc(), self.logloss()),
        };
        format!("TrainResult({scores}, model_dir={:?})", self.summary.model.display().to_string())
    }
}

/// Trains as the configuration says: a dictionary, or the path of a TOML file.
#[pyfunction]
#[pyo3(signature = (config, *, train = None, valid = None, name = None, runs_dir = None, resume = false, from_model = None, forget = false, on_line = None, status_listen = None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
pub(crate) fn train(
    py: Python<'_>,
    config: &Bound<'_, PyAny>,
    train: Option<&Bound<'_, PyAny>>,
    valid: Option<&Bound<'_, PyAny>>,
    name: Option<String>,
    runs_dir: Option<PathBuf>,
    resume: bool,
    from_model: Option<PathBuf>,
    forget: bool,
    on_line: Option<Py<PyAny>>,
    status_listen: Option<&str>,
) -> PyResult<PyTrainResult> {
    if resume && from_model.is_some() {
        return Err(ConfigError::new_err(
            "resume and from_model: a run that goes on has begun; give one of them",
        ));
    }
    let mut options = RunOptions {
        resume,
        from: from_model,
        forget,
        keeps_earlier: name.is_none(),
        ..RunOptions::default()
    };
    let given = GivenData::of(config, train, valid)?;
    let config = given.configure(config, name)?;
    if let Some(runs_dir) = runs_dir {
        options.runs_dir = runs_dir;
    }
    let _shown = status_listen.map(|address| py.detach(|| show(&options.live, address))).transpose()?;
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

/// The data that Python gives, as arguments or in the configuration, where it is rows in memory or replaces files.
#[derive(Default)]
struct GivenData {
    train: Option<Inputs>,
    valid: Option<Inputs>,
    /// Test sets by name that are rows in memory.
    tests: Vec<(String, Inputs)>,
}

impl GivenData {
    fn of(
        config: &Bound<'_, PyAny>,
        train: Option<&Bound<'_, PyAny>>,
        valid: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<GivenData> {
        let find = |name: &str, argument: Option<&Bound<'_, PyAny>>| {
            if let Some(argument) = argument {
                return Inputs::of(argument).map(Some);
            }
            match data_of(config)?.map(|data| data.get_item(name)).transpose()?.flatten() {
                Some(entry) if !is_holdout(&entry)? && Inputs::has_rows(&entry)? => {
                    Inputs::of(&entry).map(Some)
                }
                _ => Ok(None),
            }
        };
        let tests = data_of(config)?.map(|data| data.get_item("test")).transpose()?.flatten();
        let tests = tests.map(|tests| tests_of(&tests)).transpose()?.unwrap_or_default();
        Ok(GivenData { train: find("train", train)?, valid: find("valid", valid)?, tests })
    }

    /// The configuration that Python gives; a run that has no name is named after its first training file.
    fn configure(&self, given: &Bound<'_, PyAny>, name: Option<String>) -> PyResult<Config> {
        let adjust = |config: &mut Config| {
            if let Some(name) = name {
                config.name = name;
            }
            if let Some(train) = &self.train {
                config.data.train = ConfigInputs(train.names.clone());
            }
            if let Some(valid) = &self.valid {
                config.data.valid = ConfigInputs(valid.names.clone());
                config.data.holdout = None;
            }
            let tests = self.tests.iter().map(|(name, it)| (name.clone(), ConfigInputs(it.names.clone())));
            config.data.test.extend(tests);
        };
        let config = match given.cast::<PyDict>() {
            Ok(given) => {
                Config::from_json(&to_text("config", &self.without_rows(given)?.into_any())?, adjust)
            }
            Err(_) => Config::read(&given.extract::<PathBuf>()?, &[], adjust),
        };
        config.map_err(|error| match deep_type(given) {
            Some(model) => ConfigError::new_err(format!(
                "model.type = {model:?} is a deep model, which sanderling.torch.train trains; see docs/torch.md"
            )),
            None => of_learner(error),
        })
    }

    /// The dictionary without entries that are rows in memory.
    fn without_rows<'py>(&self, given: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
        let Some(data) = data_of(given)? else { return Ok(given.clone()) };
        let (copy, data) = (given.copy()?, data.copy()?);
        for (name, inputs) in [("train", &self.train), ("valid", &self.valid)] {
            if inputs.is_some() && data.contains(name)? {
                data.del_item(name)?;
            }
        }
        if let Some(tests) = data.get_item("test")?.filter(|_| !self.tests.is_empty()) {
            let rest =
                tests.cast::<PyDict>().map_or_else(|_| Ok(PyDict::new(given.py())), PyDictMethods::copy)?;
            for (name, _) in &self.tests {
                if rest.contains(name)? {
                    rest.del_item(name)?;
                }
            }
            data.set_item("test", rest)?;
        }
        copy.set_item("data", data)?;
        Ok(copy)
    }
}

/// The test sets that are rows in memory; a dictionary has sets by name, anything else is one set.
fn tests_of(entry: &Bound<'_, PyAny>) -> PyResult<Vec<(String, Inputs)>> {
    let Ok(sets) = entry.cast::<PyDict>() else {
        let is_one = Inputs::has_rows(entry)?;
        return if is_one { Ok(vec![("test".to_owned(), Inputs::of(entry)?)]) } else { Ok(Vec::new()) };
    };
    let mut found = Vec::new();
    for (name, set) in sets {
        if Inputs::has_rows(&set)? {
            found.push((name.str()?.to_cow()?.into_owned(), Inputs::of(&set)?));
        }
    }
    Ok(found)
}

/// Whether an entry is a table with the share of held-out rows, not columns.
fn is_holdout(entry: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Ok(entry) = entry.cast::<PyDict>() else { return Ok(false) };
    Ok(entry.get_item("fraction")?.is_some_and(|share| share.extract::<f64>().is_ok()))
}

/// The section `data` of a configuration, if that is a dictionary with one.
fn data_of<'py>(config: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Ok(config) = config.cast::<PyDict>() else { return Ok(None) };
    let data = config.get_item("data")?;
    Ok(data.and_then(|data| data.cast_into::<PyDict>().ok()))
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
