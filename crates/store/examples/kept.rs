//! Measures kept tables: `kept FOLDER [KEYS] [DIM] [ROUNDS]`, tiny by default.
//!
//! It fills a table in private memory and one that the folder keeps, and prints the rates of pulls and pushes of 512
//! uniform keys of both, each the median of interleaved rounds, in millions of keys per second. Then a new process
//! attaches the kept table, and another one restores a checkpoint of the same rows.
//!
//! With `power` as the fifth argument it compares tables with copy-on-write instead: in private memory, kept beyond the
//! process, and with the protocol for the loss of power, which runs in any memory.

#![allow(clippy::print_stdout)] // its purpose

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use sanderling_random::SplitMix64;
use sanderling_store::{
    Absent, Checkpoint, CheckpointWriter, Durability, Init, Optimizer, PushScale, Table, TableConfig, Writes,
};

/// Keys per request.
const BATCH: usize = 512;
/// Requests of a round.
const BATCHES: usize = 400;
/// Keys of a request that fills a table.
const FILL: u64 = 4096;

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn config(dim: usize) -> TableConfig {
    let optimizer = Optimizer::RowAdagrad { lr: 0.01, eps: 1e-10, initial: 0.1, l2: 0.0 };
    TableConfig::single("t", dim, Init::Zero, optimizer)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let root = Path::new(args.first().expect("a folder"));
    let (keys, dim, rounds) = (number(1, 10_000), number(2, 8) as usize, number(3, 3));
    match args.get(4).map(String::as_str) {
        None => measure(root, keys, dim, rounds),
        Some("power") => measure_power(root, keys, dim, rounds),
        Some(part) => open(part, root, keys, dim),
    }
}

fn measure(root: &Path, keys: u64, dim: usize, rounds: u64) {
    let (kept, attached) = Table::kept(config(dim), root, "").expect("a folder");
    println!("{}{}", attached.summary(), attached.pages.map(|cost| format!("; {cost}")).unwrap_or_default());
    // Two large tables need not fit at once.
    if rounds > 0 {
        let private = Table::new(config(dim)).expect("memory");
        compare([("private", &private), ("kept", &kept)], keys, rounds);
    } else {
        println!("kept new keys {:.2}", fill(&kept, keys));
    }
    let stats = kept.stats();
    println!("{} rows, {:.2} GB", kept.len(), kept.bytes() as f64 / 1e9);
    println!("{:.2} GB of it on huge pages", stats.huge_bytes as f64 / 1e9);
    let mut writer = CheckpointWriter::create(root.join("checkpoint")).expect("a folder");
    let start = Instant::now();
    writer.table(&kept).and_then(|_| writer.commit()).expect("space");
    println!("saved in {:.2} s", start.elapsed().as_secs_f64());
    drop(kept);
    for part in ["attach", "restore"] {
        let mut next = Command::new(std::env::current_exe().expect("a program"));
        next.args(std::env::args_os().skip(1).take(1));
        next.args([keys.to_string(), dim.to_string(), "0".to_owned(), part.to_owned()]);
        assert!(next.status().expect("a process").success());
    }
}

/// Compares tables with copy-on-write.
fn measure_power(root: &Path, keys: u64, dim: usize, rounds: u64) {
    let config = |name: &str| {
        let config = TableConfig { writes: Writes::CopyOnWrite, ..config(dim) };
        TableConfig { name: name.to_owned(), ..config }
    };
    let kept =
        |name: &str, durability| Table::kept_for(config(name), root, "", durability).expect("a folder").0;
    let private = Table::new(config("private")).expect("memory");
    let (process, power) = (kept("process", Durability::Process), kept("power", Durability::Emulate));
    compare([("private", &private), ("kept", &process), ("loss of power", &power)], keys, rounds);
}

/// Fills tables and prints the rates of pulls and pushes, and their ratios to those of the first one.
fn compare<const N: usize>(tables: [(&str, &Table); N], keys: u64, rounds: u64) {
    for (name, table) in tables {
        println!("{name} new keys {:.2}", fill(table, keys));
    }
    for op in ["pull", "push"] {
        let mut rates = [const { Vec::new() }; N];
        for round in 0..rounds as usize {
            // The order changes, because the memory's speed does.
            for at in (0..N).map(|at| (round + at) % N) {
                rates[at].push(rate(tables[at].1, op, keys, round as u64));
            }
        }
        let rates = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let each = tables.iter().zip(rates);
        let each = each.map(|((name, _), rate)| format!("{name} {rate:.2} ({:.2})", rate / rates[0]));
        println!("{op}: {}", each.collect::<Vec<_>>().join(", "));
    }
}

/// Another process: how long it takes to the first pull, and to exact counts.
fn open(part: &str, root: &Path, keys: u64, dim: usize) {
    let start = Instant::now();
    let table = if part == "attach" {
        Table::kept(config(dim), root, "").expect("a table").0
    } else {
        Checkpoint::open(root.join("checkpoint")).and_then(|all| all.load_table("t")).expect("a checkpoint")
    };
    let opened = start.elapsed();
    let ids: Vec<u64> = (0..BATCH as u64).map(|at| key(at * (keys / BATCH as u64))).collect();
    let mut out = vec![0.0; BATCH * dim];
    table.pull(&ids, Absent::Zero, &mut out, None).expect("a pull");
    assert!(out.iter().all(|&weight| weight != 0.0), "rows are missing");
    let pulled = start.elapsed();
    table.find_free_rows();
    let [opened, pulled, counted] =
        [opened, pulled, start.elapsed()].map(|elapsed| elapsed.as_secs_f64() * 1e3);
    println!(
        "{part}: open after {opened:.1} ms, first pull of {BATCH} keys after {pulled:.1} ms, {} rows counted after {counted:.1} ms",
        table.len()
    );
}

/// Pushes all keys; returns the rate.
fn fill(table: &Table, keys: u64) -> f64 {
    let start = Instant::now();
    let (gradients, ones) = (vec![0.01; FILL as usize * table.dim()], vec![1; FILL as usize]);
    for first in (0..keys).step_by(FILL as usize) {
        let ids: Vec<u64> = (first..keys.min(first + FILL)).map(key).collect();
        let gradients = &gradients[..ids.len() * table.dim()];
        table.push_unique(&ids, &ones[..ids.len()], gradients, PushScale::default()).expect("room");
    }
    keys as f64 / start.elapsed().as_secs_f64() / 1e6
}

fn rate(table: &Table, op: &str, keys: u64, round: u64) -> f64 {
    let mut random = SplitMix64::new(1 + round * 7919);
    (0..10).for_each(|_| _ = random.next());
    let ids: Vec<Vec<u64>> =
        (0..BATCHES).map(|_| (0..BATCH).map(|_| key(random.next() % keys)).collect()).collect();
    let (mut out, ones) = (vec![0.0; BATCH * table.dim()], vec![1; BATCH]);
    let gradients = vec![0.01; BATCH * table.dim()];
    let start = Instant::now();
    for ids in &ids {
        match op {
            "pull" => _ = table.pull(ids, Absent::Zero, &mut out, None).expect("a pull"),
            _ => table.push_unique(ids, &ones, &gradients, PushScale::default()).expect("a push"),
        }
    }
    (BATCHES * BATCH) as f64 / start.elapsed().as_secs_f64() / 1e6
}
