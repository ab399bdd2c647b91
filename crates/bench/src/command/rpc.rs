//! `sanderling bench rpc`: pulls over every transport, beside what the transport alone can do and beside gRPC.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sanderling_bench::Dist;
use sanderling_bench::rpc::{
    Gather, Launch, MALLOC, Pinning, RpcOptions, RpcReport, RpcRow, Transport, run as measure,
};
use sanderling_observe::{LatencySummary, LatencyTable, Machine};

use crate::failure::Failure;
use crate::output;
use crate::progress::Bar;
use crate::quantity;

/// Measure pulls over each transport, beside a constant answer and beside gRPC
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # 10 M rows, all transports; minutes
  sanderling bench rpc
  sanderling bench rpc --transports shm,tcp,grpc-unary --in-flight 4 \\
      --pinnings unpinned
  sanderling bench rpc --rows 100000 --batch-size 64 --rounds 2 --json rpc.json

Servers are processes of their own, started and ended here, each with a table of its own; the client is this process, with \
a thread per connection. \"constant\" is the same transport whose server answers with a constant buffer: no look-up, no \
session, no checksum. A single call lasts from its sending to its answer; all calls of one request, from the sending of the \
first to the answer of the last. At half load pulls are due at fixed times, and their time counts from then on. gRPC is \
tuned (windows, frames, no delay, an allocator that keeps memory) but for grpc-unary-untuned. \
Measure on an idle machine.")]
pub(super) struct Args {
    /// Transports to measure, comma-separated: those of the default, and tls
    #[arg(long, value_delimiter = ',', default_values_t = RpcOptions::default().transports)]
    transports: Vec<Transport>,
    /// Number of rows in the table, created before the measurement
    #[arg(long, default_value_t = RpcOptions::default().rows)]
    rows: u64,
    /// Embedding dimension: weights per row
    #[arg(long, default_value_t = RpcOptions::default().dim)]
    dim: usize,
    /// Rows per pull
    #[arg(long, default_value_t = RpcOptions::default().batch)]
    batch_size: usize,
    /// Concurrent pulls per connection to measure, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = RpcOptions::default().in_flight)]
    in_flight: Vec<usize>,
    /// Number of connections per transport, each with its own client thread
    #[arg(long, default_value_t = RpcOptions::default().connections)]
    connections: usize,
    /// CPU pinning to measure: unpinned, or pinned (servers on one half of the processors, client on the other)
    #[arg(long, value_delimiter = ',', default_values_t = RpcOptions::default().pinnings)]
    pinnings: Vec<Pinning>,
    /// Pulls per whole request, whose latency ends with the last reply
    #[arg(long, default_value_t = RpcOptions::default().calls)]
    calls: usize,
    /// Number of rounds; each measures every transport
    #[arg(long, default_value_t = RpcOptions::default().rounds)]
    rounds: usize,
    /// Measured time per transport and round
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = quantity::time)]
    duration: Duration,
    /// Skip the latencies at half of the maximum throughput
    #[arg(long)]
    no_half_load: bool,
    /// Busy-poll time of client and server before they block
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = quantity::time)]
    spin: Duration,
    /// Gatherer of rows for replies by rdma: cpu, or nic, the network card, out of a table with copy-on-write
    #[arg(long, value_name = "WAY", default_value_t = RpcOptions::default().gather)]
    gather: Gather,
    /// Key distribution: uniform, or zipf with an exponent up to 4, such as zipf0.99
    #[arg(long, default_value_t = RpcOptions::default().dist)]
    dist: Dist,
    /// Random seed of the keys and the initial rows
    #[arg(long, default_value_t = RpcOptions::default().seed)]
    seed: u64,
    /// JSON file to write; - for standard output, without the table [default: none]
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Suppress progress output
    #[arg(long, short)]
    quiet: bool,
}

