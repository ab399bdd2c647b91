//! A run under way, for other threads of its process: its events, and measurements that a reader takes.
//!
//! The training thread notes events, at most some per second. A reader adds up the stages and looks at the tables; nothing is
//! counted per minibatch for it. Knows no socket and no file.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sanderling_client::{Cluster, FeatureReader, FeatureWatch};
use sanderling_observe::{Exposition, Resident, Stages};
use sanderling_store::{RowSampler, Table};

use crate::event::Event;
use crate::known_keys::KnownKeys;
use crate::model::Model;
use crate::report::{
    Calls, CurvePoint, RunReport, Saved, ServerCalls, TableSummary, UnderWay, add_point, exposition,
};
use crate::state::RunState;
use crate::table_counters::TableCounters;
use crate::table_summary::quick_table_summary;

/// Warnings of a run under way; further ones are not kept.
const WARNINGS_MAX: usize = 20;
/// Interval of samples of rows, which cost a reader 512 look-ups per table.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// Tables whose rows are sampled: the first ones.
const SAMPLED_TABLES_MAX: usize = 256;
/// Below this share of a pass nothing is said of how long the rest takes.
const SHARE_MIN: f64 = 0.01;

/// The run of this process, shown to other threads. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct LiveRun(Arc<Mutex<Option<Run>>>);

#[derive(Debug)]
struct Run {
    report: RunReport,
    /// Whether the report is that of the end.
    is_over: bool,
    stages: Stages,
    cluster: Option<Arc<Cluster>>,
    /// A run lets go of its tables before its end.
    tables: Vec<(Weak<Table>, RowSampler)>,
    features: Arc<FeatureWatch>,
    feature_reader: FeatureReader,
    /// When rows were sampled.
    sampled: Option<Instant>,
    counters_before: BTreeMap<String, TableCounters>,
    began: Instant,
    pass_began: Instant,
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

impl LiveRun {
    fn lock(&self) -> MutexGuard<'_, Option<Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with what is known at the start.
    pub(crate) fn begin(
        &self,
        mut report: RunReport,
        stages: &Stages,
        cluster: Option<&Arc<Cluster>>,
        model: &Model,
        state: &RunState,
    ) {
        report.under_way = Some(UnderWay {
            phase: "starting".to_owned(),
            pass: 0,
            passes: model.config().train.passes,
            share: None,
            elapsed_s: 0.0,
            left_s: None,
            process: std::process::id(),
            noted_unix_s: now_unix_s(),
            failure: None,
        });
        let now = Instant::now();
        *self.lock() = Some(Run {
            report,
            is_over: false,
            stages: stages.clone(),
            cluster: cluster.cloned(),
            tables: model.tables().map(|table| (Arc::downgrade(table), RowSampler::default())).collect(),
            features: Arc::clone(model.client().features()),
            feature_reader: FeatureReader::default(),
            sampled: None,
            counters_before: state.table_counters.clone(),
            began: now,
            pass_began: now,
        });
    }

    /// Notes what happens.
    pub(crate) fn note(&self, event: &Event<'_>) {
        if let Some(run) = &mut *self.lock() {
            run.note(event);
        }
    }

    /// Shows a report that another process, or Python, has made, until the next one.
    pub fn show(&self, report: RunReport) {
        let mut run = self.lock();
        let began = run.as_ref().map_or_else(Instant::now, |run| run.began);
        *run = Some(Run {
            report,
            is_over: true,
            stages: Stages::new(&[]),
            cluster: None,
            tables: Vec::new(),
            features: FeatureWatch::new(Vec::new(), Vec::new()),
            feature_reader: FeatureReader::default(),
            sampled: None,
            counters_before: BTreeMap::new(),
            began,
            pass_began: began,
        });
    }

