//! `sanderling.FeedQueue`: minibatches ahead of the trainer, as a Python iterator. Conversion only; the interpreter is
//! released while it waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sanderling_client::TlsClient;
use sanderling_control::MetricsPage;
use sanderling_feed::{Embedding, Expected, Fed, FeedError, FeedQueue, QueueOptions, Source};
use sanderling_formats::DataConfig;
use sanderling_hub::SubscribeOptions;
use sanderling_learner::config::SHUFFLE_ROWS_MAX;
use sanderling_sample::Spec;
use sanderling_sample::spec::{Feature, Label, Negatives, Weight};
use serde::{Deserialize, Serialize};

use crate::batch::PyBatch;
use crate::error::{ConfigError, FileError, of_feed};
use crate::hubs::{PyHubs, facts};
use crate::inputs::Inputs;
use crate::interrupt;
use crate::lookup::{PyEmbedding, PyLookup};
use crate::rates::Rate;
use crate::remote::seconds;
use crate::renamed;
use crate::value::{from_python, to_python};

/// A keyword argument of hubs that has another name now.
pub(crate) const HUB_TIMEOUT: (&str, &str) = ("hub_patience_s", "hub_timeout_s");
/// Minibatches that a trainer may have in its hands and on their way to the tables, beyond those in the queue.
const HELD: usize = 16;
/// The most that a hub is asked to leave unacknowledged.
const WINDOW_MAX: usize = 1024;

/// How the input is read, with the sections of a run's configuration.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FeedSpec {
    pub(crate) data: DataConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<Label>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<Weight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) negatives: Option<Negatives>,
    pub(crate) feature: Vec<Feature>,
}

impl FeedSpec {
    pub(crate) fn of(data: &DataConfig, spec: &Spec) -> FeedSpec {
        let Spec { label, weight, negatives, feature } = spec.clone();
        FeedSpec { data: data.clone(), label: Some(label), weight, negatives, feature }
    }
}

/// Whether an input gives its rows only once.
#[pyfunction]
pub(crate) fn read_once(name: &str) -> bool {
    sanderling_formats::input::read_once(name)
}

/// The key that a number of a feature has, if it is not missing.
#[pyfunction]
pub(crate) fn value_key(feature: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(from_python::<Feature>("feature", feature)?.value_key())
}

/// Minibatches in line, read and looked up by threads.
#[pyclass(name = "FeedQueue", module = "sanderling", frozen)]
pub(crate) struct PyFeedQueue {
    queue: FeedQueue,
    /// Learning rates of the tables whose rows minibatches bring.
    rates: Arc<[Rate]>,
    told: std::sync::Mutex<Option<Told>>,
    name: String,
    page: std::sync::Mutex<Option<MetricsPage>>,
    /// Keeps rows in memory registered.
    _inputs: Inputs,
}

/// Listener of statistics, and the time of its next call.
struct Told {
    every: Duration,
    next: Instant,
    on_statistics: Py<PyAny>,
}

