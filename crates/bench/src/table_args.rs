//! Options of the command line for the table and its requests, shared by `bench store` and the benchmark of its peers.

use crate::keys::{Dist, Ids};
use crate::options::{RowOptimizer, StoreOptions};

/// The table to measure and its requests.
#[derive(Debug, Clone, clap::Args)]
pub struct TableArgs {
    /// Number of keys in the table, loaded before the measurement
    #[arg(long, default_value_t = StoreOptions::default().keys)]
    keys: u64,
    /// Embedding dimension: weights per row
    #[arg(long, default_value_t = StoreOptions::default().dim)]
    dim: usize,
    /// Optimizer: adagrad (doubles the row: state beside the weights) or sgd (weights only)
    #[arg(long, default_value_t = StoreOptions::default().optimizer)]
    optimizer: RowOptimizer,
    /// Keys per request (pull, push and mix98)
    #[arg(long, default_value_t = StoreOptions::default().batch)]
    batch_size: usize,
    /// Samples per pooled request, each with 26 features of 1 to 10 ids
    #[arg(long, default_value_t = StoreOptions::default().samples)]
    samples: usize,
    /// Key distributions, comma-separated: uniform, or zipf with an exponent up to 4, such as zipf0.99
    #[arg(long, value_delimiter = ',', default_values_t = StoreOptions::default().dists)]
    dists: Vec<Dist>,
    /// Pattern of the 64-bit ids: random, dense (0, 1, 2, ...) or shifted (dense, shifted left by 20 bits)
    #[arg(long, default_value_t = StoreOptions::default().ids)]
    ids: Ids,
}

impl TableArgs {
    /// Options with this table and these requests, the others by default.
    #[must_use]
    pub fn options(&self) -> StoreOptions {
        StoreOptions {
            keys: self.keys,
            dim: self.dim,
            optimizer: self.optimizer,
            batch: self.batch_size,
            samples: self.samples,
            dists: self.dists.clone(),
            ids: self.ids,
            ..StoreOptions::default()
        }
    }
}
