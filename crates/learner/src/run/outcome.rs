//! The results of a run, for its summary and its report. Writes neither.

use std::path::Path;

use sanderling_formats::in_memory::is_in_memory;
use sanderling_observe::{Machine, Resident, StageTotal};

use super::{CALIBRATION_BINS, ROC_POINTS, Summary};
use crate::config::{Config, Loss};
use crate::importance::Importance;
use crate::known_keys::KnownKeys;
use crate::measured::{MeasuredOn, SeenMetrics, TestMetrics};
use crate::metrics::{Metrics, Scores};
use crate::remarks::remarks;
use crate::report::{CurvePoint, RunReport, TableSummary};
use crate::state::RunState;
use crate::timing::Timing;

/// The results of a run.
pub(super) struct Outcome<'a> {
    pub(super) config: &'a Config,
    /// Of the tables that were trained, wherever they are.
    pub(super) table_bytes: u64,
    pub(super) state: &'a RunState,
    pub(super) pass_scores: &'a Scores,
    pub(super) plot_scores: Option<Scores>,
    /// Whether these are of training (seen) data.
    pub(super) plots_seen: bool,
    /// That trained.
    pub(super) threads: usize,
    pub(super) tables: Vec<TableSummary>,
    pub(super) known: Vec<KnownKeys>,
    pub(super) importance: Option<Importance>,
    pub(super) tests: Vec<TestMetrics>,
}

/// A run that begins.
pub(super) struct Begun<'a> {
    /// The model in words.
    pub(super) words: String,
    pub(super) threads: usize,
    pub(super) started_unix_s: u64,
    pub(super) model_dir: &'a Path,
}

impl Begun<'_> {
    /// The report of a run that begins, or goes on from a state.
    pub(super) fn report(self, config: &Config, state: &RunState) -> RunReport {
        let Begun { words, threads, started_unix_s, model_dir } = self;
        let model_path = model_dir.display().to_string();
        RunReport {
            name: config.name.clone(),
            model: words,
            started_unix_s,
            train_s: state.train_seconds,
            examples: state.examples,
            passes: state.pass as u32,
            best_pass: state.best.map_or(0, |(pass, _)| pass as u32),
            threads,
            metrics: state.train_curve.last().map_or_else(|| Scores::new().metrics(), |(.., last)| *last),
            valid: config.data.validates().then(|| config.data.describe_valid()),
            train_curve: curve(&state.train_curve),
            valid_curve: curve(&state.valid_curve),
            progressive_curve: state.progressive_curve.clone(),
            bad_rows: state.bad_rows,
            valid_bad_rows: state.valid_bad_rows,
            eval_command: format!("sanderling eval {model_path} {}", example_file(config)),
            model_path,
            config: config.to_toml(),
            ..RunReport::without_results()
        }
    }
}

/// A curve of the state as a report has it.
fn curve(points: &[(u64, u64, u64, Metrics)]) -> Vec<CurvePoint> {
    let point = |(step, examples, pass, metrics): &(u64, u64, u64, Metrics)| {
        CurvePoint::new(*step, *pass as u32, *examples, metrics)
    };
    points.iter().map(point).collect()
}

/// A file that the model can be evaluated on.
fn example_file(config: &Config) -> &str {
    let file = config.data.valid_inputs().first().or(config.data.train.0.first());
    file.filter(|name| !is_in_memory(name)).map_or("FILE", String::as_str)
}

