//! Benchmarks of this machine: the operations of a store beside what its memory allows, and pulls over every transport
//! beside what the transport alone allows and beside gRPC; all in interleaved rounds.
//!
//! Knows no command line but the options of its table, prints nothing and draws nothing: options come in, and a report
//! goes out.

pub mod keys;
pub mod lookup;
pub mod options;
pub mod result;
pub mod rounds;
pub mod rpc;
pub mod store;
pub mod table_args;
mod traffic;

pub use keys::{BAG_KEYS_MAX, Dist, Ids, KEYS_MAX, Keys};
pub use options::{Op, RowOptimizer, StoreOptions, THREADS_MAX};
pub use result::{BenchError, LoadRow, ResultRow, StoreReport, SweepRow};
pub use rounds::{Measured, Passes, interleave, median, percentile};
pub use table_args::TableArgs;
