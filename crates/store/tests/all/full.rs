//! Checkpoints of full tables: they load into a table of the same configuration, and into a smaller one if its
//! eviction allows it.

use std::collections::HashMap;
use std::thread;

use sanderling_store::{
    Checkpoint, CheckpointWriter, Dtype, Eviction, Init, Optimizer, PushScale, Row, RowRef, StoreError,
    Table, TableConfig, Writes, budget_bytes_max,
};

const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
const ADAM: Optimizer = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.0 };

fn rows_of(t: &Table) -> HashMap<u64, Row> {
    let mut keys = Vec::new();
    t.for_each_key(|_| true, |key| keys.push(key));
    keys.into_iter().map(|key| (key, t.get(key).unwrap())).collect()
}

/// Pushes new keys in batches until the table is full or evicts.
fn fill(t: &Table, first: u64, keys_per_push: u64) {
    let gradients = vec![-1.5; keys_per_push as usize * t.dim()];
    for push in 0.. {
        let keys: Vec<u64> = (0..keys_per_push).map(|at| first + push * keys_per_push + at).collect();
        // Statistics cost more than a push.
        let evicts = || (push * keys_per_push).is_multiple_of(5000) && t.stats().evicted > 0;
        match t.push(&keys, &gradients, PushScale::default()) {
            Ok(()) if !evicts() => {}
            Ok(()) | Err(StoreError::TableFull { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

fn saved(t: &Table) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(t).unwrap();
    writer.commit().unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

/// Saves and loads a full table twice; a loaded table is full too.
fn check(config: &TableConfig, threads: u64, keys_per_push: u64) {
    let t = Table::new(config.clone()).unwrap();
    thread::scope(|scope| {
        for number in 0..threads {
            let t = &t;
            scope.spawn(move || fill(t, number << 40, keys_per_push));
        }
    });
    let rows = rows_of(&t);
    assert_eq!(rows.len(), t.len());
    let mut loaded = t;
    for _ in 0..2 {
        let (_dir, checkpoint) = saved(&loaded);
        loaded = checkpoint.load_table("t").unwrap_or_else(|error| panic!("{config:?}: {error}"));
        assert!(rows_of(&loaded) == rows, "{config:?}");
        assert!(loaded.bytes() <= config.budget_bytes.unwrap());
    }
    // A larger budget holds as many rows, although its index might have grown differently.
    let (_dir, checkpoint) = saved(&loaded);
    let budget_bytes = config.budget_bytes.unwrap();
    for more in [Some(1), Some(budget_bytes / 50), Some(budget_bytes / 3), None] {
        let budget_bytes = more.map(|more| budget_bytes + more);
        let larger = checkpoint.load_table_within("t", budget_bytes);
        let larger = larger.unwrap_or_else(|error| panic!("{config:?}, {more:?}: {error}"));
        assert!((larger.len(), larger.stats().evicted) == (rows.len(), 0), "{config:?}, {more:?}");
        assert_eq!(larger.config().budget_bytes, budget_bytes);
    }
    // The last row leaves room for updates.
    let keys: Vec<u64> = rows.into_keys().collect();
    let gradients = vec![1.0; keys.len() * loaded.dim()];
    loaded
        .push(&keys, &gradients, PushScale::default())
        .unwrap_or_else(|error| panic!("{config:?}: {error}"));
}

#[test]
fn a_full_table_loads_its_checkpoint() {
    check_shapes(Writes::InPlace);
    for budget_bytes in [8 << 20, 23 << 20] {
        let config =
            TableConfig { budget_bytes: Some(budget_bytes), ..TableConfig::single("t", 2, Init::Zero, SGD) };
        check(&config, 1, 5000);
    }
}

#[test]
fn a_full_table_that_copies_loads_its_checkpoint() {
    check_shapes(Writes::CopyOnWrite);
}

/// Full tables of many row sizes and budgets, filled by one thread and by several.
fn check_shapes(writes: Writes) {
    let shapes =
        [(2, SGD, Dtype::F32), (1, ADAM, Dtype::F32), (37, SGD, Dtype::Bf16), (64, ADAM, Dtype::F16)];
    let kib = [150, 256, 411, 777, 1024, 1500, 2048];
    for (number, budget_kib) in (0..).zip(kib) {
        for (dims, optimizer, dtype) in shapes {
            for eviction in [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 1 << 20 }] {
                let config = TableConfig {
                    dtype,
                    writes,
                    eviction,
                    budget_bytes: Some(budget_kib << 10),
                    ..TableConfig::single("t", dims, Init::Zero, optimizer)
                };
                check(&config, 1 + number % 3, [100, 1, 5000][number as usize % 3]);
            }
        }
    }
}

/// Rows from a larger table, or from several: eviction keeps the most recently used.
#[test]
fn rows_from_a_larger_table_evict_others() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let config = |budget_bytes: u64, eviction| TableConfig {
            writes,
            eviction,
            budget_bytes: Some(budget_bytes),
            ..TableConfig::single("t", 4, Init::Zero, SGD)
        };
        let t = Table::new(config(2 << 20, Eviction::Clock)).unwrap();
        fill(&t, 0, 100);
        let rows = rows_of(&t);
        let (_dir, checkpoint) = saved(&t);
        let mut small = Table::new(config(1 << 20, Eviction::Clock)).unwrap();
        let taken = checkpoint.load_rows("t", &mut small, |_| true).unwrap();
        assert_eq!((taken, small.stats().pushes), (t.len() as u64, t.stats().pushes));
        let left = rows_of(&small);
        assert!(left.iter().all(|(key, row)| rows[key] == *row));
        assert!((left.len() as u64 + small.stats().evicted, left.len() > t.len() / 4) == (taken, true));
        let mean_use = |rows: &HashMap<u64, Row>| {
            rows.values().map(|row| f64::from(row.last_use)).sum::<f64>() / rows.len() as f64
        };
        assert!(mean_use(&left) > mean_use(&rows), "{} {}", mean_use(&left), mean_use(&rows));
        let mut full = Table::new(config(1 << 20, Eviction::Never)).unwrap();
        let error = checkpoint.load_rows("t", &mut full, |_| true).unwrap_err();
        assert!(matches!(error, StoreError::TableFull { .. }), "{error}");
    }
}

/// The limit of address space applies to a process, so this test runs itself again with one.
#[test]
#[cfg(target_os = "linux")]
fn a_budget_that_there_is_no_address_space_for_is_refused() {
    const LIMITED: &str = "SANDERLING_TEST_OF_LITTLE_ADDRESS_SPACE";
    if std::env::var_os(LIMITED).is_none() {
        let mut again = std::process::Command::new("sh");
        again.args(["-c", "ulimit -v 1000000 && exec \"$0\" --exact \"$1\""]);
        again.arg(std::env::current_exe().unwrap());
        again.arg("full::a_budget_that_there_is_no_address_space_for_is_refused").env(LIMITED, "");
        let done = again.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        return;
    }
    let new = |budget_bytes| {
        let config = TableConfig::single("t", 8, Init::Zero, Optimizer::Sgd { lr: 0.1, l2: 0.0 });
        Table::new(TableConfig { budget_bytes, ..config })
    };
    let error = new(Some(1 << 30)).unwrap_err().to_string();
    for part in ["requires 1073741", "are left beside threads and heap", "ulimit -v"] {
        assert!(error.contains(part), "{error}");
    }
    drop((new(None).unwrap(), new(Some(10 << 20)).unwrap()));
    // Many tables leave enough room for many threads and their heaps.
    let tables: Vec<Table> = (0..30).map(|_| new(None).unwrap()).collect();
    thread::scope(|scope| {
        for table in &tables[..8] {
            scope.spawn(|| {
                let keys: Vec<u64> = (0..1 << 18).collect();
                table.push(&keys[..1000], &[1.0; 8000], PushScale::default()).unwrap();
                assert_eq!((table.len(), keys.len()), (1000, 1 << 18));
            });
        }
    });
}

/// Such a budget would limit nothing. A checkpoint of a larger machine can be loaded nevertheless.
#[test]
fn a_budget_beyond_the_memory_of_the_machine_is_refused() {
    let config = TableConfig::single("t", 8, Init::Zero, SGD);
    for budget_bytes in [1 << 50, u64::MAX, budget_bytes_max() + 1] {
        let config = TableConfig { budget_bytes: Some(budget_bytes), ..config.clone() };
        let error = Table::new(config.clone()).unwrap_err().to_string();
        let expected = format!("table \"t\": budget_bytes = {budget_bytes} is more than the ");
        assert!(error.starts_with(&expected) && error.len() < 200, "{error}");
        let dir = tempfile::tempdir().unwrap();
        let mut writer = CheckpointWriter::create(dir.path()).unwrap();
        let row = RowRef { key: 7, frequency: 1, last_use: 1, version: 1, weights: &[0.5; 8], state: &[] };
        writer.rows::<StoreError>(&config, |each| Ok(u64::from(each(row).is_continue()))).unwrap();
        writer.commit().unwrap();
        let table = Checkpoint::open(dir.path()).unwrap().load_table("t").unwrap();
        assert_eq!((table.len(), table.config()), (1, &config));
    }
}

/// The maximum number of tables of a server: each finds address space, and threads can start.
#[test]
fn four_thousand_tables_without_a_budget_can_be_used() {
    let config = TableConfig::single("t", 1, Init::Zero, SGD);
    let tables: Vec<Table> = (0..4096).map(|_| Table::new(config.clone()).unwrap()).collect();
    for (key, table) in tables.iter().enumerate() {
        table.push(&[key as u64], &[1.0], PushScale::default()).unwrap();
    }
    thread::spawn(move || assert!(tables.iter().all(|table| table.len() == 1))).join().unwrap();
}
