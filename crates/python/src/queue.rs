//! `sanderling.FeedQueue`: minibatches ahead of the trainer, as a Python iterator. Conversion only; the interpreter is
//! released while it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sanderling_control::MetricsPage;
use sanderling_feed::{Embedding, Fed, FeedQueue, QueueOptions, Source};
use sanderling_sample::spec::Feature;

use crate::batch::PyBatch;
use crate::error::{ConfigError, of_feed};
use crate::feed_spec::{FeedSpec, source_of};
use crate::hubs::{PyHubs, Subscribed, facts, open_hubs};
use crate::inputs::Inputs;
use crate::interrupt;
use crate::lookup::{PyEmbedding, PyLookup};
use crate::quantity::seconds;
use crate::rates::Rate;
use crate::renamed;
use crate::sources::{FileSource, Given, fitted};
use crate::value::{from_python, to_python, whole};

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
    /// The holdout of files, with its moment.
    holdout: Option<Py<PyAny>>,
    /// Keeps rows in memory registered.
    _inputs: Inputs,
}

/// A queue over its source.
struct Opened {
    queue: FeedQueue,
    name: String,
    holdout: Option<Py<PyAny>>,
    inputs: Inputs,
}

impl Opened {
    fn of_hubs(
        py: Python<'_>,
        subscribed: Subscribed,
        embedding: Option<Arc<Embedding>>,
        line: QueueOptions,
    ) -> PyResult<Opened> {
        let Subscribed { source, name, threads } = subscribed;
        // Hubs assign minibatches to ranks.
        let options = QueueOptions { threads, rank: 0, ranks: 1, ..line };
        let queue = py.detach(|| FeedQueue::open(source, embedding, options)).map_err(of_feed)?;
        Ok(Opened { queue, name, holdout: None, inputs: Inputs::default() })
    }

    fn of_files(
        py: Python<'_>,
        files: &FileSource<'_>,
        embedding: Option<Arc<Embedding>>,
        line: QueueOptions,
    ) -> PyResult<Opened> {
        let inputs = Inputs::of(&files.inputs)?;
        let (data, spec) = source_of(files.spec.as_ref())?;
        let options = QueueOptions {
            batch_rows: files.batch_size,
            passes: files.passes,
            threads: files.threads,
            ordered: files.ordered,
            shuffle: files.shuffle_rows,
            seed: files.seed,
            rank: files.rank,
            ranks: files.ranks,
            used_rows: files.used_rows,
            ..line
        };
        let (names, of_files) = (inputs.names.clone(), files.options()?);
        let opened = py.detach(|| {
            let source = Source::files_with(names, data, &spec, of_files)?;
            let holdout = source.holdout().cloned();
            FeedQueue::open(source, embedding, options).map(|queue| (queue, holdout))
        });
        let (queue, holdout) = opened.map_err(of_feed)?;
        let holdout = files.holdout.as_ref().zip(holdout).map(|(given, found)| fitted(given, &found));
        let holdout = holdout.transpose()?.map(Bound::unbind);
        Ok(Opened { queue, name: files.name.clone(), holdout, inputs })
    }
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
    #[pyo3(signature = (source, embedding = None, *, depth = 8, depth_bytes = 1_073_741_824, statistics_every_s = 0.0,
        on_statistics = None, **unknown), text_signature = "(source, embedding=None, *, depth=8, depth_bytes=1073741824, \
        statistics_every_s=0.0, on_statistics=None)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        embedding: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = whole)] depth: usize,
        #[pyo3(from_py_with = whole)] depth_bytes: usize,
        statistics_every_s: f64,
        on_statistics: Option<Py<PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyFeedQueue> {
        renamed::refuse("FeedQueue", unknown, &renamed::FEED_QUEUE)?;
        let every = seconds("statistics_every_s", statistics_every_s)?;
        let (embedding, rates) = match embedding {
            Some(embedding) => {
                let (embedding, rates) = embedding_of(embedding)?;
                (Some(embedding), rates)
            }
            None => (None, Arc::default()),
        };
        let line =
            QueueOptions { depth, depth_bytes, stop: Some(interrupt::stop()), ..QueueOptions::default() };
        let opened = match source.cast::<PyHubs>() {
            Ok(hubs) => Opened::of_hubs(py, hubs.get().take()?, embedding, line)?,
            Err(_) => match Given::of(source)? {
                Given::Hubs(hubs) => Opened::of_hubs(py, open_hubs(py, &hubs, depth)?, embedding, line)?,
                Given::Files(files) => Opened::of_files(py, &files, embedding, line)?,
            },
        };
        // Never, if that is too far ahead to be said.
        let next = Instant::now().checked_add(every).filter(|_| !every.is_zero());
        let told = on_statistics.zip(next).map(|(on_statistics, next)| Told { every, next, on_statistics });
        let Opened { queue, name, holdout, inputs } = opened;
        Ok(PyFeedQueue {
            queue,
            rates,
            told: std::sync::Mutex::new(told),
            name,
            page: std::sync::Mutex::default(),
            holdout,
            _inputs: inputs,
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

    /// The holdout of the files, with its moment.
    #[getter]
    fn holdout(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.holdout.as_ref().map(|holdout| holdout.clone_ref(py))
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
        let page = page.map_err(|error| ConfigError::new_err(error.to_string()))?;
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
