//! Counts and latencies of requests by model, version and code, in the Prometheus text format.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sanderling_observe::{Exposition, Labels, Latency, LatencySummary, Resident};

use crate::batches;
use crate::catalog::Models;
use crate::shadow::Shadow;
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

/// The state of the server that metrics show.
#[derive(Clone, Copy)]
pub(crate) struct Present<'a> {
    pub(crate) models: &'a Models,
    pub(crate) is_ready: bool,
    /// Requests that wait for a thread.
    pub(crate) waiting: usize,
    /// Requests that may wait or be worked on.
    pub(crate) limit: usize,
    /// Lines that the access log lost, if there is one.
    pub(crate) log_dropped: Option<u64>,
    pub(crate) shadow: &'a Shadow,
    /// Spans that reached the collector, and spans that were dropped, if there is an exporter.
    pub(crate) spans: Option<(u64, u64)>,
}

/// Versions that are not served any more whose numbers are kept, so that each has a last scrape.
const RETIRED_MAX: usize = 16;

/// Numbers since the start.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    entries: Mutex<BTreeMap<Key, Entry>>,
    /// Versions that are not served any more, the oldest first.
    retired: Mutex<VecDeque<(String, u64)>>,
}

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
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(Key { protocol, endpoint, model, version, code }).or_default();
        entry.latency.record(took);
        entry.rows += asked.rows();
    }

    /// Notes which versions are served no more, and forgets the numbers of the first of them beyond a bound.
    pub(crate) fn note_versions(&self, before: &Models, after: &Models) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|(name, version)| after.get(name, *version).is_none());
        let gone = before.iter().filter(|model| after.get(&model.name, model.version).is_none());
        retired.extend(gone.map(|model| (model.name.clone(), model.version)));
        while retired.len() > RETIRED_MAX
            && let Some((name, version)) = retired.pop_front()
        {
            let version = version.to_string();
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.retain(|key, _| key.model != name || key.version != version);
        }
    }

    /// All metrics.
    pub(crate) fn text(&self, present: &Present<'_>) -> String {
        let Present { models, is_ready, waiting, limit, log_dropped, shadow, spans } = *present;
        let mut text = Exposition::default();
        text.single("sanderling_serve_ready", "gauge", "1 while requests are answered.", u8::from(is_ready));
        text.single("sanderling_serve_queue_requests", "gauge", "Requests that wait for a thread.", waiting);
        let help =
            "Requests that may wait or be worked on: a further one is refused. It falls under overload.";
        text.single("sanderling_serve_concurrency_limit_requests", "gauge", help, limit);
        if let Some(dropped) = log_dropped {
            let help = "Lines that the access log lost: its file was too slow, or failed.";
            text.single("sanderling_serve_access_log_dropped_total", "counter", help, dropped);
        }
        if let Some((exported, dropped)) = spans {
            let help = "Spans of traces that reached the collector.";
            text.single("sanderling_spans_exported_total", "counter", help, exported);
            let help = "Spans of traces that were dropped: the collector was away or slow.";
            text.single("sanderling_spans_dropped_total", "counter", help, dropped);
        }
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
        let help = "Population stability index of a feature's keys of late against those of the training.";
        text.family("sanderling_model_feature_drift", "gauge", help);
        for (model, version) in each() {
            for (feature, drift) in model.model.drift() {
                let labels = [("model", &*model.name), ("version", &*version), ("feature", feature)];
                drift
                    .into_iter()
                    .for_each(|drift| text.sample("sanderling_model_feature_drift", &labels, drift));
            }
        }
        text.family("sanderling_serve_alias_version", "gauge", "The version that an alias names.");
        for (model, alias, version) in models.aliases() {
            let labels = [("model", model), ("alias", alias)];
            text.sample("sanderling_serve_alias_version", &labels, version);
        }
        let entries: Vec<(Key, LatencySummary, u64)> = {
            let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
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
        shadow.write(&mut text);
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
