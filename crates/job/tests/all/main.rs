//! Tests of jobs over their public interface.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod examples;
mod passes;
