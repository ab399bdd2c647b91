//! Checkpoints whose bytes were changed, cut or swapped: always a typed error that names the file, never a panic,
//! never a wrong table. Knows only the public API.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use sanderling_store::{
    Block, Checkpoint, CheckpointWriter, Init, Optimizer, PushScale, StoreError, Table, TableConfig,
};

fn table(name: &str, keys: u64) -> Table {
    let optimizer = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.01, l2: 0.5 };
    let factors = Optimizer::Adagrad { lr: 0.1, eps: 1e-8, initial: 0.1, l2: 0.0 };
    let blocks = vec![
        Block { dims: 1, init: Init::Zero, optimizer },
        Block { dims: 2, init: Init::Normal { std: 0.01 }, optimizer: factors },
    ];
    let config = TableConfig { seed: 9, budget_bytes: Some(64 << 20), ..TableConfig::new(name, blocks) };
    let table = Table::new(config).unwrap();
    let keys: Vec<u64> = (0..keys).map(|key| key << 33).collect();
    table.push(&keys, &vec![0.5; keys.len() * 3], PushScale { lr: 1.0 }).unwrap();
    table
}

fn save(dir: &Path, keys: u64) {
    let mut writer = CheckpointWriter::create(dir).unwrap();
    writer.table(&table("fm", keys)).unwrap();
    writer.blob("spec", b"rank = 2").unwrap();
    writer.blob("empty", b"").unwrap();
    writer.commit().unwrap();
}

fn load(dir: &Path) -> Result<Table, StoreError> {
    let checkpoint = Checkpoint::open(dir)?;
    let verified = checkpoint.verify();
    checkpoint.blob("spec")?;
    checkpoint.blob("empty")?;
    let table = checkpoint.load_table("fm")?;
    verified.map(|()| table)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn expect_damage(dir: &Path, file: &Path, what: &str) {
    match load(dir) {
        Ok(_) => panic!("{}: {what}: loaded", file.display()),
        Err(error @ (StoreError::Damaged { .. } | StoreError::Version { .. } | StoreError::Io { .. })) => {
            assert!(error.to_string().contains(file.to_str().unwrap()), "{what}: {error}");
        }
        Err(error) => panic!("{}: {what}: {error:?}", file.display()),
    }
}

#[test]
fn every_changed_byte_and_every_cut_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    load(dir.path()).unwrap();
    assert_eq!(files(dir.path()).len(), 4);
    for file in files(dir.path()) {
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            for flip in [0x01, 0xFF] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fs::write(&file, bad).unwrap();
                expect_damage(dir.path(), &file, &format!("byte {at} ^ {flip:#x}"));
            }
            fs::write(&file, &good[..at]).unwrap();
            expect_damage(dir.path(), &file, &format!("cut to {at}"));
        }
        fs::write(&file, [&good[..], b"x"].concat()).unwrap();
        expect_damage(dir.path(), &file, "one byte more");
        fs::remove_file(&file).unwrap();
        expect_damage(dir.path(), &file, "removed");
        fs::write(&file, &good).unwrap();
    }
    load(dir.path()).unwrap();
}

#[test]
fn a_file_of_another_generation_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    let old = fs::read(dir.path().join("g1-0.table")).unwrap();
    save(dir.path(), 5);
    let file = dir.path().join("g2-0.table");
    fs::write(&file, old).unwrap();
    expect_damage(dir.path(), &file, "older generation");
}

#[test]
fn the_next_save_replaces_the_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("notes.txt"), "not ours").unwrap();
    save(dir.path(), 5);
    save(dir.path(), 70);
    let names: Vec<String> = files(dir.path())
        .iter()
        .map(|file| file.file_name().unwrap().to_str().unwrap().to_string())
        .collect();
    assert_eq!(names, ["g2-0.table", "g2-1.blob", "g2-2.blob", "manifest.json", "notes.txt"]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(checkpoint.generation(), 2);
    let entry = &checkpoint.tables()[0];
    assert_eq!((entry.name.as_str(), entry.dim, entry.rows, entry.pushes), ("fm", 3, 70, 1));
    assert_eq!(checkpoint.blobs().len(), 2);
    assert_eq!(checkpoint.load_table("fm").unwrap().stats().pushes, 1);
}

