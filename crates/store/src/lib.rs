//! Embedding tables in memory: key -> row of weights with its optimizer state, and their checkpoints on disk.
//!
//! Deliberately knows no network, no async runtime, no file format of samples, no Python: callers bring slices of
//! keys and gradients and get slices of weights.
//!
//! A [`Table`] is split into shards by a hash of the key; each shard is an index (key -> row number) beside a slab
//! of rows. A request is sorted by shard once and takes each shard's lock once, so nothing is locked per key.

mod budget;
mod checkpoint;
mod config;
mod dedup;
mod error;
mod hash;
mod index;
mod init;
mod kernel;
mod layout;
mod memory;
mod pool;
mod prefetch;
mod request;
mod shard;
mod slab;
mod table;
mod writer;

pub use checkpoint::{BlobEntry, Checkpoint, CheckpointWriter, TableEntry};
pub use config::{Absent, Block, Init, Optimizer, Pooling, PushScale, TableConfig};
pub use config::{BLOCKS_MAX, DIM_MAX, GRADIENT_ABS_MAX, NAME_BYTES_MAX};
pub use dedup::Dedup;
pub use error::StoreError;
pub use table::{Row, RowRef, Table, TableStats};
pub use writer::{RowHandle, TableWriter};
