//! Tests of a server in this process, through the wire: what clients see, what is saved, and what misbehaving clients cost.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod checkpoints;
mod faults;
mod replication;
mod serving;