#[pymethods]
impl PyFeedQueue {
    #[new]
    #[pyo3(signature = (source, embedding = None, *, spec = None, batch_size = 1024, passes = 1, threads = 2, depth = 8,
        depth_bytes = 1_073_741_824, ordered = true, shuffle_rows = 0, seed = 42, rank = 0, ranks = 1, used_rows = 0, train = true,
        statistics_every_s = 0.0, on_statistics = None, name = "trainer", hub_token = "", hub_timeout_s = 60.0, hub_compression = None,
        hub_ca_file = None, **unknown), text_signature = "(source, embedding=None, *, spec=None, batch_size=1024, passes=1, \
        threads=2, depth=8, depth_bytes=1073741824, ordered=True, shuffle_rows=0, seed=42, rank=0, ranks=1, used_rows=0, \
        train=True, statistics_every_s=0.0, on_statistics=None, name='trainer', hub_token='', hub_timeout_s=60.0, \
        hub_compression=None, hub_ca_file=None)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        embedding: Option<&Bound<'_, PyAny>>,
        spec: Option<&Bound<'_, PyDict>>,
        batch_size: usize,
        passes: u64,
        threads: usize,
        depth: usize,
        depth_bytes: usize,
        ordered: bool,
        shuffle_rows: usize,
        seed: u64,
        rank: u64,
        ranks: u64,
        used_rows: u64,
        train: bool,
        statistics_every_s: f64,
        on_statistics: Option<Py<PyAny>>,
        name: &str,
        hub_token: &str,
        hub_timeout_s: f64,
        hub_compression: Option<&str>,
        hub_ca_file: Option<PathBuf>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyFeedQueue> {
        let every = seconds("statistics_every_s", statistics_every_s)?;
        renamed::refuse("FeedQueue", unknown, &[("shuffle", "shuffle_rows"), HUB_TIMEOUT])?;
        if shuffle_rows > SHUFFLE_ROWS_MAX {
            let reason = format!("shuffle_rows: {shuffle_rows} rows; at most {SHUFFLE_ROWS_MAX}");
            return Err(ConfigError::new_err(reason));
        }
        let subscribed = source.cast::<PyHubs>().ok().map(|hubs| hubs.get().take()).transpose()?;
        let given = if subscribed.is_some() { Inputs::default() } else { Inputs::of(source)? };
        let inputs = given.names.clone();
        let FeedSpec { data, label, weight, negatives, feature } = feed_spec(spec)?;
        let options = QueueOptions {
            batch_rows: batch_size,
            passes,
            threads,
            depth,
            depth_bytes,
            ordered,
            shuffle: shuffle_rows,
            seed,
            rank,
            ranks,
            used_rows,
            stop: Some(interrupt::stop()),
        };
        let (embedding, rates) = match embedding {
            Some(embedding) => {
                let (embedding, rates) = embedding_of(embedding)?;
                (Some(embedding), rates)
            }
            None => (None, Arc::default()),
        };
        let hubs = match &inputs[..] {
            [hubs] if hubs.starts_with("hub://") => Some(hubs.clone()),
            _ => None,
        };
        let ways = HubWays {
            token: hub_token,
            timeout_s: hub_timeout_s,
            compression: hub_compression,
            ca_file: hub_ca_file,
        };
        let subscribe = subscribe_options(depth, threads, (rank, ranks), &ways)?;
        let queue = py.detach(|| {
            let from_hubs = hubs.is_some() || subscribed.is_some();
            if from_hubs && used_rows > 0 {
                let reason = "a hub knows by itself what was used".to_owned();
                return Err(FeedError::Option { option: "used_rows", reason });
            }
            let source = match (subscribed, &hubs) {
                (Some(source), _) => source,
                (None, Some(hubs)) => {
                    let expected = Expected { label, weight, negatives, feature };
                    let stop = options.stop.as_ref();
                    Source::hubs_or_stop(hubs, name, &subscribe, stop)?.expecting(&expected)?
                }
                (None, None) => {
                    let label = label.unwrap_or_default();
                    Source::files(inputs, data, &Spec { label, weight, negatives, feature }, train)?
                }
            };
            // Hubs assign minibatches to ranks.
            let options = if from_hubs { QueueOptions { rank: 0, ranks: 1, ..options } } else { options };
            FeedQueue::open(source, embedding, options)
        });
        // Never, if that is too far ahead to be said.
        let next = Instant::now().checked_add(every).filter(|_| !every.is_zero());
        let told = on_statistics.zip(next).map(|(on_statistics, next)| Told { every, next, on_statistics });
        let told = std::sync::Mutex::new(told);
        let queue = queue.map_err(of_feed)?;
        Ok(PyFeedQueue {
            queue,
            rates,
            told,
            name: name.to_owned(),
            page: std::sync::Mutex::default(),
            _inputs: given,
        })
    }

    /// Rows of the pass at hand, all ranks together, estimated from the bytes read so far; None where that is unknown.
    #[getter]
    fn pass_rows(&self) -> Option<u64> {
        self.queue.pass_rows()
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        // Before a minibatch is taken, since the listener may raise.
        self.tell(py)?;
        let fed = py.detach(|| self.queue.next()).map_err(of_feed)?;
        let Some(fed) = fed else { return Ok(None) };
        let sampled = Arc::clone(fed.sampled());
        let lookup = match fed {
            Fed::Sampled(_) => None,
            Fed::LookedUp(looked_up) => Some(Py::new(py, PyLookup::of(*looked_up, Arc::clone(&self.rates)))?),
        };
        Ok(Some(PyBatch { sampled, lookup }))
    }

    /// Names of the columns of its minibatches.
    #[getter]
    fn features(&self) -> Vec<String> {
        self.queue.names().to_vec()
    }

    /// The spec as it is used, fitted boundaries included: what another queue over the same features takes. None with hubs
    /// of an older version.
    #[getter]
    fn spec(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some((data, spec)) = self.queue.reading() else { return Ok(None) };
        to_python(py, &FeedSpec::of(data, spec)).map(Some)
    }

    /// Properties of each hub; empty with files.
    #[getter]
    fn hubs(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        facts(py, self.queue.hubs())
    }

    /// Statistics: count and latency percentiles (nanoseconds) per stage, and waiting times.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        to_python(py, &self.queue.statistics())
    }

    /// Statistics as lines of text.
    fn report(&self) -> String {
        self.queue.statistics().to_string()
    }

    /// Statistics in the text format of Prometheus, labelled with the name of the queue.
    fn metrics(&self) -> String {
        self.queue.statistics().exposition(&self.name)
    }

    /// Answers `GET /metrics` at an address of this machine until the queue is gone; the URL.
    #[pyo3(signature = (address = "127.0.0.1:0"))]
    fn serve_metrics(&self, py: Python<'_>, address: &str) -> PyResult<String> {
        let (statistics, name) = (self.queue.watch(), self.name.clone());
        let page = py.detach(|| MetricsPage::start(address, move || statistics().exposition(&name)));
        let page = page.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let url = page.url();
        // An earlier page ends.
        *self.page.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(page);
        Ok(url)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Closes the queue; after an error, the minibatch in hand goes to another trainer.
    #[pyo3(signature = (*error))]
    fn __exit__(&self, py: Python<'_>, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let used = error.get_item(0).map_or(true, |kind| kind.is_none());
        self.close(py, used);
        Ok(())
    }

    /// Reads no more.
    #[pyo3(signature = (*, used = true))]
    fn close(&self, py: Python<'_>, used: bool) {
        py.detach(|| if used { self.queue.close() } else { self.queue.close_unused() });
    }
}

