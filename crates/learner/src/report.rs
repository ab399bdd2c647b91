//! The report of a run, of one under way or of one that has ended: a page without scripts and external files, or text.
//!
//! All of its contents come in a [`RunReport`] as plain numbers and text. Knows no trainer, no table and no file: the
//! caller of [`render`] gathers the numbers and writes the text.

mod charts;
mod numbers;

mod under_way;

mod summary;
mod zeros;

mod bottleneck;
mod exposition;
mod features;
mod page;
mod sections;
mod tables;
mod text;

pub use sanderling_client::FeatureStats;
use sanderling_observe::{LatencySummary, Machine, StageTotal};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use crate::importance::{FeatureImportance, Importance};
pub use crate::measured::{SeenMetrics, TestMetrics};
pub use crate::metrics::{CalibrationBin, Metrics, NumberMetrics, RocPoint};
use crate::metrics::{Scores, nan_as_null, not_measured};
pub use crate::progressive::ProgressivePoint;
pub use bottleneck::bottleneck;
use bottleneck::slowest_server;
pub use exposition::exposition;
pub use page::{Frame, PageLink, render, render_in};
pub use summary::{KeyNorm, TOP_KEYS_MAX, TableSummary, TableTally};
pub use text::render_text;
pub use under_way::UnderWay;
pub(crate) use zeros::zero_weights;

/// Points of a curve that are kept; beyond, every second one goes.
pub const CURVE_POINTS_MAX: usize = 2048;

/// All that a report shows. As JSON it is the file `run.json` in the folder of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunReport {
    /// Name of the run.
    pub name: String,
    /// How far the run is; `None`: it has ended.
    #[serde(default)]
    pub under_way: Option<UnderWay>,
    /// Whether it was stopped before its end; `--resume` continues it.
    #[serde(default)]
    pub stopped: bool,
    /// The model in a few words, such as "factorization machine, rank 10".
    pub model: String,
    /// Start of the run, seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// Wall time of training, evaluation between passes included.
    #[serde(with = "nan_as_null")]
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
    #[serde(with = "nan_as_null")]
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
    #[serde(serialize_with = "roc_pairs", deserialize_with = "roc_points")]
    pub roc: Vec<RocPoint>,
    /// Calibration, by ascending prediction; serialized as triples.
    #[serde(serialize_with = "calibration_triples", deserialize_with = "calibration_bins")]
    pub calibration: Vec<CalibrationBin>,
    /// Warnings about the predictions, in sentences.
    pub warnings: Vec<String>,
    /// Feature importance; none where it was not measured.
    pub importance: Option<Importance>,
    /// Every table of the model, in any order.
    pub tables: Vec<TableSummary>,
    /// Features in the order of the configuration, from sampled minibatches.
    #[serde(default)]
    pub features: Vec<FeatureStats>,
    /// Where the time went, in the order of the path.
    pub stages: Vec<StageTotal>,
    /// The training examples whose time that is: of a run that was resumed, those of this session.
    pub timed_examples: u64,
    /// Requests to servers as the trainer saw them; none with tables in its process.
    #[serde(default)]
    pub calls: Vec<Calls>,
    /// The servers that the trainer asked.
    #[serde(default)]
    pub servers: Vec<ServerCalls>,
    /// The last save.
    #[serde(default)]
    pub saved: Option<Saved>,
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

/// Latencies of the requests of one command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// The command, such as "pull".
    pub command: String,
    /// Which of them: single calls, or all calls of one request.
    pub of: String,
    /// The numbers.
    pub latency: LatencySummary,
}

/// Latencies of the calls to one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerCalls {
    /// Its address.
    pub server: String,
    /// How it is reached: `shm`, `unix`, `tcp` or `tls`.
    pub transport: String,
    /// The numbers.
    pub latency: LatencySummary,
}

/// A save of the model or of the state to resume from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its folder.
    pub path: String,
    /// When it was complete, seconds since 1970 (UTC).
    pub unix_s: u64,
    /// Steps of the run until then.
    pub step: u64,
}

