//! Result of a benchmark, in the form of its JSON. Knows nothing of the measurement.

use sanderling_observe::Machine;
use sanderling_observe::numbers::bytes as in_units;
use sanderling_store::StoreError;
use serde::{Deserialize, Serialize};

use crate::keys::{Dist, Ids};
use crate::options::{Op, StoreOptions};

/// The store on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreReport {
    /// Where.
    pub machine: Machine,
    /// The options.
    pub options: StoreOptions,
    /// Filling the table, by number of threads.
    pub load: Vec<LoadRow>,
    /// The operations.
    pub results: Vec<ResultRow>,
    /// The limits at every prefetch distance; the best one of each is what the results are compared with.
    pub sweep: Vec<SweepRow>,
}

/// One filling of an empty table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRow {
    /// Threads, each with its share of the keys.
    pub threads: usize,
    /// Rows made.
    pub rows: u64,
    /// Time for all.
    pub load_s: f64,
    /// Million rows per second.
    pub mrows_per_s: f64,
    /// Bytes of index per key.
    pub index_bytes_per_key: f64,
    /// Bytes of rows per key, optimizer state included.
    pub row_bytes_per_key: f64,
    /// Share of the table's bytes that the system put on huge pages.
    pub huge_share: f64,
}

/// One operation under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResultRow {
    /// Operation.
    pub op: Op,
    /// Popularity of the keys.
    pub dist: Dist,
    /// Pattern of the ids.
    pub ids: Ids,
    /// Threads, each with requests of its own.
    pub threads: usize,
    /// Keys in the table.
    pub keys: u64,
    /// Weights per row.
    pub dim: usize,
    /// Keys per request, for pooled pulls samples per request. Pushes leave duplicates out.
    pub batch: usize,
    /// Million keys per second, all threads together: median of the rounds.
    pub mkeys_per_s: f64,
    /// Rate of the memory limit: all rows (pull, mix: and one index line per key) known in advance.
    pub limit_mkeys_per_s: f64,
    /// Median of the rounds' ratios of the two.
    pub ratio: f64,
    /// Nanoseconds that a thread spends per key.
    pub ns_per_key: f64,
    /// Median time of a request; of the mix, of its pulls.
    pub p50_us: f64,
    /// Time that 99 % of the requests do not exceed; of the mix, of its pulls.
    pub p99_us: f64,
    /// Billions of bytes per second in the cache lines that must be touched: an index line per key and the row's
    /// weights; of a push, all of the row, read and written.
    pub gb_per_s: f64,
    /// Prefetch distance of the limit.
    pub limit_ahead: usize,
    /// Of the mix: pulls only, in the same rounds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub read_only_mkeys_per_s: Option<f64>,
}

/// A limit at one prefetch distance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRow {
    /// The operation that it is the limit of.
    pub op: Op,
    /// Popularity of the keys.
    pub dist: Dist,
    /// Threads.
    pub threads: usize,
    /// Places ahead that memory is asked for.
    pub ahead: usize,
    /// Million keys per second.
    pub mkeys_per_s: f64,
}

/// Why a benchmark could not be run.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option makes no sense.
    #[error("{0}")]
    Options(String),
    /// It would not fit.
    #[error(
        "{keys} keys of {row_bytes} bytes and their index need {} of memory, and {} are available; lower the keys or the dim",
        in_units(*needed_bytes), in_units(*available_bytes)
    )]
    Memory {
        /// Keys asked for.
        keys: u64,
        /// Bytes of a row, about.
        row_bytes: u64,
        /// Bytes needed, about.
        needed_bytes: u64,
        /// Bytes that the system says can be had.
        available_bytes: u64,
    },
    /// The tables of all processes would not fit.
    #[error(
        "the tables of all processes, of {rows} rows each, need {} of memory, and {} are available; lower the rows, or name \
         fewer transports",
        in_units(*needed_bytes), in_units(*available_bytes)
    )]
    Tables {
        /// Rows asked for.
        rows: u64,
        /// Bytes needed, about.
        needed_bytes: u64,
        /// Bytes that the system says can be had.
        available_bytes: u64,
    },
    /// A server did not start, or refused.
    #[error("{0}")]
    Server(String),
    /// A connection failed.
    #[error(transparent)]
    Transport(#[from] sanderling_transport::Error),
    /// A message could not be read or written.
    #[error(transparent)]
    Wire(#[from] sanderling_wire::WireError),
    /// The table on a server failed.
    #[error(transparent)]
    Client(#[from] sanderling_client::ClientError),
    /// The rival failed.
    #[error("gRPC: {0}")]
    Grpc(String),
    /// An answer did not come, or was not the right one, and nothing that was measured counts.
    #[error("{0}: an answer is missing or wrong; this is a bug")]
    Answer(crate::rpc::Transport),
    /// The table failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Keys that were loaded were not found: a bug of the store, and nothing that was measured counts.
    #[error("{0} of the keys that were loaded were not found; this is a bug of the store")]
    Lost(u64),
}
