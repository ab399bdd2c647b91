//! `sanderling.Hubs`: a subscription at hubs that says what they serve before anything is asked for. Conversion only.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_feed::{Expected, Source};
use sanderling_hub::Served;
use serde::Serialize;

use crate::error::of_feed;
use crate::interrupt;
use crate::queue::{FeedSpec, HUB_TIMEOUT, HubWays, feed_spec, subscribe_options};
use crate::renamed;
use crate::value::to_python;

/// Hubs that were subscribed to, for one queue.
#[pyclass(name = "Hubs", module = "sanderling", frozen)]
pub(crate) struct PyHubs {
    /// None: a queue has it.
    source: Mutex<Option<Source>>,
    spec: Option<Py<PyAny>>,
    served: Py<PyAny>,
}

#[pymethods]
impl PyHubs {
    #[new]
    #[pyo3(signature = (address, *, spec = None, threads = 2, depth = 8, rank = 0, ranks = 1, name = "trainer",
        hub_token = "", hub_timeout_s = 60.0, hub_compression = None, hub_ca_file = None, **unknown), text_signature = "(address, *, spec=None, \
        threads=2, depth=8, rank=0, ranks=1, name='trainer', hub_token='', hub_timeout_s=60.0, hub_compression=None, \
        hub_ca_file=None)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        address: &str,
        spec: Option<&Bound<'_, PyDict>>,
        threads: usize,
        depth: usize,
        rank: u64,
        ranks: u64,
        name: &str,
        hub_token: &str,
        hub_timeout_s: f64,
        hub_compression: Option<&str>,
        hub_ca_file: Option<PathBuf>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyHubs> {
        renamed::refuse("Hubs", unknown, &[HUB_TIMEOUT])?;
        let FeedSpec { label, weight, negatives, feature, .. } = feed_spec(spec)?;
        let expected = Expected { label, weight, negatives, feature };
        let ways = HubWays {
            token: hub_token,
            timeout_s: hub_timeout_s,
            compression: hub_compression,
            ca_file: hub_ca_file,
        };
        let options = subscribe_options(depth, threads, (rank, ranks), &ways)?;
        let stop = interrupt::stop();
        let source =
            py.detach(|| Source::hubs_or_stop(address, name, &options, Some(&stop))?.expecting(&expected));
        let source = source.map_err(of_feed)?;
        let spec = source.reading().map(|(data, spec)| to_python(py, &FeedSpec::of(data, spec)));
        let (spec, served) = (spec.transpose()?, facts(py, source.hubs_served())?);
        Ok(PyHubs { source: Mutex::new(Some(source)), spec, served })
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
    pub(crate) fn take(&self) -> PyResult<Source> {
        let source = self.source.lock().unwrap_or_else(PoisonError::into_inner).take();
        source.ok_or_else(|| PyValueError::new_err("these Hubs have a queue already: a queue needs its own"))
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
