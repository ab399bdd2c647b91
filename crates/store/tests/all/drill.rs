//! Kills a process at random moments while it pushes to kept tables that grow, evict and promote, and checks that the
//! next process finds every push that had returned. `DRILLS=1000` sets the number of kills, `DRILL_ROOT` the file system.

#![allow(clippy::print_stdout)] // the numbers of a run

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sanderling_store::{
    Eviction, Init, Maintenance, Optimizer, Packing, PushScale, Table, TableConfig, Writes, kept_tables,
};

const DIR: &str = "DRILL_DIR";
const SETUP: &str = "DRILL_SETUP";
const THREADS: u64 = 3;
const BATCH: usize = 100;
const DRILLS: usize = 50;
/// Kills of one table: it grows from empty to several growths of its index.
const KILLS_PER_TABLE: usize = 10;

fn tables_of(setup: usize) -> [TableConfig; 2] {
    let dims = [5, 17, 40][setup % 3];
    let writes = [Writes::InPlace, Writes::CopyOnWrite][setup / 3 % 2];
    let packing = [Packing::Fast, Packing::Compact][setup % 2];
    let table = |name: &str| TableConfig {
        writes,
        packing,
        ..TableConfig::single(name, dims, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })
    };
    let lossy = TableConfig { eviction: Eviction::Clock, budget_bytes: Some(2 << 20), ..table("evicting") };
    [table("whole"), lossy]
}

/// A random number of a stream.
fn random(stream: u64, number: u64) -> u64 {
    let mut hash = ((stream << 40) ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}

/// The keys of a thread's batch: distinct, of a range that grows.
fn keys_of(thread: u64, batch: u64) -> Vec<u64> {
    let range = 500 + 30 * batch;
    let mut keys: Vec<u64> = (0..BATCH as u64)
        .map(|at| (thread << 40) | (random(thread, batch * BATCH as u64 + at) % range))
        .collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The file in which a thread notes the batch that it begins, and that it has ended.
fn note_of(root: &Path, thread: u64) -> PathBuf {
    root.with_extension(format!("thread-{thread}"))
}

fn batches(root: &Path, thread: u64) -> [u64; 2] {
    let note = std::fs::read(note_of(root, thread)).unwrap();
    [0, 8].map(|at| u64::from_le_bytes(note[at..at + 8].try_into().unwrap()))
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "run by another test"]
fn child() {
    let (Ok(root), Ok(setup)) = (std::env::var(DIR), std::env::var(SETUP)) else { return };
    let root = PathBuf::from(root);
    let tables: Vec<Table> = tables_of(setup.parse().unwrap())
        .into_iter()
        .map(|config| Table::kept(config, &root, "").unwrap().0)
        .collect();
    let tables: &'static [Table] = tables.leak();
    let _maintenance = Maintenance::start(|maintain| tables.iter().for_each(maintain)).unwrap();
    std::fs::write(root.with_extension("ready"), "").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let note = File::options().write(true).open(note_of(&root, thread)).unwrap();
            let [begun, _] = batches(&root, thread);
            scope.spawn(move || {
                for batch in begun + 1.. {
                    note.write_all_at(&batch.to_le_bytes(), 0).unwrap();
                    let keys = keys_of(thread, batch);
                    for table in tables {
                        let gradients = vec![-1.0; keys.len() * table.dim()];
                        table.push(&keys, &gradients, PushScale::default()).unwrap();
                    }
                    // Rows that go, and come back as new ones.
                    if batch % 7 == 0 {
                        tables[1].remove(keys[0]);
                    }
                    let mut pulled = vec![0.0; tables[0].dim()];
                    tables[0].pull(&keys[..1], sanderling_store::Absent::Zero, &mut pulled, None).unwrap();
                    note.write_all_at(&batch.to_le_bytes(), 8).unwrap();
                }
            });
        }
    });
}

