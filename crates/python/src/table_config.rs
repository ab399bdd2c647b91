//! Configuration of a table for Python, in one form for local tables and tables on servers.

use sanderling_store::{Admission, Block, Dtype, Eviction, Init, Optimizer, Packing, TableConfig, Writes};
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

    /// The configuration of a table in this process; without a memory limit, of which each server has a part.
    pub(crate) fn config(&self, name: &str) -> TableConfig {
        let block =
            |block: &BlockMadeFrom| Block { dims: block.dims, init: block.init, optimizer: block.optimizer };
        TableConfig {
            seed: self.seed,
            dtype: self.dtype,
            admission: self.admission,
            eviction: self.eviction,
            writes: self.writes,
            packing: self.packing,
            ..TableConfig::new(name, self.blocks.iter().map(block).collect())
        }
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
