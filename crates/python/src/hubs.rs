//! `sanderling.Hubs`: a subscription at hubs that says what they serve before anything is asked for. Conversion only.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_feed::{Expected, Source};
use sanderling_hub::Served;
use serde::Serialize;

use crate::error::{ConfigError, of_feed};
use crate::feed_spec::{FeedSpec, feed_spec};
use crate::interrupt;
use crate::renamed;
use crate::sources::{Given, HubSource};
use crate::value::to_python;

/// Hubs that were subscribed to, for one queue.
#[pyclass(name = "Hubs", module = "sanderling", frozen)]
pub(crate) struct PyHubs {
    /// None: a queue has it.
    subscribed: Mutex<Option<Subscribed>>,
    spec: Option<Py<PyAny>>,
    served: Py<PyAny>,
}

/// A subscription for one queue.
pub(crate) struct Subscribed {
    pub(crate) source: Source,
    /// Of the trainer.
    pub(crate) name: String,
    pub(crate) threads: usize,
}

/// Subscribes for a queue with so many minibatches ready, and compares the specs.
pub(crate) fn open_hubs(py: Python<'_>, hubs: &HubSource<'_>, depth: usize) -> PyResult<Subscribed> {
    let FeedSpec { label, weight, negatives, feature, .. } = feed_spec(hubs.spec.as_ref())?;
    let expected = Expected { label, weight, negatives, feature };
    let (options, stop) = (hubs.options(depth)?, interrupt::stop());
    let (address, name, threads) = (&hubs.address, hubs.name.clone(), hubs.threads);
    let source =
        py.detach(|| Source::hubs_or_stop(address, &name, &options, Some(&stop))?.expecting(&expected));
    Ok(Subscribed { source: source.map_err(of_feed)?, name, threads })
}

#[pymethods]
impl PyHubs {
    #[new]
    #[pyo3(signature = (source, *, depth = 8, **unknown), text_signature = "(source, *, depth=8)")]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        depth: usize,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyHubs> {
        renamed::refuse("Hubs", unknown, &renamed::HUBS)?;
        let Given::Hubs(hubs) = Given::of(source)? else {
            return Err(ConfigError::new_err("Hubs: give a HubSource, or an address hub://host:port"));
        };
        let subscribed = open_hubs(py, &hubs, depth)?;
        let source = &subscribed.source;
        let spec = source.reading().map(|(data, spec)| to_python(py, &FeedSpec::of(data, spec)));
        let (spec, served) = (spec.transpose()?, facts(py, source.hubs_served())?);
        Ok(PyHubs { subscribed: Mutex::new(Some(subscribed)), spec, served })
    }

    /// The spec of the rows; None of hubs of an older version.
    #[getter]
    fn spec(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.spec.as_ref().map(|spec| spec.clone_ref(py))
    }

    /// Properties of each hub.
    #[getter]
    fn served(&self, py: Python<'_>) -> Py<PyAny> {
        self.served.clone_ref(py)
    }
}

impl PyHubs {
    /// For the one queue that may have it.
    pub(crate) fn take(&self) -> PyResult<Subscribed> {
        let subscribed = self.subscribed.lock().unwrap_or_else(PoisonError::into_inner).take();
        subscribed
            .ok_or_else(|| ConfigError::new_err("these Hubs have a queue already: a queue needs its own"))
    }
}

/// Properties of one hub.
#[derive(Debug, Serialize)]
struct HubFacts {
    address: String,
    stream: u64,
    passes: u64,
    batch_size: u32,
    /// 0: any trainer gets any minibatch.
    ranks: u32,
}

/// Properties of hubs as a list of dictionaries.
pub(crate) fn facts(py: Python<'_>, served: &[Served]) -> PyResult<Py<PyAny>> {
    let facts = |it: &Served| HubFacts {
        address: it.hub.clone(),
        stream: it.stream,
        passes: it.passes,
        batch_size: it.rows,
        ranks: it.stride,
    };
    to_python(py, &served.iter().map(facts).collect::<Vec<_>>())
}
