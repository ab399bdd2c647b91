//! Exact metrics over scored rows: AUC with ties, logloss, calibration, and the points of the ROC and calibration plots;
//! of a regression the errors of its numbers. Knows no model: a row is a logit, a label and a weight.

use serde::{Deserialize, Serialize};

use crate::sum::Sum;

mod binned;
mod probabilities;
pub(crate) use binned::BinnedScores;

mod numbers;
pub use numbers::NumberMetrics;
use numbers::NumberSums;

mod interval;
pub use interval::AucInterval;

mod sorted;
use sorted::{SortedParts, is_same_score, sums};

/// Up to this many rows, in equal parts over the threads that score them, AUC is exact. Beyond it, rows fall into
/// [`BINS`] bins of their score and ties within a bin count half, which bounds memory; [`Metrics::auc_exact`] says so.
pub const EXACT_ROWS_MAX: usize = 1 << 27;
/// Bins of scores beyond [`EXACT_ROWS_MAX`]: the upper 20 bits of the score as an ordered integer.
pub const BINS: usize = 1 << 20;

/// The metrics of a set of rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Rows.
    pub examples: u64,
    /// Area under the ROC curve, ties count half, weighted; NaN (JSON: null) with one class only, and of a regression.
    #[serde(with = "nan_as_null")]
    pub auc: f64,
    /// Weighted mean of `-(y ln p + (1 - y) ln(1 - p))`, natural logarithm.
    #[serde(with = "nan_as_null")]
    pub logloss: f64,
    /// Weighted mean of the predicted probabilities, or numbers.
    #[serde(with = "nan_as_null")]
    pub prob_mean: f64,
    /// Weighted share of positives, or mean of the labels of a regression.
    #[serde(with = "nan_as_null")]
    pub real_mean: f64,
    /// `logloss` over that of predicting `real_mean` for every row (He et al. 2014): 1 is no better than knowing the
    /// share of positives, NaN (JSON: null) with one class only. Runs that were saved before there was one have none.
    #[serde(with = "nan_as_null", default = "not_measured")]
    pub normalized_entropy: f64,
    /// Whether `auc` is exact (see [`EXACT_ROWS_MAX`]).
    pub auc_exact: bool,
    /// The errors of a regression.
    #[serde(flatten)]
    pub numbers: Option<NumberMetrics>,
}

pub(crate) fn not_measured() -> f64 {
    f64::NAN
}

/// Logistic loss of predicting the share of positives for every row, natural logarithm; 0 with one class only.
fn base_entropy(positives: f64) -> f64 {
    let part = |share: f64| if share > 0.0 { -share * share.ln() } else { 0.0 };
    part(positives) + part(1.0 - positives)
}

/// JSON has no NaN: it is written as null.
pub(crate) mod nan_as_null {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.serialize_none() }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
    }
}

/// A point of the ROC curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RocPoint {
    /// Share of negatives at or above the threshold.
    pub false_positive_rate: f64,
    /// Share of positives at or above the threshold.
    pub true_positive_rate: f64,
}

/// A bin of the calibration plot: rows of similar prediction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CalibrationBin {
    /// Weighted mean prediction.
    pub prob_mean: f64,
    /// Weighted share of positives.
    pub real_mean: f64,
    /// Weight of the rows in it.
    pub weight: f64,
}

/// `1 / (1 + exp(-x))`.
#[inline]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The log loss of one row, as [`Scores`] computes it.
#[inline]
pub(crate) fn probability(logit: f32) -> f32 {
    let e = (-f64::from(logit).abs()).exp();
    (if logit >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }) as f32
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Scored {
    score: f32,
    /// Weights of the positives and of the negatives with this score.
    positive: f32,
    negative: f32,
}

/// Scored rows, collected one by one and merged across threads.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    rows: Vec<Scored>,
    bins: Option<Vec<[f64; 2]>>,
    examples: u64,
    weight: Sum,
    positive: Sum,
    loss: Sum,
    prob: Sum,
    exact_rows_max: Option<usize>,
    /// Of a regression, whose rows are not kept.
    numbers: Option<NumberSums>,
    /// Whether a row stands for several whose scores differ a little.
    grouped: bool,
}

