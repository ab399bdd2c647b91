//! The score of the best possible model: AUC and logloss of the true probabilities. It knows no feature.

use super::truth::Row;

/// Log-odds are counted in this many bins over [-LOGIT_MAX, LOGIT_MAX].
const BINS: usize = 1 << 14;
const LOGIT_MAX: f64 = 16.0;

/// Counts of negatives and positives by true log-odds. Rows that share a bin (0.002 wide) count as ties, which moves
/// the AUC by less than 1e-6; in exchange the memory does not grow with the rows.
pub(super) struct Bound {
    negatives: Vec<u64>,
    positives: Vec<u64>,
}

impl Bound {
    pub(super) fn new() -> Self {
        Bound { negatives: vec![0; BINS], positives: vec![0; BINS] }
    }

    #[inline]
    pub(super) fn add(&mut self, row: &Row) {
        let bin = (row.logit() + LOGIT_MAX) * (BINS as f64 / (2.0 * LOGIT_MAX));
        let bin = (bin.max(0.0) as usize).min(BINS - 1);
        if row.label() { self.positives[bin] += 1 } else { self.negatives[bin] += 1 }
    }

    pub(super) fn merge(&mut self, other: &Bound) {
        self.negatives.iter_mut().zip(&other.negatives).for_each(|(a, b)| *a += b);
        self.positives.iter_mut().zip(&other.positives).for_each(|(a, b)| *a += b);
    }

    pub(super) fn positives(&self) -> u64 {
        self.positives.iter().sum()
    }

    /// The chance that a positive lies above a negative, ties counting one half; `None` if one class is absent.
    pub(super) fn auc(&self) -> Option<f64> {
        let (mut below, mut wins) = (0u64, 0.0f64);
        for (&negatives, &positives) in self.negatives.iter().zip(&self.positives) {
            wins += positives as f64 * (below as f64 + 0.5 * negatives as f64);
            below += negatives;
        }
        let pairs = below as f64 * self.positives() as f64;
        (pairs > 0.0).then(|| wins / pairs)
    }
}

/// The logloss of a label under the true probability, in nats.
#[inline]
pub(super) fn logloss(row: &Row) -> f64 {
    if row.label() { -row.probability().ln() } else { -(-row.probability()).ln_1p() }
}
