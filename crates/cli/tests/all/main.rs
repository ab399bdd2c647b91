//! Tests of the `sanderling` command with real processes: what it prints, leaves behind and answers, and what becomes of it
//! when others are killed or lie.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod process;
mod relay;

mod cluster;
mod cluster_balance;
mod cluster_moves;
mod command;
mod ctl;
mod faults;
mod hosts;
mod hub;
mod hub_feed;
mod keeper;
mod kept_training;
mod ps;
mod rdma;
mod remote_training;
mod serve;
mod serve_checkpoints;
mod status_pages;
mod sync;
mod torn_export;
mod watch;
mod workers;
