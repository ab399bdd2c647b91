//! The losses: from a model's output to a prediction, and to the derivative that training needs. Knows no model.

use crate::config::{Loss, Train};
use crate::metrics::{BinnedScores, Scores, probability, sigmoid};

impl Train {
    /// Derivative of a row's logistic loss by its logit, from the probability.
    #[inline]
    fn logistic_error(&self, probability: f32, label: f32, weight: f32) -> f32 {
        let class = if label > 0.5 { self.class_weight } else { 1.0 };
        weight * class * (probability - label)
    }

    /// Adds a row to the scores, and returns the derivative of its loss by the output of the model.
    #[inline]
    pub(crate) fn score(&self, output: f32, label: f32, weight: f32, scores: &mut Scores) -> f32 {
        match self.loss {
            Loss::Logloss => self.logistic_error(scores.push(output, label, weight), label, weight),
            Loss::Mse => {
                scores.push_number(output, label, weight);
                squared_error(output, label, weight)
            }
        }
    }

    /// Derivative of a row's loss by the output of the model.
    #[inline]
    pub(crate) fn error(&self, output: f32, label: f32, weight: f32) -> f32 {
        match self.loss {
            Loss::Logloss => self.logistic_error(probability(output), label, weight),
            Loss::Mse => squared_error(output, label, weight),
        }
    }
}

/// Derivative of `weight (output - label)^2`.
#[inline]
fn squared_error(output: f32, label: f32, weight: f32) -> f32 {
    2.0 * weight * (output - label)
}

impl Loss {
    /// The prediction for an output of the model: a probability, or the output itself.
    #[inline]
    pub(crate) fn prediction(self, output: f32) -> f32 {
        match self {
            Loss::Logloss => sigmoid(output),
            Loss::Mse => output,
        }
    }

    /// An empty collection of scores that workers add up.
    pub(crate) fn binned_scores(self) -> BinnedScores {
        match self {
            Loss::Logloss => BinnedScores::default(),
            Loss::Mse => BinnedScores::of_numbers(),
        }
    }

    /// Adds a row to scores that workers add up.
    #[inline]
    pub(crate) fn note(self, output: f32, label: f32, weight: f32, scores: &mut BinnedScores) {
        match self {
            Loss::Logloss => scores.push(output, label, weight),
            Loss::Mse => scores.push_number(output, label, weight),
        }
    }
}
