//! Measures a replica: start, freshness of probe keys, pulls and the primary's pushes with and without it.
//!
//! `cargo run --release -p sanderling-serve --example replica -- 10000000`
//!
//! The primary is a process of its own: two tables of one process have the same hashes, and pages come in their order.

#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_learner::{Config as RunConfig, RunOptions, train};
use sanderling_serve::{Config, FollowOptions, ReplicaConfig, ReplicaSource, ServedModel, Server};
use sanderling_store::{Absent, PushScale, Table};
use sanderling_testkit::TestServer;

/// Keys of a request.
const KEYS: usize = 512;
/// Time of each measurement.
const SPAN: Duration = Duration::from_secs(5);

fn model(folder: &Path, cluster: &Arc<Cluster>) -> std::path::PathBuf {
    let file = folder.join("rows.csv");
    std::fs::write(&file, "user,label\na,1\nb,0\nc,1\nd,0\n").expect("a file");
    let config = serde_json::json!({
        "name": "clicks",
        "data": { "train": file },
        "model": { "type": "fm", "rank": 31 },
        "train": { "batch_size": 2 },
        "feature": [{ "name": "user" }],
    });
    let config = RunConfig::from_json(&config.to_string(), |_| ()).expect("a configuration");
    let (runs_dir, servers) = (folder.join("runs"), Some(Arc::clone(cluster)));
    let options = RunOptions { runs_dir, servers, ..RunOptions::default() };
    train(config, &options, &AtomicBool::new(false), &mut |_| ()).expect("a run");
    folder.join("runs/clicks/model")
}

fn percentiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    format!("p50 {:?} p99 {:?} of {}", at(0.5), at(0.99), times.len())
}

/// Pulls random keys; returns the times.
fn pulls(table: &Table, rows: u64) -> Vec<Duration> {
    let (mut out, mut seed, begun, mut times) =
        (vec![0.0; KEYS * table.dim()], 1_u64, Instant::now(), Vec::new());
    while begun.elapsed() < SPAN {
        let keys: Vec<u64> = (0..KEYS).map(|_| next(&mut seed) % rows).collect();
        let at = Instant::now();
        table.pull(&keys, Absent::Zero, &mut out, None).expect("a pull");
        times.push(at.elapsed());
        std::thread::sleep(Duration::from_micros(500));
    }
    times
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 20
}

/// Pushes `per_second` random keys per second, or as many as go.
fn pushes(table: &RemoteTable, rows: u64, per_second: Option<u64>, stop: &AtomicBool, pushed: &AtomicU64) {
    let (mut seed, begun, grads) = (7, Instant::now(), vec![1e-3; KEYS * table.dim()]);
    while !stop.load(Ordering::Relaxed) {
        let mut keys: Vec<u64> = (0..KEYS).map(|_| next(&mut seed) % rows).collect();
        keys.sort_unstable();
        keys.dedup();
        table.push(&keys, &grads[..keys.len() * table.dim()], PushScale::default()).expect("a push");
        let done = pushed.fetch_add(KEYS as u64, Ordering::Relaxed) + KEYS as u64;
        if let Some(rate) = per_second {
            let due = Duration::from_secs_f64(done as f64 / rate as f64);
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

/// Keys per second that go to the primary.
fn push_rate(table: &RemoteTable, rows: u64) -> f64 {
    let (stop, pushed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| pushes(table, rows, None, &stop, &pushed));
        std::thread::sleep(SPAN);
        stop.store(true, Ordering::Relaxed);
    });
    pushed.load(Ordering::Relaxed) as f64 / SPAN.as_secs_f64()
}

/// Runs a primary until the input ends; prints its address.
fn run_primary() {
    let primary = TestServer::new(|config| config.workers = 1);
    println!("{}", primary.address("tcp"));
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Starts this program as a primary.
fn start_primary() -> (Child, String) {
    let program = std::env::current_exe().expect("this program");
    let (input, output) = (Stdio::piped(), Stdio::piped());
    let mut child =
        Command::new(program).arg("primary").stdin(input).stdout(output).spawn().expect("a process");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
    (child, line.trim().to_owned())
}

fn main() {
    let argument = std::env::args().nth(1);
    if argument.as_deref() == Some("primary") {
        return run_primary();
    }
    let rows: u64 = argument.and_then(|rows| rows.parse().ok()).unwrap_or(1_000_000);
    let folder = tempfile::tempdir().expect("a folder");
    let (mut primary, address) = start_primary();
    let address = address.parse().expect("an address");
    let cluster = Cluster::connect(&[address], ConnectOptions::default()).expect("a cluster");
    let path = model(folder.path(), &cluster);
    let table = RemoteTable::open(&cluster, "clicks/user").expect("the table");
    let grads = vec![1e-3; (1 << 14) * table.dim()];
    for first in (0..rows).step_by(1 << 14) {
        let keys: Vec<u64> = (first..rows.min(first + (1 << 14))).collect();
        table.push(&keys, &grads[..keys.len() * table.dim()], PushScale::default()).expect("a push");
    }
    println!("{rows} rows of {} weights and {} state values", table.dim(), table.state());
    println!("pushes without a replica: {:.0} keys/s", push_rate(&table, rows));
    let server = Server::start(&Config::new("127.0.0.1:0".parse().expect("an address"))).expect("a server");
    let follow = FollowOptions::default();
    let model = Arc::new(ServedModel::to_follow(&path, None, 1, &follow).expect("a model"));
    let config = ReplicaConfig {
        source: ReplicaSource::Servers { cluster: Arc::clone(&cluster), start: None },
        fresh: Duration::from_millis(200),
        stale_after: Duration::from_secs(10),
        memory_bytes_max: None,
    };
    let begun = Instant::now();
    server.follow_source(config, Arc::clone(&model), |line| println!("{line}")).expect("threads");
    while !server.is_ready() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (bytes, primary_bytes) = (model.table_bytes() >> 20, table.size().expect("its size").1 >> 20);
    println!("ready after {:?} with {bytes} MiB, the primary has {primary_bytes} MiB", begun.elapsed());
    println!("pushes with an idle replica beside: {:.0} keys/s", push_rate(&table, rows));
    let replica = model.shared_table("user").expect("the table");
    std::thread::sleep(Duration::from_secs(1));
    println!("pulls of {KEYS} keys, quiet: {}", percentiles(pulls(&replica, rows)));
    let (stop, pushed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // 2 % of the keys that the pulls read, as far as they sleep as little.
        scope.spawn(|| pushes(&table, rows, Some(20_000), &stop, &pushed));
        println!("pulls of {KEYS} keys, beside the stream: {}", percentiles(pulls(&replica, rows)));
        let mut times = Vec::new();
        let probes = Instant::now();
        for probe in 0.. {
            if probes.elapsed() > 4 * SPAN {
                break;
            }
            let key = rows + probe;
            let at = Instant::now();
            table.push(&[key], &vec![1.0; table.dim()], PushScale::default()).expect("a push");
            while replica.get(key).is_none() {
                std::thread::sleep(Duration::from_micros(200));
            }
            times.push(at.elapsed());
        }
        println!("freshness: {}", percentiles(times));
        stop.store(true, Ordering::Relaxed);
    });
    server.stop();
    drop(primary.stdin.take());
    primary.wait().expect("its end");
}
