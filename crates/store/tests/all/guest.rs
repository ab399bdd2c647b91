//! A program for a guest whose power is taken away (`tests/guest.sh`): it checks a kept table on persistent memory, and
//! pushes until its guest ends.
#![allow(clippy::unwrap_used)] // a panic is a failed test
#![allow(clippy::print_stdout)] // what it has acknowledged

use std::path::Path;

use sanderling_store::{Absent, Block, Durability, Init, Optimizer, PushScale, Table, TableConfig, Writes};

/// Keys that get a row, keys of a push, and weights of a row.
const KEYS: u64 = 20_000;
const PUSHED: u64 = 64;
const DIM: usize = 16;
/// Lines that the console of a guest may hold.
const LINES_LATE: u64 = 2000;

fn keys(push: u64) -> Vec<u64> {
    (0..PUSHED).map(|at| (push * PUSHED + at) % KEYS).collect()
}

/// Updates of each key by the first pushes.
fn updates(pushes: u64) -> Vec<u64> {
    let mut updates = vec![0; KEYS as usize];
    (1..=pushes).flat_map(keys).for_each(|key| updates[key as usize] += 1);
    updates
}

/// Updates of each key, by its weights: an update subtracts one from each.
fn found(table: &Table) -> Vec<u64> {
    let (keys, mut weights) = ((0..KEYS).collect::<Vec<_>>(), vec![0.0; KEYS as usize * DIM]);
    table.pull(&keys, Absent::Zero, &mut weights, None).unwrap();
    let row = |row: &[f32]| {
        assert!(row.iter().all(|weight| *weight == row[0]), "a row is torn: {row:?}");
        -row[0] as u64
    };
    weights.chunks(DIM).map(row).collect()
}

/// Whether all mappings of the rows' file, or of the device, make the system's part of a store durable with it
/// (`MAP_SYNC`).
fn is_synced(root: &Path, table: &Table) -> bool {
    let rows = if root.is_dir() { table.kept_in().unwrap().join("weights") } else { root.to_owned() };
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut flags = Vec::new();
    let mut lines = maps.lines();
    while let Some(line) = lines.next() {
        if line.ends_with(rows.to_str().unwrap()) {
            let found = lines.by_ref().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
            flags.push(found.split_whitespace().any(|flag| flag == "sf"));
        }
    }
    println!("GUEST mappings with MAP_SYNC: {flags:?}");
    !flags.is_empty() && flags.into_iter().all(|is_synced| is_synced)
}

fn push(table: &Table, keys: &[u64]) {
    table.push(keys, &vec![1.0; keys.len() * DIM], PushScale::default()).unwrap();
}

/// Finds the last push that is there as a whole, which must be `acknowledged` or a later one; the next one may be there
/// in part, and is completed. Returns its number.
fn check(table: &Table, acknowledged: u64) -> u64 {
    let found = found(table);
    // The host sees a line of the guest later than it was written.
    let fits = |&push: &u64| {
        let (before, after) = (updates(push), updates(push + 1));
        (0..KEYS as usize).all(|key| found[key] == before[key] || found[key] == after[key])
    };
    let last = (acknowledged..acknowledged + LINES_LATE).find(fits).expect("an acknowledged push is lost");
    let (rows, after) = (found.iter().filter(|&&updates| updates > 0).count(), updates(last + 1));
    assert_eq!(table.len(), rows);
    let missing = keys(last + 1).into_iter().filter(|&key| found[key as usize] != after[key as usize]);
    let missing: Vec<u64> = missing.collect();
    println!(
        "GUEST checked {rows} rows: push {acknowledged} is there, the last whole one is {last}, of the next one {} keys",
        PUSHED - missing.len() as u64
    );
    push(table, &missing);
    last + 1
}

/// Not a test: the program of the guest. `GUEST_DIR` is a folder on persistent memory or a device, `GUEST_ACKNOWLEDGED` the last push
/// that the guest before has told.
#[test]
#[ignore = "run by tests/guest.sh"]
fn guest() {
    let Ok(dir) = std::env::var("GUEST_DIR") else { return };
    let mut acknowledged: u64 = std::env::var("GUEST_ACKNOWLEDGED").unwrap().parse().unwrap();
    let blocks = vec![Block { dims: DIM, init: Init::Zero, optimizer: Optimizer::Sgd { lr: 1.0, l2: 0.0 } }];
    let config = TableConfig {
        writes: Writes::CopyOnWrite,
        budget_bytes: Some(32 << 20),
        ..TableConfig::new("guest", blocks)
    };
    let (table, attached) = Table::kept_for(config, Path::new(&dir), "", Durability::Power).unwrap();
    println!("GUEST {}", attached.summary());
    assert!(attached.survives_power && is_synced(Path::new(&dir), &table));
    acknowledged = check(&table, acknowledged) - 1;
    loop {
        acknowledged += 1;
        println!("GUEST acknowledged {acknowledged}");
        push(&table, &keys(acknowledged + 1));
    }
}
