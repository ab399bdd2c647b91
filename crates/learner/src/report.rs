//! The report of a run: one HTML file without scripts and external files.
//!
//! All of its contents come in a [`RunReport`] as plain numbers and text. Knows no trainer, no table and no file: the
//! caller of [`render`] gathers the numbers and writes the text.

mod charts;
mod numbers;
mod page;
mod sections;
mod summary;
mod zeros;

use sanderling_observe::{Machine, StageTotal};
use serde::{Serialize, Serializer};

pub use crate::importance::{FeatureImportance, Importance};
pub use crate::measured::{SeenMetrics, TestMetrics};
pub use crate::metrics::{CalibrationBin, Metrics, NumberMetrics, RocPoint};
pub use crate::progressive::ProgressivePoint;
pub use page::render;
pub use summary::{KeyNorm, TOP_KEYS_MAX, TableSummary, TableTally};
pub(crate) use zeros::zero_weights;

/// All that a report shows.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// Name of the run.
    pub name: String,
    /// The model in a few words, such as "factorization machine, rank 10".
    pub model: String,
    /// Start of the run, seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// Wall time of training, evaluation between passes included.
    pub train_s: f64,
    /// Training examples, over all passes.
    pub examples: u64,
    /// Passes over the training data that were begun.
    pub passes: u32,
    /// Pass whose model was kept: the best validation by the run's monitor, or the last pass.
    pub best_pass: u32,
    /// Training threads.
    pub threads: usize,
    /// Training examples per second of wall time.
    pub examples_per_s: f64,
    /// The main metrics: of the validation file, or progressive over the first pass.
    pub metrics: Metrics,
    /// The validation files that `metrics`, `roc` and `calibration` were measured on; `None` without them.
    pub valid: Option<String>,
    /// Metrics of the last pass over training (seen) data, without a validation file after several passes.
    pub seen: Option<SeenMetrics>,
    /// Whether `roc` and `calibration` are of training (seen) data, for a run resumed after its first pass.
    pub plots_seen: bool,
    /// Metrics of training rows by step: progressive in the first pass, of seen rows later.
    pub train_curve: Vec<CurvePoint>,
    /// Metrics of the validation file, in order of the step.
    pub valid_curve: Vec<CurvePoint>,
    /// Metrics of the model on test sets.
    pub tests: Vec<TestMetrics>,
    /// Progressive validation: one point per run that led to this model and predicted its data first.
    pub progressive_curve: Vec<ProgressivePoint>,
    /// ROC curve, from (0, 0) to (1, 1); serialized as pairs.
    #[serde(serialize_with = "roc_pairs")]
    pub roc: Vec<RocPoint>,
    /// Calibration, by ascending prediction; serialized as triples.
    #[serde(serialize_with = "calibration_triples")]
    pub calibration: Vec<CalibrationBin>,
    /// Warnings about the predictions, in sentences.
    pub warnings: Vec<String>,
    /// Feature importance; none where it was not measured.
    pub importance: Option<Importance>,
    /// Every table of the model, in any order.
    pub tables: Vec<TableSummary>,
    /// Where the time went, in the order of the path.
    pub stages: Vec<StageTotal>,
    /// The training examples whose time that is: of a run that was resumed, those of this session.
    pub timed_examples: u64,
    /// Where it ran.
    pub machine: Machine,
    /// The most memory that the process held.
    pub memory_peak_bytes: u64,
    /// Rows that did not read as the spec demands, and were skipped.
    pub bad_rows: u64,
    /// Bad rows left out of the last validation.
    pub valid_bad_rows: u64,
    /// The first of them: file, line, column, and what was expected.
    pub bad_row_messages: Vec<String>,
    /// The model's directory.
    pub model_path: String,
    /// A command that evaluates the model on a file.
    pub eval_command: String,
    /// The configuration with all defaults filled in, as TOML.
    pub config: String,
}

/// Metrics at one moment of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Batches learned so far, over all passes.
    pub step: u64,
    /// Pass over the training data, first is 1.
    pub pass: u32,
    /// Examples learned so far, over all passes.
    pub examples: u64,
    /// Area under the ROC curve; NaN with one class only.
    pub auc: f64,
    /// Mean logistic loss, natural logarithm.
    pub logloss: f64,
    /// Mean predicted probability.
    pub prob_mean: f64,
    /// Share of positives.
    pub real_mean: f64,
    /// The errors of a regression.
    pub numbers: Option<NumberMetrics>,
}

impl CurvePoint {
    /// Metrics as a point of a curve.
    pub fn new(step: u64, pass: u32, examples: u64, metrics: &Metrics) -> Self {
        let Metrics { auc, logloss, prob_mean, real_mean, numbers, .. } = *metrics;
        Self { step, pass, examples, auc, logloss, prob_mean, real_mean, numbers }
    }

    /// The values of [`RunReport::metric_names`].
    fn values(&self) -> [f64; 2] {
        self.numbers.map_or([self.auc, self.logloss], |numbers| [numbers.rmse, numbers.mae])
    }
}

impl RunReport {
    /// The two metrics that tables and curves show.
    fn metric_names(&self) -> [&'static str; 2] {
        if self.metrics.numbers.is_some() { ["RMSE", "MAE"] } else { ["AUC", "Logloss"] }
    }
}

/// The values of [`RunReport::metric_names`].
fn values_of(metrics: &Metrics) -> [f64; 2] {
    metrics.numbers.map_or([metrics.auc, metrics.logloss], |numbers| [numbers.rmse, numbers.mae])
}

fn roc_pairs<S: Serializer>(points: &[RocPoint], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(points.iter().map(|point| (point.false_positive_rate, point.true_positive_rate)))
}

fn calibration_triples<S: Serializer>(bins: &[CalibrationBin], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(bins.iter().map(|bin| (bin.prob_mean, bin.real_mean, bin.weight)))
}