impl PyFeedQueue {
    /// Tells the statistics if it is time.
    fn tell(&self, py: Python<'_>) -> PyResult<()> {
        let listener = {
            let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match &mut *told {
                Some(told) if told.next <= Instant::now() => {
                    told.next = Instant::now() + told.every;
                    told.on_statistics.clone_ref(py)
                }
                _ => return Ok(()),
            }
        };
        listener.call1(py, (self.report(),)).map(|_| ())
    }
}

/// An `Embedding`, or what has one, such as a collection of `sanderling.torch`.
fn embedding_of(object: &Bound<'_, PyAny>) -> PyResult<(Arc<Embedding>, Arc<[Rate]>)> {
    match object.cast::<PyEmbedding>() {
        Ok(embedding) => Ok((Arc::clone(&embedding.get().embedding), Arc::clone(&embedding.get().rates))),
        Err(_) => match object.getattr("native") {
            Ok(native) if native.is_instance_of::<PyEmbedding>() => embedding_of(&native),
            _ => Err(PyTypeError::new_err(format!(
                "embedding must be a sanderling.Embedding, or have one as `native`, not {}",
                object.get_type().name()?
            ))),
        },
    }
}

/// How hubs are reached, from arguments of those names after `hub_`.
pub(crate) struct HubWays<'a> {
    pub(crate) token: &'a str,
    pub(crate) timeout_s: f64,
    pub(crate) compression: Option<&'a str>,
    /// The authorities to believe.
    pub(crate) ca_file: Option<PathBuf>,
}

/// How hubs are subscribed to by a queue of such depth and so many threads, whose trainer is one of so many.
pub(crate) fn subscribe_options(
    depth: usize,
    threads: usize,
    (rank, ranks): (u64, u64),
    ways: &HubWays<'_>,
) -> PyResult<SubscribeOptions> {
    let compression = ways.compression.map(sanderling_client::compression).transpose();
    let tls = ways.ca_file.as_deref().map(TlsClient::from_ca_file).transpose();
    Ok(SubscribeOptions {
        compression: compression
            .map_err(|error| PyValueError::new_err(format!("hub_compression {error}")))?,
        // Minibatches that a hub is asked to leave unacknowledged.
        window: (depth + threads + HELD).min(WINDOW_MAX) as u32,
        rank: (ranks > 1).then_some(rank as u32),
        token: ways.token.to_owned(),
        tls: tls.map_err(|error| FileError::new_err(error.to_string()))?,
        patience: seconds("hub_timeout_s", ways.timeout_s)?,
        ..SubscribeOptions::default()
    })
}

/// How the input is read and what it becomes, from the sections of a configuration.
pub(crate) fn source_of(spec: Option<&Bound<'_, PyDict>>) -> PyResult<(DataConfig, Spec)> {
    let FeedSpec { data, label, weight, negatives, feature } = feed_spec(spec)?;
    Ok((data, Spec { label: label.unwrap_or_default(), weight, negatives, feature }))
}

pub(crate) fn feed_spec(spec: Option<&Bound<'_, PyDict>>) -> PyResult<FeedSpec> {
    Ok(spec.map(|spec| from_python("spec", spec)).transpose()?.unwrap_or_default())
}
