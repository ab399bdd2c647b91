//! Tests of the server in this process: answers equal to those of the learner on files, refusals, limits, the drain.
#![allow(clippy::unwrap_used, reason = "a panic is a failed test")]

mod deep_replica;
mod fixture;
mod flips;

mod grpc;
mod inference_protocol;
mod limits;
mod lines;
mod lookup;
mod lookup_grpc;
mod moves;
mod predict;
mod replica;
mod replica_of_checkpoints;
mod resp;
mod rows_client;
mod versions;
