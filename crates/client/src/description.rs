//! A table's configuration as the wire format has it. Knows no table and no server.

use sanderling_store::{Admission, Block, Dtype, Eviction, Init, Optimizer, TableConfig, Writes};
use serde::Serialize;

/// The object; defaults are left out, and the name goes beside it.
#[derive(Serialize)]
struct Description {
    blocks: Vec<BlockDescription>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<u64>,
    #[serde(skip_serializing_if = "is_default")]
    dtype: Dtype,
    #[serde(skip_serializing_if = "is_default")]
    admission: Admission,
    #[serde(skip_serializing_if = "is_default")]
    eviction: Eviction,
    #[serde(skip_serializing_if = "is_default")]
    writes: Writes,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize)]
struct BlockDescription {
    dims: usize,
    init: Init,
    optimizer: Optimizer,
}

/// What each of so many servers is told; each gets an equal part of the budget.
pub(crate) fn describe(config: &TableConfig, servers: usize) -> String {
    let describe =
        |block: &Block| BlockDescription { dims: block.dims, init: block.init, optimizer: block.optimizer };
    let description = Description {
        blocks: config.blocks.iter().map(describe).collect(),
        seed: Some(config.seed).filter(|&seed| seed != 0),
        budget_bytes: config.budget_bytes.map(|bytes| bytes.div_ceil(servers as u64)),
        dtype: config.dtype,
        admission: config.admission,
        eviction: config.eviction,
        writes: config.writes,
    };
    // A struct of numbers has a JSON form.
    serde_json::to_string(&description).unwrap_or_default()
}
