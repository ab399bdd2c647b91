//! Tests of the feed queue over its public interface.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod embedding;
mod examples;
mod hubs;
mod queue;
