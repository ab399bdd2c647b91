//! How sure an AUC is: its standard error and confidence interval by DeLong et al. 1988 (Biometrics 44, 837-845), from ranks as
//! Sun and Xu 2014 (IEEE Signal Processing Letters 21, 1389-1393) compute it. Knows no model.
//!
//! A positive's component is the share of negatives below it, ties half; a negative's is the share of positives above it. The
//! variance of the AUC is that of the positives' components over their number plus that of the negatives' over theirs. With
//! weights, components and variances are weighted, and the squared weights say how many rows they are worth.

use serde::Serialize;

use super::sorted::{SortedParts, is_same_score};
use super::{Scored, Scores};

/// Standard normal quantile of a two-sided 95 % interval.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// An AUC's standard error and 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AucInterval {
    /// Standard error.
    pub standard_error: f64,
    /// Lower end, at least 0.
    pub low: f64,
    /// Upper end, at most 1.
    pub high: f64,
}

/// Sums over the rows of one class: of weights, of their squares, and of components times these.
#[derive(Clone, Copy, Debug, Default)]
struct ClassSums {
    weight: f64,
    weight_squares: f64,
    /// Of squared weights times component, and times its square; in units of the other class's weight.
    first: f64,
    second: f64,
}

impl ClassSums {
    fn add(&mut self, weight: f64, weight_squares: f64, component: f64) {
        self.weight += weight;
        self.weight_squares += weight_squares;
        self.first += weight_squares * component;
        self.second += weight_squares * component * component;
    }

    /// The class's part of the variance, given the mean component and the other class's weight; none of a single row.
    fn variance(&self, mean: f64, other: f64) -> Option<f64> {
        // The equivalent number of rows of weight 1.
        let rows = self.weight * self.weight / self.weight_squares;
        let (first, second) = (self.first / other, self.second / (other * other));
        let around_mean = second - 2.0 * mean * first + mean * mean * self.weight_squares;
        let unbiased = rows / (rows - 1.0);
        (rows > 1.0).then(|| around_mean.max(0.0) / (self.weight * self.weight) * unbiased)
    }
}

impl Scores {
    /// The AUC's 95 % confidence interval by DeLong's method.
    ///
    /// `None` with fewer than two rows of a class, with equal scores only, and with too many weighted rows to keep.
    #[must_use]
    pub fn auc_interval(&self) -> Option<AucInterval> {
        let (mut positives, mut negatives) = (ClassSums::default(), ClassSums::default());
        let (mut area, mut groups) = (0.0, 0);
        self.for_each_squared_group(|[p, n], [p_squares, n_squares]| {
            groups += 1;
            let (negatives_below, positives_below) = (negatives.weight, positives.weight);
            area += p * (negatives_below + n / 2.0);
            positives.add(p, p_squares, negatives_below + n / 2.0);
            // Its complement, the positives below, has the same variance.
            negatives.add(n, n_squares, positives_below + p / 2.0);
        })?;
        if groups < 2 {
            // All scores are alike: the components do not vary, however few the rows.
            return None;
        }
        let auc = area / (positives.weight * negatives.weight);
        let variance =
            positives.variance(auc, negatives.weight)? + negatives.variance(1.0 - auc, positives.weight)?;
        let standard_error = variance.sqrt();
        let half = NORMAL_95 * standard_error;
        let interval =
            AucInterval { standard_error, low: (auc - half).max(0.0), high: (auc + half).min(1.0) };
        standard_error.is_finite().then_some(interval)
    }

    /// Calls `f` for each group of equal score, ascending, with the weights of positives and negatives and the sums of their
    /// squares. None if the squares are not known.
    fn for_each_squared_group(&self, mut f: impl FnMut([f64; 2], [f64; 2])) -> Option<()> {
        if self.bins.is_some() || self.grouped {
            // Rows of weight 1 are their own squares; of others only the sums were kept.
            let is_unit = self.weight.value() == self.examples as f64;
            return is_unit.then(|| self.for_each_group(|_, p, n| f([p, n], [p, n])));
        }
        for part in SortedParts::of(&self.rows) {
            for group in part.chunk_by(is_same_score) {
                let sum = |of: fn(&Scored) -> f64| group.iter().map(of).sum::<f64>();
                let weights = [sum(|row| f64::from(row.positive)), sum(|row| f64::from(row.negative))];
                f(
                    weights,
                    [sum(|row| f64::from(row.positive).powi(2)), sum(|row| f64::from(row.negative).powi(2))],
                );
            }
        }
        Some(())
    }

