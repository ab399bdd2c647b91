//! Metrics of a regression, whose labels and predictions are numbers: sums of errors. Rows are not kept. Knows no model.

use serde::{Deserialize, Serialize};

use super::{Metrics, Scores};
use crate::sum::Sum;

/// The errors of a regression's predictions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NumberMetrics {
    /// Weighted mean of the squared errors.
    pub mse: f64,
    /// Root of the mean squared error.
    pub rmse: f64,
    /// Weighted mean of the absolute errors.
    pub mae: f64,
}

/// Weighted sums of errors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NumberSums {
    squared: Sum,
    absolute: Sum,
}

impl NumberSums {
    /// Both parts of both sums.
    pub(super) fn parts(&self) -> [f64; 4] {
        let ([a, b], [c, d]) = (self.squared.parts(), self.absolute.parts());
        [a, b, c, d]
    }

    pub(super) fn of_parts([a, b, c, d]: [f64; 4]) -> Self {
        NumberSums { squared: Sum::of_parts(a, b), absolute: Sum::of_parts(c, d) }
    }
}

impl Scores {
    /// No rows yet, and those that come are of a regression.
    #[must_use]
    pub fn of_numbers() -> Self {
        Scores { numbers: Some(NumberSums::default()), ..Self::default() }
    }

    /// Adds a row of a regression: its prediction, its label and its weight. A set has rows of one kind.
    #[inline]
    pub fn push_number(&mut self, prediction: f32, label: f32, weight: f32) {
        let (found, wanted, w) = (f64::from(prediction), f64::from(label), f64::from(weight));
        let numbers = self.numbers.get_or_insert_default();
        numbers.squared.add(w * (found - wanted) * (found - wanted));
        numbers.absolute.add(w * (found - wanted).abs());
        self.prob.add(w * found);
        self.positive.add(w * wanted);
        self.weight.add(w);
        self.examples += 1;
    }

    pub(super) fn merge_numbers(&mut self, other: &Scores) {
        if let Some(theirs) = &other.numbers {
            let mine = self.numbers.get_or_insert_default();
            mine.squared.merge(theirs.squared);
            mine.absolute.merge(theirs.absolute);
        }
    }

    pub(super) fn metrics_of_numbers(&self, numbers: &NumberSums) -> Metrics {
        let weight = self.weight.value();
        let mse = numbers.squared.value() / weight;
        Metrics {
            examples: self.examples,
            auc: f64::NAN,
            logloss: f64::NAN,
            prob_mean: self.prob.value() / weight,
            real_mean: self.positive.value() / weight,
            normalized_entropy: f64::NAN,
            auc_exact: true,
            numbers: Some(NumberMetrics { mse, rmse: mse.sqrt(), mae: numbers.absolute.value() / weight }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::BinnedScores;

    /// By hand: errors of 1, -2 and 0.5 with weights 1, 2 and 4.
    #[test]
    fn errors_are_those_of_their_definition() {
        let rows = [(3.0, 2.0, 1.0), (-4.0, -2.0, 2.0), (0.5, 0.0, 4.0)];
        let (mut whole, mut first, mut second) = (Scores::new(), Scores::of_numbers(), Scores::new());
        let mut binned = [BinnedScores::of_numbers(), BinnedScores::of_numbers(), BinnedScores::of_numbers()];
        for (at, (found, wanted, weight)) in rows.into_iter().enumerate() {
            whole.push_number(found, wanted, weight);
            if at == 0 { &mut first } else { &mut second }.push_number(found, wanted, weight);
            binned[at % 2].push_number(found, wanted, weight);
        }
        first.merge(&second);
        let saved = Scores::from_bytes(&whole.to_bytes(), 1).unwrap();
        let mut addends = vec![0.0; binned[2].to_addends().len()];
        for one in &binned {
            addends.iter_mut().zip(one.to_addends()).for_each(|(sum, part)| *sum += part);
        }
        let added = BinnedScores::from_addends(&addends).unwrap().to_scores();
        for scores in [&whole, &first, &saved, &added] {
            let metrics = scores.metrics();
            let numbers = metrics.numbers.unwrap();
            assert_eq!((numbers.mse, numbers.mae), (10.0 / 7.0, 7.0 / 7.0));
            assert_eq!(numbers.rmse, (10.0_f64 / 7.0).sqrt());
            assert_eq!((metrics.prob_mean, metrics.real_mean), (-3.0 / 7.0, -2.0 / 7.0));
            assert_eq!((metrics.examples, metrics.auc.is_nan()), (3, true));
        }
        whole.clear();
        assert!(whole.is_empty() && whole.metrics().numbers.is_some());
        let json = serde_json::to_value(first.metrics()).unwrap();
        assert_eq!((json["mae"].as_f64(), json["auc"].is_null()), (Some(1.0), true));
        assert_eq!(serde_json::from_value::<Metrics>(json).unwrap().numbers, first.metrics().numbers);
        // Of classes there are none.
        let json = serde_json::to_value(Scores::new().metrics()).unwrap();
        assert!(json.get("mae").is_none() && json.get("numbers").is_none());
        assert_eq!(serde_json::from_value::<Metrics>(json).unwrap().numbers, None);
    }
}
