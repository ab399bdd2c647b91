//! Checkpoints large enough for several threads: every row is restored bit for bit, whatever the order of its block.

use sanderling_store::{
    Checkpoint, CheckpointWriter, Eviction, Init, Optimizer, RowRef, StoreError, Table, TableConfig,
};
use tempfile::TempDir;

const DIM: usize = 8;
/// Files of more than 4 MiB are read by several threads.
const ROWS: u64 = 120_000;
const PUSHES: u64 = 1000;

fn config() -> TableConfig {
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.0 };
    TableConfig::single("t", DIM, Init::Zero, adagrad)
}

/// Weights and state of a key.
fn values(key: u64) -> ([f32; DIM], [f32; DIM]) {
    (
        std::array::from_fn(|at| (key * 8 + at as u64) as f32),
        std::array::from_fn(|at| (key + at as u64) as f32),
    )
}

/// A checkpoint of these keys in this order.
fn saved(config: &TableConfig, keys: impl Iterator<Item = u64>) -> (TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    let written = writer.rows::<StoreError>(config, |each| {
        for key in keys {
            let (weights, state) = values(key);
            let (frequency, last_use) = (key as u32 % 77, (key % PUSHES) as u32);
            let row = RowRef { key, frequency, last_use, version: 3, weights: &weights, state: &state };
            assert!(each(row).is_continue());
        }
        Ok(PUSHES)
    });
    written.unwrap();
    writer.commit().unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

/// Checks every row; returns their number.
fn checked(table: &Table) -> u64 {
    let mut rows = 0;
    table.for_each_row(|row| {
        rows += 1;
        let (weights, state) = values(row.key);
        assert_eq!((row.weights, row.state), (&weights[..], &state[..]));
        assert_eq!((row.frequency, row.last_use), (row.key as u32 % 77, (row.key % PUSHES) as u32));
    });
    assert_eq!((table.len() as u64, table.stats().rows), (rows, rows));
    rows
}

#[test]
fn all_rows_come_back_bit_for_bit() {
    let (_dir, checkpoint) = saved(&config(), 0..ROWS);
    let table = checkpoint.load_table("t").unwrap();
    assert_eq!((checked(&table), table.stats().pushes), (ROWS, PUSHES));
    // Saved again by a thread beside the walk, and loaded again.
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&table).unwrap();
    writer.commit().unwrap();
    let again = Checkpoint::open(dir.path()).unwrap();
    again.verify().unwrap();
    assert_eq!(checked(&again.load_table("t").unwrap()), ROWS);
}

/// Two checkpoints are added to a table without room for them, so that its index grows meanwhile.
#[test]
fn rows_are_added_to_a_table_that_grows() {
    let (_one, first) = saved(&config(), (0..ROWS).step_by(2));
    let (_other, second) = saved(&config(), (0..ROWS).rev().filter(|key| key % 2 == 1));
    let mut table = Table::new(config()).unwrap();
    assert_eq!(first.load_rows("t", &mut table, |_| true).unwrap(), ROWS / 2);
    assert_eq!(second.load_rows("t", &mut table, |key| key % 3 == 0).unwrap(), ROWS / 6);
    assert_eq!(checked(&table), ROWS / 2 + ROWS / 6);
}

#[test]
fn a_key_that_occurs_twice_is_found_whatever_thread_meets_it() {
    for twice in [0, 1000, ROWS - 1] {
        let (_dir, checkpoint) = saved(&config(), (0..ROWS).chain([twice]));
        let mut table = Table::new(config()).unwrap();
        let error = checkpoint.load_rows("t", &mut table, |_| true).unwrap_err();
        assert!(error.to_string().contains("occurs twice"), "{error}");
        // Rows without a key are free again.
        checked(&table);
    }
}

#[test]
fn rows_are_evicted_where_there_is_no_room_for_all() {
    for eviction in [Eviction::Clock, Eviction::Never] {
        let config = TableConfig { eviction, ..config() };
        let (_dir, checkpoint) = saved(&config, 0..ROWS);
        let loaded = checkpoint.load_table_within("t", Some(5 << 20));
        if eviction == Eviction::Never {
            assert!(matches!(loaded, Err(StoreError::TableFull { .. })));
            continue;
        }
        let table = loaded.unwrap();
        assert!((20_000..ROWS).contains(&checked(&table)) && table.bytes() <= 5 << 20);
    }
}