    /// The least and the largest logit; of rows that were too many to keep, of their bins. None without rows.
    #[must_use]
    pub fn range(&self) -> Option<(f32, f32)> {
        let mut range: Option<(f32, f32)> = None;
        let mut add = |score: f32| {
            range = Some(range.map_or((score, score), |(least, most)| (least.min(score), most.max(score))));
        };
        match self.bins.is_some() {
            true => self.for_each_group(|score, _, _| add(score)),
            false => self.rows.iter().for_each(|row| add(row.score)),
        }
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The structural components by their definition, pair by pair; each row counted as often as its weight says.
    fn by_definition(rows: &[(f32, bool)]) -> (f64, f64) {
        let of = |class: bool| rows.iter().filter(move |row| row.1 == class).map(|row| row.0);
        let psi = |x: f32, y: f32| {
            if x > y {
                1.0
            } else if x == y {
                0.5
            } else {
                0.0
            }
        };
        let (m, n) = (of(true).count() as f64, of(false).count() as f64);
        let v10: Vec<f64> = of(true).map(|x| of(false).map(|y| psi(x, y)).sum::<f64>() / n).collect();
        let v01: Vec<f64> = of(false).map(|y| of(true).map(|x| psi(x, y)).sum::<f64>() / m).collect();
        let auc = v10.iter().sum::<f64>() / m;
        let variance = |v: &[f64]| v.iter().map(|v| (v - auc).powi(2)).sum::<f64>() / (v.len() as f64 - 1.0);
        (auc, (variance(&v10) / m + variance(&v01) / n).sqrt())
    }

    fn rows(count: u32, levels: u32) -> Vec<(f32, bool)> {
        let row = |i: u32| {
            let noise = i.wrapping_mul(2_654_435_761) >> 8;
            (
                (noise % levels) as f32 / levels as f32,
                i.wrapping_mul(40_503) % 97 < 20 + noise % levels * 40 / levels,
            )
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn the_interval_is_that_of_delong() {
        for (count, levels) in [(40, 5), (300, 1000), (1000, 30)] {
            let rows = rows(count, levels);
            let mut scores = Scores::new();
            let mut binned = Scores::with_exact_rows(1);
            for &(score, is_positive) in &rows {
                scores.push(score, f32::from(is_positive), 1.0);
                binned.push(score, f32::from(is_positive), 1.0);
            }
            let (auc, expected) = by_definition(&rows);
            for scores in [&scores, &binned] {
                let found = scores.auc_interval().unwrap();
                assert!((scores.metrics().auc - auc).abs() < 1e-12);
                assert!((found.standard_error - expected).abs() < 1e-12, "{found:?}, not {expected}");
                assert!((found.high - found.low - 2.0 * NORMAL_95 * expected).abs() < 1e-12, "{found:?}");
            }
        }
    }

    /// DeLong's components of six scores by hand: AUC 8/9, V10 = (1, 1, 2/3), V01 = (1, 1, 2/3), so variance 2 * (1/27) / 3.
    #[test]
    fn a_small_interval_by_hand() {
        let mut scores = Scores::new();
        for (score, label) in [(0.1, 0.0), (0.2, 0.0), (0.6, 0.0), (0.5, 1.0), (0.7, 1.0), (0.9, 1.0)] {
            scores.push(score, label, 1.0);
        }
        let found = scores.auc_interval().unwrap();
        assert!((found.standard_error - (2.0_f64 / 81.0).sqrt()).abs() < 1e-12, "{found:?}");
        assert_eq!(found.high, 1.0);
    }

    #[test]
    fn all_weights_twice_as_large_are_no_more_rows() {
        let rows = rows(500, 50);
        let of = |weight: f32| {
            let mut scores = Scores::new();
            rows.iter().for_each(|&(score, is_positive)| {
                scores.push(score, f32::from(is_positive), weight);
            });
            scores.auc_interval().unwrap().standard_error
        };
        assert!((of(1.0) - of(2.0)).abs() < 1e-12);
    }

    #[test]
    fn one_row_of_a_class_has_no_interval() {
        let mut scores = Scores::new();
        assert_eq!((scores.auc_interval(), scores.range()), (None, None));
        scores.push(0.5, 1.0, 1.0);
        scores.push(-0.5, 0.0, 1.0);
        scores.push(-0.25, 0.0, 1.0);
        assert_eq!((scores.auc_interval(), scores.range()), (None, Some((-0.5, 0.5))));
        let mut alike = Scores::new();
        (0..8).for_each(|i| {
            alike.push(0.25, f32::from(i % 2 == 0), 1.0);
        });
        assert_eq!((alike.auc_interval(), alike.range()), (None, Some((0.25, 0.25))));
    }
}
