//! Jobs: passes over one input by several workers, which share the input, exchange rows, agree on numbers and take
//! synchronous steps.
//!
//! All workers run the same function ([`run`]), each with its own [`Worker`]. A worker takes its own rows of a pass
//! ([`Share`]), or its part of synchronous steps ([`Steps`]), in the order of the input or shuffled over all of it.
//! Collectives give sums, means and histograms over all workers. The crate knows no model, and not what a row is used
//! for.

mod error;
pub use error::JobError;

mod input;
pub use input::{Input, Order};

mod places;

mod packed_rows;
#[cfg(fuzzing)]
pub use packed_rows::{pack_rows, unpack_rows};

mod row_buffer;

mod sorted;

mod mesh;

mod halt;

mod event;
pub use event::{JobEvent, Observer};

mod worker_hosts;
pub use sanderling_transport::TlsServer;
pub use worker_hosts::{Hosts, SILENCE_DEFAULT};

mod options;
pub use options::{OnLoss, Options, Place, Tables};

mod stages;
pub use stages::STAGES;

mod hosts;

mod job;
pub use job::{reject_workers, run, run_shared};

mod worker;
pub use worker::{SharedWorker, Worker};

mod exchange;

mod share;
pub use share::Share;

mod deal;

mod steps;
pub use steps::{Steps, lanes_of};
