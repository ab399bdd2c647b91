//! The parameter server: tables that many clients share, over shared memory, unix sockets and TCP.
//!
//! The only crate that joins the wire and the store. A request's way: a [`worker`](Server) polls its connections, a
//! [`Session`] decodes the frame and decides, a command looks up tables and writes the reply into the memory that will be
//! sent. Sessions know no socket, commands know no session, and nothing here knows signals, terminals or the trainer.

pub mod limit;

mod config;
mod event;
mod refusal;

mod description;
mod placement;
mod tables;

mod batches;
mod pushes;

mod checkpoints;
mod claim;
mod connections;
mod descriptors;
mod logins;
mod state;
mod statistics;

mod call;
mod command;
mod errand;
mod export;
mod outlet;
mod session;

mod control;
mod listen;
mod server;
mod turn;
mod waiting;
mod worker;

pub mod systemd;

#[cfg(test)]
mod session_tests;

pub use call::Desk;
pub use checkpoints::{CheckpointStatus, LATEST};
pub use config::Config;
pub use connections::ConnectionStatus;
pub use control::{Control, Status, TableStatus};
pub use descriptors::raise_limit;
#[cfg(fuzzing)]
pub use errand::Errand;
pub use event::Event;
pub use listen::{PortListener, control_address, framing, listen_for_control};
pub use outlet::Outlet;
pub use refusal::Refusal;
pub use sanderling_observe::LatencySummary;
pub use sanderling_wire::{Fault, Home, Restored, Saved, StatsScope};
pub use server::{Server, ServerError};
pub use session::{Session, Step, When};
pub use statistics::CommandLatency;