/// A row that was updated so often, if it is whole.
fn updates(row: &sanderling_store::RowRef<'_>) -> u32 {
    let weight = row.weights[0];
    let is_whole = row.weights.iter().all(|&other| other == weight)
        && (row.frequency, row.version) == (weight as u32, weight as u32);
    assert!(is_whole, "a torn row: {row:?}");
    row.version
}

/// Runs a process until it is killed; returns the number of changes that had to be mended.
fn drill(root: &Path, setup: usize, number: usize, expected: &mut HashMap<u64, u32>) -> usize {
    let ready = root.with_extension("ready");
    let _ = std::fs::remove_file(&ready);
    let before: Vec<[u64; 2]> = (0..THREADS).map(|thread| batches(root, thread)).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "drill::child", "--ignored", "-q"])
        .env(DIR, root)
        .env(SETUP, setup.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let random = random(77, number as u64);
    // Some die while they open the tables.
    if !random.is_multiple_of(5) {
        while !ready.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let (begun, within) = (Instant::now(), Duration::from_micros(random >> 20 & 0x3FFF));
    while begun.elapsed() < within {
        std::hint::spin_loop();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let [whole, evicting] = tables_of(setup).map(|config| Table::kept(config, root, "").unwrap());
    // A batch that had begun and not ended may be there in part; batches before and after are there once.
    let mut may_be = HashMap::new();
    for (thread, before) in (0..THREADS).zip(before) {
        let [begun, ended] = batches(root, thread);
        assert!(begun - ended <= 1 && begun >= before[0], "{begun} {ended}");
        for batch in before[0] + 1..=begun {
            for key in keys_of(thread, batch) {
                let count = if batch <= ended { &mut *expected } else { &mut may_be };
                *count.entry(key).or_insert(0) += 1;
            }
        }
        // The next process does not repeat the batch.
        let note = File::options().write(true).open(note_of(root, thread)).unwrap();
        note.write_all_at(&begun.to_le_bytes(), 8).unwrap();
    }
    let mut rows = 0;
    whole.0.for_each_row(|row| {
        let (found, least) = (updates(&row), expected.get(&row.key).copied().unwrap_or(0));
        let most = least + may_be.get(&row.key).copied().unwrap_or(0);
        assert!((least..=most).contains(&found), "key {}: {found} updates, not {least} to {most}", row.key);
        expected.insert(row.key, found);
        rows += 1;
    });
    assert_eq!((whole.0.len(), rows), (expected.len(), expected.len()), "keys are lost");
    let mut rows = 0;
    evicting.0.for_each_row(|row| {
        updates(&row);
        rows += 1;
    });
    assert_eq!(evicting.0.len(), rows, "a wrong count");
    let stats = evicting.0.stats();
    assert!(stats.index_bytes + stats.slab_bytes <= 2 << 20, "{stats:?}");
    whole.1.repaired + evicting.1.repaired
}

#[test]
fn no_push_is_lost_when_the_process_is_killed() {
    let drills = std::env::var("DRILLS").map_or(DRILLS, |drills| drills.parse().unwrap());
    let root = std::env::var("DRILL_ROOT").unwrap_or_else(|_| "/dev/shm".to_owned());
    let (mut mended, mut rows) = (0, 0);
    for number in 0..drills {
        if number % KILLS_PER_TABLE > 0 {
            continue;
        }
        let setup = number / KILLS_PER_TABLE;
        let dir = tempfile::tempdir_in(&root).unwrap();
        let root = dir.path().join("root");
        let mut expected = HashMap::new();
        (0..THREADS).for_each(|thread| std::fs::write(note_of(&root, thread), [0; 16]).unwrap());
        for number in number..drills.min(number + KILLS_PER_TABLE) {
            mended += drill(&root, setup, number, &mut expected);
        }
        rows += expected.len();
        let listed = kept_tables(&root).unwrap();
        assert_eq!(
            listed.iter().map(|table| table.config.name.as_str()).collect::<Vec<_>>(),
            ["evicting", "whole"]
        );
    }
    println!("{drills} kills, {mended} changes in hand mended, {rows} rows in the tables without eviction");
}