/// Metrics at one moment of a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Batches learned so far, over all passes.
    pub step: u64,
    /// Pass over the training data, first is 1.
    pub pass: u32,
    /// Examples learned so far, over all passes.
    pub examples: u64,
    /// Area under the ROC curve; NaN with one class only.
    #[serde(with = "nan_as_null")]
    pub auc: f64,
    /// Mean logistic loss, natural logarithm.
    #[serde(with = "nan_as_null")]
    pub logloss: f64,
    /// Mean predicted probability.
    #[serde(with = "nan_as_null")]
    pub prob_mean: f64,
    /// Share of positives.
    #[serde(with = "nan_as_null")]
    pub real_mean: f64,
    /// The errors of a regression.
    pub numbers: Option<NumberMetrics>,
    /// Examples per second of training since the point before; NaN (JSON: null) where it was not noted.
    #[serde(with = "nan_as_null", default = "not_measured")]
    pub examples_per_s: f64,
}

/// Adds a point to a curve; when there are too many, every second one goes.
pub fn add_point<P>(curve: &mut Vec<P>, point: P) {
    if curve.len() >= CURVE_POINTS_MAX {
        let mut index = 0;
        curve.retain(|_| {
            index += 1;
            index % 2 == 0
        });
    }
    curve.push(point);
}

impl CurvePoint {
    /// Metrics as a point of a curve.
    pub fn new(step: u64, pass: u32, examples: u64, metrics: &Metrics) -> Self {
        let Metrics { auc, logloss, prob_mean, real_mean, numbers, .. } = *metrics;
        Self { step, pass, examples, auc, logloss, prob_mean, real_mean, numbers, examples_per_s: f64::NAN }
    }

    /// The values of [`RunReport::metric_names`].
    fn values(&self) -> [f64; 2] {
        self.numbers.map_or([self.auc, self.logloss], |numbers| [numbers.rmse, numbers.mae])
    }
}

impl RunReport {
    /// A report in which nothing is known but the machine.
    pub(crate) fn without_results() -> RunReport {
        RunReport {
            name: String::new(),
            under_way: None,
            stopped: false,
            model: String::new(),
            started_unix_s: 0,
            train_s: 0.0,
            examples: 0,
            passes: 0,
            best_pass: 0,
            threads: 1,
            examples_per_s: f64::NAN,
            metrics: Scores::new().metrics(),
            valid: None,
            seen: None,
            plots_seen: false,
            train_curve: Vec::new(),
            valid_curve: Vec::new(),
            tests: Vec::new(),
            progressive_curve: Vec::new(),
            roc: Vec::new(),
            calibration: Vec::new(),
            warnings: Vec::new(),
            importance: None,
            tables: Vec::new(),
            features: Vec::new(),
            stages: Vec::new(),
            timed_examples: 0,
            calls: Vec::new(),
            servers: Vec::new(),
            saved: None,
            machine: Machine::detect(),
            memory_peak_bytes: 0,
            bad_rows: 0,
            valid_bad_rows: 0,
            bad_row_messages: Vec::new(),
            model_path: String::new(),
            eval_command: String::new(),
            config: String::new(),
        }
    }

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

/// An undefined number is null, as the area under a curve of one class.
fn number(value: Option<f64>) -> f64 {
    value.unwrap_or(f64::NAN)
}

fn roc_points<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<RocPoint>, D::Error> {
    let pairs: Vec<[Option<f64>; 2]> = Vec::deserialize(deserializer)?;
    let point =
        |[x, y]: [Option<f64>; 2]| RocPoint { false_positive_rate: number(x), true_positive_rate: number(y) };
    Ok(pairs.into_iter().map(point).collect())
}

fn calibration_bins<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CalibrationBin>, D::Error> {
    let triples: Vec<[Option<f64>; 3]> = Vec::deserialize(deserializer)?;
    let bin = |[predicted, real, weight]: [Option<f64>; 3]| CalibrationBin {
        prob_mean: number(predicted),
        real_mean: number(real),
        weight: number(weight),
    };
    Ok(triples.into_iter().map(bin).collect())
}
