//! Embedding tables in memory: key -> row of weights with its optimizer state, and their checkpoints on disk.
//!
//! Deliberately knows no network, no async runtime, no file format of samples, no Python: callers bring slices of
//! keys and gradients and get slices of weights.
//!
//! A [`Table`] is an index (key -> row number) beside a slab of rows. What a request costs is cache misses, so keys are
//! looked up many at a time and their misses overlap; pulls take no lock and write nothing that other threads read.

mod bucket;
mod budget;
mod checkpoint;
mod clock;
mod config;
mod create;
mod dedup;
mod directory;
mod error;
mod estimate;
mod evict;
mod gather;
mod half;
mod hash;
mod index;
mod init;
mod kernel;
mod lanes;
mod layout;
pub mod limit;
mod lookup;
mod maintain;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod near;
mod numbers;
mod optimizer;
mod pool;
mod prefetch;
mod pull;
mod push;
mod readers;
mod rebase;
mod removals;
mod rights;
mod row;
mod rows;
mod samples;
mod scatter;
mod scratch;
mod sketch;
mod slab;
mod space;
mod stats;
mod sync;
mod table;
mod versions;
mod walk;
mod whole;
mod words;
mod writer;

pub use checkpoint::{BlobEntry, Checkpoint, CheckpointWriter, RowsLeftOut, TableEntry};
pub use checkpoint::{create_regular, open_regular};
pub use config::{Absent, Admission, Block, Dtype, Eviction, Pooling, PushScale, TableConfig, Writes};
pub use config::{BLOCKS_MAX, DIM_MAX, FILTER_BYTES_MAX, GRADIENT_ABS_MAX, NAME_BYTES_MAX, bad_gradient};
pub use dedup::Dedup;
pub use error::StoreError;
pub use hash::index_part;
pub use lookup::Distances;
pub use maintain::{Maintained, Maintenance};
pub use near::{NearRows, NearTable};
pub use optimizer::{Init, Optimizer};
pub use prefetch::{To, prefetch};
pub use push::PushClock;
pub use row::{Row, RowRef};
pub use scatter::{Scatter, gather};
pub use space::budget_bytes_max;
pub use stats::TableStats;
pub use table::Table;
pub use whole::{RowColumns, WholeRows};
pub use writer::{RowHandle, TableWriter};
