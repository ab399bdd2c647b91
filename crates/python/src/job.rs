//! `sanderling.Job`: passes over one input by several workers, threads of this process or processes of their own. Conversion
//! only; the interpreter is released while a worker reads or waits.

mod hosts;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use sanderling_client::{Cluster, Fixed, StepGradients};
use sanderling_feed::{Recycler, Sampled, Source};
use sanderling_formats::BadRows;
use sanderling_job::{
    Input, JobError, OnLoss, Options, Order, STAGES, Share, SharedWorker, Steps, Tables, Worker, run_shared,
};
use sanderling_observe::Stages;
use sanderling_sample::Batch;

use self::hosts::HostWords;
use crate::arrays::{Grads, Keys, vector};
use crate::batch::PyBatch;
use crate::error::{ConfigError, GradientError, of_feed, of_job};
use crate::feed_spec::source_of;
use crate::inputs::Inputs;
use crate::interrupt::while_looking;
use crate::model::Interrupt;
use crate::quantity::seconds;
use crate::rates::scale;
use crate::remote::PyConnection;
use crate::renamed;
use crate::sources::{Given as GivenSource, Tls, token_of};
use crate::step_push::{StepPush, StepTable};
use crate::value::whole;

/// Input and number of the workers.
#[pyclass(name = "Job", module = "sanderling", frozen)]
pub(crate) struct PyJob {
    input: Arc<Input>,
    names: Arc<[String]>,
    options: Options,
    /// Tables of synchronous steps, which are also the meeting point of the workers.
    tables: Tables,
    /// Keeps rows in memory registered.
    _inputs: Inputs,
}

/// One of the workers of a job.
#[pyclass(name = "Worker", module = "sanderling", frozen)]
pub(crate) struct PyWorker {
    worker: SharedWorker,
    input: Arc<Input>,
    names: Arc<[String]>,
    /// Whether others go on without a worker that is lost.
    redoes: bool,
}

/// A worker's minibatches of one pass.
#[pyclass(name = "Batches", module = "sanderling", frozen)]
pub(crate) struct PyBatches {
    worker: Py<PyWorker>,
    given: Mutex<Given>,
    number: u64,
}

enum Given {
    Share(Share, usize),
    Steps(Box<Steps>),
}

/// Why a worker ended.
enum Ended {
    Job(JobError),
    Raised(PyErr),
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Job(error) => error.fmt(out),
            Ended::Raised(error) => error.fmt(out),
        }
    }
}

/// Exit code after a second Ctrl-C, as of a shell.
const INTERRUPTED: i32 = 130;

impl From<JobError> for Ended {
    fn from(error: JobError) -> Ended {
        Ended::Job(error)
    }
}

