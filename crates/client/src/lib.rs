//! The trainer's side of the tables: deduplicate a minibatch's keys, pull their rows, push their gradients.
//!
//! The tables are in this process ([`Client::embedded`]) or on the servers of a [`Cluster`] ([`Client::remote`]). The crate knows no file and
//! no model; what a row means is the caller's.
//!
//! The way of a remote request: [`Session`] shares its keys out (`fan`, by `placement`) and asks all servers at once;
//! `links` moves frames over the thread's connections; `exchange`, one per server, decides what is sent, sent again and
//! given up.

mod error;
pub use error::ClientError;

mod lookup;
pub use lookup::{CONSTANT_KEY, Lookup, TableLookup};

mod client;
pub use client::Client;

mod floats;
pub use floats::Floats;

mod known;
pub use known::Occurrences;

mod fed;
pub use fed::{AheadFeature, FED_AGE_MAX, FedRows, Feedable};

mod ahead;
pub use ahead::{FeedAhead, FeedFeature};

mod online;
pub use online::{Handles, Online, OnlineTable};

mod stop;
pub use stop::Stop;

mod options;
pub use options::{ConnectOptions, TIMEOUT_DEFAULT, compression};

mod outage;
pub use outage::{NOTICE_AFTER, OnWait, Waiting};

mod origin;
pub use origin::{Origin, note_fork};

mod cluster;
pub use cluster::{Cluster, Server, ServerCommand, addresses};

mod description;

mod reach;

mod remote;
pub use remote::RemoteTable;

mod temporary;

mod session;
mod shared_push;
pub use session::{FedBatch, Session};

mod pipeline;
pub use pipeline::{Answered, Call, Pipeline, SLOTS_MAX};

mod step;
pub use step::{Meeting, Reduce, SyncGroup, SyncOptions};

mod dealt;
mod fan;
mod placement;

mod links;
mod packing;

mod exchange;
pub use exchange::{Hedge, HedgeCounts, IN_FLIGHT_MAX, Peer};

mod checkpoint;
pub use checkpoint::{CheckpointSize, check_same_save};

mod random;

mod statistics;

pub use sanderling_observe::{LatencySummary, LatencyTable};
pub use sanderling_sync::{Adding, Fixed, OutOfRange};
pub use sanderling_transport::{Address, TlsClient};
pub use sanderling_wire::StepGradients;
pub use sanderling_wire::{Compression, Fault, RowBlock};
