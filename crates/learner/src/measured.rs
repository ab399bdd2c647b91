//! Which rows metrics are of: rows that the model had not seen, or rows that it had learned from. Knows no metric's formula.

use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;

/// Rows that metrics are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredOn {
    /// Rows of the validation files.
    Valid,
    /// Training rows of the first pass, each scored before it was learned from.
    Train,
    /// Rows of a test set.
    Test,
    /// Training (seen) data: rows of a later pass, which an earlier pass has learned from. Such metrics say nothing of new rows.
    TrainSeen,
}

impl MeasuredOn {
    /// The rows that progressive metrics of a pass (first is 1) are measured on.
    #[must_use]
    pub fn of_pass(pass: u64) -> Self {
        if pass <= 1 { MeasuredOn::Train } else { MeasuredOn::TrainSeen }
    }

    /// The value's name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            MeasuredOn::Valid => "valid",
            MeasuredOn::Train => "train",
            MeasuredOn::Test => "test",
            MeasuredOn::TrainSeen => "train_seen",
        }
    }
}

/// Metrics of the saved model on a test set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestMetrics {
    /// Name of the set.
    pub name: String,
    /// Its files.
    pub data: String,
    /// Metrics over their rows.
    #[serde(flatten)]
    pub metrics: Metrics,
}

/// Metrics over training (seen) data: the rows of a pass after the first one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenMetrics {
    /// The pass, first is 1; the last one, or the one under way.
    pub pass: u64,
    /// Its metrics.
    #[serde(flatten)]
    pub metrics: Metrics,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_of_the_first_pass_are_new() {
        for (pass, expected) in
            [(1, MeasuredOn::Train), (2, MeasuredOn::TrainSeen), (9, MeasuredOn::TrainSeen)]
        {
            assert_eq!(MeasuredOn::of_pass(pass), expected);
            assert_eq!(serde_json::to_value(expected).unwrap(), expected.name());
        }
    }
}
