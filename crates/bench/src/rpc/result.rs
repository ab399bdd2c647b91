//! Result of the transport benchmark, in the form of its JSON. Knows nothing of the measurement.

use sanderling_observe::{LatencySummary, Machine};
use serde::{Deserialize, Serialize};

use crate::rpc::options::{Pinning, RpcOptions, Transport};

/// The transports on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcReport {
    /// Where.
    pub machine: Machine,
    /// The options.
    pub options: RpcOptions,
    /// How the C library of both sides of gRPC was told to allocate, if it was.
    pub malloc: Option<String>,
    /// One per transport, number of pulls under way, and pinning.
    pub results: Vec<RpcRow>,
}

/// One transport with so many pulls under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcRow {
    /// Transport.
    pub transport: Transport,
    /// Pulls under way per connection.
    pub in_flight: usize,
    /// Where client and server ran.
    pub pinning: Pinning,
    /// Pulls per second, all connections together: median of the rounds.
    pub requests_per_s: f64,
    /// The rounds.
    pub rounds: Vec<f64>,
    /// Rate of the transport with a constant answer, without lookup, session and checksum.
    pub constant_per_s: Option<f64>,
    /// Median of the rounds' ratios of the two.
    pub ratio: Option<f64>,
    /// Time of a single RPC call, from its sending to its answer; all rounds.
    pub call: LatencySummary,
    /// Time of all RPC calls of one request: from the sending of the first to the answer of the last.
    pub request: LatencySummary,
    /// At half the rate, whatever the answers do.
    pub half_load: Option<HalfLoad>,
}

/// Pulls that are due at fixed times. Their time counts from when they were due, not from when they could be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HalfLoad {
    /// Pulls per second.
    pub offered_per_s: f64,
    /// Time of a pull, all rounds.
    pub call: LatencySummary,
    /// Median of the rounds' ratios of the 99th percentile to the median.
    pub p99_to_p50: f64,
}