impl Scores {
    /// No rows yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Scores whose AUC is exact up to so many rows only.
    #[must_use]
    pub fn with_exact_rows(exact_rows_max: usize) -> Self {
        Scores { exact_rows_max: Some(exact_rows_max), ..Self::default() }
    }

    /// Room for so many rows, taken once rather than by doubling.
    #[must_use]
    pub(crate) fn with_room(rows: usize) -> Self {
        Scores { rows: Vec::with_capacity(rows), ..Self::default() }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.examples
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.examples == 0
    }

    /// Adds a row: its logit, its label (above one half is positive) and its weight. Returns the row's probability.
    #[inline]
    pub fn push(&mut self, logit: f32, label: f32, weight: f32) -> f32 {
        let probability = self.add(logit, label, weight);
        let (positive, negative) = if label > 0.5 { (weight, 0.0) } else { (0.0, weight) };
        self.keep(Scored { score: logit, positive, negative });
        probability
    }

    /// Adds a row to all but those that are kept for the order of scores. Returns its probability.
    #[inline]
    fn add(&mut self, logit: f32, label: f32, weight: f32) -> f32 {
        let (x, y, w) = (f64::from(logit), label > 0.5, f64::from(weight));
        // ln(1 + e^-|x|) never overflows; the loss of a positive is softplus(-x), of a negative softplus(x).
        let e = (-x.abs()).exp();
        let wrong_side = if y { (-x).max(0.0) } else { x.max(0.0) };
        let probability = if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
        // Below e = 1e-16 this ln gives 0 where ln_1p would give e: nothing, in a sum of losses.
        self.loss.add(w * (wrong_side + (1.0 + e).ln()));
        self.prob.add(w * probability);
        self.weight.add(w);
        self.positive.add(if y { w } else { 0.0 });
        self.examples += 1;
        probability as f32
    }

    /// Adds all rows of another set.
    pub fn merge(&mut self, other: &Scores) {
        self.examples += other.examples;
        self.grouped |= other.grouped;
        self.weight.merge(other.weight);
        self.positive.merge(other.positive);
        self.loss.merge(other.loss);
        self.prob.merge(other.prob);
        self.merge_numbers(other);
        if self.bins.is_none()
            && self.rows.len() + other.rows.len() <= self.exact_rows_max.unwrap_or(EXACT_ROWS_MAX)
        {
            self.rows.extend_from_slice(&other.rows);
        } else {
            other.rows.iter().for_each(|row| self.keep(*row));
        }
        if let Some(theirs) = &other.bins {
            self.fold();
            for (mine, theirs) in self.bins.iter_mut().flatten().zip(theirs) {
                mine[0] += theirs[0];
                mine[1] += theirs[1];
            }
        }
    }

    /// Forgets all rows, keeps the allocation.
    pub fn clear(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        let numbers = self.numbers.map(|_| NumberSums::default());
        *self = Scores { rows, numbers, exact_rows_max: self.exact_rows_max, ..Self::default() };
        self.rows.clear();
    }

    fn keep(&mut self, row: Scored) {
        if self.bins.is_none() && self.rows.len() == self.exact_rows_max.unwrap_or(EXACT_ROWS_MAX) {
            self.fold();
        }
        match &mut self.bins {
            Some(bins) => add_to_bin(bins, row),
            None => self.rows.push(row),
        }
    }

    /// Gives up exact scores for bins.
    fn fold(&mut self) {
        let bins = self.bins.get_or_insert_with(|| vec![[0.0; 2]; BINS]);
        for row in std::mem::take(&mut self.rows) {
            add_to_bin(bins, row);
        }
    }

