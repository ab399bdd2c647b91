//! Conversions between messages and the store: configurations, errors, bit sets. Knows no server.

use sanderling_store::{Block, StoreError, TableConfig};
use sanderling_wire::{Fault, set_bit};

use super::Refusal;

pub(super) fn parse(name: &str, config: &str) -> TableConfig {
    let value: serde_json::Value = serde_json::from_str(config).unwrap();
    let block = |block: &serde_json::Value| Block {
        dims: block["dims"].as_u64().unwrap() as usize,
        init: serde_json::from_value(block["init"].clone()).unwrap(),
        optimizer: serde_json::from_value(block["optimizer"].clone()).unwrap(),
    };
    let blocks = value["blocks"].as_array().unwrap().iter().map(block).collect();
    let mut config = TableConfig::new(name, blocks);
    config.seed = value["seed"].as_u64().unwrap_or(0);
    config.budget_bytes = value["budget_bytes"].as_u64();
    config
}

pub(super) fn refused(error: &StoreError) -> Refusal {
    let fault = match *error {
        StoreError::TableFull { rows, budget_bytes, rejected, .. } => {
            Fault::TableFull { rejected, rows, budget_bytes }
        }
        StoreError::Config { .. } => Fault::BadConfig,
        _ => Fault::Internal,
    };
    (fault, error.to_string())
}

pub(super) fn words(keys: usize, missing: &[u32]) -> Vec<u64> {
    let mut words = vec![0; keys.div_ceil(64)];
    missing.iter().for_each(|&at| set_bit(&mut words, at as usize));
    words
}
