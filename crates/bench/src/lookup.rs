//! Reads of rows by key from a server of rows: a parameter server, gRPC `Lookup` of `sanderling serve`, Redis, memcached.
//! A thread per connection with one read under way. Knows no command line and starts no server.

mod frames;
mod grpc;
mod memcached;
mod redis;
mod stream;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use sanderling_observe::{Latency, LatencySummary};
use sanderling_random::Rng;
use serde::Serialize;

use crate::keys::{Dist, Ids, KEYS_MAX, Keys};
use crate::result::BenchError;

/// Keys stored per request by [`fill`].
const FILL_KEYS: u32 = 512;

/// A protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Frames of a parameter server.
    Ps,
    /// The gRPC service of `sanderling serve`.
    Grpc,
    /// `MGET`, also of the RESP front of `sanderling serve`.
    Redis,
    /// `get` with many keys.
    Memcached,
}

/// A server: a protocol and an address, host:port or the path of a unix socket; of `ps` any address that clients take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The protocol.
    pub protocol: Protocol,
    /// The address.
    pub address: String,
}

impl FromStr for Target {
    type Err = String;

    /// The protocol, `:`, and the address.
    fn from_str(text: &str) -> Result<Target, String> {
        let (name, address) = text.split_once(':').unwrap_or((text, ""));
        let protocol = match name {
            "ps" => Protocol::Ps,
            "grpc" => Protocol::Grpc,
            "redis" => Protocol::Redis,
            "memcached" => Protocol::Memcached,
            _ => return Err("expected ps:, grpc:, redis: or memcached: and an address".to_owned()),
        };
        match address {
            "" => Err(format!("expected {name}: and an address, such as {name}:127.0.0.1:7000")),
            address => Ok(Target { protocol, address: address.to_owned() }),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.protocol {
            Protocol::Ps => "ps",
            Protocol::Grpc => "grpc",
            Protocol::Redis => "redis",
            Protocol::Memcached => "memcached",
        };
        write!(f, "{name}:{}", self.address)
    }
}

/// The reads to make.
#[derive(Debug, Clone, Serialize)]
pub struct LookupOptions {
    /// The server.
    pub target: Target,
    /// The table, which is the first part of the keys in Redis and memcached.
    pub table: String,
    /// Keys that the server has: the numbers below.
    pub rows: u64,
    /// Weights per row.
    pub dim: usize,
    /// Keys per read.
    pub batch: usize,
    /// Connections, each with a thread.
    pub connections: usize,
    /// Measured time.
    pub duration: Duration,
    /// Popularity of the keys.
    pub dist: Dist,
    /// Decides the keys drawn.
    pub seed: u64,
}

/// The reads that were made.
#[derive(Debug, Serialize)]
pub struct LookupReport {
    /// The options.
    pub options: LookupOptions,
    /// Reads.
    pub requests: u64,
    /// Reads per second.
    pub requests_per_s: f64,
    /// Latency of a read, by the connections of this process.
    pub latency: LatencySummary,
    /// Processor time of this process per read.
    pub client_us_per_request: f64,
    /// Keys that had no row.
    pub absent: u64,
}

/// A connection that reads rows.
trait Connection: Send {
    /// Reads the rows of keys by number; returns how many have none.
    fn read(&mut self, numbers: &[u32]) -> Result<usize, BenchError>;

    /// Stores rows of consecutive keys.
    fn store(&mut self, first: u32, count: u32) -> Result<(), BenchError>;
}

impl LookupOptions {
    fn check(&self) -> Result<(), BenchError> {
        for (name, value, max) in [
            ("rows", self.rows, KEYS_MAX),
            ("dim", self.dim as u64, sanderling_store::DIM_MAX as u64),
            ("batch", self.batch as u64, 1 << 16),
            ("connections", self.connections as u64, 1024),
        ] {
            if !(1..=max).contains(&value) {
                return Err(BenchError::Options(format!("{name} = {value} must lie between 1 and {max}")));
            }
        }
        Ok(())
    }

