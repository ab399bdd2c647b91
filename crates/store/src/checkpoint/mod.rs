//! Checkpoints: the only module that knows the bytes on disk (`docs/checkpoint-format.md`).

mod chain;
mod delta;
mod disk_file;
mod files;
mod links;
mod log;
mod manifest;
mod newer_keys;
mod read;
mod restore;
mod rows;
mod weights;
mod write;

#[cfg(test)]
mod crash;
#[cfg(all(test, not(loom)))]
mod diverged;
#[cfg(test)]
mod memory_files;

pub use chain::DeltaEntry;
pub use delta::DeltaWriter;
pub use files::{create_regular, open_regular};
pub use links::ChainLink;
pub use log::{LogEnd, LogReader, LogSegment, LogSummary, LogTarget, LogWriter, Logged};
pub use manifest::{BlobEntry, TableEntry};
pub(crate) use manifest::{config_from_json, config_to_json};
pub use read::Checkpoint;
pub use write::{CheckpointWriter, SkippedRows};
