//! Tests of synchronous steps over their public interface.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod model;
mod steps;
