//! Options of the store benchmark. Knows nothing of the measurement.

use std::fmt;
use std::str::FromStr;

use sanderling_store::{Distances, Dtype, Init, Optimizer, Packing, StoreError, Table, TableConfig};
use serde::{Deserialize, Serialize};

use crate::keys::{Dist, Ids, KEYS_MAX};
use crate::result::BenchError;

/// Most threads.
pub const THREADS_MAX: usize = 1024;
/// Bytes of a row's header, and of index per key, about: for the estimate of memory only.
const HEADER_BYTES: u64 = 32;
const INDEX_BYTES: u64 = 22;
const LINE_BYTES: u64 = 64;

/// The measured operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Weights of a batch of keys are copied out.
    Pull,
    /// Weights of bags of keys are summed: 26 features per sample, each of 1 to 10 ids.
    PullPooled,
    /// One update of every distinct key of a batch.
    Push,
    /// 98 % pulls, 2 % pushes.
    Mix98,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 4] = [Op::Pull, Op::PullPooled, Op::Push, Op::Mix98];
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Pull => "pull",
            Op::PullPooled => "pull_pooled",
            Op::Push => "push",
            Op::Mix98 => "mix98",
        })
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(name: &str) -> Result<Op, String> {
        Op::ALL
            .into_iter()
            .find(|op| op.to_string() == name)
            .ok_or_else(|| "expected pull, pull_pooled, push or mix98".to_string())
    }
}

/// Optimizer of the rows, which decides how long they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowOptimizer {
    /// As much state as weights.
    Adagrad,
    /// No state: more keys fit.
    Sgd,
}

impl fmt::Display for RowOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RowOptimizer::Adagrad => "adagrad",
            RowOptimizer::Sgd => "sgd",
        })
    }
}

impl FromStr for RowOptimizer {
    type Err = String;

    fn from_str(name: &str) -> Result<RowOptimizer, String> {
        [RowOptimizer::Adagrad, RowOptimizer::Sgd]
            .into_iter()
            .find(|optimizer| optimizer.to_string() == name)
            .ok_or_else(|| "expected adagrad or sgd".to_string())
    }
}

/// The operations to measure and the length of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreOptions {
    /// Keys in the table, all of which are loaded before anything is measured.
    pub keys: u64,
    /// Weights per row.
    pub dim: usize,
    /// Optimizer of the table.
    pub optimizer: RowOptimizer,
    /// How its weights are kept.
    pub dtype: Dtype,
    /// How densely rows and index are stored.
    pub packing: Packing,
    /// How far its look-ups run ahead of themselves.
    pub distances: Distances,
    /// Keys per request.
    pub batch: usize,
    /// Samples per pooled request.
    pub samples: usize,
    /// Numbers of threads; the table is loaded, and every operation measured, with each of them.
    pub threads: Vec<usize>,
    /// Operations.
    pub ops: Vec<Op>,
    /// Popularities of the keys.
    pub dists: Vec<Dist>,
    /// Pattern of the ids.
    pub ids: Ids,
    /// Turns of each operation and its limit.
    pub rounds: usize,
    /// Requests of every thread in a turn; pooled ones are longer, and so many fewer.
    pub batches: usize,
    /// Decides the keys drawn.
    pub seed: u64,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        StoreOptions {
            keys: 10_000_000,
            dim: 32,
            optimizer: RowOptimizer::Adagrad,
            dtype: Dtype::F32,
            packing: Packing::Fast,
            distances: Distances::default(),
            batch: 512,
            samples: 1024,
            threads: if cores == 1 { vec![1] } else { vec![1, cores] },
            ops: Op::ALL.to_vec(),
            dists: vec![Dist::Uniform, Dist::Zipf(0.9), Dist::Zipf(0.99)],
            ids: Ids::Random,
            rounds: 40,
            batches: 500,
            seed: 42,
        }
    }
}

impl StoreOptions {
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let in_range = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(BenchError::Options(format!("{name} = {value} must lie between {low} and {high}")))
        };
        in_range("keys", self.keys, 1, KEYS_MAX)?;
        in_range("dim", self.dim as u64, 1, sanderling_store::DIM_MAX as u64)?;
        in_range("batch", self.batch as u64, 1, 1 << 20)?;
        in_range("samples", self.samples as u64, 1, 1 << 16)?;
        in_range("rounds", self.rounds as u64, 1, 1_000_000)?;
        in_range("batches", self.batches as u64, 1, 1_000_000)?;
        self.threads.iter().try_for_each(|&n| in_range("threads", n as u64, 1, THREADS_MAX as u64))?;
        if self.threads.is_empty() || self.ops.is_empty() || self.dists.is_empty() {
            return Err(BenchError::Options("threads, ops and dists must each name at least one".into()));
        }
        Ok(())
    }

    /// The table that is measured, empty.
    ///
    /// # Errors
    /// [`StoreError`] if the table cannot be made.
    pub fn table(&self) -> Result<Table, StoreError> {
        let optimizer = match self.optimizer {
            RowOptimizer::Adagrad => Optimizer::Adagrad { lr: 0.01, eps: 1e-10, initial: 0.1, l2: 0.0 },
            RowOptimizer::Sgd => Optimizer::Sgd { lr: 0.01, l2: 0.0 },
        };
        let config = TableConfig::single("bench", self.dim, Init::Zero, optimizer);
        let mut table = Table::new(TableConfig { dtype: self.dtype, packing: self.packing, ..config })?;
        table.set_distances(self.distances);
        table.reserve(self.keys);
        Ok(table)
    }

    /// Bytes of a row, about and rather too many.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let values = self.dim as u64 * if self.optimizer == RowOptimizer::Adagrad { 2 } else { 1 };
        (values * 4 + HEADER_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// Bytes of memory that the benchmark needs, about: the table, and the index while it grows.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.keys * (self.row_bytes() + INDEX_BYTES + INDEX_BYTES / 2)
    }
}
