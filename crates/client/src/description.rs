//! A table's configuration as the wire format has it. Knows no table and no server.

use sanderling_store::{Admission, Block, Dtype, Eviction, Init, Optimizer, Packing, TableConfig, Writes};
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
    #[serde(skip_serializing_if = "is_default")]
    packing: Packing,
    #[serde(skip_serializing_if = "is_default")]
    temporary: bool,
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

/// The table's configuration for each of this many servers; each gets an equal part of the budget.
pub(crate) fn describe(config: &TableConfig, servers: usize, temporary: bool) -> String {
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
        packing: config.packing,
        temporary,
    };
    // A struct of numbers has a JSON form.
    serde_json::to_string(&description).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table's configuration with defaults, and one without: what servers must understand, whose tests read the same file.
    #[test]
    fn configurations_are_those_that_servers_are_tested_with() {
        let sgd = |l2| Optimizer::Sgd { lr: 0.5, l2 };
        let plain = TableConfig::single("t", 1, Init::Zero, sgd(0.0));
        let momentum = Optimizer::Momentum { lr: 0.5, momentum: 0.5, l2: 0.0 };
        let full = TableConfig {
            name: "t".to_owned(),
            blocks: vec![
                Block { dims: 3, init: Init::Uniform { bound: 0.5 }, optimizer: sgd(0.25) },
                Block { dims: 5, init: Init::Zero, optimizer: momentum },
            ],
            seed: 7,
            budget_bytes: Some(9_000_000),
            dtype: Dtype::F16,
            admission: Admission::Sightings { sightings: 3, filter_bytes: 4096 },
            eviction: Eviction::Clock,
            writes: Writes::CopyOnWrite,
            packing: Packing::Compact,
        };
        let golden = include_str!("../../wire/tests/golden/configuration.json");
        let golden: Vec<serde_json::Value> = serde_json::from_str(golden).expect("JSON");
        let temporary = describe(&plain, 1, true);
        let [plain, full] = [plain, full].map(|config| describe(&config, 1, false));
        let described = [plain, full, temporary];
        let described = described.map(|text| serde_json::from_str::<serde_json::Value>(&text).expect("JSON"));
        assert_eq!(golden, described);
    }
}
