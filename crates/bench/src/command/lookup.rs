//! `sanderling bench lookup`: reads of rows by key from a running server: frames, gRPC, Redis, memcached.

use std::path::PathBuf;
use std::time::Duration;

use sanderling_bench::Dist;
use sanderling_bench::lookup::{LookupOptions, LookupReport, Target, fill, run as measure};

use crate::failure::Failure;
use crate::output;
use crate::quantity;

/// Measure reads of many keys from a running server: frames, gRPC Lookup, Redis, memcached
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # the gRPC service of sanderling serve, whose table user has the keys 0 to 999999
  sanderling bench lookup grpc:127.0.0.1:8500 --rows 1000000
  # Redis with the same rows
  sanderling bench lookup redis:/tmp/redis.sock --rows 1000000 --fill
  sanderling bench lookup redis:/tmp/redis.sock --rows 1000000

Keys of Redis and memcached are the table, a colon and a number, such as user:17. Each connection has a thread and one read \
under way. bench/lookup_vs_redis.py starts the servers and compares them.")]
pub(super) struct Args {
    /// Protocol and address of the server: ps: and an address of clients; grpc:, redis: or memcached: and host:port or the
    /// path of a unix socket
    #[arg(value_name = "TARGET")]
    target: Target,
    /// Name of the table
    #[arg(long, default_value = "user")]
    table: String,
    /// Number of rows in the server: those of the keys below it
    #[arg(long, default_value_t = 1_000_000)]
    rows: u64,
    /// Embedding dimension: weights per row
    #[arg(long, default_value_t = 32)]
    dim: usize,
    /// Keys per read
    #[arg(long, default_value_t = 512)]
    batch_size: usize,
    /// Number of connections, each with its own client thread
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// Measured time
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = quantity::time)]
    duration: Duration,
    /// Key distribution: uniform, or zipf with an exponent up to 4, such as zipf0.99
    #[arg(long, default_value_t = Dist::Zipf(0.99))]
    dist: Dist,
    /// Random seed of the keys
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Store the rows in a server of ps, Redis or memcached, and measure nothing
    #[arg(long)]
    fill: bool,
    /// JSON file to write; - for standard output, without the table [default: none]
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let options = LookupOptions {
        target: args.target.clone(),
        table: args.table.clone(),
        rows: args.rows,
        dim: args.dim,
        batch: args.batch_size,
        connections: args.connections,
        duration: args.duration,
        dist: args.dist,
        seed: args.seed,
    };
    if args.fill {
        fill(&options).map_err(super::failed)?;
        output::text(&format!("stored {} rows", output::count(args.rows)))?;
        return Ok(0);
    }
    super::check(args.json.as_deref())?;
    super::show(&measure(&options).map_err(super::failed)?, args.json.as_deref(), describe)?;
    Ok(0)
}

fn describe(report: &LookupReport) -> String {
    let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
    output::pairs(&[
        ("reads/s", output::count(report.requests_per_s as u64)),
        ("p50", us(report.latency.p50_ns)),
        ("p99", us(report.latency.p99_ns)),
        ("client", format!("{:.1} us of processor time per read", report.client_us_per_request)),
        ("absent", format!("{} keys had no row", output::count(report.absent))),
    ])
}
