//! The numbers of a feature for people and for files. Knows no lookup.

use sanderling_observe::Parts;
use sanderling_observe::distribution::PARTS;
use sanderling_store::{RowSample, RowSampler, Table, TableStats};
use serde::{Deserialize, Serialize};

/// The numbers of one feature, estimated from sampled minibatches. `None`: unknown, or there are too few keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FeatureStats {
    /// Name of the feature.
    pub name: String,
    /// The table that it reads.
    pub table: String,
    /// Features that read this table.
    pub readers: usize,
    /// Occurrences of keys that were looked at.
    pub keys: u64,
    /// Share of them without a row before the push.
    pub unseen_share: Option<f64>,
    /// Share of occurrences whose row the minibatch had already, so that it was not pulled.
    pub hit_share: Option<f64>,
    /// Median of the L2 norms of rows, by occurrence.
    pub norm_p50: Option<f64>,
    /// Its 90th percentile.
    pub norm_p90: Option<f64>,
    /// Its 99th percentile.
    pub norm_p99: Option<f64>,
    /// The largest.
    pub norm_max: Option<f64>,
    /// Median of the L2 norms of gradients of rows.
    pub gradient_p50: Option<f64>,
    /// Its 99th percentile.
    pub gradient_p99: Option<f64>,
    /// Mean L2 norm of the change of a row by one update; only of tables in this process, as all below but the drifts.
    pub update_norm: Option<f64>,
    /// Mean of that change by the norm of the row before it.
    pub update_ratio: Option<f64>,
    /// Pushes to the table since the last one of a row: the median.
    pub idle_p50: Option<u32>,
    /// Its 90th percentile.
    pub idle_p90: Option<u32>,
    /// New keys of the table that got a row.
    pub admitted: Option<u64>,
    /// Pushes of new keys of the table that the admission rejected.
    pub rejected: Option<u64>,
    /// Evicted rows of the table.
    pub evicted: Option<u64>,
    /// Pushes of new keys of the table that found no room.
    pub rejected_full: Option<u64>,
    /// Population stability index of the keys of late against those since the start.
    pub drift: Option<f64>,
    /// Population stability index of the keys of late against those that an earlier model was trained with.
    pub drift_trained: Option<f64>,
}

impl FeatureStats {
    pub(super) fn add_rows(&mut self, rows: RowSample) {
        if rows.rows > 0 {
            (self.idle_p50, self.idle_p90) = (Some(rows.idle_p50), Some(rows.idle_p90));
        }
        if rows.updated > 0 {
            self.update_norm = Some(rows.update_norm.into());
            self.update_ratio = Some(rows.update_ratio.into());
        }
    }

    pub(super) fn add_fates(&mut self, stats: &TableStats) {
        self.admitted = Some(stats.admitted);
        self.rejected = Some(stats.rejected);
        self.evicted = Some(stats.evicted);
        self.rejected_full = Some(stats.rejected_full);
    }

    /// Takes numbers that are unknown from those of before: rows may not have changed since, and at the end of a run its
    /// tables are gone.
    pub fn keep_rows_of(&mut self, before: &FeatureStats) {
        fn keep<T: Copy>(number: &mut Option<T>, before: Option<T>) {
            *number = number.or(before);
        }
        keep(&mut self.update_norm, before.update_norm);
        keep(&mut self.update_ratio, before.update_ratio);
        keep(&mut self.idle_p50, before.idle_p50);
        keep(&mut self.idle_p90, before.idle_p90);
        keep(&mut self.admitted, before.admitted);
        keep(&mut self.rejected, before.rejected);
        keep(&mut self.evicted, before.evicted);
        keep(&mut self.rejected_full, before.rejected_full);
    }

    /// The other features that read its table: the fates of keys are of all of them together.
    #[must_use]
    pub fn shares_table_with<'a>(&self, all: &'a [FeatureStats]) -> Vec<&'a str> {
        let others = all.iter().filter(|other| other.table == self.table && other.name != self.name);
        others.map(|other| other.name.as_str()).collect()
    }

    /// All numbers, each with its name and its help.
    #[must_use]
    pub fn numbers(&self) -> [(&'static str, &'static str, Option<f64>); 18] {
        let count = |count: Option<u64>| count.map(|count| count as f64);
        let idle = |pushes: Option<u32>| pushes.map(f64::from);
        [
            ("admitted", "New keys that got a row, of all features of its table.", count(self.admitted)),
            (
                "rejected",
                "Pushes of new keys that were not admitted, of all features of its table.",
                count(self.rejected),
            ),
            ("evicted", "Evicted rows, of all features of its table.", count(self.evicted)),
            (
                "rejected_full",
                "Pushes of new keys that found the table full, of all its features.",
                count(self.rejected_full),
            ),
            ("unseen_share", "Share of its keys that have no row yet.", self.unseen_share),
            ("hit_share", "Share of its keys whose row the minibatch had already.", self.hit_share),
            ("norm_p50", "L2 norm of its rows, median.", self.norm_p50),
            ("norm_p90", "L2 norm of its rows, 90th percentile.", self.norm_p90),
            ("norm_p99", "L2 norm of its rows, 99th percentile.", self.norm_p99),
            ("norm_max", "L2 norm of its rows, the largest.", self.norm_max),
            ("gradient_p50", "L2 norm of the gradients of its rows, median.", self.gradient_p50),
            ("gradient_p99", "L2 norm of the gradients of its rows, 99th percentile.", self.gradient_p99),
            ("update_norm", "Mean L2 norm of the change of a row by one update.", self.update_norm),
            ("update_ratio", "Mean of that change by the norm of the row before.", self.update_ratio),
            ("idle_p50", "Pushes to the table since the last one of a row, median.", idle(self.idle_p50)),
            ("idle_p90", "Pushes to the table since that of a row, 90th percentile.", idle(self.idle_p90)),
            ("drift", "Stability index of its keys of late against all of the run.", self.drift),
            (
                "drift_trained",
                "Stability index of its keys of late against those of the model that the run began from.",
                self.drift_trained,
            ),
        ]
    }
}

/// Follows the rows of features in tables of this process from one look to the next.
#[derive(Debug, Default)]
pub struct FeatureReader(Vec<RowSampler>);

impl FeatureReader {
    pub(super) fn look(&mut self, feature: usize, table: &Table, keys: &[u64]) -> RowSample {
        if self.0.len() <= feature {
            self.0.resize(feature + 1, RowSampler::default());
        }
        self.0[feature].look_at(table, keys)
    }
}

/// How the keys of a feature were distributed in a training.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureSnapshot {
    /// Name of the feature.
    pub name: String,
    /// Number of keys by part of the space of hashes; parts that this version does not know are left out.
    pub parts: Vec<u64>,
}

impl FeatureSnapshot {
    /// The numbers of keys.
    #[must_use]
    pub fn keys(&self) -> Parts {
        let mut parts = [0; PARTS];
        // Of another number of parts nothing can be said.
        if self.parts.len() == PARTS {
            parts.copy_from_slice(&self.parts);
        }
        Parts(parts)
    }
}

/// The keys of all features of a model in its training, as it keeps them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeatureSnapshots {
    /// Keys that the model was trained with.
    pub features: Vec<FeatureSnapshot>,
    /// Keys of the model that its training began from.
    #[serde(default)]
    pub before: Vec<FeatureSnapshot>,
}
