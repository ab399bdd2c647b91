//! Crash tests of saving: with a failure or a power loss at every file operation, the directory must hold the whole
//! old checkpoint or the whole new one.

#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::files::Files;
use super::manifest::{MANIFEST, file_name};
use super::memory_files::{DIR, Fault, Memory};
use super::rows::{RowShape, encode};
use crate::config::BLOCKS_MAX;
use crate::{
    Block, Checkpoint, CheckpointWriter, DeltaWriter, Init, Optimizer, PushScale, RowRef, StoreError, Table,
    TableConfig,
};

fn tables(version: u64) -> [Table; 2] {
    ["wide", "factors"].map(|name| {
        let optimizer = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
        let table = Table::new(TableConfig::single(name, 2, Init::Zero, optimizer)).unwrap();
        let keys: Vec<u64> = (0..20 + version).collect();
        table.push(&keys, &vec![version as f32; keys.len() * 2], PushScale::default()).unwrap();
        table
    })
}

fn save(files: &Memory, version: u64) -> Result<u64, StoreError> {
    let mut writer = CheckpointWriter::create_on(Box::new(files.clone()), Path::new(DIR))?;
    for table in tables(version) {
        writer.table(&table)?;
    }
    writer.blob("state", &version.to_le_bytes())?;
    writer.commit()
}

