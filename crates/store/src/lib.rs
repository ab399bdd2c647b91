//! Embedding tables in memory: key -> row of weights with its optimizer state, and their checkpoints on disk.
//!
//! Deliberately knows no network, no async runtime, no file format of samples, no Python: callers bring slices of
//! keys and gradients and get slices of weights.
//!
//! A [`Table`] is an index (key -> row number) beside a slab of rows. What a request costs is cache misses, so keys are
//! looked up many at a time and their misses overlap; pulls take no lock and write nothing that other threads read.

mod checkpoint;
mod config;
mod error;
mod index;
mod local_cache;
mod lookup;
mod memory;
mod policy;
mod pull;
pub mod roofline;
mod rows;
mod simd;
mod sync;
mod table;
mod update;

pub use checkpoint::{BlobEntry, Checkpoint, CheckpointWriter, SkippedRows, TableEntry};
pub use checkpoint::{create_regular, open_regular};
pub use config::optimizer::{Init, Optimizer};
pub use config::{Absent, Admission, Block, Dtype, Eviction, Pooling, PushScale, TableConfig, Writes};
pub use config::{BLOCKS_MAX, DIM_MAX, FILTER_BYTES_MAX, GRADIENT_ABS_MAX, NAME_BYTES_MAX, bad_gradient};
pub use error::StoreError;
pub use index::hash::index_part;
pub use local_cache::{CacheBuffers, LocalCache};
pub use lookup::Distances;
pub use lookup::dedup::Dedup;
pub use memory::address_space::budget_bytes_max;
pub use memory::prefetch::{PrefetchHint, prefetch};
pub use policy::maintain::{Maintained, Maintenance};
pub use rows::row::{Row, RowRef};
pub use table::Table;
pub use table::stats::TableStats;
pub use update::push::PushClock;
pub use update::whole::{RowColumns, WholeRows};
pub use update::writer::{RowHandle, TableWriter};
