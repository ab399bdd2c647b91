//! Embedding tables in memory and their checkpoints on disk.
//!
//! A table maps 64-bit keys to rows of weights and optimizer state. This crate knows no network, no async runtime,
//! no sample format and no Python: callers pass slices of keys and gradients and get slices of weights.
//!
//! A [`Table`] is an index (key -> row number) and a slab of rows. Cache misses dominate the cost of a request, so
//! keys are looked up in batches and their misses overlap. Pulls take no lock and write nothing that other threads
//! read.
//!
//!  folder | content |
//! | --- | --- |
//! | `config` | table configuration and its checks |
//! | `table` | the table: construction, statistics, iteration over rows |
//! | `lookup` | batched search of keys, deduplication, key sampling |
//! | `pull`, `update` | requests that read rows and requests that change them |
//! | `policy` | use clock, eviction, promotion of hot keys, background maintenance |
//! | `local_cache` | copies of rows for online learning by several workers |
//! | `index`, `rows` | hash index; slab, row layout, row allocator |
//! | `kept` | what outlives the process, for tables in files |
//! | `sync`, `memory`, `simd` | locks and epochs; mapped memory and prefetching; vector loads and stores |
//! | `changes` | the change stream: changed rows at their present value |
//! | `checkpoint` | the bytes on disk |

mod changes;
mod checkpoint;
mod config;
mod error;
mod index;
mod kept;
mod local_cache;
mod lookup;
mod memory;
mod policy;
mod pull;
#[cfg(any(test, feature = "bench"))]
pub mod roofline;
mod rows;
mod simd;
mod sync;
mod table;
mod update;

pub use changes::frame::ChangeFrame;
pub use changes::pages::{ChangePage, FollowOptions, StreamPlace};
pub use checkpoint::{
    BlobEntry, ChainLink, Checkpoint, CheckpointWriter, DeltaEntry, DeltaWriter, SkippedRows, TableEntry,
};
pub use checkpoint::{LogEnd, LogReader, LogSegment, LogSummary, LogTarget, LogWriter, Logged};
pub use checkpoint::{create_regular, open_regular};
pub use config::optimizer::{Init, Optimizer};
pub use config::{Admission, Block, Dtype, Eviction, Packing, PushScale, TableConfig, Writes};
pub use config::{BLOCKS_MAX, DIM_MAX, FILTER_BYTES_MAX, GRADIENT_ABS_MAX, NAME_BYTES_MAX, bad_gradient};
pub use error::StoreError;
pub use index::hash::index_part;
pub use local_cache::{CacheBuffers, LocalCache};
pub use lookup::Distances;
pub use lookup::dedup::Dedup;
pub use lookup::pulled_rows::PulledRows;
pub use lookup::scatter::{Scatter, gather};
pub use memory::address_space::budget_bytes_max;
pub use memory::prefetch::{PrefetchHint, prefetch};
pub use policy::maintain::{Maintained, Maintenance};
pub use pull::hold::{ABSENT_ROW, RowHold, RowPlaces};
pub use rows::row::{Row, RowRef};
pub use sanderling_pull::{Absent, Pooling};
pub use table::Table;
pub use table::durability::{Durability, can_survive_power};
pub use table::kept::Attached;
pub use table::kept_bytes::{KeptBytes, KeptText};
pub use table::kept_folders::{
    KeptTable, create_kept_folder, forget_all_kept, forget_kept, is_kept_device, kept_names, kept_table,
    kept_tables, pages_cost,
};
pub use table::sample::{RowSample, RowSampler, SAMPLE_ROWS};
pub use table::stats::TableStats;
pub use update::ordered::{RowVersions, is_newer_version};
pub use update::push::{CheckedPush, PushClock};
pub use update::whole::{RowColumns, WholeRows};
pub use update::writer::{RowHandle, TableWriter};