    /// Takes the report of the end, and adds what this session has noted.
    pub(crate) fn end(&self, mut report: RunReport) -> RunReport {
        if let Some(run) = &mut *self.lock() {
            let rates = run.report.train_curve.iter().map(|point| (point.step, point.examples_per_s));
            let rates: BTreeMap<u64, f64> = rates.collect();
            for point in &mut report.train_curve {
                point.examples_per_s = rates.get(&point.step).copied().unwrap_or(f64::NAN);
            }
            for table in &mut report.tables {
                let live = run.report.tables.iter().find(|live| live.name == table.name);
                table.sample = live.and_then(|live| live.sample);
            }
            report.saved.clone_from(&run.report.saved);
            run.look_at_features();
            report.features.clone_from(&run.report.features);
            for feature in &mut report.features {
                // A run lets go of its tables before its end.
                let table = report.tables.iter().find(|table| table.name == feature.table);
                table.and_then(|table| table.keys).into_iter().for_each(|keys| keys.set(feature));
            }
            (report.calls, report.servers) = run.latencies();
            run.report = report.clone();
            run.is_over = true;
        }
        report
    }

    /// Notes why the run ended without a result.
    pub(crate) fn fail(&self, reason: &str) {
        if let Some(run) = &mut *self.lock() {
            run.look();
            if let Some(under_way) = &mut run.report.under_way {
                under_way.failure = Some(reason.to_owned());
            }
            run.is_over = true;
        }
    }

    /// The report as it is now; none before the run has its model.
    #[must_use]
    pub fn report(&self) -> Option<RunReport> {
        let mut run = self.lock();
        let run = run.as_mut()?;
        run.look();
        Some(run.report.clone())
    }

    /// The report in the text format of Prometheus, with the memory of the process.
    #[must_use]
    pub fn exposition(&self) -> String {
        let mut text = Exposition::default();
        let resident = Resident::read().now_bytes;
        text.single("sanderling_train_resident_bytes", "gauge", "Memory of the process in DRAM.", resident);
        let report = self.report().map_or(String::new(), |report| exposition(&report));
        text.finish() + &report
    }
}

impl Run {
    /// Measures stages, tables, requests and memory.
    fn look(&mut self) {
        if self.is_over {
            return;
        }
        (self.report.calls, self.report.servers) = self.latencies();
        let is_time = self.sampled.is_none_or(|at| at.elapsed() >= SAMPLE_EVERY);
        if is_time {
            self.sampled = Some(Instant::now());
            self.look_at_features();
        }
        let (old, counters_before) = (&self.report.tables, &self.counters_before);
        let tables = self.tables.iter_mut().enumerate();
        let tables = tables.filter_map(|(at, (table, sampler))| {
            let table = table.upgrade()?;
            let before = counters_before.get(table.name()).copied().unwrap_or_default();
            let sample = match is_time && at < SAMPLED_TABLES_MAX {
                true => Some(sampler.look(&table)),
                false => old.iter().find(|old| old.name == table.name()).and_then(|old| old.sample),
            };
            Some(quick_table_summary(&table, before.plus(&table.quick_stats()), sample))
        });
        let tables: Vec<TableSummary> = tables.collect();
        if !tables.is_empty() {
            self.report.tables = tables;
        }
        self.report.stages = self.stages.totals();
        self.report.memory_peak_bytes = Resident::read().peak_bytes;
        self.report.train_s = self.began.elapsed().as_secs_f64();
        if let Some(under_way) = &mut self.report.under_way {
            under_way.elapsed_s = self.report.train_s;
            under_way.noted_unix_s = now_unix_s();
        }
    }

    /// Adds up what lookups have counted of features, and looks at some of their rows.
    fn look_at_features(&mut self) {
        let tables: Vec<Arc<Table>> = self.tables.iter().filter_map(|(table, _)| table.upgrade()).collect();
        let mut features = self.features.stats(&mut self.feature_reader, &tables);
        for feature in &mut features {
            let before = self.counters_before.get(&feature.table);
            before.into_iter().for_each(|before| before.add_to(feature));
            let known = self.report.features.iter().find(|known| known.name == feature.name);
            known.into_iter().for_each(|known| feature.keep_rows_of(known));
        }
        self.report.features = features;
    }

    fn latencies(&self) -> (Vec<Calls>, Vec<ServerCalls>) {
        let Some(cluster) = &self.cluster else { return (Vec::new(), Vec::new()) };
        let table = cluster.latencies();
        let calls = table.rows().map(|(labels, latency)| Calls {
            command: labels[0].clone(),
            of: labels[1].clone(),
            latency: *latency,
        });
        let servers = cluster.server_latencies().into_iter().map(|server| ServerCalls {
            server: server.server,
            transport: server.transport,
            latency: server.summary,
        });
        (calls.collect(), servers.collect())
    }

    fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::Training { pass, passes, scan } => {
                let total = scan.bytes_total.filter(|total| *total > 0);
                let share = total.map(|total| (scan.bytes_read as f64 / total as f64).min(1.0));
                self.train(*pass, *passes, share);
            }
            Event::TrainingRows { pass, passes, rows, rows_total } => {
                let total = rows_total.filter(|total| *total > 0);
                self.train(*pass, *passes, total.map(|total| (*rows as f64 / total as f64).min(1.0)));
            }
            Event::Validating { scan } => {
                let total = scan.bytes_total.filter(|total| *total > 0);
                let share = total.map(|total| (scan.bytes_read as f64 / total as f64).min(1.0));
                self.enter("validating", share);
            }
            Event::Step(line) => {
                let report = &mut self.report;
                let mut point =
                    CurvePoint::new(line.step, line.pass as u32, line.trained_examples, &line.metrics);
                point.examples_per_s = line.examples_per_s;
                add_point(&mut report.train_curve, point);
                report.metrics = line.metrics;
                report.examples_per_s = line.examples_per_s;
                (report.examples, report.timed_examples) = (line.trained_examples, line.trained_examples);
            }
            Event::Pass(line) => {
                self.report.examples_per_s = line.examples_per_s;
                self.report.examples = line.trained_examples;
            }
            Event::Valid(line) => {
                let point =
                    CurvePoint::new(line.step, line.pass as u32, line.trained_examples, &line.metrics);
                add_point(&mut self.report.valid_curve, point);
                if line.best {
                    self.report.best_pass = line.pass as u32;
                }
            }
            Event::Saved { path } => {
                let step = self.report.train_curve.last().map_or(0, |point| point.step);
                let path = path.display().to_string();
                self.report.saved = Some(Saved { path, unix_s: now_unix_s(), step });
            }
            Event::BadRows { count, messages } => {
                self.report.bad_rows = *count;
                self.report.bad_row_messages = messages.to_vec();
            }
            Event::LargeValues { features } => {
                features.iter().for_each(|feature| self.warn(feature.to_string()));
            }
            Event::UnknownKeys { known } => {
                known.iter().filter_map(KnownKeys::remark).for_each(|remark| self.warn(remark));
            }
            Event::Unvalidated { pass } => self.warn(format!("pass {pass} could not be validated")),
            _ => {}
        }
    }

    fn warn(&mut self, warning: String) {
        let warnings = &mut self.report.warnings;
        if warnings.len() < WARNINGS_MAX && !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }

    fn enter(&mut self, phase: &str, share: Option<f64>) {
        if let Some(under_way) = &mut self.report.under_way {
            if under_way.phase != phase {
                phase.clone_into(&mut under_way.phase);
            }
            (under_way.share, under_way.left_s) = (share, None);
        }
    }

    fn train(&mut self, pass: u64, passes: u64, share: Option<f64>) {
        self.enter("training", share);
        let Some(under_way) = &mut self.report.under_way else { return };
        if under_way.pass != pass {
            (self.pass_began, self.report.passes) = (Instant::now(), pass as u32);
        }
        (under_way.pass, under_way.passes) = (pass, passes);
        under_way.left_s = left_s(self.pass_began.elapsed(), share, passes.saturating_sub(pass));
    }
}

/// Time that the rest of a pass and so many further ones take, if they go on as the pass does.
fn left_s(elapsed: Duration, share: Option<f64>, passes_left: u64) -> Option<f64> {
    let share = share.filter(|share| *share >= SHARE_MIN)?;
    let pass_s = elapsed.as_secs_f64() / share;
    Some(pass_s * (1.0 - share + passes_left as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let elapsed = Duration::from_secs(10);
        for (share, passes_left, expected) in [
            (None, 0, None),
            (Some(0.001), 3, None),
            (Some(0.5), 0, Some(10.0)),
            (Some(0.25), 2, Some(110.0)),
            (Some(1.0), 0, Some(0.0)),
        ] {
            assert_eq!(left_s(elapsed, share, passes_left), expected, "{share:?}");
        }
    }
}
