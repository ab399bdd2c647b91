//! Checkpoints: the one place that knows the bytes on disk (`docs/checkpoint-format.md`). Knows nothing of how
//! rows are found or updated.

mod files;
mod manifest;
mod read;
mod rows;
mod write;

#[cfg(test)]
mod crash;

pub use files::{create_regular, open_regular};
pub use manifest::{BlobEntry, TableEntry};
pub use read::Checkpoint;
pub use write::{CheckpointWriter, SkippedRows};
