//! Configuration of a table for Python, in one form for local tables and tables on servers.

use sanderling_store::{Admission, Dtype, Eviction, Init, Optimizer, Packing, TableConfig, Writes};
use serde::{Deserialize, Serialize};

/// As servers have it (`docs/wire-format.md`), with what is left out there.
#[derive(Serialize, Deserialize)]
pub(crate) struct MadeFrom {
    blocks: Vec<BlockMadeFrom>,
    #[serde(default)]
    seed: u64,
    /// On servers, each one's part.
    #[serde(default)]
    budget_bytes: Option<u64>,
    #[serde(default)]
    dtype: Dtype,
    #[serde(default)]
    admission: Admission,
    #[serde(default)]
    eviction: Eviction,
    #[serde(default)]
    writes: Writes,
    #[serde(default)]
    packing: Packing,
}

#[derive(Serialize, Deserialize)]
struct BlockMadeFrom {
    dims: usize,
    init: Init,
    optimizer: Optimizer,
}

impl MadeFrom {
    /// The optimizer of each block.
    pub(crate) fn optimizers(&self) -> impl Iterator<Item = Optimizer> {
        self.blocks.iter().map(|block| block.optimizer)
    }

    pub(crate) fn of(config: &TableConfig) -> MadeFrom {
        let blocks = config.blocks.iter().map(|block| BlockMadeFrom {
            dims: block.dims,
            init: block.init,
            optimizer: block.optimizer,
        });
        MadeFrom {
            blocks: blocks.collect(),
            seed: config.seed,
            budget_bytes: config.budget_bytes,
            dtype: config.dtype,
            admission: config.admission,
            eviction: config.eviction,
            writes: config.writes,
            packing: config.packing,
        }
    }
}