#[test]
fn an_uncommitted_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    let before = files(dir.path());
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&table("fm", 50)).unwrap();
    drop(writer);
    assert_eq!(files(dir.path()), before);
}

#[test]
fn requests_that_cannot_be_met_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    assert!(matches!(Checkpoint::open(&missing), Err(StoreError::Io { .. })));
    save(dir.path(), 5);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = checkpoint.load_table("lr").unwrap_err();
    assert!(error.to_string().contains("no table named \"lr\" (there are: fm)"), "{error}");
    assert!(matches!(checkpoint.blob("x"), Err(StoreError::NotFound { kind: "blob", .. })));
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&table("fm", 1)).unwrap();
    writer.blob("fm", b"a blob may share a table's name").unwrap();
    assert!(matches!(writer.table(&table("fm", 1)), Err(StoreError::DuplicateName { kind: "table", .. })));
    assert!(matches!(writer.blob("fm", b""), Err(StoreError::DuplicateName { kind: "blob", .. })));
    fs::write(dir.path().join("manifest.json"), "{}").unwrap();
    assert!(matches!(CheckpointWriter::create(dir.path()), Err(StoreError::Damaged { .. })));
}

/// What was opened can be read, whatever is saved into the directory since.
#[test]
fn a_later_save_takes_nothing_from_who_has_opened_one() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 100);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    save(dir.path(), 200);
    checkpoint.verify().unwrap();
    let tables = [(); 2].map(|()| checkpoint.load_table("fm").unwrap().len());
    assert_eq!((tables, checkpoint.blob("spec").unwrap().as_slice()), ([100; 2], b"rank = 2".as_slice()));
    assert_eq!(load(dir.path()).unwrap().len(), 200);
}

/// A save that ends while a checkpoint is opened removes the files that it was about to open.
#[test]
fn who_opens_while_others_save_finds_one_of_the_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let saver = scope.spawn(|| (0..100).for_each(|_| save(dir.path(), 1)));
        scope.spawn(|| {
            while !done.load(Relaxed) {
                Checkpoint::open(dir.path()).unwrap();
            }
        });
        let saved = saver.join();
        done.store(true, Relaxed);
        saved.unwrap();
    });
}

/// Rows of one shape may hold different things: what momentum keeps per weight is no sum of squares.
#[test]
fn rows_go_only_where_their_state_means_the_same() {
    let (lr, l2, eps, beta1, beta2) = (0.1, 0.0, 1e-8, 0.9, 0.999);
    let adagrad = |lr: f32| Optimizer::Adagrad { lr, eps, initial: 0.0, l2 };
    let adam = Optimizer::Adam { lr, beta1, beta2, eps, l2 };
    let config = |optimizer| TableConfig::single("t", 2, Init::Zero, optimizer);
    let check = |saved: TableConfig, wanted: TableConfig, fits: bool| {
        let dir = tempfile::tempdir().unwrap();
        let table = Table::new(saved).unwrap();
        table.push(&[1], &[0.5; 2], PushScale::default()).unwrap();
        let mut writer = CheckpointWriter::create(dir.path()).unwrap();
        writer.table(&table).and_then(|()| writer.commit()).unwrap();
        let mut other = Table::new(wanted).unwrap();
        match Checkpoint::open(dir.path()).unwrap().load_rows("t", &mut other, |_| true) {
            Ok(rows) => assert!(fits && rows == 1),
            Err(error) => assert!(!fits && error.to_string().contains("are wanted"), "{error}"),
        }
    };
    check(config(adagrad(0.1)), config(adagrad(0.5)), true);
    check(config(adagrad(0.1)), config(Optimizer::Momentum { lr, momentum: 0.9, l2 }), false);
    check(config(adam), config(Optimizer::AdamW { lr, beta1, beta2, eps, decay: 0.1 }), true);
    check(config(adam), config(Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2 }), false);
    // All first moments, then all second ones; or those of the first weight, then those of the second.
    let block = Block { dims: 1, init: Init::Zero, optimizer: adam };
    check(config(adam), TableConfig::new("t", vec![block; 2]), false);
}
