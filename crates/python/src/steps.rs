//! `sanderling.SyncGroup`: workers that go in step, at servers or as threads of one process. Conversion only.

use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray1;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sanderling_client::{ClientError, Meeting, Reduce, StepGradients, SyncGroup, SyncOptions};

use crate::arrays::{Grads, Keys, vector};
use crate::error::{ConfigError, of_client};
use crate::quantity::seconds;
use crate::rates::scale;
use crate::remote::PyConnection;
use crate::step_push::StepPush;
use crate::table::PyTable;

/// Where the threads of one process meet.
#[pyclass(name = "Meeting", module = "sanderling", frozen)]
pub(crate) struct PyMeeting {
    meeting: Arc<Meeting>,
}

#[pymethods]
impl PyMeeting {
    #[new]
    fn new(tables: Vec<PyRef<'_, PyTable>>, workers: u32) -> PyResult<PyMeeting> {
        let tables = tables.iter().map(|table| Arc::clone(&table.table)).collect();
        Ok(PyMeeting { meeting: Meeting::new(tables, workers).map_err(|error| of_client(error.into()))? })
    }

    /// How many workers there are.
    #[getter]
    fn workers(&self) -> u32 {
        self.meeting.workers()
    }
}

/// One of the workers of a group.
#[pyclass(name = "SyncGroup", module = "sanderling", frozen)]
pub(crate) struct PySyncGroup {
    group: Mutex<SyncGroup>,
}

impl PySyncGroup {
    /// Works without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut SyncGroup) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        // A group is as good after a panic as after an error.
        py.detach(|| work(&mut self.group.lock().unwrap_or_else(PoisonError::into_inner))).map_err(of_client)
    }
}

#[pymethods]
impl PySyncGroup {
    #[new]
    #[pyo3(signature = (place, group, worker, workers, *, attempt = 0, step_timeout_s = 60.0))]
    fn new(
        py: Python<'_>,
        place: &Bound<'_, PyAny>,
        group: u64,
        worker: u32,
        workers: u32,
        attempt: u32,
        step_timeout_s: f64,
    ) -> PyResult<PySyncGroup> {
        let options = SyncOptions { attempt, timeout: seconds("step_timeout_s", step_timeout_s)? };
        let joined = if let Ok(connection) = place.cast::<PyConnection>() {
            let cluster = connection.get().cluster()?;
            py.detach(|| SyncGroup::join(&cluster, &[], group, worker, workers, options))
        } else if let Ok(meeting) = place.cast::<PyMeeting>() {
            let meeting = Arc::clone(&meeting.get().meeting);
            if workers != meeting.workers() {
                let there = meeting.workers();
                return Err(ConfigError::new_err(format!("{workers} workers, the meeting is of {there}")));
            }
            py.detach(|| SyncGroup::join_here(&meeting, worker, options))
        } else {
            return Err(PyTypeError::new_err(
                "place must be a sanderling.Connection or a sanderling.Meeting",
            ));
        };
        Ok(PySyncGroup { group: Mutex::new(joined.map_err(of_client)?) })
    }

    /// Which worker this is, from 0.
    #[getter]
    fn worker(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |group| Ok(group.worker()))
    }

    /// How many workers there are.
    #[getter]
    fn workers(&self, py: Python<'_>) -> PyResult<u32> {
        self.with(py, |group| Ok(group.workers()))
    }

    /// The last step that is applied, as far as this worker knows.
    #[getter]
    fn applied(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |group| Ok(group.applied()))
    }

    /// Hands in gradients, float32 [len(keys), dim].
    #[pyo3(signature = (table, step, keys, grads, *, lr = None, lr_scale = 1.0, counts = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn push_step(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyAny>,
        step: u64,
        keys: Keys<'_>,
        grads: Grads<'_>,
        lr: Option<f64>,
        lr_scale: f64,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let StepPush { table, keys, counts, grads } = StepPush::of(table, keys, grads, counts)?;
        let scale = scale(|| table.rate(), lr, lr_scale)?;
        self.with(py, |group| {
            let place = table.place_in(group)?;
            group.push_step(step, place, &keys, &counts, StepGradients::Single(&grads), scale)
        })
    }

    /// Says that all is handed in, and waits until the step is applied everywhere.
    fn wait(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        self.with(py, |group| group.wait_applied(step))
    }

    /// Says that a step is finished, and waits while the slowest is more than `bound` behind.
    fn progress(&self, py: Python<'_>, step: u64, bound: u64) -> PyResult<u64> {
        self.with(py, |group| group.progress(step, bound))
    }

    /// Waits until all workers are here.
    fn barrier(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.with(py, |group| group.barrier(name))
    }

    /// Everybody's bytes, in the order of workers.
    fn all_gather<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        value: &[u8],
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let parts = self.with(py, |group| group.all_gather(name, value))?;
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
        Ok(PyBytes::new(py, &self.with(py, |group| group.broadcast(name, source, value))?))
    }

    /// The sum, mean or maximum over workers of each number.
    #[pyo3(signature = (name, values, reduce = "sum"))]
    fn all_reduce<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        values: &Bound<'py, PyAny>,
        reduce: &str,
    ) -> PyResult<Bound<'py, PyArray1<f64>>> {
        let reduce = match reduce {
            "sum" => Reduce::Sum,
            "mean" => Reduce::Mean,
            "max" => Reduce::Max,
            _ => {
                return Err(ConfigError::new_err(format!("{reduce:?} is none of 'sum', 'mean', 'max'")));
            }
        };
        let mut values = vector("values", values)?.as_slice()?.to_vec();
        self.with(py, |group| group.all_reduce(name, &mut values, reduce))?;
        Ok(PyArray1::from_vec(py, values))
    }
}
