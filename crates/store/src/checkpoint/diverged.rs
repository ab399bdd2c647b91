//! Tests of saving a table that has diverged.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Checkpoint, CheckpointWriter, Init, Optimizer, PushScale, StoreError, Table, TableConfig};

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// A diverged table could not be loaded, so it must not replace a valid checkpoint.
#[test]
fn a_table_that_diverged_takes_no_checkpoint_away() {
    let dir = tempfile::tempdir().unwrap();
    let good =
        Table::new(TableConfig::single("t", 2, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })).unwrap();
    good.push(&[7], &[1.0; 2], PushScale::default()).unwrap();
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&good).and_then(|()| writer.commit()).unwrap();
    let before = files(dir.path());
    let table =
        Table::new(TableConfig::single("t", 2, Init::Zero, Optimizer::Sgd { lr: 1e30, l2: 0.0 })).unwrap();
    table.push(&[7, 8], &[0.0; 4], PushScale::default()).unwrap();
    assert!(table.spoil(8) && !table.spoil(9));
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    let error = writer.table(&table).unwrap_err();
    assert!(matches!(error, StoreError::Diverged { key: 8, .. }), "{error:?}");
    assert!(error.to_string().contains("weight 0 is NaN"), "{error}");
    assert!(writer.commit().is_err());
    assert_eq!(files(dir.path()), before);
    // Without that row, this table and others can be saved and loaded.
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    let left_out = writer.table_of_finite_rows(&table).unwrap().unwrap();
    assert_eq!((left_out.rows, left_out.key, left_out.reason.as_str()), (1, 8, "weight 0 is NaN"));
    let other = Table::new(TableConfig { name: "other".to_string(), ..table.config().clone() }).unwrap();
    other.push(&[1, 2, 3], &[0.0; 6], PushScale::default()).unwrap();
    assert_eq!(writer.table_of_finite_rows(&other).unwrap(), None);
    writer.commit().unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let rows = |name: &str| checkpoint.load_table(name).unwrap().len();
    assert_eq!((rows("t"), rows("other")), (1, 3));
    // After the row was removed, the table is valid.
    assert!(table.remove(8));
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&table).and_then(|()| writer.commit()).unwrap();
}