#[pymethods]
impl PyJob {
    #[new]
    #[pyo3(signature = (source, *, workers = 1, timeout_s = 60.0, shuffle_bytes_max = 100_663_296,
        scratch_dir = None, hosts = None, rank = None, connection = None, attempt = 0, on_worker_loss = "stop",
        worker_timeout_s = 30.0, token = None, tls = None, expose = false, insecure = false, tables = Vec::new(), **unknown),
        text_signature = "(source, *, workers=1, timeout_s=60.0, shuffle_bytes_max=100663296, scratch_dir=None, hosts=None, \
        rank=None, connection=None, attempt=0, on_worker_loss='stop', worker_timeout_s=30.0, token=None, tls=None, \
        expose=False, insecure=False, tables=...)")]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = whole)] workers: u32,
        timeout_s: f64,
        #[pyo3(from_py_with = whole)] shuffle_bytes_max: u64,
        scratch_dir: Option<PathBuf>,
        hosts: Option<&Bound<'_, PyAny>>,
        rank: Option<u32>,
        connection: Option<PyRef<'_, PyConnection>>,
        attempt: u32,
        on_worker_loss: &str,
        worker_timeout_s: f64,
        token: Option<String>,
        tls: Option<&Bound<'_, PyAny>>,
        expose: bool,
        insecure: bool,
        tables: Vec<Bound<'_, PyAny>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyJob> {
        renamed::refuse("Job", unknown, &renamed::JOB)?;
        let GivenSource::Files(files) = GivenSource::of(source)? else {
            return Err(ConfigError::new_err("source: a job divides files, not hubs; name files"));
        };
        files.check_for_job()?;
        let (data, spec) = source_of(files.spec.as_ref())?;
        let given = Inputs::of(&files.inputs)?;
        if hosts.is_some() && given.is_in_memory() {
            let reason =
                "source: processes read files; rows in memory are read by threads, as workers=4 says";
            return Err(ConfigError::new_err(reason));
        }
        let inputs = given.names.clone();
        let of_files = files.options()?;
        let rows = format!("{} {} {:?}", files.seed, files.train, of_files.side);
        let source = py.detach(|| Source::files_with(inputs, data, &spec, of_files)).map_err(of_feed)?;
        let Some((inputs, reading, encoder)) = source.files_read() else {
            return Err(ConfigError::new_err("a job reads files"));
        };
        let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
        let (inputs, reading, encoder) = (inputs.to_vec(), reading.clone(), Arc::clone(encoder));
        let (seed, timeout) = (files.seed, seconds("timeout_s", timeout_s)?);
        let mut options = Options { workers, seed, timeout, shuffle_bytes_max, ..Options::default() };
        options.scratch_dir = scratch_dir.unwrap_or(options.scratch_dir);
        let tls = Tls::of(tls)?;
        let words = HostWords {
            hosts: hosts.map(addresses).transpose()?,
            rank,
            attempt,
            on_worker_loss,
            silence: seconds("worker_timeout_s", worker_timeout_s)?,
            token: token_of(token, tls.as_ref())?,
            tls,
            expose,
            insecure,
        };
        // Whatever makes rows and their order.
        let same = format!("{inputs:?} {reading:?} {:?} {rows}", source.spec());
        words.apply(connection.is_some(), &same, &mut options)?;
        options.check().map_err(of_job)?;
        let cluster = connection.map(|connection| connection.cluster()).transpose()?;
        let names = Arc::clone(source.names());
        let tables = tables_of(&tables, cluster)?;
        Ok(PyJob {
            input: Arc::new(Input { inputs, reading, encoder, bad_rows }),
            names,
            options,
            tables,
            _inputs: given,
        })
    }

    /// Names of the columns of its minibatches.
    #[getter]
    fn features(&self) -> Vec<String> {
        self.names.to_vec()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<'_, PyTuple>) {
        let _ = error;
    }

    /// Calls `work` with every worker of this process, each in a thread of its own; what it returned, in their order.
    fn run(&self, py: Python<'_>, work: Py<PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        let stop = Arc::new(AtomicBool::new(false));
        let options = Options { stop: Arc::clone(&stop), ..self.options.clone() };
        let redoes = options.on_loss == OnLoss::Redo;
        let one = |worker: SharedWorker| -> Result<Py<PyAny>, Ended> {
            let (input, names) = (Arc::clone(&self.input), Arc::clone(&self.names));
            let worker = PyWorker { worker, input, names, redoes };
            Python::attach(|py| work.call1(py, (worker,))).map_err(Ended::Raised)
        };
        let mut interrupt = Interrupt::default();
        let ended = py.detach(|| {
            let work = || run_shared(&options, &self.tables, &Stages::new(&STAGES), one);
            while_looking(work, || {
                if stop.load(Ordering::Relaxed) && interrupt.is_raised_again() {
                    // A function that computes on and on does not let the job end.
                    std::process::exit(INTERRUPTED);
                }
                if interrupt.is_raised() {
                    stop.store(true, Ordering::Relaxed);
                    // The workers' threads hear no signals.
                    crate::interrupt::tell();
                }
            })
        });
        interrupt.first()?;
        ended.map_err(|ended| match ended {
            Ended::Job(error) => of_job(error),
            Ended::Raised(error) => error,
        })
    }
}

