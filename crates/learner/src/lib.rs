//! Logistic and linear regression, factorization machines and field-aware ones: the training loop, metrics, the saved model, the report.
//!
//! A run reads minibatches from the hub, pulls their rows through the client, computes, and pushes gradients. The
//! crate knows no file format, no socket and no terminal.

mod error;
pub use error::LearnError;

pub mod schedule;

mod json;
pub use json::from_json;

pub mod config;
pub use config::Config;

mod numbers;

mod sum;

mod threads;

pub mod metrics;
pub use metrics::{AucInterval, Metrics, NumberMetrics, Scores};

mod load_beside;
mod loss;

mod progressive;
pub use progressive::ProgressivePoint;

mod measured;
pub use measured::{MeasuredOn, SeenMetrics, TestMetrics};

mod remarks;
pub use remarks::remarks;

mod known_keys;
pub use known_keys::KnownKeys;

mod importance;
pub use importance::{FeatureImportance, Importance};

mod magnitude;
pub use magnitude::{LargeValues, SWAMPS};

mod compute;

mod model_diagnostics;
pub use model_diagnostics::is_deep;

mod deep_model;
pub use deep_model::DeepModel;

mod names;
pub use names::{NameCollector, Names};

mod key_drift;
pub use key_drift::KeyDrift;

mod feature_snapshots;
pub use feature_snapshots::{FEATURES_BLOB, feature_snapshots};
pub use sanderling_client::{FeatureSnapshots, FeatureStats};

mod reading;
pub use reading::{Reading, save_reading, saved_names};

mod model;
pub use model::{BIAS_TABLE, Model, Purpose};

mod kept;

mod saved_rows;
pub use saved_rows::SavedRows;

mod similar;
pub use similar::{Nearest, Neighbour, Similarity, dot, factors_of};

mod evaluate;
pub use evaluate::{Evaluation, Predicted, evaluate, predict};

mod line_rows;
pub use line_rows::LINE_COLUMN;

mod row_scorer;
pub use row_scorer::RowScorer;

mod event;
pub use event::{Event, PassLine, PredictedFirstLine, ScanProgress, StepLine, TestLine, ValidLine};

mod state;
pub use state::RunState;

mod worker;

mod train;

pub mod distributed;

mod run_marker;

mod table_summary;
pub use table_summary::{name_keys, quick_table_summary, table_summary};

mod table_counters;
pub use table_counters::TableCounters;

mod metrics_log;

mod live;
pub use live::LiveRun;

mod run_record;
pub use run_record::read_record;

mod run;
pub use run::{CALIBRATION_BINS, RESTORES_MAX, ROC_POINTS, RunOptions, Summary, train};

mod timing;
pub use timing::{PassTotal, Timing};

pub mod report;