pub(super) fn run(args: &Args) -> Result<u8, Failure> {
    let options = RpcOptions {
        transports: args.transports.clone(),
        rows: args.rows,
        dim: args.dim,
        batch: args.batch_size,
        in_flight: args.in_flight.clone(),
        connections: args.connections,
        pinnings: args.pinnings.clone(),
        calls: args.calls,
        rounds: args.rounds,
        seconds: args.duration.as_secs_f64(),
        half_load: !args.no_half_load,
        spin_us: quantity::spin_us(args.spin),
        gather: args.gather,
        dist: args.dist,
        seed: args.seed,
    };
    let program = std::env::current_exe().map_err(Failure::Output)?;
    if options.transports.iter().any(|transport| transport.is_grpc()) && std::env::var_os(MALLOC.0).is_none()
    {
        return Err(start_again(&program));
    }
    super::check(args.json.as_deref())?;
    let bar = Bar::new(args.quiet);
    let launch = Launch { program: &program, args: &[super::rpc_server::NAME.to_owned()] };
    let report = measure(&options, launch, &mut |what, done, of| bar.steps(what, done, of));
    bar.finish();
    super::show(&report.map_err(super::failed)?, args.json.as_deref(), describe)?;
    Ok(0)
}

/// Runs the same command line with the allocator that the rival deserves: its client is this process, and the C library
/// reads how it is to allocate before a program begins.
fn start_again(program: &Path) -> Failure {
    let mut command = Command::new(program);
    Failure::Output(command.args(std::env::args_os().skip(1)).env(MALLOC.0, MALLOC.1).exec())
}

fn describe(report: &RpcReport) -> String {
    let (options, Machine { cpu, cpus_usable, simd, memory_bytes, .. }) = (&report.options, &report.machine);
    let head = [
        ("machine", format!("{cpu}, {cpus_usable} processors, {simd}, {}", output::bytes(*memory_bytes))),
        (
            "pull",
            format!(
                "{} rows of dim {} from {}, {}, {} connection{}",
                options.batch,
                options.dim,
                output::count(options.rows),
                options.dist,
                options.connections,
                if options.connections == 1 { "" } else { "s" },
            ),
        ),
        (
            "turns",
            format!("{} of {} s, awake for {} us at most", options.rounds, options.seconds, options.spin_us),
        ),
    ];
    let mut latencies = LatencyTable::new(&["transport", "in flight", "pinning", "time of"]);
    for row in &report.results {
        let (transport, in_flight) = (row.transport.to_string(), row.in_flight.to_string());
        let pinning = row.pinning.to_string();
        let all = format!("all {} RPC calls of one request", options.calls);
        for (of, summary) in [("a single RPC call", row.call), (&all, row.request)] {
            latencies.row(&[&transport, &in_flight, &pinning, of], summary);
        }
    }
    format!("{}\n\n{}\n\n{latencies}", output::pairs(&head), rates(&report.results))
}

fn rates(rows: &[RpcRow]) -> String {
    let header = [
        "transport",
        "in flight",
        "requests/s",
        "constant",
        "ratio",
        "half load/s",
        "p50 us",
        "p99 us",
        "p99/p50",
        "pinning",
    ];
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let half = row.half_load.as_ref();
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.2}"));
            let rate =
                |value: Option<f64>| value.map_or_else(String::new, |value| output::count(value as u64));
            let time =
                |of: fn(&LatencySummary) -> u64| half.map_or_else(String::new, |half| us(of(&half.call)));
            vec![
                row.transport.to_string(),
                row.in_flight.to_string(),
                output::count(row.requests_per_s as u64),
                rate(row.constant_per_s),
                number(row.ratio),
                rate(half.map(|half| half.offered_per_s)),
                time(|summary| summary.p50_ns),
                time(|summary| summary.p99_ns),
                number(half.map(|half| half.p99_to_p50)),
                row.pinning.to_string(),
            ]
        })
        .collect();
    output::table(&header, &rows)
}
