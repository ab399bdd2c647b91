//! Progressive validation: new data is scored by the model of the day before, then learned. Knows no training loop.

use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;

/// Most points of a curve that are kept: more than two years of days.
const POINTS_MAX: usize = 1024;

/// Metrics of the training files of one run, scored before the run learned from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressivePoint {
    /// Name of the run.
    pub run: String,
    /// The files.
    pub data: String,
    /// Metrics over their rows.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// Adds a point; beyond the limit the oldest goes.
pub(crate) fn add_point(curve: &mut Vec<ProgressivePoint>, point: ProgressivePoint) {
    if curve.len() >= POINTS_MAX {
        curve.drain(..=curve.len() - POINTS_MAX);
    }
    curve.push(point);
}