/// Texts, of which one alone would be a list of letters.
fn addresses(hosts: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    hosts.extract().map_err(|_| {
        ConfigError::new_err(
            "hosts: a list of the addresses of all workers, such as [\"a:7300\", \"b:7300\"]",
        )
    })
}

/// The tables that workers push to in step: in this process, or those of a cluster.
fn tables_of(tables: &[Bound<'_, PyAny>], cluster: Option<Arc<Cluster>>) -> PyResult<Tables> {
    let (mut here, mut remote) = (Vec::new(), Vec::new());
    for table in tables {
        match StepTable::of(table)? {
            StepTable::Here(table) => here.push(table),
            StepTable::Remote(table) => remote.push(table),
        }
    }
    let wrong = |reason: &str| Err(ConfigError::new_err(format!("tables: {reason}")));
    match cluster {
        Some(_) if !here.is_empty() => {
            wrong("workers of several processes share those on their servers only")
        }
        Some(cluster) => Ok(Tables::Servers(cluster, remote)),
        None if !remote.is_empty() => {
            wrong("workers that are threads go in step over tables of this process")
        }
        None => Ok(Tables::Embedded(here)),
    }
}

impl PyWorker {
    /// Works without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Worker) -> Result<T, JobError> + Send,
    ) -> PyResult<T> {
        let work = |worker: &mut Worker| {
            worker.check_halt()?;
            let result = work(worker);
            // Time in Python until the next call belongs to no stage.
            worker.timer().stop();
            result
        };
        py.detach(|| self.worker.with(work)).map_err(of_job)
    }

    /// Runs a collective call. Where a step may be made again, nothing is agreed on in the middle of one: some of
    /// the workers would be there, and others in the step as it is shared out anew.
    fn together<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Worker) -> Result<T, JobError> + Send,
    ) -> PyResult<T> {
        let redoes = self.redoes;
        self.with(py, |worker| {
            if redoes && worker.is_step_open() {
                let reason = "in_step, on_worker_loss = \"redo\": call end_step() when all of a minibatch's step is handed in, \
                              before the next minibatch and before anything else that all do together; or take \"stop\"";
                return Err(JobError::Options(reason.to_owned()));
            }
            work(worker)
        })
    }

    /// Numbers of all workers become one of each.
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        work: impl FnOnce(&mut Worker, &mut [f64]) -> Result<(), JobError> + Send,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let mut values = vector("values", values)?.as_slice()?.to_vec();
        self.together(py, |worker| work(worker, &mut values))?;
        Ok(PyArray1::from_vec(py, values))
    }
}

#[pymethods]
impl PyWorker {
    /// Which worker this is, from 0.
    #[getter]
    fn rank(&self) -> u32 {
        self.worker.rank()
    }

    /// How many workers there are.
    #[getter]
    fn workers(&self) -> u32 {
        self.worker.workers()
    }

