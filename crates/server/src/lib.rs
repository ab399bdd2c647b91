//! The parameter server: tables that many clients share, over shared memory, unix sockets and TCP.
//!
//! The only crate that joins the wire and the store. The way of a request: a worker polls its connections, a
//! [`Session`] decodes the frame, and a command looks up tables and encodes the reply into the memory that will be
//! sent. Sessions know no socket, commands know no session, and the crate knows no signals, no terminal and no
//! trainer.

pub mod limit;

mod config;
mod event;
mod refusal;
mod replace_file;

mod description;
mod gather;
mod placement;
mod tables;

mod batches;
mod clock;

mod hot_keys;
mod key_shares;
mod row_samples;
mod traces;

mod changes;
mod checkpoints;
mod connections;
mod delta_log;
mod descriptors;
mod folder_lock;
mod history;
mod logins;
mod state;
mod statistics;

mod background;
mod call;
mod command;
mod export;
mod replication;
mod reply_sink;
mod session;

mod control;
mod first_tables;
mod held_reply;
mod listen;
mod log_thread;
mod server;
mod server_error;
mod turn;
mod waiting;
mod worker;

pub mod systemd;

#[cfg(test)]
mod session_tests;

#[cfg(fuzzing)]
pub use background::BackgroundJob;
pub use call::Workspace;
pub use checkpoints::{CheckpointStatus, LATEST, SaveMode, SaveReport};
pub use config::{Config, ReplicaConfig};
pub use connections::ConnectionStatus;
pub use control::{Control, Status, TableStatus};
pub use descriptors::raise_limit;
pub use event::Event;
pub use gather::{Gather, GatherOptions, GatherStatus};
pub use key_shares::KeyShares;
pub use listen::{PortListener, control_address, framing, listen_for_control};
pub use refusal::Refusal;
pub use replication::{
    GroupRecord, GroupRecords, GroupStatus, MOVES_PINNED_TABLES, MemoryRecords, PlacementRecords,
    ReplicaStatus,
};
pub use reply_sink::ReplySink;
pub use sanderling_observe::LatencySummary;
pub use sanderling_store::RowSample;
pub use sanderling_wire::{Fault, Home, Restored, Saved, StatsScope, same_token};
pub use server::Server;
pub use server_error::ServerError;
pub use session::{Handled, Session, When};
pub use statistics::CommandLatency;
pub use traces::{HotKeyList, RequestTrace};
