//! Tests of the transports as a program uses them: every module runs over each kind of address that it concerns.
#![allow(clippy::unwrap_used)] // a panic is a failed test with a line number

mod endpoints;

mod conversation;
mod faults;
mod hostile_ring;
mod killed_peer;
mod polling;
mod ring_model;