    /// Calls `f` for each group of equal score, ascending: score, weight of positives, weight of negatives.
    fn for_each_group(&self, mut f: impl FnMut(f32, f64, f64)) {
        if let Some(bins) = &self.bins {
            let filled = bins.iter().enumerate().filter(|(_, [p, n])| p + n > 0.0);
            return filled.for_each(|(bin, [p, n])| f(score_of_bin(bin), *p, *n));
        }
        for part in SortedParts::of(&self.rows) {
            part.chunk_by(is_same_score).for_each(|group| {
                let (score, positive, negative) = sums(group);
                f(score, positive, negative);
            });
        }
    }

    /// Calls `f` for each group like [`Scores::for_each_group`], descending.
    fn for_each_group_down(&self, mut f: impl FnMut(f32, f64, f64)) {
        if let Some(bins) = &self.bins {
            let filled = bins.iter().enumerate().rev().filter(|(_, [p, n])| p + n > 0.0);
            return filled.for_each(|(bin, [p, n])| f(score_of_bin(bin), *p, *n));
        }
        for part in SortedParts::of(&self.rows).rev() {
            let groups: Vec<_> = part.chunk_by(is_same_score).map(sums).collect();
            groups.into_iter().rev().for_each(|(score, positive, negative)| f(score, positive, negative));
        }
    }

    /// The metrics of all rows.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        if let Some(numbers) = &self.numbers {
            return self.metrics_of_numbers(numbers);
        }
        let (mut below, mut area, mut positives) = (0.0, 0.0, 0.0);
        self.for_each_group(|_, positive, negative| {
            area += positive * (below + negative / 2.0);
            below += negative;
            positives += positive;
        });
        let weight = self.weight.value();
        let (logloss, real_mean) = (self.loss.value() / weight, self.positive.value() / weight);
        let base = base_entropy(real_mean);
        Metrics {
            examples: self.examples,
            auc: area / (positives * below),
            logloss,
            prob_mean: self.prob.value() / weight,
            real_mean,
            normalized_entropy: if base > 0.0 { logloss / base } else { f64::NAN },
            auc_exact: self.bins.is_none() && !self.grouped,
            numbers: None,
        }
    }

    /// The ROC curve from (0, 0) to (1, 1), thinned to at most about `points` points.
    #[must_use]
    pub fn roc(&self, points: usize) -> Vec<RocPoint> {
        let (mut positives, mut negatives) = (0.0, 0.0);
        self.for_each_group(|_, positive, negative| {
            positives += positive;
            negatives += negative;
        });
        let step = 1.0 / points.max(1) as f64;
        let mut curve = vec![RocPoint { false_positive_rate: 0.0, true_positive_rate: 0.0 }];
        let (mut above_positive, mut above_negative) = (0.0, 0.0);
        // The last point, if it is too near the one before it to be on the curve yet.
        let mut left_out = None;
        self.for_each_group_down(|_, positive, negative| {
            above_positive += positive;
            above_negative += negative;
            let point = RocPoint {
                false_positive_rate: above_negative / negatives,
                true_positive_rate: above_positive / positives,
            };
            let last = curve[curve.len() - 1];
            let moved = (point.false_positive_rate - last.false_positive_rate)
                + (point.true_positive_rate - last.true_positive_rate);
            left_out = (moved < step).then_some(point);
            if moved >= step {
                curve.push(point);
            }
        });
        curve.extend(left_out);
        curve
    }

    /// Calibration in bins of equal weight, by ascending prediction.
    #[must_use]
    pub fn calibration(&self, bins: usize) -> Vec<CalibrationBin> {
        let per_bin = self.weight.value() / bins.max(1) as f64;
        let mut result: Vec<CalibrationBin> = Vec::new();
        let (mut weight, mut prob, mut real) = (0.0, 0.0, 0.0);
        let bin = |weight: f64, prob: f64, real: f64| CalibrationBin {
            prob_mean: prob / weight,
            real_mean: real / weight,
            weight,
        };
        self.for_each_group(|score, positive, negative| {
            weight += positive + negative;
            prob += f64::from(sigmoid(score)) * (positive + negative);
            real += positive;
            if weight > 0.0 && weight >= per_bin {
                result.push(bin(weight, prob, real));
                (weight, prob, real) = (0.0, 0.0, 0.0);
            }
        });
        if weight > 0.0 {
            result.push(bin(weight, prob, real));
        }
        result
    }
}

