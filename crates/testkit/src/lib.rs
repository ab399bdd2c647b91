//! Helpers that the tests of several crates share. A development dependency only: no program links it.
//!
//! A server in this process and a client that sends single requests need the feature `server`, so that the tests of
//! small crates do not build the server. The feature `sync` has workers that train in step, `web` a small web server, `http` a
//! small client, `collector` a collector of traces, `registry` the registry of a cluster, `messages` the protocol-buffer messages of the input formats as `prost` derives them.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // a panic is a failed test

pub mod outputs;

#[cfg(feature = "messages")]
pub mod messages;
#[cfg(feature = "sync")]
pub mod sync_workers;
#[cfg(feature = "web")]
pub mod web;

#[cfg(feature = "collector")]
mod collector;
#[cfg(feature = "collector")]
pub use collector::{CollectedSpan, Collector};

#[cfg(feature = "http")]
mod http;

#[cfg(feature = "registry")]
mod registry;
#[cfg(feature = "registry")]
pub use registry::TestRegistry;

#[cfg(feature = "server")]
mod client;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "server")]
pub use client::{DIM, Failed, LONG, RawClient, Received, TABLE, rows};
#[cfg(feature = "server")]
pub use server::TestServer;

#[cfg(feature = "http")]
pub use http::{HttpReply, http};
