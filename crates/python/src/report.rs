//! The report of a run that Python led, as the built-in learners' is made. Conversion only: what it says comes in as a
//! dictionary, arrays and tables.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use sanderling_cli::show_run;
use sanderling_control::{MetricsPage, PageAccess, PageOptions};
use sanderling_learner::report::{
    self, CurvePoint, FeatureStats, NumberMetrics, RunReport, Saved, SeenMetrics, TOP_KEYS_MAX, TableSummary,
    UnderWay,
};
use sanderling_learner::{
    CALIBRATION_BINS, LiveRun, Metrics, ROC_POINTS, TableCounters, TestMetrics, name_keys,
    quick_table_summary, table_summary,
};
use sanderling_observe::{Machine, Resident, StageTotal};
use sanderling_store::{RowSampler, Table};
use serde::Deserialize;

use crate::error::ConfigError;
use crate::key_names::PyKeyNames;
use crate::model::scores_of;
use crate::table::PyTable;
use crate::value::from_python;

/// Facts about a run, from Python.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Facts {
    name: String,
    #[serde(default)]
    stopped: bool,
    model: String,
    started_unix_s: u64,
    train_s: f64,
    examples: u64,
    passes: u32,
    best_pass: u32,
    threads: usize,
    examples_per_s: f64,
    metrics: Metrics,
    valid: Option<String>,
    seen: Option<SeenMetrics>,
    warnings: Vec<String>,
    train_curve: Vec<Line>,
    valid_curve: Vec<Line>,
    stages: Vec<StageTotal>,
    bad_rows: u64,
    valid_bad_rows: u64,
    bad_row_messages: Vec<String>,
    model_path: String,
    eval_command: String,
    config: String,
    tests: Vec<TestMetrics>,
    #[serde(default)]
    features: Vec<FeatureStats>,
    #[serde(default)]
    under_way: Option<UnderWay>,
    #[serde(default)]
    saved: Option<Saved>,
}

/// A line of `metrics.jsonl`, of which more is there; what is undefined is null.
#[derive(Deserialize)]
struct Line {
    step: u64,
    pass: u32,
    trained_examples: u64,
    auc: Option<f64>,
    logloss: Option<f64>,
    prob_mean: Option<f64>,
    real_mean: Option<f64>,
    #[serde(default)]
    examples_per_s: Option<f64>,
    #[serde(flatten)]
    numbers: Option<NumberMetrics>,
}

impl Line {
    fn point(&self) -> CurvePoint {
        let number = |value: Option<f64>| value.unwrap_or(f64::NAN);
        CurvePoint {
            step: self.step,
            pass: self.pass,
            examples: self.trained_examples,
            auc: number(self.auc),
            logloss: number(self.logloss),
            prob_mean: number(self.prob_mean),
            real_mean: number(self.real_mean),
            numbers: self.numbers,
            examples_per_s: number(self.examples_per_s),
        }
    }
}

/// The report as HTML; the plots are of scored rows, which may be none, the tables in this process.
#[pyfunction]
#[pyo3(signature = (facts, labels, logits, weights, tables, names = None))]
pub(crate) fn render_report<'py>(
    py: Python<'py>,
    facts: &Bound<'py, PyAny>,
    labels: &Bound<'py, PyAny>,
    logits: &Bound<'py, PyAny>,
    weights: &Bound<'py, PyAny>,
    tables: Vec<Bound<'py, PyTable>>,
    names: Option<Bound<'py, PyKeyNames>>,
) -> PyResult<String> {
    let facts: Facts = from_python("facts", facts)?;
    let scores = scores_of(py, labels, logits, Some(weights), true)?;
    let tables: Vec<_> = tables.iter().map(|table| table.get().table.clone()).collect();
    let names = names.as_ref().map(Bound::get);
    Ok(py.detach(|| {
        let summaries = tables.iter().map(|table| table_summary(table, TOP_KEYS_MAX));
        let mut summaries: Vec<_> = summaries.collect();
        if let Some(names) = names {
            name_keys(&mut summaries, &names.features, &names.names);
        }
        let mut report = report_of(facts, summaries);
        if !scores.is_empty() {
            report.roc = scores.roc(ROC_POINTS);
            report.calibration = scores.calibration(CALIBRATION_BINS);
        }
        report::render(&report)
    }))
}