/// The score's place in the order of all floats, as an integer.
fn rank(score: f32) -> u32 {
    let bits = score.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// The bin of a score: the upper bits of its rank.
fn add_to_bin(bins: &mut [[f64; 2]], row: Scored) {
    let bin = &mut bins[(rank(row.score) >> (32 - BINS.ilog2())) as usize];
    bin[0] += f64::from(row.positive);
    bin[1] += f64::from(row.negative);
}

fn score_of_bin(bin: usize) -> f32 {
    let ordered = (bin as u32) << (32 - BINS.ilog2());
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// Bytes before the rows or bins of a saved set: kind, examples and four sums of two parts.
const SAVED_HEAD_BYTES: usize = 80;
/// Bytes of the sums of a regression.
const NUMBERS_BYTES: usize = 32;

impl Scores {
    /// The set as bytes (little endian), for a run that is resumed.
    ///
    /// Format: 0 or 1 for rows or bins, examples, the two parts of four sums, then 12 bytes per row or 16 per bin. 2:
    /// rows that stand for several; 3: the two parts of the sums of a regression's squared and absolute errors.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SAVED_HEAD_BYTES + self.rows.len() * 12);
        let kind = match (&self.numbers, &self.bins) {
            (Some(_), _) => 3_u64,
            (None, Some(_)) => 1,
            (None, None) => 2 * u64::from(self.grouped),
        };
        bytes.extend(kind.to_le_bytes());
        bytes.extend(self.examples.to_le_bytes());
        for sum in [self.weight, self.positive, self.loss, self.prob] {
            sum.parts().iter().for_each(|part| bytes.extend(part.to_le_bytes()));
        }
        for part in self.numbers.iter().flat_map(NumberSums::parts) {
            bytes.extend(part.to_le_bytes());
        }
        for row in &self.rows {
            [row.score, row.positive, row.negative].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        for bin in self.bins.iter().flatten() {
            bin.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        bytes
    }

    /// Reads what [`Scores::to_bytes`] wrote; None if it is anything else.
    #[must_use]
    pub fn from_bytes(bytes: &[u8], exact_rows_max: usize) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let part = |index: usize| word(16 + 8 * index).map(f64::from_bits);
        let sum = |index: usize| Some(Sum::of_parts(part(2 * index)?, part(2 * index + 1)?));
        let body = bytes.get(SAVED_HEAD_BYTES..)?;
        let mut scores = Scores {
            examples: word(8)?,
            weight: sum(0)?,
            positive: sum(1)?,
            loss: sum(2)?,
            prob: sum(3)?,
            ..Scores::with_exact_rows(exact_rows_max)
        };
        let float = |chunk: &[u8]| chunk.try_into().map_or(0.0, f32::from_le_bytes);
        let double = |chunk: &[u8]| chunk.try_into().map_or(0.0, f64::from_le_bytes);
        match word(0)? {
            kind @ (0 | 2) if body.len() % 12 == 0 => {
                scores.grouped = kind == 2;
                scores.rows.extend(body.chunks_exact(12).map(|row| Scored {
                    score: float(&row[..4]),
                    positive: float(&row[4..8]),
                    negative: float(&row[8..]),
                }));
            }
            1 if body.len() == BINS * 16 => {
                scores.bins =
                    Some(body.chunks_exact(16).map(|bin| [double(&bin[..8]), double(&bin[8..])]).collect());
            }
            3 if body.len() == NUMBERS_BYTES => {
                scores.numbers = Some(NumberSums::of_parts([part(8)?, part(9)?, part(10)?, part(11)?]));
            }
            _ => return None,
        }
        Some(scores)
    }
}

#[cfg(test)]
mod tests;
