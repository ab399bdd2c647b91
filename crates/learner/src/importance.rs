//! Feature importance: the mean absolute contribution of each feature to the logit, over scored rows. Knows no table and no file.
//!
//! The contribution of a feature to the logit of a row is the sum of `w x` over its keys, and in a factorization machine also
//! its interactions: those among its own keys in full, and half of those with the keys of other features. The contributions of
//! a row's features and the bias add up to its logit; they are its Shapley values (Shapley 1953), the value of a feature that
//! is left out being 0.

use serde::{Deserialize, Serialize};

use crate::metrics::nan_as_null;

/// The importance of one feature.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeatureImportance {
    /// The feature.
    pub feature: String,
    /// Weighted mean over rows of the absolute contribution to the logit.
    #[serde(with = "nan_as_null")]
    pub mean_abs_contribution: f64,
}

/// Feature importance and the rows that it was measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Importance {
    /// Rows.
    pub rows: u64,
    /// Most important feature first.
    pub features: Vec<FeatureImportance>,
}

/// Sums of which [`Importance`] is made; one per thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContributionSums {
    /// By feature, the weighted sum of absolute contributions.
    pub(crate) sums: Vec<f64>,
    pub(crate) weight: f64,
    pub(crate) rows: u64,
}

impl ContributionSums {
    pub(crate) fn new(features: usize) -> Self {
        ContributionSums { sums: vec![0.0; features], weight: 0.0, rows: 0 }
    }

    pub(crate) fn merge(&mut self, other: &ContributionSums) {
        self.sums.iter_mut().zip(&other.sums).for_each(|(mine, theirs)| *mine += theirs);
        self.weight += other.weight;
        self.rows += other.rows;
    }

    /// The importance, given the features' names in the same order.
    pub(crate) fn finish<'a>(&self, names: impl Iterator<Item = &'a str>) -> Importance {
        let of = |(name, sum): (&str, &f64)| FeatureImportance {
            feature: name.to_owned(),
            mean_abs_contribution: if self.weight > 0.0 { sum / self.weight } else { 0.0 },
        };
        let mut features: Vec<FeatureImportance> = names.zip(&self.sums).map(of).collect();
        features.sort_by(|a, b| b.mean_abs_contribution.total_cmp(&a.mean_abs_contribution));
        Importance { rows: self.rows, features }
    }
}
