//! The result of a run, as `summary.json` has it. Knows no step.

use std::path::PathBuf;

use serde::Serialize;

use crate::importance::Importance;
use crate::known_keys::KnownKeys;
use crate::measured::{SeenMetrics, TestMetrics};
use crate::metrics::NumberMetrics;
use crate::progressive::ProgressivePoint;
use crate::timing::Timing;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the run.
    pub name: String,
    /// Area under the ROC curve of the best validation; null if there was only one class.
    ///
    /// Without validation it is of the first pass over the training data, each row scored before it was learned from.
    pub auc: Option<f64>,
    /// Mean logistic loss of the same rows.
    pub logloss: Option<f64>,
    /// Mean prediction over the same rows.
    pub prob_mean: Option<f64>,
    /// Share of positives among the same rows.
    pub real_mean: Option<f64>,
    /// Logloss relative to predicting the share of positives; null if there was only one class.
    pub normalized_entropy: Option<f64>,
    /// Of a regression, whose AUC and logloss are null: the errors over the same rows.
    #[serde(flatten)]
    pub numbers: Option<NumberMetrics>,
    /// Rows that those metrics were measured on: `valid` or `train`.
    ///
    /// `train` are the rows of the first pass, each scored before it was learned from. `train_seen` (rows that an
    /// earlier pass has learned from) occurs only for runs that an earlier version began.
    pub measured_on: &'static str,
    /// Number of those rows.
    pub measured_examples: u64,
    /// Metrics of the last pass over training (seen) data, without validation after several passes.
    ///
    /// They say nothing about new rows.
    pub seen: Option<SeenMetrics>,
    /// Rows trained on, over all passes.
    pub examples: u64,
    /// Rows trained on per second of training, validation and saving left out.
    pub examples_per_s: f64,
    /// Seconds of training.
    pub train_s: f64,
    /// Steps.
    pub steps: u64,
    /// Passes done.
    pub passes: u64,
    /// The pass that the saved model is from, first is 1.
    pub best_pass: u64,
    /// Rows of all tables.
    pub rows: u64,
    /// Weights of all rows that are exactly zero, as L1 makes them.
    pub zero_weights: u64,
    /// Bytes of all tables in memory.
    pub table_bytes: u64,
    /// Largest resident memory of the process.
    pub memory_peak_bytes: u64,
    /// Bad rows left out of the last pass.
    pub bad_rows: u64,
    /// Bad rows left out of the last validation.
    pub valid_bad_rows: u64,
    /// Whether the run was stopped before its end; it can be resumed.
    pub stopped: bool,
    /// Metrics of the saved model on the test sets; empty for a stopped run.
    pub tests: Vec<TestMetrics>,
    /// The model that the run began from.
    pub from: Option<PathBuf>,
    /// Progressive validation, the last point of this run; empty where no run predicted its data first.
    pub progressive_curve: Vec<ProgressivePoint>,
    /// Warnings about the predictions; `None` without any.
    pub warnings: Vec<String>,
    /// Known keys of the validation files by feature; `None` without validation in this session.
    pub known: Vec<KnownKeys>,
    /// Feature importance over the best validation's rows, or training rows; null without either.
    pub importance: Option<Importance>,
    /// The model's directory; empty for workers on other hosts than the first, as are table sizes.
    pub model: PathBuf,
    /// The report.
    pub report: PathBuf,
    /// The run's time.
    pub timing: Timing,
}
