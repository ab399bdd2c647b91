//! Where a run stands, as its checkpoint keeps it beside the tables: enough to go on as if it had not stopped.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sanderling_store::Checkpoint;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Train};
use crate::distributed::Algorithm;
use crate::error::LearnError;
use crate::metrics::{Metrics, Scores};
use crate::progressive::ProgressivePoint;
use crate::report::add_point;
use crate::table_counters::TableCounters;

/// The state inside a checkpoint.
pub(crate) const STATE_BLOB: &str = "run.json";
/// The progressive scores of the pass under way.
pub(crate) const SCORES_BLOB: &str = "scores.bin";
/// Progressive scores of a pass are exact up to this many rows; beyond, AUC is taken over bins.
pub(crate) const PROGRESSIVE_ROWS_MAX: usize = 1 << 22;
/// Bytes of the training files, if they can be told.
pub(crate) fn data_bytes(config: &Config) -> Result<Option<u64>, LearnError> {
    Ok(sanderling_formats::input::expand(&config.data.train.0)?.iter().map(|file| file.bytes).sum())
}

/// Where a run stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunState {
    /// Passes done.
    pub pass: u64,
    /// Rows of the next pass that were used already.
    pub used_rows: u64,
    /// Steps done.
    pub step: u64,
    /// Rows trained on, over all passes.
    pub examples: u64,
    /// Seconds spent training, without validation and saving.
    pub train_seconds: f64,
    /// The best validation and its pass (first is 1).
    pub best: Option<(u64, Metrics)>,
    /// Passes since then.
    pub since_best: u32,
    /// Validations without improvement so far, for the plateau schedule.
    pub plateaus: u32,
    /// Whether the last pass done is still to be validated and saved.
    pub pass_to_judge: bool,
    /// Training metrics of the last whole pass: progressive if it was the first, else of seen rows.
    pub progressive: Option<Metrics>,
    /// Progressive metrics of the first pass, once it is over.
    #[serde(default)]
    pub first_pass: Option<Metrics>,
    /// Bad rows left out, by the last pass.
    pub bad_rows: u64,
    /// And by the last validation.
    #[serde(default)]
    pub valid_bad_rows: u64,
    /// The run's number, with which its folder was marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<u64>,
    /// The number of the save, which kept tables note.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save: Option<u64>,
    /// Bytes of the training files, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes: Option<u64>,
    /// The algorithm, if it is a job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Progressive validation: one point per run that led to this model and predicted its data first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progressive_curve: Vec<ProgressivePoint>,
    /// Whether the last point is of this run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub predicted_first: bool,
    /// Fates of keys by table, for tables in this process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub table_counters: BTreeMap<String, TableCounters>,
    /// The model that the run began from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<PathBuf>,
    /// Learning curve of training: (step, examples, pass, metrics).
    pub train_curve: Vec<(u64, u64, u64, Metrics)>,
    /// Learning curve of validation.
    pub valid_curve: Vec<(u64, u64, u64, Metrics)>,
}

impl RunState {
    /// Whether all passes are done and judged, or enough of them brought nothing.
    pub(crate) fn is_whole(&self, train: &Train) -> bool {
        !self.pass_to_judge && (self.pass >= train.passes || self.stopped_early(train))
    }

    /// Whether so many passes brought nothing that the run ends.
    pub(crate) fn stopped_early(&self, train: &Train) -> bool {
        train.early_stop > 0 && self.since_best >= train.early_stop
    }

    /// Whether the tables now are those of the best validation, or nothing was validated.
    pub(crate) fn is_best(&self) -> bool {
        self.best.is_none_or(|(pass, _)| pass == self.pass && self.used_rows == 0)
    }

    /// Adds a point of the training curve; when there are too many, every second one goes.
    pub(crate) fn add_train_point(&mut self, metrics: Metrics) {
        let point = (self.step, self.examples, self.pass + 1, metrics);
        add_point(&mut self.train_curve, point);
    }

    /// The state as blobs of a checkpoint.
    pub(crate) fn to_blobs(&self, pass_scores: &Scores) -> Vec<(&'static str, Vec<u8>)> {
        // A struct of numbers has a JSON form.
        let state = serde_json::to_vec_pretty(self).unwrap_or_default();
        vec![(STATE_BLOB, state), (SCORES_BLOB, pass_scores.to_bytes())]
    }

    /// Reads the state and the scores of the pass under way.
    pub(crate) fn from_checkpoint(
        checkpoint: &Checkpoint,
        path: &std::path::Path,
    ) -> Result<(Self, Scores), LearnError> {
        let bad = |reason: String| LearnError::Model { path: path.into(), reason };
        let mut state: RunState = serde_json::from_slice(&checkpoint.blob(STATE_BLOB)?)
            .map_err(|error| bad(format!("{STATE_BLOB}: {error}")))?;
        if state.pass == 1 {
            // Earlier versions saved the last pass alone.
            state.first_pass = state.first_pass.or(state.progressive);
        }
        let scores = Scores::from_bytes(&checkpoint.blob(SCORES_BLOB)?, PROGRESSIVE_ROWS_MAX)
            .ok_or_else(|| bad(format!("{SCORES_BLOB}: not what a run saves")))?;
        Ok((state, scores))
    }
}
