//! The integration tests of the benchmarks, one program.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

mod command;
mod lookup;
mod peers;
mod store;
