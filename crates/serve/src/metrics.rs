//! Counts and latencies of requests by model, version and code, in the Prometheus text format.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sanderling_observe::{Exposition, Labels, Latency, LatencySummary, Resident};

use crate::batches;
use crate::models::Models;
use crate::work::Asked;

/// The labels of a count. Only served models are named, so that clients cannot add labels without end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    protocol: &'static str,
    endpoint: &'static str,
    model: String,
    version: String,
    code: String,
}

#[derive(Debug, Default)]
struct Entry {
    latency: Latency,
    rows: u64,
}

/// Numbers since the start.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<Key, Entry>>);

impl Metrics {
    /// Counts a request that was answered.
    pub(crate) fn record(
        &self,
        protocol: &'static str,
        endpoint: &'static str,
        asked: &Asked,
        code: String,
        took: Duration,
    ) {
        let (model, version) = match asked.model() {
            Some((model, version)) => (model.clone(), version.to_string()),
            None => Default::default(),
        };
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(Key { protocol, endpoint, model, version, code }).or_default();
        entry.latency.record(took);
        entry.rows += asked.rows();
    }

    /// All metrics.
    pub(crate) fn text(&self, models: &Models, is_ready: bool, waiting: usize) -> String {
        let mut text = Exposition::default();
        text.single("sanderling_serve_ready", "gauge", "1 while requests are answered.", u8::from(is_ready));
        text.single("sanderling_serve_queue_requests", "gauge", "Requests that wait for a thread.", waiting);
        let resident = Resident::read().now_bytes;
        text.single("process_resident_memory_bytes", "gauge", "Resident memory of the process.", resident);
        text.family("sanderling_model_rows", "gauge", "Rows over all tables of a model.");
        let each = || models.iter().map(|model| (model, model.version.to_string()));
        for (model, version) in each() {
            let labels = [("model", &*model.name), ("version", &*version)];
            text.sample("sanderling_model_rows", &labels, model.rows());
        }
        text.family("sanderling_model_bytes", "gauge", "Memory of all tables of a model.");
        for (model, version) in each() {
            let labels = [("model", &*model.name), ("version", &*version)];
            text.sample("sanderling_model_bytes", &labels, model.model.table_bytes());
        }
        let entries: Vec<(Key, LatencySummary, u64)> = {
            let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = |(key, entry): (&Key, &Entry)| (key.clone(), entry.latency.summary(), entry.rows);
            entries.iter().map(entry).collect()
        };
        let help = "Requests; without a model: refused before it was found.";
        text.family("sanderling_serve_requests_total", "counter", help);
        for (key, latency, _) in &entries {
            text.sample("sanderling_serve_requests_total", &key.labels(), latency.count);
        }
        let help = "Rows that were scored, and keys that were looked up.";
        text.family("sanderling_serve_rows_total", "counter", help);
        for (key, _, rows) in entries.iter().filter(|(.., rows)| *rows > 0) {
            text.sample("sanderling_serve_rows_total", &key.labels(), rows);
        }
        let latencies: Vec<_> = entries.iter().map(|(key, latency, _)| (key.labels(), *latency)).collect();
        let help = "Time from the headers of a request to its answer.";
        text.latencies("sanderling_serve_request_latency", help, &latencies);
        batches::write_metrics(&mut text, models.iter());
        text.finish()
    }
}

impl Key {
    fn labels(&self) -> Labels<'_> {
        vec![
            ("protocol", self.protocol),
            ("endpoint", self.endpoint),
            ("model", &self.model),
            ("version", &self.version),
            ("code", &self.code),
        ]
    }
}