impl Outcome<'_> {
    fn metrics(&self) -> (Metrics, MeasuredOn) {
        let state = self.state;
        match (state.best, state.first_pass) {
            (Some((_, metrics)), _) => (metrics, MeasuredOn::Valid),
            (None, Some(metrics)) => (metrics, MeasuredOn::Train),
            (None, None) if state.pass == 0 => (self.pass_scores.metrics(), MeasuredOn::Train),
            // An earlier version did not keep the metrics of the first pass.
            (None, None) => (self.last_seen(), MeasuredOn::TrainSeen),
        }
    }

    /// Metrics of the pass under way or, between passes, of the last one; both are after the first pass.
    fn last_seen(&self) -> Metrics {
        match self.state.progressive {
            Some(metrics) if self.pass_scores.is_empty() => metrics,
            _ => self.pass_scores.metrics(),
        }
    }

    /// The rows that the metrics and plots are of, as far as they were kept.
    fn scores(&self) -> Option<&Scores> {
        self.scores_under_way().or(self.plot_scores.as_ref())
    }

    /// The rows of a pass that was stopped, where nothing was validated and there are no rows of a first pass.
    fn scores_under_way(&self) -> Option<&Scores> {
        let lacks_first = self.plot_scores.is_none() || self.plots_seen;
        let is_cut = self.state.best.is_none() && lacks_first && !self.pass_scores.is_empty();
        is_cut.then_some(self.pass_scores)
    }

    /// Whether the plots are of training (seen) data.
    fn plots_seen(&self) -> bool {
        let is_seen = if self.scores_under_way().is_some() { self.state.pass > 0 } else { self.plots_seen };
        self.state.best.is_none() && is_seen
    }

    /// Warnings about the predictions and the keys of the validation files.
    fn warnings(&self, metrics: &Metrics) -> Vec<String> {
        let mut warnings = remarks(metrics, self.scores());
        warnings.extend(self.known.iter().filter_map(KnownKeys::remark));
        warnings
    }

    /// Metrics over training (seen) data, where nothing was validated.
    fn seen(&self) -> Option<SeenMetrics> {
        let pass = self.state.pass + u64::from(!self.pass_scores.is_empty());
        (self.state.best.is_none() && pass > 1).then(|| SeenMetrics { pass, metrics: self.last_seen() })
    }

    pub(super) fn summary(&self, model_dir: &Path, report: &Path, stopped: bool, timing: Timing) -> Summary {
        let (metrics, measured_on) = self.metrics();
        let number = |value: f64| value.is_finite().then_some(value);
        let state = self.state;
        Summary {
            name: self.config.name.clone(),
            auc: number(metrics.auc),
            logloss: number(metrics.logloss),
            prob_mean: number(metrics.prob_mean),
            real_mean: number(metrics.real_mean),
            normalized_entropy: number(metrics.normalized_entropy),
            numbers: metrics.numbers,
            measured_on: measured_on.name(),
            measured_examples: metrics.examples,
            seen: self.seen(),
            examples: state.examples,
            examples_per_s: state.examples as f64 / state.train_seconds.max(1e-9),
            train_s: state.train_seconds,
            steps: state.step,
            passes: state.pass,
            best_pass: state.best.map_or(state.pass, |(pass, _)| pass),
            rows: self.tables.iter().map(|table| table.rows).sum(),
            zero_weights: self.tables.iter().map(|table| table.zero_weights).sum(),
            table_bytes: self.table_bytes,
            memory_peak_bytes: Resident::read().peak_bytes,
            bad_rows: state.bad_rows,
            valid_bad_rows: state.valid_bad_rows,
            stopped,
            tests: self.tests.clone(),
            from: state.from.clone(),
            progressive_curve: state.progressive_curve.clone(),
            warnings: self.warnings(&metrics),
            known: self.known.clone(),
            importance: self.importance.clone(),
            model: model_dir.into(),
            report: report.into(),
            timing,
        }
    }

    pub(super) fn report(
        self,
        summary: &Summary,
        (stages, timed_examples): (Vec<StageTotal>, u64),
        bad_row_messages: Vec<String>,
        started_unix_s: u64,
    ) -> RunReport {
        let config = self.config;
        let plotted = self.scores().filter(|_| config.train.loss == Loss::Logloss);
        let mut tables = self.tables.clone();
        for table in &mut tables {
            table.keys = self.state.table_counters.get(&table.name).copied();
        }
        RunReport {
            name: summary.name.clone(),
            under_way: None,
            stopped: summary.stopped,
            model: self.config.describe(),
            started_unix_s,
            train_s: summary.train_s,
            examples: summary.examples,
            passes: summary.passes as u32,
            best_pass: summary.best_pass as u32,
            threads: self.threads,
            examples_per_s: summary.examples_per_s,
            metrics: self.metrics().0,
            valid: self.state.best.map(|_| config.data.describe_valid()),
            seen: self.seen(),
            plots_seen: self.plots_seen(),
            train_curve: curve(&self.state.train_curve),
            valid_curve: curve(&self.state.valid_curve),
            tests: summary.tests.clone(),
            progressive_curve: summary.progressive_curve.clone(),
            warnings: summary.warnings.clone(),
            importance: summary.importance.clone(),
            roc: plotted.map(|scores| scores.roc(ROC_POINTS)).unwrap_or_default(),
            calibration: plotted.map(|scores| scores.calibration(CALIBRATION_BINS)).unwrap_or_default(),
            tables,
            features: Vec::new(),
            stages,
            timed_examples,
            calls: Vec::new(),
            servers: Vec::new(),
            saved: None,
            machine: Machine::detect(),
            memory_peak_bytes: summary.memory_peak_bytes,
            bad_rows: summary.bad_rows,
            valid_bad_rows: summary.valid_bad_rows,
            bad_row_messages,
            model_path: summary.model.display().to_string(),
            eval_command: format!("sanderling eval {} {}", summary.model.display(), example_file(config)),
            config: config.to_toml(),
        }
    }
}
