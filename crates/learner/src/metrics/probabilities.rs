//! Rows that come with a probability instead of a logit, as other programs write predictions. Knows no model.

use super::{Scored, Scores};

/// The distance from 0 or 1 that the loss uses for probabilities of 0 and 1: the distance of 1 to the next number of
/// single precision, as scikit-learn's `log_loss`. Otherwise one wrong certain row would make the loss infinite.
const PROBABILITY_EPS: f64 = f32::EPSILON as f64;

impl Scores {
    /// Adds a row by its probability, from 0 to 1, as [`Scores::push`] by its logit. A set has rows of one kind. Its metrics are
    /// whole; its curves are for logits.
    pub fn push_probability(&mut self, probability: f32, label: f32, weight: f32) {
        let (p, is_positive, w) = (f64::from(probability), label > 0.5, f64::from(weight));
        let clipped = p.clamp(PROBABILITY_EPS, 1.0 - PROBABILITY_EPS);
        self.loss.add(-w * if is_positive { clipped.ln() } else { (-clipped).ln_1p() });
        self.prob.add(w * p);
        self.weight.add(w);
        self.positive.add(if is_positive { w } else { 0.0 });
        self.examples += 1;
        let (positive, negative) = if is_positive { (weight, 0.0) } else { (0.0, weight) };
        self.keep(Scored { score: probability, positive, negative });
    }
}

#[cfg(test)]
mod tests {
    use super::super::sigmoid;
    use super::*;

    /// The reference sums `-ln p` of the label's class in double precision, and counts pairs.
    #[test]
    fn metrics_of_probabilities_are_those_of_their_definition() {
        let rows: [(f32, f32, f32); 6] = [
            (0.9, 1.0, 1.0),
            (0.2, 0.0, 2.0),
            (0.2, 1.0, 0.5),
            (1.0, 0.0, 1.0),
            (0.0, 0.0, 3.0),
            (1.0, 1.0, 1.0),
        ];
        let mut scores = Scores::new();
        rows.iter().for_each(|&(p, y, w)| scores.push_probability(p, y, w));
        let found = scores.metrics();
        let (mut loss, mut weight, mut won, mut pairs) = (0.0, 0.0, 0.0, 0.0);
        for &(p, y, w) in &rows {
            let of_label = if y == 1.0 { f64::from(p) } else { 1.0 - f64::from(p) };
            loss -= f64::from(w) * of_label.clamp(PROBABILITY_EPS, 1.0 - PROBABILITY_EPS).ln();
            weight += f64::from(w);
            for &(other, label, other_weight) in &rows {
                if (y, label) == (1.0, 0.0) {
                    let both = f64::from(w * other_weight);
                    pairs += both;
                    won += both
                        * if p > other {
                            1.0
                        } else if p == other {
                            0.5
                        } else {
                            0.0
                        };
                }
            }
        }
        assert!((found.logloss - loss / weight).abs() < 1e-12, "{found:?}");
        assert!((found.auc - won / pairs).abs() < 1e-12, "{found:?}");
        assert!((found.prob_mean - (0.9 + 0.4 + 0.1 + 1.0 + 1.0) / weight).abs() < 1e-7, "{found:?}");
        assert_eq!(found.examples, 6);
    }

    #[test]
    fn probabilities_have_the_metrics_of_their_logits() {
        let (mut logits, mut probabilities) = (Scores::new(), Scores::new());
        for row in 0..1000_u32 {
            let (logit, label) = ((row * 37 % 101) as f32 / 10.0 - 5.0, f32::from(u8::from(row % 3 == 0)));
            logits.push(logit, label, 1.0);
            probabilities.push_probability(sigmoid(logit), label, 1.0);
        }
        let (one, other) = (logits.metrics(), probabilities.metrics());
        assert_eq!(one.auc, other.auc);
        assert!((one.logloss - other.logloss).abs() < 1e-6, "{one:?} {other:?}");
    }
}
