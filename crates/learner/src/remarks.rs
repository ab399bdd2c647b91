//! Warnings about metrics in words: predictions that are all alike, worse than none, or far off. Knows no model.

use crate::metrics::{Metrics, Scores, probability};
use crate::numbers::{about, count};

/// Predictions are far off if their mean is this many times the share of positives, or the inverse of it.
const CALIBRATION_OFF: f64 = 2.0;
/// A model is worse than none if its logloss is this many times that of predicting the share of positives for every row.
const WORSE_THAN_NONE: f64 = 2.0;

/// Sentences about measured predictions; none if nothing is wrong.
#[must_use]
pub fn remarks(metrics: &Metrics, scores: Option<&Scores>) -> Vec<String> {
    let mut found = Vec::new();
    if metrics.numbers.is_some() {
        // Numbers are not compared with a share of positives, and of theirs no range is kept.
        return found;
    }
    let range = scores.and_then(Scores::range).map(|(least, most)| (probability(least), probability(most)));
    if let Some((least, most)) = range
        && least == most
        && metrics.examples > 1
    {
        found.push(format!(
            "all {} predictions are {}: the model tells no row from another; look at the features and the learning rate",
            count(metrics.examples),
            about(f64::from(least))
        ));
    }
    if metrics.normalized_entropy >= WORSE_THAN_NONE {
        found.push(format!(
            "logloss is {} times that of predicting the share of positives for every row: lower the learning rate, or bound \
             large features (type = \"log\" or \"quantile\")",
            about(metrics.normalized_entropy)
        ));
    }
    let (predicted, real) = (metrics.prob_mean, metrics.real_mean);
    let off = predicted / real;
    if real > 0.0 && real < 1.0 && !(CALIBRATION_OFF.recip()..=CALIBRATION_OFF).contains(&off) {
        let (times, what) = if off > 1.0 { (off, "high") } else { (off.recip(), "low") };
        let times = if times.is_finite() {
            format!("{} times too {what}", about(times))
        } else {
            format!("far too {what}")
        };
        found.push(format!(
            "predictions are {times} on average: predicted {}, real {}",
            about(predicted),
            about(real)
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(f32, f32)]) -> Vec<String> {
        let mut scores = Scores::new();
        rows.iter().for_each(|(logit, label)| {
            scores.push(*logit, *label, 1.0);
        });
        remarks(&scores.metrics(), Some(&scores))
    }

    #[test]
    fn predictions_that_are_alike_or_far_off_are_told() {
        let check = |rows: &[(f32, f32)], expected: &[&str]| {
            let found = of(rows);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            found
                .iter()
                .zip(expected)
                .for_each(|(found, expected)| assert!(found.contains(expected), "{found}"));
        };
        check(&[(-1.0, 0.0), (1.0, 1.0)], &[]);
        check(&[(0.0, 0.0), (0.0, 1.0)], &["all 2 predictions are 0.500"]);
        // Other logits, but as probabilities they are all 0.
        check(&[(-1e6, 0.0), (-2e6, 1.0)], &["all 2 predictions are 0.000", "times that of", "far too low"]);
        check(&[(0.5, 0.0), (0.4, 0.0), (0.6, 0.0), (0.7, 1.0)], &["predictions are 2.5"]);
        check(&[(-2.0, 0.0), (-2.1, 1.0), (-1.9, 1.0)], &["logloss is ", "times too low"]);
        check(&[(1.0, 1.0)], &[]);
    }
}
