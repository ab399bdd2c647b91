//! Scores in few enough bins to be added up over workers wherever they are. Knows no worker.

use super::{NumberSums, Scored, Scores};

/// Bins per unit of the logit.
const BINS_PER_LOGIT: f32 = 256.0;
/// Logits beyond this, whose probability is within 1.2e-7 of 0 or 1, share the outermost bins.
const LOGIT_MAX: f32 = 16.0;
/// Bins in all.
const BINS: usize = (2.0 * LOGIT_MAX * BINS_PER_LOGIT) as usize;
/// Numbers before the bins: examples, and four sums of two parts.
const HEAD: usize = 9;

/// Scored rows by bins of their logit, 1/256 wide: rows of a bin count as ties in the AUC. The other metrics are as exact
/// as those of [`Scores`].
#[derive(Clone, Debug)]
pub(crate) struct BinnedScores {
    /// Without rows.
    totals: Scores,
    /// Weights of the positives and of the negatives in each bin.
    bins: Vec<[f64; 2]>,
}

impl Default for BinnedScores {
    fn default() -> Self {
        BinnedScores { totals: Scores::new(), bins: vec![[0.0; 2]; BINS] }
    }
}

impl BinnedScores {
    /// Of a regression: sums without bins.
    pub(crate) fn of_numbers() -> Self {
        BinnedScores { totals: Scores::of_numbers(), bins: Vec::new() }
    }

    /// Adds a row of a regression: its prediction, its label and its weight.
    #[inline]
    pub(crate) fn push_number(&mut self, prediction: f32, label: f32, weight: f32) {
        self.totals.push_number(prediction, label, weight);
    }

    /// Adds a row: its logit, its label (above one half is positive) and its weight.
    #[inline]
    pub(crate) fn push(&mut self, logit: f32, label: f32, weight: f32) {
        self.totals.add(logit, label, weight);
        let place = (logit.clamp(-LOGIT_MAX, LOGIT_MAX) + LOGIT_MAX) * BINS_PER_LOGIT;
        self.bins[(place as usize).min(BINS - 1)][usize::from(label <= 0.5)] += f64::from(weight);
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> u64 {
        self.totals.len()
    }

    /// Adds all rows of another set.
    pub(crate) fn merge(&mut self, other: &BinnedScores) {
        self.totals.merge(&other.totals);
        for (mine, theirs) in self.bins.iter_mut().zip(&other.bins) {
            mine[0] += theirs[0];
            mine[1] += theirs[1];
        }
    }

    /// Forgets all rows.
    pub(crate) fn clear(&mut self) {
        self.totals.clear();
        self.bins.fill([0.0; 2]);
    }

    /// Numbers that, added up over workers, are those of all their rows.
    pub(crate) fn to_addends(&self) -> Vec<f64> {
        let totals = &self.totals;
        let sums = [totals.weight, totals.positive, totals.loss, totals.prob];
        let head = std::iter::once(totals.examples as f64).chain(sums.iter().flat_map(|sum| sum.parts()));
        let numbers = totals.numbers.iter().flat_map(NumberSums::parts);
        head.chain(self.bins.as_flattened().iter().copied()).chain(numbers).collect()
    }

    /// The set of which these are the numbers; `None` if they are of anything else.
    pub(crate) fn from_addends(addends: &[f64]) -> Option<Self> {
        let (head, rest) = addends.split_at_checked(HEAD)?;
        let bins = rest.as_chunks::<2>().0.to_vec();
        let sum = |at: usize| crate::sum::Sum::of_parts(head[at], head[at + 1]);
        let totals = Scores {
            examples: head[0] as u64,
            weight: sum(1),
            positive: sum(3),
            loss: sum(5),
            prob: sum(7),
            ..Scores::new()
        };
        if let &[a, b, c, d] = rest {
            let numbers = Some(NumberSums::of_parts([a, b, c, d]));
            return Some(BinnedScores { totals: Scores { numbers, ..totals }, bins: Vec::new() });
        }
        (bins.len() == BINS).then_some(BinnedScores { totals, bins })
    }

    /// The bins as scores: one row in the middle of each bin that is not empty.
    pub(crate) fn to_scores(&self) -> Scores {
        let filled =
            self.bins.iter().enumerate().filter(|(_, [positive, negative])| positive + negative > 0.0);
        let rows = filled.map(|(bin, [positive, negative])| Scored {
            score: (bin as f32 + 0.5) / BINS_PER_LOGIT - LOGIT_MAX,
            positive: *positive as f32,
            negative: *negative as f32,
        });
        Scores { rows: rows.collect(), grouped: true, ..self.totals.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_several_workers_are_those_of_one_and_near_the_exact_scores() {
        let row = |i: u32| {
            let noise = f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
            let logit = (noise as f32 - 0.6) * if i.is_multiple_of(97) { 80.0 } else { 6.0 };
            (logit, f32::from(f64::from(i % 100) < 100.0 * noise), 1.0 + (i % 3) as f32)
        };
        let mut exact = Scores::new();
        let mut parts = vec![BinnedScores::default(); 3];
        for i in 0..30_000 {
            let (logit, label, weight) = row(i);
            exact.push(logit, label, weight);
            parts[i as usize % 3].push(logit, label, weight);
        }
        let mut sums = vec![0.0; HEAD + 2 * BINS];
        for part in &parts {
            sums.iter_mut().zip(part.to_addends()).for_each(|(sum, value)| *sum += value);
        }
        let added = BinnedScores::from_addends(&sums).unwrap().to_scores().metrics();
        let mut merged = BinnedScores::default();
        parts.iter().for_each(|part| merged.merge(part));
        let (merged, exact) = (merged.to_scores().metrics(), exact.metrics());
        // Sums of the same numbers in another order.
        for (one, other) in [
            (added.auc, merged.auc),
            (added.logloss, merged.logloss),
            (added.prob_mean, merged.prob_mean),
            (added.real_mean, merged.real_mean),
        ] {
            assert!((one - other).abs() < 1e-12, "{added:?} {merged:?}");
        }
        assert_eq!(added.examples, merged.examples);
        assert!(!merged.auc_exact && exact.auc_exact);
        assert_eq!((merged.examples, merged.real_mean), (exact.examples, exact.real_mean));
        assert!((merged.auc - exact.auc).abs() < 1e-4, "{} {}", merged.auc, exact.auc);
        for (binned, exact) in [(merged.logloss, exact.logloss), (merged.prob_mean, exact.prob_mean)] {
            assert!((binned - exact).abs() < 1e-12, "{binned} {exact}");
        }
        // Saved and read again it is the same.
        let scores = BinnedScores::from_addends(&sums).unwrap().to_scores();
        assert_eq!(Scores::from_bytes(&scores.to_bytes(), 1 << 20).unwrap().metrics(), added);
        assert!(BinnedScores::from_addends(&sums[1..]).is_none());
    }
}
