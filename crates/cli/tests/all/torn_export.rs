//! Tables that are saved over a connection which ends in the middle: what is written is whole, or the checkpoint before it stays as
//! it was. Saves as a run over servers does; knows no model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::process::Process;
use crate::relay::Relay;
use sanderling_client::{ClientError, Cluster, ConnectOptions, RemoteTable, RowBlock};
use sanderling_store::{
    Checkpoint, CheckpointWriter, Init, Optimizer, PushScale, Row, RowRef, StoreError, Table, TableConfig,
    WholeRows,
};
use sanderling_transport::Address;

const DIM: usize = 8;
const KEYS: u64 = 60_000;
/// Some of the blocks that they take, and not all.
const SOME_BYTES: i64 = 2_500_000;
/// Far longer than anything takes that goes well.
const LONG: Duration = Duration::from_secs(60);
/// A request that is not to go well is tried again for so long.
const PATIENCE: Duration = Duration::from_secs(3);

fn connect(address: &Address, timeout: Duration) -> Arc<Cluster> {
    let options = ConnectOptions { timeout, prefer_local: false, ..ConnectOptions::default() };
    Cluster::connect(std::slice::from_ref(address), options).unwrap()
}

fn config() -> TableConfig {
    let adagrad = Optimizer::Adagrad { lr: 0.5, eps: 1e-10, initial: 0.0, l2: 0.0 };
    TableConfig::single("t", DIM, Init::Normal { std: 0.1 }, adagrad)
}

/// Gradients of the keys of a push.
fn pushed(number: u64) -> (Vec<u64>, Vec<f32>) {
    let keys: Vec<u64> = (0..KEYS / number).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let gradients = (0..keys.len() * DIM).map(|at| (at as f32 + number as f32).sin()).collect();
    (keys, gradients)
}

fn save(table: &RemoteTable, directory: &Path) -> Result<(), ClientError> {
    let mut writer = CheckpointWriter::create(directory)?;
    writer.rows(&config(), |each| {
        let mut clock = 0;
        table.try_export(|block| {
            let RowBlock { keys, frequencies, last_uses, versions, weights, states, .. } = *block;
            let rows = WholeRows { keys, frequencies, last_uses, versions, weights, states };
            clock = last_uses.iter().copied().fold(clock, u32::max);
            (0..keys.len()).try_for_each(|at| each(rows.row(at, DIM, DIM)))
        })?;
        Ok::<u64, ClientError>(clock.into())
    })?;
    writer.commit()?;
    Ok(())
}

/// What is in a directory, byte by byte.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}

fn rows(directory: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    let note = |row: RowRef<'_>| {
        let RowRef { key, frequency, last_use, version, weights, state } = row;
        let (weights, state) = (weights.to_vec(), state.to_vec());
        rows.push(Row { key, frequency, last_use, version, weights, state });
        Ok::<(), StoreError>(())
    };
    Checkpoint::open(directory).unwrap().for_each_row("t", note).unwrap();
    rows.sort_by_key(|row| row.key);
    rows
}

#[test]
fn what_is_saved_is_whole_or_the_checkpoint_before_stays() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let server = Process::start_at(folder.path(), "127.0.0.1:0", 1, "", "--no-local");
    let relay = Relay::start(&server.addresses[0]);
    let direct = RemoteTable::create(&connect(&server.addresses[0], LONG), &config()).unwrap();
    let here = Table::new(config()).unwrap();
    for number in 1..4 {
        let (keys, gradients) = pushed(number);
        direct.push(&keys, &gradients, PushScale::default()).unwrap();
        here.push(&keys, &gradients, PushScale::default()).unwrap();
    }
    save(&direct, &place("direct")).unwrap();

    // The rows are those of a table of this process that had the same pushes; requests of a push count one by one.
    let mut writer = CheckpointWriter::create(place("here")).unwrap();
    writer.table(&here).unwrap();
    writer.commit().unwrap();
    let same = |row: Row| Row { last_use: 0, ..row };
    let (found, expected) = (rows(&place("direct")), rows(&place("here")));
    assert_eq!(found.len() as u64, KEYS);
    assert!(found.iter().cloned().map(same).eq(expected.into_iter().map(same)), "the rows differ");

    // A connection that ends is made anew, and the save goes on with the row after the last one.
    let torn = RemoteTable::open(&connect(&relay.address, LONG), "t").unwrap();
    relay.left.store(SOME_BYTES, Ordering::Relaxed);
    save(&torn, &place("torn")).unwrap();
    assert_ne!(relay.left.load(Ordering::Relaxed), SOME_BYTES, "nothing went through the relay");
    assert!(files(&place("torn")) == files(&place("direct")), "the files differ");

    // One that does not come back leaves what was there before.
    let (keys, gradients) = pushed(1);
    direct.push(&keys, &gradients, PushScale::default()).unwrap();
    let before = files(&place("torn"));
    let impatient = RemoteTable::open(&connect(&relay.address, PATIENCE), "t").unwrap();
    relay.is_open.store(false, Ordering::Relaxed);
    relay.left.store(SOME_BYTES, Ordering::Relaxed);
    let error = save(&impatient, &place("torn")).unwrap_err();
    assert!(matches!(error, ClientError::Late { .. }), "{error}");
    assert!(error.to_string().contains(&relay.address.to_string().replace("tcp://", "")), "{error}");
    assert!(files(&place("torn")) == before, "the checkpoint before was touched");
    assert_eq!(rows(&place("torn")), found);

    // And the next one replaces it.
    relay.is_open.store(true, Ordering::Relaxed);
    relay.left.store(i64::MAX, Ordering::Relaxed);
    let until = Instant::now() + LONG;
    while let Err(error) = save(&impatient, &place("torn")) {
        // A slow machine may let it be late once more.
        assert!(matches!(error, ClientError::Late { .. }) && Instant::now() < until, "{error}");
    }
    assert!(rows(&place("torn")).iter().zip(&found).all(|(new, old)| new.version == old.version + 1));
}
