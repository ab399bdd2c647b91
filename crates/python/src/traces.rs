//! `sanderling.export_traces`: where the spans of this process go. Conversion only.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use sanderling_observe::SpanQueue;
use sanderling_otlp::{Endpoint, Exporter, Resource};

use crate::error::ConfigError;
use crate::warnings;

/// Kind of the process in traces.
const SERVICE: &str = "sanderling-trainer";

/// The exporter, and the spans that it posts.
static EXPORTED: Mutex<Option<(Arc<SpanQueue>, Exporter)>> = Mutex::new(None);

fn exported() -> MutexGuard<'static, Option<(Arc<SpanQueue>, Exporter)>> {
    EXPORTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the spans of connections and queues go that are opened now.
pub(crate) fn spans() -> Option<Arc<SpanQueue>> {
    exported().as_ref().map(|(spans, _)| Arc::clone(spans))
}

/// Exports traces of connections and queues that are opened from now on; None ends it, and posts the spans that wait.
#[pyfunction]
#[pyo3(signature = (url, *, every = 1000, name = ""), text_signature = "(url, *, every=1000, name='')")]
pub(crate) fn export_traces(py: Python<'_>, url: Option<&str>, every: u32, name: &str) -> PyResult<()> {
    let next = url.map(|url| start(url, every, name)).transpose()?;
    if next.is_some() {
        // The end of the interpreter posts the spans that wait.
        let end = pyo3::wrap_pyfunction!(export_traces, py)?;
        py.import("atexit")?.call_method1("register", (end, py.None()))?;
    }
    // The end of an exporter waits for its thread.
    py.detach(|| {
        let before = std::mem::replace(&mut *exported(), next);
        drop(before);
    });
    Ok(())
}

fn start(url: &str, every: u32, name: &str) -> PyResult<(Arc<SpanQueue>, Exporter)> {
    let endpoint: Endpoint = url.parse().map_err(|error| ConfigError::new_err(format!("url: {error}")))?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let (service, instance) = (SERVICE.to_owned(), name.to_owned());
    let resource = Resource { service, instance, host: host.trim().to_owned() };
    let spans = SpanQueue::new(every);
    let exporter =
        Exporter::start(endpoint, resource, Arc::clone(&spans), |line| warnings::later(line.to_owned()));
    let exporter = exporter.map_err(|error| ConfigError::new_err(format!("url: {error}")))?;
    Ok((spans, exporter))
}
