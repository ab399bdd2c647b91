//! Helpers that the tests of several crates share. A development dependency only: no program links it.
//!
//! The random generator is always there. A server in this process and a client that sends single requests need the feature
//! `server`, so that the tests of small crates do not build the server.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)] // a panic is a failed test

pub mod outputs;
mod random;

#[cfg(feature = "server")]
mod client;
#[cfg(feature = "server")]
mod server;

#[cfg(feature = "server")]
pub use client::{DIM, Failed, LONG, RawClient, Received, TABLE, rows};
pub use random::Random;
#[cfg(feature = "server")]
pub use server::TestServer;
