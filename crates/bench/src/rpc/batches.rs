//! The table of the benchmark and the keys that are asked for: the same in every process, from the same options. Knows no
//! transport.

use sanderling_random::Rng;
use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig, Writes};

use crate::keys::{Ids, Keys};
use crate::result::BenchError;
use crate::rpc::options::{Gather, RpcOptions};

/// Most keys that are drawn beforehand: they touch more rows than any cache holds.
const KEYS_DRAWN_MAX: usize = 1 << 21;
const BATCHES_MIN: usize = 16;
/// Rows that are made at once.
const LOAD_ROWS: u32 = 1 << 14;
/// Name of the table.
pub(crate) const TABLE: &str = "bench";

/// The table: rows of weights alone, that start with weights of their own, so that a wrong row is noticed.
pub(crate) fn table_config(options: &RpcOptions) -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 0.01, l2: 0.0 };
    let config = TableConfig::single(TABLE, options.dim, Init::Uniform { bound: 0.1 }, optimizer);
    let writes = if options.gather == Gather::Nic { Writes::CopyOnWrite } else { Writes::InPlace };
    TableConfig { seed: options.seed, writes, ..config }
}

/// Calls `push` with all keys, as many at a time as go into one request, and gradients that change nothing.
pub(crate) fn load(
    options: &RpcOptions,
    mut push: impl FnMut(&[u64], &[f32]) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let grads = vec![0.0; LOAD_ROWS as usize * options.dim];
    let mut keys = Vec::new();
    let rows = options.rows as u32;
    for first in (0..rows).step_by(LOAD_ROWS as usize) {
        keys.clear();
        keys.extend((first..rows.min(first.saturating_add(LOAD_ROWS))).map(|number| Ids::Random.id(number)));
        push(&keys, &grads[..keys.len() * options.dim])?;
    }
    Ok(())
}

/// The table in this process, with all rows.
pub(crate) fn loaded_table(options: &RpcOptions) -> Result<Table, BenchError> {
    let table = Table::new(table_config(options))?;
    table.reserve(options.rows);
    load(options, |keys, grads| Ok(table.push(keys, grads, PushScale::default())?))?;
    Ok(table)
}

/// Keys of pulls, drawn beforehand and taken in turn.
#[derive(Debug)]
pub(crate) struct Batches {
    keys: Vec<u64>,
    batch: usize,
}

impl Batches {
    pub(crate) fn new(options: &RpcOptions) -> Batches {
        let batch = options.batch;
        let wanted = KEYS_DRAWN_MAX.min(options.rows as usize * 4) / batch;
        let keys = Keys::new(options.rows as u32, options.dist, Ids::Random);
        let mut rng = Rng::new(options.seed, 0, 0);
        let count = wanted.max(BATCHES_MIN) * batch;
        Batches { keys: (0..count).map(|_| keys.id(keys.draw(&mut rng))).collect(), batch }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.keys.len() / self.batch
    }

    /// Keys of one.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// The keys of a pull; after the last batch comes the first.
    pub(crate) fn keys(&self, call: usize) -> &[u64] {
        &self.keys[call % self.len() * self.batch..][..self.batch]
    }

    /// The rows of a batch, from a table that has none: what a row starts with follows from its key.
    pub(crate) fn expected(&self, batch: usize, empty: &Table) -> Result<Vec<f32>, BenchError> {
        let mut rows = vec![0.0; self.batch * empty.dim()];
        empty.pull(self.keys(batch), Absent::Init, &mut rows, None)?;
        Ok(rows)
    }
}
