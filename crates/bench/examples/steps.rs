//! How long a step takes that workers do together, by where they meet and by how their gradients are counted, and a barrier:
//! `cargo run --release -p sanderling-bench --example steps [STEPS]`. Workers and servers are threads of this process. Knows no
//! model: gradients stand still. See docs/design/0010-synchronous-steps-at-the-servers.md.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // an example ends where something is wrong, and prints

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_bench::median;
use sanderling_client::{
    Cluster, ConnectOptions, Meeting, RemoteTable, StepGradients, SyncGroup, SyncOptions,
};
use sanderling_server::{Config, Server};
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

const WORKERS: u32 = 2;
/// Of each worker and step; half of them are those of the other, too.
const KEYS: u64 = 4096;
const DIM: usize = 16;

fn config(name: &str) -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };
    TableConfig::single(name, DIM, Init::Uniform { bound: 0.1 }, optimizer)
}

/// Measurements of one worker: microseconds of each step, and of each barrier.
fn work(mut group: SyncGroup, steps: u64, fixed: bool) -> (Vec<f64>, Vec<f64>) {
    let first = u64::from(group.worker()) * KEYS / 2;
    let keys: Vec<u64> = (first..first + KEYS).collect();
    let (counts, singles) = (vec![1; keys.len()], vec![1e-3; keys.len() * DIM]);
    let sums = vec![1_i64 << 30; singles.len()];
    let gradients = match fixed {
        true => StepGradients::Fixed { unit_log2: -40, sums: &sums },
        false => StepGradients::Single(&singles),
    };
    let us = |since: Instant| since.elapsed().as_secs_f64() * 1e6;
    let (mut step_us, mut barrier_us) = (Vec::new(), Vec::new());
    for step in 1..=steps {
        let start = Instant::now();
        group.push_step(step, 0, &keys, &counts, gradients, PushScale::default()).unwrap();
        group.wait_applied(step).unwrap();
        step_us.push(us(start));
        let start = Instant::now();
        group.barrier("step").unwrap();
        barrier_us.push(us(start));
    }
    (step_us, barrier_us)
}

fn measure(what: &str, steps: u64, fixed: bool, join: impl Fn(u32) -> SyncGroup + Sync) {
    let mut found = std::thread::scope(|scope| {
        let workers = (0..WORKERS).map(|worker| {
            scope.spawn({
                let join = &join;
                move || work(join(worker), steps, fixed)
            })
        });
        workers.collect::<Vec<_>>().into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let (step_us, barrier_us) = found.swap_remove(0);
    let form = if fixed { "i64" } else { "f32" };
    println!("{what:16} {form}  step {:8.0} us  barrier {:6.0} us", median(&step_us), median(&barrier_us));
}

fn main() {
    let steps: u64 = std::env::args().nth(1).map_or(200, |steps| steps.parse().unwrap());
    let options = SyncOptions { timeout: Duration::from_secs(60), attempt: 0 };
    println!("{WORKERS} workers, {KEYS} keys of dim {DIM} each, medians of {steps} steps");
    for fixed in [false, true] {
        let table = Arc::new(Table::new(config("t")).unwrap());
        let meeting = Meeting::new(vec![table], WORKERS).unwrap();
        measure("in process", steps, fixed, |worker| {
            SyncGroup::join_here(&meeting, worker, options).unwrap()
        });
    }
    for (kind, shards) in [("shm", 1), ("shm", 2), ("unix", 1), ("unix", 2), ("tcp", 1), ("tcp", 2)] {
        let folder = std::env::temp_dir().join(format!("sanderling-steps-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let servers: Vec<Server> = (0..shards)
            .map(|shard| {
                let listen = match kind {
                    "tcp" => "tcp://127.0.0.1:0".to_owned(),
                    _ => format!("{kind}:{}/{shard}", folder.display()),
                };
                let listen = vec![listen.parse().unwrap()];
                let config = Config { listen, local: false, shard, shards, workers: 1, ..Config::default() };
                Server::start(&config, |_| ()).unwrap()
            })
            .collect();
        let addresses: Vec<_> = servers.iter().map(|server| server.addresses()[0].clone()).collect();
        let connect = ConnectOptions { prefer_local: false, ..ConnectOptions::default() };
        let cluster = Cluster::connect(&addresses, connect).unwrap();
        let tables = [RemoteTable::create(&cluster, &config("t")).unwrap()];
        for fixed in [false, true] {
            measure(&format!("{kind}, servers: {shards}"), steps, fixed, |worker| {
                let group = u64::from(fixed);
                SyncGroup::join(&cluster, &tables, group, worker, WORKERS, options).unwrap()
            });
        }
        drop(servers);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
