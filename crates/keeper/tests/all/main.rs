//! Tests of registries: one suite of properties for all of them, and the keeper's port and restarts.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]
#![allow(clippy::print_stderr, reason = "a part that is skipped says so")]

mod backends;
mod lost_answers;
mod port;
mod properties;
mod restarts;
