//! Embedding tables in memory: key -> row of weights with its optimizer state, and their checkpoints on disk.
//!
//! Deliberately knows no network, no async runtime, no file format of samples, no Python: callers bring slices of
//! keys and gradients and get slices of weights.
//!
//! A [`Table`] is an index (key -> row number) beside a slab of rows. What a request costs is cache misses, so keys are
//! looked up many at a time and their misses overlap; pulls take no lock and write nothing that other threads read.

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
pub mod limit;
mod lookup;
mod memory;
mod pool;
mod prefetch;
mod pull;
mod push;
mod readers;
mod slab;
mod table;
mod words;
mod writer;

pub use checkpoint::{BlobEntry, Checkpoint, CheckpointWriter, TableEntry};
pub use config::{Absent, Block, Init, Optimizer, Pooling, PushScale, TableConfig};
pub use config::{BLOCKS_MAX, DIM_MAX, GRADIENT_ABS_MAX, NAME_BYTES_MAX};
pub use dedup::Dedup;
pub use error::StoreError;
pub use table::{Row, RowRef, Table, TableStats};
pub use writer::{RowHandle, TableWriter};
