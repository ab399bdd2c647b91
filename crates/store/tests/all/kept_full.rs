//! Kept tables of a file system without space: full tables, not signals.

#![allow(clippy::print_stdout)] // what was skipped, and the rows that fit

use std::path::{Path, PathBuf};
use std::process::Command;

use sanderling_store::{
    Absent, Init, Optimizer, Packing, PushScale, StoreError, Table, TableConfig, Writes, forget_kept,
};

const DIR: &str = "KEPT_FULL_DIR";
const BATCH: u64 = 100;

fn config(name: &str, dims: usize, packing: Packing, writes: Writes) -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-8, initial: 0.1, l2: 0.0 };
    TableConfig { packing, writes, ..TableConfig::single(name, dims, Init::Zero, optimizer) }
}

fn push(table: &Table, keys: &[u64]) -> Result<(), StoreError> {
    table.push(keys, &vec![1.0; keys.len() * table.dim()], PushScale::default())
}

fn pull(table: &Table, keys: &[u64]) -> Vec<f32> {
    let mut weights = vec![0.0; keys.len() * table.dim()];
    table.pull(keys, Absent::Zero, &mut weights, None).unwrap();
    weights
}

/// Fills a table until its file system is full, and uses it on.
fn fill(root: &Path, config: &TableConfig) {
    let (table, _) = Table::kept(config.clone(), root, "").unwrap();
    let batch = |number: u64| (number * BATCH..(number + 1) * BATCH).collect::<Vec<u64>>();
    let (full, error) = (0..).find_map(|number| Some((number, push(&table, &batch(number)).err()?))).unwrap();
    let is_full = matches!(error, StoreError::TableFull { budget_bytes: u64::MAX, .. });
    assert!(is_full && error.to_string().contains("file system"), "{error}");
    assert!(full > 10, "{full} batches");
    // Keys with rows are pushed on; a removed key's row serves another.
    push(&table, &batch(1)).unwrap();
    for key in batch(0) {
        assert!(table.remove(key));
    }
    push(&table, &batch(1 << 20)).unwrap();
    let (rows, weights) = (table.len(), pull(&table, &batch(1)));
    drop(table);
    // There is no space for another table, and this one opens as it was.
    let other =
        Table::kept(TableConfig { name: "other".to_owned(), ..config.clone() }, root, "").unwrap_err();
    assert!(matches!(&other, StoreError::Io { .. }), "{other}");
    assert!(!root.join("other/head").exists());
    let (table, attached) = Table::kept(config.clone(), root, "").unwrap();
    assert_eq!((attached.is_new, attached.repaired, table.len()), (false, 0, rows));
    assert_eq!(pull(&table, &batch(1)), weights);
    table.clear();
    assert!(table.is_empty());
    push(&table, &batch(3)).unwrap();
    drop(table);
    assert!(forget_kept(root, &config.name).unwrap());
    println!("{}: {rows} rows, then {error}", config.name);
}

/// Not a test: the process whose file system is full.
#[test]
#[ignore = "run by another test"]
fn child() {
    let Ok(root) = std::env::var(DIR) else { return };
    let root = PathBuf::from(root);
    fill(&root, &config("in place", 16, Packing::Fast, Writes::InPlace));
    fill(&root, &config("copies", 16, Packing::Fast, Writes::CopyOnWrite));
    fill(&root, &config("two parts", 40, Packing::Compact, Writes::InPlace));
}

#[test]
fn a_full_file_system_is_a_full_table() {
    let dir = tempfile::tempdir().unwrap();
    let within = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        command.arg(dir.path()).arg(std::env::current_exe().unwrap()).env(DIR, dir.path());
        command.output()
    };
    let mount = "mount -t tmpfs -o size=3m tmpfs \"$1\"";
    if !within(mount).is_ok_and(|ended| ended.status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let run =
        within(&format!("{mount} && exec \"$2\" --exact kept_full::child --ignored --nocapture")).unwrap();
    let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    println!("{said}");
}
