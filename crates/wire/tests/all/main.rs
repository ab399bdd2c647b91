//! Tests of the wire format: committed bytes, hostile bytes, compression and allocations.

mod messages;

mod allocation;
mod compression;
mod decoding;
mod golden;
