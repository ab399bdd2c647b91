//! Tests of the client over its public interface.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod embedded;
mod faults;
mod fed;
mod moves;
mod pipeline;
mod remote;
mod servers;
mod steps;
