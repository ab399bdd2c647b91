//! Options of the transport benchmark. Knows nothing of the measurement.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::keys::{Dist, KEYS_MAX};
use crate::result::BenchError;

/// Most calls that may be under way on a connection: a server takes no more.
const IN_FLIGHT_MAX: usize = 64;
/// Bytes of requests under way on a connection: they must fit the buffers on the way, since who sends does not read.
const IN_FLIGHT_BYTES_MAX: usize = 512 << 10;
/// Most connections of a transport.
const CONNECTIONS_MAX: usize = 64;
/// Bytes of index and header per row, about: for the estimate of memory only.
const ROW_BYTES: u64 = 64;

/// How a pull gets to the table and the rows come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// A table in the client's own process: no transport at all.
    InProcess,
    /// A ring in shared memory.
    Shm,
    /// A unix socket.
    Unix,
    /// TCP on the loopback.
    Tcp,
    /// TCP with TLS.
    Tls,
    /// RDMA, on the first device of this machine.
    Rdma,
    /// gRPC, one call per pull, tuned.
    GrpcUnary,
    /// gRPC, all pulls in one bidirectional stream, tuned.
    GrpcBidi,
    /// gRPC, one call per pull, with the windows that the library has by default. For information: no fair rival.
    GrpcUnaryUntuned,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 9] = [
        Transport::InProcess,
        Transport::Shm,
        Transport::Unix,
        Transport::Tcp,
        Transport::Tls,
        Transport::Rdma,
        Transport::GrpcUnary,
        Transport::GrpcBidi,
        Transport::GrpcUnaryUntuned,
    ];

    /// Is it compared with a server of constants? What gRPC alone can do, the rival shows.
    #[must_use]
    pub fn has_constant(self) -> bool {
        use Transport::{Rdma, Shm, Tcp, Tls, Unix};
        matches!(self, Shm | Unix | Tcp | Tls | Rdma)
    }

    /// Is it the rival?
    #[must_use]
    pub fn is_grpc(self) -> bool {
        matches!(self, Transport::GrpcUnary | Transport::GrpcBidi | Transport::GrpcUnaryUntuned)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Transport::InProcess => "in-process",
            Transport::Shm => "shm",
            Transport::Unix => "unix",
            Transport::Tcp => "tcp",
            Transport::Tls => "tls",
            Transport::Rdma => "rdma",
            Transport::GrpcUnary => "grpc-unary",
            Transport::GrpcBidi => "grpc-bidi",
            Transport::GrpcUnaryUntuned => "grpc-unary-untuned",
        })
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> Result<Transport, String> {
        Transport::ALL.into_iter().find(|transport| transport.to_string() == name).ok_or_else(|| {
            let names: Vec<String> = Transport::ALL.iter().map(ToString::to_string).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

/// The gatherer of the rows of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gather {
    /// The CPU copies them.
    Cpu,
    /// The network card reads them from where they lie.
    Nic,
}

impl fmt::Display for Gather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Gather::Nic { "nic" } else { "cpu" })
    }
}

impl FromStr for Gather {
    type Err = String;

    fn from_str(name: &str) -> Result<Gather, String> {
        match name {
            "cpu" => Ok(Gather::Cpu),
            "nic" => Ok(Gather::Nic),
            _ => Err("expected cpu or nic".to_owned()),
        }
    }
}

/// Where client and server may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pinning {
    /// Wherever the system puts them.
    Unpinned,
    /// The server's process on one half of the processors, the client's on the other.
    Pinned,
}

impl fmt::Display for Pinning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Pinning::Pinned { "pinned" } else { "unpinned" })
    }
}

impl FromStr for Pinning {
    type Err = String;

    fn from_str(name: &str) -> Result<Pinning, String> {
        match name {
            "unpinned" => Ok(Pinning::Unpinned),
            "pinned" => Ok(Pinning::Pinned),
            _ => Err("expected unpinned or pinned".to_owned()),
        }
    }
}

/// The operations to measure and the length of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RpcOptions {
    /// Which transports, side by side.
    pub transports: Vec<Transport>,
    /// Rows in the table; every process has a table of its own.
    pub rows: u64,
    /// Weights per row.
    pub dim: usize,
    /// Rows per pull.
    pub batch: usize,
    /// Numbers of pulls under way per connection.
    pub in_flight: Vec<usize>,
    /// Connections per transport, each with a thread of the client.
    pub connections: usize,
    /// Where client and server run.
    pub pinnings: Vec<Pinning>,
    /// Pulls of one request, as a minibatch has one per table: only for the statistics of whole requests.
    pub calls: usize,
    /// Turns of each transport.
    pub rounds: usize,
    /// Length of a turn.
    pub seconds: f64,
    /// Is half the rate that was found offered too, whether the answers keep up or not?
    pub half_load: bool,
    /// How long both sides wait awake, in microseconds.
    pub spin_us: u32,
    /// The gatherer of rows for replies by RDMA.
    pub gather: Gather,
    /// Popularity of the keys.
    pub dist: Dist,
    /// Decides the keys drawn.
    pub seed: u64,
}