    fn connect(&self) -> Result<Box<dyn Connection>, BenchError> {
        Ok(match self.target.protocol {
            Protocol::Ps => Box::new(frames::Client::connect(self)?),
            Protocol::Grpc => Box::new(grpc::Client::connect(self)?),
            Protocol::Redis => Box::new(redis::Client::connect(self)?),
            Protocol::Memcached => Box::new(memcached::Client::connect(self)?),
        })
    }
}

/// Stores all rows in a server.
///
/// # Errors
/// The server cannot be reached, or refuses.
pub fn fill(options: &LookupOptions) -> Result<(), BenchError> {
    options.check()?;
    let mut connection = options.connect()?;
    let rows = options.rows as u32;
    for first in (0..rows).step_by(FILL_KEYS as usize) {
        connection.store(first, FILL_KEYS.min(rows - first))?;
    }
    Ok(())
}

/// Reads rows for the time of the options.
///
/// # Errors
/// The server cannot be reached, refuses, or answers otherwise.
pub fn run(options: &LookupOptions) -> Result<LookupReport, BenchError> {
    options.check()?;
    let keys = Keys::new(options.rows as u32, options.dist, Ids::Dense);
    let connections: Vec<_> = (0..options.connections).map(|at| (at, options.connect())).collect();
    let (before, start) = (processor_time(), Instant::now());
    let parts: Vec<Result<Part, BenchError>> = std::thread::scope(|scope| {
        let read = |(at, connection): (usize, Result<Box<dyn Connection>, BenchError>)| {
            let (keys, options) = (&keys, &options);
            scope.spawn(move || read_for(connection?, keys, options, at, start))
        };
        let threads: Vec<_> = connections.into_iter().map(read).collect();
        let gone = || BenchError::Server("a client thread has panicked".to_owned());
        threads.into_iter().map(|thread| thread.join().map_err(|_| gone()).and_then(|part| part)).collect()
    });
    let (took, cpu) = (start.elapsed(), processor_time().saturating_sub(before));
    let mut all = Part::default();
    for part in parts {
        let part = part?;
        all.latency.merge(&part.latency);
        (all.requests, all.absent) = (all.requests + part.requests, all.absent + part.absent);
    }
    Ok(LookupReport {
        options: options.clone(),
        requests: all.requests,
        requests_per_s: all.requests as f64 / took.as_secs_f64(),
        latency: all.latency.summary(),
        client_us_per_request: cpu.as_secs_f64() * 1e6 / all.requests.max(1) as f64,
        absent: all.absent,
    })
}

/// The reads of one connection.
#[derive(Default)]
struct Part {
    latency: Latency,
    requests: u64,
    absent: u64,
}

fn read_for(
    mut connection: Box<dyn Connection>,
    keys: &Keys,
    options: &LookupOptions,
    at: usize,
    start: Instant,
) -> Result<Part, BenchError> {
    let (mut part, mut rng) = (Part::default(), Rng::new(options.seed, at as u64, 0));
    let mut numbers = Vec::with_capacity(options.batch);
    while start.elapsed() < options.duration || part.requests == 0 {
        numbers.clear();
        numbers.extend((0..options.batch).map(|_| keys.draw(&mut rng)));
        let sent = Instant::now();
        part.absent += connection.read(&numbers)? as u64;
        part.latency.record(sent.elapsed());
        part.requests += 1;
    }
    Ok(part)
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The bytes of a row that [`fill`] stores.
fn row_bytes(number: u32, dim: usize) -> Vec<u8> {
    (0..dim).flat_map(|at| (number as f32 + at as f32 / 64.0).to_le_bytes()).collect()
}

/// The error of an answer that is not the expected one.
fn unexpected(target: &Target, found: &[u8]) -> BenchError {
    let found = found[..found.len().min(80)].escape_ascii();
    BenchError::Server(format!("{target}: unexpected answer \"{found}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_a_protocol_and_an_address() {
        let check = |text: &str, expected: Option<(Protocol, &str)>| {
            let found: Option<Target> = text.parse().ok();
            let found_parts = found.as_ref().map(|target| (target.protocol, &*target.address));
            assert_eq!(found_parts, expected, "{text}");
            assert!(found.is_none_or(|target| target.to_string() == text));
        };
        check("grpc:127.0.0.1:8500", Some((Protocol::Grpc, "127.0.0.1:8500")));
        check("redis:/run/redis.sock", Some((Protocol::Redis, "/run/redis.sock")));
        check("memcached:[::1]:11211", Some((Protocol::Memcached, "[::1]:11211")));
        check("ps:shm:rows", Some((Protocol::Ps, "shm:rows")));
        check("grpc:", None);
        check("http:127.0.0.1:1", None);
        check("redis", None);
    }
}
