//! A report's data about one table, gathered row by row in bounded memory.

use std::cmp::Ordering;

use sanderling_store::RowSample;
use serde::{Deserialize, Serialize};

use crate::metrics::nan_as_null;
use crate::table_counters::TableCounters;

/// The most keys that a summary names.
pub const TOP_KEYS_MAX: usize = 20;

/// One table in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableSummary {
    /// Name of the table.
    pub name: String,
    /// Rows.
    pub rows: u64,
    /// Weights per row.
    pub dim: usize,
    /// Memory of index, weights and optimizer state.
    pub bytes: u64,
    /// Mean of the rows' L2 norms; 0 without rows, NaN (JSON: null) of a run under way.
    #[serde(with = "nan_as_null")]
    pub norm_mean: f64,
    /// Largest of the rows' L2 norms; NaN (JSON: null) of a run under way.
    #[serde(with = "nan_as_null")]
    pub norm_max: f64,
    /// Occurrences of all keys in training.
    pub frequency_total: u64,
    /// Rows whose weights are all exactly zero, as L1 makes them.
    pub zero_rows: u64,
    /// Weights that are exactly zero. Those of FTRL are counted where they come from: `|z|` is not above `l1`.
    pub zero_weights: u64,
    /// Keys with the largest norms, largest first, as many as were asked for.
    pub top: Vec<KeyNorm>,
    /// Fates of keys over the whole run; `None` where the table is on servers.
    #[serde(default)]
    pub keys: Option<TableCounters>,
    /// Numbers of random rows while the run went on, the last ones; `None` where the table is on servers.
    #[serde(default)]
    pub sample: Option<RowSample>,
}

/// One row in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeyNorm {
    /// The key.
    pub key: u64,
    /// The value that the key stands for, if known.
    pub value: Option<String>,
    /// L2 norm of the weights.
    #[serde(with = "nan_as_null")]
    pub norm: f64,
    /// The first weight: of the built-in models, the linear one.
    pub weight: f32,
    /// Occurrences in training.
    pub frequency: u64,
}

/// Gathers a [`TableSummary`].
#[derive(Debug, Clone)]
pub struct TableTally {
    name: String,
    dim: usize,
    rows: u64,
    zero_rows: u64,
    zero_weights: u64,
    norm_sum: f64,
    norm_max: f64,
    frequency_total: u64,
    top: Vec<KeyNorm>,
    top_max: usize,
    /// Smallest norm that can still be among the top.
    norm_least: f64,
}

impl TableTally {
    /// A tally without rows, which is to show so many keys at most.
    pub fn new(name: impl Into<String>, dim: usize, top_max: usize) -> Self {
        Self {
            name: name.into(),
            dim,
            rows: 0,
            zero_rows: 0,
            zero_weights: 0,
            norm_sum: 0.0,
            norm_max: 0.0,
            frequency_total: 0,
            top: Vec::new(),
            top_max,
            norm_least: 0.0,
        }
    }

    /// Adds a row: its key, its occurrences in training, its weights, of which so many are exactly zero.
    pub fn add(&mut self, key: u64, frequency: u64, weights: &[f32], zero_weights: usize) {
        let norm = weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum::<f64>().sqrt();
        self.rows += 1;
        self.zero_rows += u64::from(norm == 0.0);
        self.zero_weights += zero_weights as u64;
        self.norm_sum += norm;
        self.norm_max = self.norm_max.max(norm);
        self.frequency_total += frequency;
        // Most rows of a large table cannot be among the top: they cost one comparison.
        if norm > 0.0 && norm >= self.norm_least {
            if self.top.len() >= 2 * self.top_max {
                self.keep_top();
            }
            let weight = weights.first().copied().unwrap_or(0.0);
            self.top.push(KeyNorm { key, value: None, norm, weight, frequency });
        }
    }

    /// The summary, given the memory of the table.
    pub fn finish(mut self, bytes: u64) -> TableSummary {
        self.keep_top();
        TableSummary {
            name: self.name,
            rows: self.rows,
            dim: self.dim,
            bytes,
            norm_mean: if self.rows == 0 { 0.0 } else { self.norm_sum / self.rows as f64 },
            norm_max: self.norm_max,
            frequency_total: self.frequency_total,
            zero_rows: self.zero_rows,
            zero_weights: self.zero_weights,
            top: self.top,
            keys: None,
            sample: None,
        }
    }

    fn keep_top(&mut self) {
        self.top.sort_by(by_norm);
        self.top.truncate(self.top_max);
        if self.top.len() == self.top_max {
            self.norm_least = self.top.last().map_or(f64::INFINITY, |least| least.norm);
        }
    }
}

/// Largest norm first, then smallest key, so that the order does not depend on that of the rows.
pub(super) fn by_norm(a: &KeyNorm, b: &KeyNorm) -> Ordering {
    b.norm.total_cmp(&a.norm).then(a.key.cmp(&b.key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_order() {
        let mut tally = TableTally::new("t", 2, TOP_KEYS_MAX);
        for key in 0..100u64 {
            tally.add(key, 2, &[3.0 * key as f32, -4.0 * key as f32], 2 * usize::from(key == 0));
        }
        let summary = tally.finish(7);
        assert_eq!(
            (summary.rows, summary.zero_rows, summary.zero_weights, summary.frequency_total, summary.bytes),
            (100, 1, 2, 200, 7)
        );
        assert_eq!((summary.norm_max, summary.norm_mean), (495.0, 247.5));
        let keys: Vec<u64> = summary.top.iter().map(|top| top.key).collect();
        assert_eq!(keys, (80..100).rev().collect::<Vec<_>>());
        assert_eq!(summary.top[0].weight, 297.0);
    }

    #[test]
    fn no_rows() {
        let summary = TableTally::new("t", 0, TOP_KEYS_MAX).finish(0);
        assert_eq!((summary.norm_mean, summary.top.len()), (0.0, 0));
    }
}
