//! `sanderling._native.KeyNames`: the texts of keys of chosen features, collected while minibatches are read. Conversion
//! only.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sanderling_client::FeatureSnapshots;
use sanderling_learner::config::NamesConfig;
use sanderling_learner::{NameCollector, save_reading};
use sanderling_sample::spec::Feature;

use crate::error::{ConfigError, ModelError, of_learner};
use crate::feed_spec::source_of;
use crate::value::from_python;

/// Collector of the names of keys.
#[pyclass(name = "KeyNames", module = "sanderling", frozen)]
pub(crate) struct PyKeyNames {
    pub(crate) names: Arc<NameCollector>,
    /// The features of the spec.
    pub(crate) features: Vec<Feature>,
}

#[pymethods]
impl PyKeyNames {
    /// Collects as the section `[names]` says, for the features of a spec.
    #[new]
    fn new(section: &Bound<'_, PyAny>, spec: &Bound<'_, pyo3::types::PyDict>) -> PyResult<PyKeyNames> {
        let config: NamesConfig = from_python("names", section)?;
        let (data, spec) = source_of(Some(spec))?;
        config.check(&spec.feature, data.format).map_err(ConfigError::new_err)?;
        let names = NameCollector::new(&config, spec.feature.iter().map(|feature| feature.name.as_str()));
        Ok(PyKeyNames { names: Arc::new(names), features: spec.feature })
    }

    /// Whether names were left out for want of room.
    #[getter]
    fn is_full(&self) -> bool {
        self.names.is_full()
    }

    /// The names, as `restore` takes them.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.names.to_blob()))
    }

    /// Adds names that were collected elsewhere, or earlier.
    fn restore(&self, py: Python<'_>, names: &[u8]) -> PyResult<()> {
        py.detach(|| self.names.restore(names))
            .map_err(|reason| ModelError::new_err(format!("names: {reason}")))
    }
}

/// Writes the feature spec of a deep model, names of keys, and the keys of its training, to a directory of its own.
#[pyfunction]
#[pyo3(name = "save_reading", signature = (directory, spec, names = None, features = None))]
pub(crate) fn save_reading_of(
    py: Python<'_>,
    directory: PathBuf,
    spec: &Bound<'_, pyo3::types::PyDict>,
    names: Option<&Bound<'_, PyKeyNames>>,
    features: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let (data, spec) = source_of(Some(spec))?;
    let names = names.map(|names| Arc::clone(&names.get().names));
    let features: Option<FeatureSnapshots> =
        features.map(|features| from_python("features", features)).transpose()?;
    py.detach(|| save_reading(&directory, &data, &spec, names.as_deref(), features.as_ref()))
        .map_err(of_learner)
}

/// The names of keys in such a directory, as `KeyNames.restore` takes them; None without names.
#[pyfunction]
pub(crate) fn saved_names<'py>(py: Python<'py>, directory: PathBuf) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let names = py.detach(|| sanderling_learner::saved_names(&directory)).map_err(of_learner)?;
    Ok(names.map(|names| PyBytes::new(py, &names)))
}
