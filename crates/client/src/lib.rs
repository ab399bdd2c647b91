//! The trainer's side of the tables: deduplicate a minibatch's keys, pull their rows, push their gradients.
//!
//! The tables are in this process ([`Client::embedded`]) or on the servers of a [`Cluster`] ([`Client::remote`]);
//! `backend` has both behind one trait. The crate knows no file and no model.
//!
//! Path of a remote request: a [`Session`], a [`Pipeline`] or a [`SyncGroup`] hands it to the thread's `engine`, which cuts
//! it into messages by server and size (`key_partition`, `placement`), asks all servers at once and tells of each answer;
//! `connection_set` moves frames over the thread's connections; `rpc_state`, one per server, decides which messages are
//! sent, repeated and given up.

mod error;
pub use error::ClientError;

mod lookup;
pub use lookup::{CONSTANT_KEY, Lookup, TableLookup};

mod client;
pub use client::Client;

mod feature_watch;
pub use feature_watch::{FeatureReader, FeatureSnapshot, FeatureSnapshots, FeatureStats, FeatureWatch};

mod backend;

mod whole_rows;

mod floats;
pub use floats::Floats;

mod occurrences;
pub use occurrences::Occurrences;

mod fed;
pub use fed::{AheadFeature, FED_AGE_MAX, FedRows, Feedable};

mod feed_ahead;
pub use feed_ahead::{FeedAhead, FeedFeature};

mod online;
pub use online::{Handles, Online, OnlineTable};

mod stop;
pub use stop::Stop;

mod options;
pub use options::{ConnectOptions, PullFrom, TIMEOUT_DEFAULT, compression};

mod outage;
pub use outage::{NOTICE_AFTER, Notice, OnWait};

mod by_server;

mod origin;
pub use origin::{Origin, note_fork};

mod cluster;
pub use cluster::{Cluster, Server, ServerCalls, ServerCommand, addresses, check_servers};

mod description;

mod reach;

mod locations;

mod open_table;
pub use open_table::OpenTable;

mod remote;
pub use remote::RemoteTable;

mod temporary;

mod follower;
pub use follower::{ChangedRows, FollowedPage, FollowedTable, Follower, RowValues, TablePart};

mod session;
mod shared_push;
pub use session::{FedBatch, LostFed, Session};

mod pipeline;
pub use pipeline::{Answered, Call, Pipeline, SLOTS_MAX, wait_until};

mod step;
pub use step::{Reduce, SyncGroup, SyncOptions};

mod engine;

mod key_partition;
mod placement;
pub use placement::Placement;

mod connection_set;
mod packing;

mod rpc_state;
pub use rpc_state::{Hedge, HedgeCounts, IN_FLIGHT_MAX, Peer};

mod checkpoint;
pub use checkpoint::{CheckpointSize, check_same_save};

mod statistics;

pub use sanderling_observe::{LatencySummary, LatencyTable};
pub use sanderling_sync::{Adding, Fixed, Meeting, MeetingError, OutOfRange};
pub use sanderling_transport::{Address, TlsClient};
pub use sanderling_wire::StepGradients;
pub use sanderling_wire::{Compression, Fault, RowBlock};