    /// This worker's minibatches of a pass.
    #[pyo3(signature = (number, batch_size, *, order = "input", in_step = false))]
    fn batches(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = whole)] number: u64,
        #[pyo3(from_py_with = whole)] batch_size: usize,
        order: &str,
        in_step: bool,
    ) -> PyResult<PyBatches> {
        let order = match order {
            "input" => Order::Input,
            "shuffled" => Order::Shuffled,
            _ => return Err(ConfigError::new_err(format!("{order:?} is none of 'input', 'shuffled'"))),
        };
        if batch_size == 0 {
            return Err(ConfigError::new_err("batch_size is 0"));
        }
        let input = Arc::clone(&slf.get().input);
        let given = slf.get().together(slf.py(), |worker| {
            Ok(if in_step {
                Given::Steps(Box::new(worker.steps(&input, number, order, batch_size)?))
            } else {
                Given::Share(worker.share(&input, number, order)?, batch_size)
            })
        })?;
        Ok(PyBatches { worker: slf.clone().unbind(), given: Mutex::new(given), number })
    }

    /// The sum over workers of each number.
    fn sum<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        self.reduce(py, values, |worker, values| worker.sum(name, values))
    }

    /// The mean over workers of each number.
    fn mean<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        self.reduce(py, values, |worker, values| worker.mean(name, values))
    }

    /// The largest of all workers of each number.
    fn max<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        values: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        self.reduce(py, values, |worker, values| worker.max(name, values))
    }

    /// Counts of all workers added up, as many as the longest list has.
    fn histogram<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        counts: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let mut counts = vector("counts", counts)?.as_slice()?.to_vec();
        self.together(py, |worker| worker.histogram(name, &mut counts))?;
        Ok(PyArray1::from_vec(py, counts))
    }

    /// Gives each worker its part; what each gave this one.
    fn all_to_all<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        parts: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = parts.iter().map(|part| part.as_bytes().to_vec()).collect();
        let parts = self.together(py, |worker| worker.all_to_all(name, parts))?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// Everybody's bytes, in the order of workers.
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        value: &[u8],
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = self.together(py, |worker| worker.all_gather(name, value))?;
        Ok(parts.iter().map(|part| PyBytes::new(py, part)).collect())
    }

    /// The bytes of one worker, for all.
    fn broadcast<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        source: u32,
        value: &[u8],
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.together(py, |worker| worker.broadcast(name, source, value))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Waits until all workers are here.
    fn barrier(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.together(py, |worker| worker.barrier(name))
    }

    /// Hands in gradients of the step at hand, float32 [len(keys), dim].
    #[pyo3(signature = (table, keys, grads, *, lr = None, lr_scale = 1.0, counts = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn push_step(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        keys: Keys<'_>,
        grads: Grads<'_>,
        lr: Option<f64>,
        lr_scale: f64,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let StepPush { table, keys, counts, grads } = StepPush::of(table, keys, grads, counts)?;
        let scale = scale(|| table.rate(), lr, lr_scale)?;
        let mut sums = vec![0; grads.len()];
        Fixed::default().add(&mut sums, &grads).map_err(|error| {
            let at = grads.iter().position(|grad| grad.to_bits() == error.gradient.to_bits());
            let key = keys[at.unwrap_or(0) / table.dim()];
            GradientError::new_err(format!(
                "table {:?}: key {key}: {error}; nothing was handed in; lower the learning rate or clip gradients",
                table.name()
            ))
        })?;
        self.with(py, |worker| {
            let group = worker.group();
            let (step, place) = (group.applied() + 1, table.place_in(group)?);
            let gradients = StepGradients::Fixed { unit_log2: Fixed::default().unit_log2(), sums: &sums };
            Ok(group.push_step(step, place, &keys, &counts, gradients, scale)?)
        })
    }

    /// Says that all of this worker's part of the step at hand is handed in, and waits until it is applied; whether it was.
    fn end_step(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |worker| {
            let step = worker.group().applied() + 1;
            worker.wait_applied(step)
        })
    }
}

#[pymethods]
impl PyBatches {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        let worker = self.worker.get();
        let next = worker.together(py, |owner| {
            let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
            let (rows, number) = match &mut *given {
                Given::Share(share, rows) => (share.next(owner, *rows)?, 0),
                Given::Steps(steps) => {
                    let number = steps.given();
                    (steps.next(owner)?, number)
                }
            };
            let Some(rows) = rows else { return Ok(None) };
            let mut batch: Batch = worker.input.encoder.new_batch();
            batch.append(&rows);
            let mut sampled = Sampled::new(Arc::clone(&worker.names), batch);
            (sampled.number, sampled.pass) = (number, self.number);
            Ok(Some(sampled))
        })?;
        let batch = |sampled| PyBatch { sampled: Arc::new(Recycler::new(0).take(|| sampled)), lookup: None };
        Ok(next.map(batch))
    }
}