/// The version that an image holds completely, bit for bit.
fn version_of(image: &BTreeMap<String, Vec<u8>>) -> Option<u64> {
    if !image.contains_key(MANIFEST) {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in image {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    checkpoint.verify().unwrap();
    let blob = checkpoint.blob("state").unwrap();
    let version = u64::from_le_bytes(blob.try_into().unwrap());
    for expected in tables(version) {
        let table = checkpoint.load_table(expected.name()).unwrap();
        assert_eq!(table.len(), expected.len());
        expected.for_each_row(|row| {
            let found = table.get(row.key).unwrap();
            assert_eq!((&found.weights[..], &found.state[..]), (row.weights, row.state));
        });
    }
    Some(version)
}

/// A directory with this version that fails at the operation `at` from now.
fn about_to_fail(first: Option<u64>, at: usize, fault: Fault) -> Memory {
    let files = Memory::default();
    if let Some(version) = first {
        save(&files, version).unwrap();
    }
    let mut state = files.0.lock().unwrap();
    state.durable = state.entries.clone();
    state.changes.clear();
    (state.operations, state.fault) = (0, Some((at, fault)));
    drop(state);
    files
}

/// Saves version 1, then version 2 with a fault at every operation in turn.
fn check(fault: Fault, first: Option<u64>) {
    for at in 0.. {
        let files = about_to_fail(first, at, fault);
        let result = save(&files, 2);
        let reached = files.0.lock().unwrap().operations > at;
        let mut outcomes: Vec<Option<u64>> = files.images().iter().map(version_of).collect();
        outcomes.dedup();
        for outcome in outcomes {
            // After a successful save, no power loss may bring the old version back.
            let allowed =
                if result.is_ok() { outcome == Some(2) } else { outcome == first || outcome == Some(2) };
            assert!(allowed, "{fault:?} at operation {at}: {outcome:?} after {result:?}");
        }
        // The next save works after any failure, and leaves only its own files.
        files.0.lock().unwrap().fault = None;
        save(&files, 3).unwrap();
        for image in files.images() {
            assert_eq!(version_of(&image), Some(3), "{fault:?} at operation {at}");
        }
        assert_eq!(files.0.lock().unwrap().entries.len(), 4, "{fault:?} at operation {at}: leftovers");
        if !reached {
            assert!(result.is_ok() && at > 20, "{at}: {result:?}");
            break;
        }
    }
}

#[test]
fn an_error_at_any_operation_keeps_a_checkpoint() {
    check(Fault::Error, Some(1));
    check(Fault::Error, None);
}

#[test]
fn a_power_failure_at_any_operation_keeps_a_checkpoint() {
    check(Fault::Stop, Some(1));
    check(Fault::Stop, None);
}

/// The rows of a table, sorted by key: key, weights and state.
type Rows = Vec<(u64, Vec<f32>)>;

fn rows_of(table: &Table) -> Rows {
    let mut rows = Vec::new();
    table.for_each_row(|row| rows.push((row.key, row.weights.iter().chain(row.state).copied().collect())));
    rows.sort_by_key(|(key, _): &(u64, Vec<f32>)| *key);
    rows
}

/// The state of a chain: a version per delta.
struct Chain {
    files: Memory,
    table: Table,
    /// The rows of each version.
    versions: Vec<Rows>,
}

impl Chain {
    /// A full checkpoint of version 0.
    fn new() -> Chain {
        let [table, _] = tables(1);
        let files = Memory::default();
        let mut writer = CheckpointWriter::create_on(Box::new(files.clone()), Path::new(DIR)).unwrap();
        writer.begin_chain(Table::CHANGE_KEYS);
        writer.table(&table).unwrap();
        writer.blob("state", &0_u64.to_le_bytes()).unwrap();
        writer.commit().unwrap();
        let versions = vec![rows_of(&table)];
        Chain { files, table, versions }
    }

    /// Changes, creates and removes rows; saves that as a delta.
    fn save_next(&mut self) -> Result<u64, StoreError> {
        let version = self.versions.len() as u64;
        let keys: Vec<u64> = (10..30 + version).collect();
        self.table.push(&keys, &vec![0.5; keys.len() * 2], PushScale::default()).unwrap();
        self.table.remove(version);
        self.versions.push(rows_of(&self.table));
        let mut writer = DeltaWriter::create_on(Box::new(self.files.clone()), Path::new(DIR))?;
        writer.changes(&self.table)?;
        writer.blob("state", &version.to_le_bytes())?;
        writer.commit()
    }

    /// The version that an image holds completely, bit for bit.
    fn version_of(&self, image: &BTreeMap<String, Vec<u8>>) -> u64 {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in image {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        checkpoint.verify().unwrap();
        let version = u64::from_le_bytes(checkpoint.blob("state").unwrap().try_into().unwrap());
        let loaded = checkpoint.load_table(self.table.name()).unwrap();
        assert_eq!(rows_of(&loaded), self.versions[version as usize], "version {version}");
        version
    }
}

/// Saves a delta with a fault at every operation in turn, then another one without.
#[test]
fn a_failed_delta_keeps_the_chain() {
    for fault in [Fault::Error, Fault::Stop] {
        for at in 0.. {
            let mut chain = Chain::new();
            {
                let mut state = chain.files.0.lock().unwrap();
                state.durable = state.entries.clone();
                state.changes.clear();
                (state.operations, state.fault) = (0, Some((at, fault)));
            }
            let result = chain.save_next();
            let reached = chain.files.0.lock().unwrap().operations > at;
            for image in chain.files.images() {
                let version = chain.version_of(&image);
                let allowed = if result.is_ok() { version == 1 } else { version <= 1 };
                assert!(allowed, "{fault:?} at operation {at}: version {version} after {result:?}");
            }
            // The next delta has the changes of the failed one, too.
            chain.files.0.lock().unwrap().fault = None;
            chain.save_next().unwrap();
            for image in chain.files.images() {
                assert_eq!(chain.version_of(&image), 2, "{fault:?} at operation {at}");
            }
            if !reached {
                assert!(result.is_ok() && at > 15, "{at}: {result:?}");
                break;
            }
        }
    }
}

/// Ignoring the result of a write must not produce an incomplete checkpoint.
#[test]
fn what_succeeds_later_does_not_hide_an_error() {
    for at in 0.. {
        let files = about_to_fail(Some(1), at, Fault::Error);
        let Ok(mut writer) = CheckpointWriter::create_on(Box::new(files.clone()), Path::new(DIR)) else {
            continue;
        };
        let [wide, factors] = tables(2);
        let written =
            [writer.table(&wide), writer.table(&factors), writer.blob("state", &2_u64.to_le_bytes())];
        let written = written.map(|result| result.is_ok());
        if written == [true; 3] {
            break;
        }
        assert!(written.is_sorted_by(|earlier, later| earlier >= later), "operation {at}: {written:?}");
        assert!(writer.commit().is_err(), "operation {at}: {written:?}");
        for image in files.images() {
            assert_eq!(version_of(&image), Some(1), "operation {at}: {written:?}");
        }
    }
}

/// An oversized manifest could not be opened, so it must not replace a valid one.
#[test]
fn a_manifest_that_is_too_large_to_read_is_not_committed() {
    let files = Memory::default();
    save(&files, 1).unwrap();
    let before = files.0.lock().unwrap().entries.clone();
    let adam = Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
    let block = Block { dims: 1, init: Init::Normal { std: 0.1 }, optimizer: adam };
    let mut config = TableConfig::new("", vec![block; BLOCKS_MAX]);
    let mut writer = CheckpointWriter::create_on(Box::new(files.clone()), Path::new(DIR)).unwrap();
    // A block takes more than 256 bytes of the manifest.
    for table in 0..(64 << 20) / (BLOCKS_MAX * 256) {
        config.name = table.to_string();
        writer.rows::<StoreError>(&config, |_| Ok(0)).unwrap();
    }
    let error = writer.commit().unwrap_err();
    assert!(matches!(&error, StoreError::Io { .. }) && error.to_string().contains("at most"), "{error}");
    assert_eq!(files.0.lock().unwrap().entries, before, "only the new files are removed");
}

/// A save of the same generation would overwrite files of the present checkpoint.
#[test]
fn no_generation_is_used_twice() {
    let files = Memory::default();
    save(&files, 1).unwrap();
    let entries = |files: &Memory| files.0.lock().unwrap().entries.clone();
    for (generation, expected) in [(u64::MAX - 1, Some(u64::MAX)), (u64::MAX, None)] {
        files.create(Path::new(&file_name(generation, 0, "table"))).unwrap();
        let before = entries(&files);
        match (save(&files, 2), expected) {
            (Ok(saved), Some(expected)) => assert_eq!(saved, expected),
            (Err(StoreError::Damaged { .. }), None) => assert_eq!(entries(&files), before),
            (result, _) => panic!("{result:?} after generation {generation}"),
        }
    }
}

/// The source of rows is told to stop when writing fails: a walk visits all rows, and an export fetches them.
#[test]
fn rows_are_asked_for_until_a_write_fails() {
    const DIM: usize = 1000;
    let row = RowRef { key: 1, frequency: 1, last_use: 1, version: 1, weights: &[0.5; DIM], state: &[] };
    let (mut written, mut shown) = (0, 0);
    let write = |bytes: &mut Vec<u8>| {
        written += bytes.len();
        if written < 200_000 { Ok(()) } else { Err(io::Error::other("the disk is full")) }
    };
    let error = encode(RowShape { dim: DIM, state: 0 }, 1, write, |each| {
        (0..1000).try_for_each(|_| {
            shown += 1;
            each(row)
        })
    });
    assert!(error.is_err_and(|error| error.to_string() == "the disk is full"));
    assert!((50..70).contains(&shown), "{shown} rows of 4 kB");
}