impl Default for RpcOptions {
    fn default() -> RpcOptions {
        use Transport::{GrpcBidi, GrpcUnary, GrpcUnaryUntuned, InProcess, Rdma, Shm, Tcp, Unix};
        let rdma = sanderling_transport::rdma_host().ok().map(|_| Rdma);
        let ours = [InProcess, Shm, Unix, Tcp].into_iter().chain(rdma);
        RpcOptions {
            transports: ours.chain([GrpcUnary, GrpcBidi, GrpcUnaryUntuned]).collect(),
            rows: 10_000_000,
            dim: 32,
            batch: 512,
            in_flight: vec![1, 4, 16],
            connections: 1,
            pinnings: vec![Pinning::Unpinned, Pinning::Pinned],
            calls: 4,
            rounds: 5,
            seconds: 0.3,
            half_load: true,
            spin_us: sanderling_transport::SPIN_US_DEFAULT,
            gather: Gather::Cpu,
            dist: Dist::Uniform,
            seed: 42,
        }
    }
}

impl RpcOptions {
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        let in_range = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(BenchError::Options(format!("{name} = {value} must lie between {low} and {high}")))
        };
        in_range("rows", self.rows, 1, KEYS_MAX)?;
        in_range("dim", self.dim as u64, 1, sanderling_store::DIM_MAX as u64)?;
        in_range("batch", self.batch as u64, 1, 1 << 16)?;
        in_range("connections", self.connections as u64, 1, CONNECTIONS_MAX as u64)?;
        in_range("calls", self.calls as u64, 1, 1 << 16)?;
        in_range("rounds", self.rounds as u64, 1, 10_000)?;
        self.in_flight.iter().try_for_each(|&n| in_range("in-flight", n as u64, 1, IN_FLIGHT_MAX as u64))?;
        let most = self.in_flight.iter().max().copied().unwrap_or_default();
        let problem = if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            format!("seconds = {} must be more than 0 and at most 3600", self.seconds)
        } else if self.transports.is_empty() || self.in_flight.is_empty() || self.pinnings.is_empty() {
            "transports, in-flight and pinnings must each name at least one".to_owned()
        } else if self.reply_bytes() > crate::rpc::FRAME_BYTES_MAX as usize {
            format!("a reply of {} bytes is too long; lower the batch or the dim", self.reply_bytes())
        } else if most * self.request_bytes() > IN_FLIGHT_BYTES_MAX {
            format!("{most} pulls of {} keys under way do not fit the buffers; lower one", self.batch)
        } else {
            return Ok(());
        };
        Err(BenchError::Options(problem))
    }

    /// Most pulls that an open loop has under way on a connection; those beyond wait, and their time runs.
    pub(crate) fn open_in_flight(&self) -> usize {
        (IN_FLIGHT_BYTES_MAX / self.request_bytes()).clamp(1, IN_FLIGHT_MAX)
    }

    /// Bytes of a request, about.
    fn request_bytes(&self) -> usize {
        self.batch * size_of::<u64>()
    }

    /// Bytes of an answer, about and rather too many.
    fn reply_bytes(&self) -> usize {
        self.batch * (self.dim * size_of::<f32>() + 1) + 256
    }

    /// Processes that have a table.
    fn tables(&self) -> u64 {
        let uses = |of: fn(Transport) -> bool| u64::from(self.transports.iter().any(|&one| of(one)));
        uses(|one| one == Transport::InProcess)
            + uses(|one| one.has_constant() && one != Transport::Tls)
            + uses(|one| one == Transport::Tls)
            + uses(Transport::is_grpc)
    }

    /// Bytes of memory that the benchmark needs, about: the index is there twice while it grows.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        self.tables() * self.rows * (self.dim as u64 * 4 + ROW_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half load, too, has no more under way than fits the buffers.
    #[test]
    fn an_open_loop_has_as_much_under_way_as_the_buffers_hold() {
        for (batch, expected) in [(1, 64), (512, 64), (1024, 64), (1025, 63), (4096, 16), (1 << 16, 1)] {
            let options = RpcOptions { batch, in_flight: vec![1], dim: 8, ..RpcOptions::default() };
            options.check().expect("it is possible");
            assert_eq!(options.open_in_flight(), expected, "{batch}");
            assert!(expected * options.request_bytes() <= IN_FLIGHT_BYTES_MAX, "{batch}");
        }
    }
}