/// The report without plots.
fn report_of(facts: Facts, tables: Vec<TableSummary>) -> RunReport {
    RunReport {
        tables,
        features: facts.features,
        warnings: facts.warnings,
        // A model in PyTorch has no contributions that add up to its logit.
        importance: None,
        metrics: facts.metrics,
        tests: facts.tests,
        progressive_curve: Vec::new(),
        roc: Vec::new(),
        calibration: Vec::new(),
        name: facts.name,
        under_way: facts.under_way,
        stopped: facts.stopped,
        model: facts.model,
        started_unix_s: facts.started_unix_s,
        train_s: facts.train_s,
        examples: facts.examples,
        passes: facts.passes,
        best_pass: facts.best_pass,
        threads: facts.threads,
        examples_per_s: facts.examples_per_s,
        valid: facts.valid,
        seen: facts.seen,
        plots_seen: false,
        train_curve: facts.train_curve.iter().map(Line::point).collect(),
        valid_curve: facts.valid_curve.iter().map(Line::point).collect(),
        stages: facts.stages,
        timed_examples: facts.examples,
        // Requests to servers are not timed by command.
        calls: Vec::new(),
        servers: Vec::new(),
        saved: facts.saved,
        machine: Machine::detect(),
        memory_peak_bytes: Resident::read().peak_bytes,
        bad_rows: facts.bad_rows,
        valid_bad_rows: facts.valid_bad_rows,
        bad_row_messages: facts.bad_row_messages,
        model_path: facts.model_path,
        eval_command: facts.eval_command,
        config: facts.config,
    }
}

/// The record of a run that Python leads, while it goes on, and its page.
#[pyclass(name = "RunStatus", module = "sanderling._native", frozen)]
pub(crate) struct PyRunStatus {
    live: LiveRun,
    samplers: Mutex<BTreeMap<String, RowSampler>>,
    page: Mutex<Option<MetricsPage>>,
}

#[pymethods]
impl PyRunStatus {
    /// Shows the run at an address of this machine, if there is one, until the end of this object.
    #[new]
    #[pyo3(signature = (address = None))]
    fn new(py: Python<'_>, address: Option<&str>) -> PyResult<PyRunStatus> {
        let live = LiveRun::default();
        let page = address.map(|address| py.detach(|| show(&live, address))).transpose()?;
        Ok(PyRunStatus { live, samplers: Mutex::default(), page: Mutex::new(page) })
    }

    /// The URL of the page; None without one.
    #[getter]
    fn url(&self) -> Option<String> {
        self.page
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(|page| page.pages_url().to_owned())
    }

    /// Takes the facts of a moment, with the tables of this process, and returns the record as JSON.
    fn note(
        &self,
        py: Python<'_>,
        facts: &Bound<'_, PyAny>,
        tables: Vec<Bound<'_, PyTable>>,
    ) -> PyResult<String> {
        let facts: Facts = from_python("facts", facts)?;
        let tables: Vec<_> = tables.iter().map(|table| Arc::clone(&table.get().table)).collect();
        Ok(py.detach(|| {
            let mut samplers = self.samplers.lock().unwrap_or_else(PoisonError::into_inner);
            let summary = |table: &Arc<Table>| {
                let sample = samplers.entry(table.name().to_owned()).or_default().look(table);
                let keys = TableCounters::of(&table.quick_stats());
                quick_table_summary(table, keys, Some(sample))
            };
            let report = report_of(facts, tables.iter().map(summary).collect());
            self.live.show(report.clone());
            // A struct of numbers and text has a JSON form.
            serde_json::to_string(&report).unwrap_or_default()
        }))
    }
}

/// Shows a run at an address of this machine.
pub(crate) fn show(live: &LiveRun, address: &str) -> PyResult<MetricsPage> {
    let wrong = |reason: &dyn std::fmt::Display| ConfigError::new_err(format!("status_listen: {reason}"));
    let parsed = address.parse().map_err(|error| wrong(&error))?;
    show_run(live, &parsed, &PageAccess::default(), PageOptions::default()).map_err(|error| wrong(&error))
}
