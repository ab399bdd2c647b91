//! Corrupted checkpoints: changed, truncated or swapped bytes give a typed error that names the file, never a panic
//! or a wrong table.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

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
    table.push(&keys, &vec![0.5; keys.len() * 3], PushScale { lr_scale: 1.0 }).unwrap();
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

/// Opening a pipe blocks until its other end is opened.
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
    for (name, is_read, is_replaced) in [
        ("manifest.json", true, true),
        ("g1-0.table", true, false),
        ("g1-1.blob", true, false),
        ("manifest.json.new", false, true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 5);
        let file = dir.path().join(name);
        if file.exists() {
            fs::remove_file(&file).unwrap();
        }
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        let (says, hears) = channel();
        let path = dir.path().to_path_buf();
        thread::spawn(move || {
            let loaded = load(&path).map(drop);
            let saved = CheckpointWriter::create(&path).and_then(CheckpointWriter::commit).map(|_| ());
            _ = says.send((loaded, saved));
        });
        // A blocked thread would live until the tests end.
        let (loaded, saved) = hears.recv_timeout(Duration::from_secs(60)).expect(name);
        for (what, result, is_refused) in [("load", loaded, is_read), ("save", saved, is_replaced)] {
            match result {
                Ok(()) => assert!(!is_refused, "{what}: {name}"),
                Err(error) => {
                    let error = error.to_string();
                    assert!(is_refused && error.contains(file.to_str().unwrap()), "{what}: {name}: {error}");
                }
            }
        }
    }
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

/// An open checkpoint is readable despite later saves.
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

/// A save during an open removes the files that are about to be opened.
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

/// Rows of the same shape may hold different state: a momentum is no sum of squares.
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
            Err(error) => assert!(!fits && error.to_string().contains("must be"), "{error}"),
        }
    };
    check(config(adagrad(0.1)), config(adagrad(0.5)), true);
    check(config(adagrad(0.1)), config(Optimizer::Momentum { lr, momentum: 0.9, l2 }), false);
    check(config(adam), config(Optimizer::AdamW { lr, beta1, beta2, eps, decay: 0.1 }), true);
    check(config(adam), config(Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2 }), false);
    // All first moments, then all second ones; or the moments of the first weight, then of the second.
    let block = Block { dims: 1, init: Init::Zero, optimizer: adam };
    check(config(adam), TableConfig::new("t", vec![block; 2]), false);
}

/// Changes the manifest and fixes its checksum.
fn rewrite_manifest(dir: &Path, change: impl FnOnce(&mut Value)) {
    let file = dir.join("manifest.json");
    let mut whole: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut whole["manifest"]);
    let body = whole["manifest"].to_string();
    let crc = crc_fast::crc32_iscsi(body.as_bytes());
    fs::write(&file, format!("{{\"manifest_crc32c\":\"{crc:08x}\",\n\"manifest\":{body}}}\n")).unwrap();
}

/// Another program may have written the checkpoint: a right checksum does not make an invalid value valid.
#[test]
fn what_a_manifest_says_is_possible() {
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 5);
        rewrite_manifest(dir.path(), |manifest| change(manifest));
        let Err(StoreError::Damaged { path, reason }) = Checkpoint::open(dir.path()) else {
            panic!("{expected}: opened");
        };
        assert_eq!(path, dir.path().join("manifest.json"));
        assert!(reason.contains(expected), "{reason}, not {expected}");
    };
    let set =
        |at: &'static str, value: Value| move |m: &mut Value| *m.pointer_mut(at).unwrap() = value.clone();
    let twice = |list: &'static str| {
        move |m: &mut Value| {
            let first = m[list][0].clone();
            m[list].as_array_mut().unwrap().push(first);
        }
    };
    check(&set("/tables/0/blocks/0/optimizer/ftrl/alpha", json!(-0.1)), "table \"fm\": block 0: alpha");
    check(&set("/tables/0/blocks/1/init/normal/std", json!(-1)), "block 1: init std");
    check(&set("/tables/0/blocks/0/dims", json!(0)), "block 0 has dim 0");
    check(&set("/tables/0/blocks", json!([])), "1 to 64 blocks");
    check(&set("/tables/0/name", json!("x".repeat(257))), "1 to 256 bytes");
    check(&set("/blobs/1/name", json!("")), "1 to 256 are possible");
    check(
        &|m| {
            m["tables"][0]["admission"] = json!({"sightings": {"sightings": 2, "filter_bytes": 1_u64 << 50}});
        },
        "filter_bytes",
    );
    check(&twice("tables"), "two tables named \"fm\"");
    check(&twice("blobs"), "two blobs named \"spec\"");
}

#[test]
fn a_budget_that_is_too_small_is_told_with_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 5);
    rewrite_manifest(dir.path(), |manifest| manifest["tables"][0]["budget_bytes"] = json!(10));
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("budget_bytes") && error.contains(dir.path().to_str().unwrap()), "{error}");
}

/// Loading rejects the values that an import rejects.
#[test]
fn rows_have_numbers_that_learn() {
    // Three weights, then z and n of one, and the sums of squares of the others.
    let check = |place: usize, value: f32, expected: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 5);
        let path = dir.path().join("g1-0.table");
        let mut bytes = fs::read(&path).unwrap();
        // The second row: after the headers of file and block, a row, and its own header.
        let row = 40 + 8 + (20 + 7 * 4);
        let key = u64::from_le_bytes(bytes[row..row + 8].try_into().unwrap());
        bytes[row + 20 + place * 4..][..4].copy_from_slice(&value.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes[48..48 + 5 * 48]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let crc = crc_fast::crc32_iscsi(&bytes);
        rewrite_manifest(dir.path(), |manifest| manifest["tables"][0]["file"]["crc32c"] = json!(crc));
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        checkpoint.verify().unwrap();
        let loaded = checkpoint.load_table("fm").map(drop);
        let shown = checkpoint.for_each_row::<StoreError>("fm", |_| Ok(()));
        for read in [loaded, shown] {
            match (read, expected) {
                (Ok(()), None) => {}
                (Err(StoreError::Damaged { path: named, reason }), Some(expected)) => {
                    assert_eq!(named, path);
                    let expected = format!("table \"fm\": row of key {key}: {expected}");
                    assert!(reason.starts_with(&expected), "{reason}, not {expected}");
                }
                (read, expected) => panic!("{value} at {place}: {read:?}, not {expected:?}"),
            }
        }
    };
    check(0, f32::NAN, Some("weight 0 is NaN"));
    check(2, f32::INFINITY, Some("weight 2 is inf"));
    check(3, f32::NEG_INFINITY, Some("state value 0 is -inf"));
    check(3, -1.0, None);
    check(4, -1.0, Some("state value 1 is -1, and a sum of squares is not below 0"));
    check(5, -0.5, Some("state value 2 is -0.5"));
    check(6, f32::NAN, Some("state value 3 is NaN"));
    check(6, -0.0, None);
    check(6, f32::MAX, None);
}
