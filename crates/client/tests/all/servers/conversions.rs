//! Conversions between messages and the store: configurations, errors, bit sets. Knows no server.

use sanderling_store::{Block, StoreError, TableConfig};
use sanderling_wire::{Failure, Fault, Reply, Request, set_bit};

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

pub(super) fn failed<'a>(request: &Request<'_>, (fault, reason): Refusal) -> Reply<'a> {
    Reply::Failed(Failure { kind: request.kind(), fault, reason: reason.leak() })
}

/// As `docs/wire-format.md` has it.
pub(crate) fn host_id() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    u64::from_str_radix(&text.replace('-', "")[..16], 16).unwrap()
}
