//! Recordings and replays of threads that race in a few rows; files that are damaged; a replay that does not wait.

use std::path::Path;
use std::sync::Arc;

use sanderling_client::Client;
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

use super::Order;
use super::digest::of_tables;
use super::file::{Entry, RecordingReader, RecordingWriter};
use super::header::Header;
use super::recorder::Recorder;
use super::replayer::Replayer;
use super::worker::OrderedWorker;
use crate::config::Config;
use crate::distributed::JobOptions;
use crate::error::LearnError;

const WORKERS: u32 = 4;
const PASSES: u64 = 2;

fn tables() -> Vec<Arc<Table>> {
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };
    let table = |(name, dims, seed)| {
        let init = Init::Normal { std: 0.1 };
        let config = TableConfig { seed, ..TableConfig::single(name, dims, init, adagrad) };
        Arc::new(Table::new(config).unwrap())
    };
    [("a", 1, 1), ("b", 3, 2)].map(table).to_vec()
}

fn job() -> JobOptions {
    let options = sanderling_job::Options { workers: WORKERS, ..sanderling_job::Options::default() };
    JobOptions { algorithm: "fm".parse().unwrap(), staleness: None, job: options }
}

fn header(tables: &[Arc<Table>]) -> Header {
    let config = Config::parse("[data]\ntrain = \"a.svm\"", "c.toml".as_ref(), "c").unwrap();
    Header::new(&job(), &config, Some(1), tables)
}

/// Minibatch `number` of a worker: few keys, so that workers meet; `shift` changes the rows.
fn batch(worker: u32, number: u64, shift: u64) -> Batch {
    let mut batch = Batch::new(&[false, false]);
    for row in 0..8 {
        let word = (u64::from(worker) << 40 | number << 8 | row).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        batch.columns[0].push(word % 7, 1.0);
        batch.columns[1].push(word / 7 % 50 + shift, 1.0);
        batch.close_row((row % 2) as f32, 1.0);
    }
    batch
}

/// Trains like a learner whose gradients depend on the pulled rows; fails as a worker does.
fn run(order: &Order, tables: &[Arc<Table>], minibatches: u64, shift: u64) -> Result<(), LearnError> {
    let client = Client::embedded(tables.to_vec(), [("f", "a"), ("g", "b")], None).unwrap();
    let barrier = std::sync::Barrier::new(WORKERS as usize);
    let failed = std::sync::atomic::AtomicBool::new(false);
    let one = |worker: u32| -> Result<(), LearnError> {
        let check = || match failed.load(std::sync::atomic::Ordering::Relaxed) {
            true => Err(LearnError::Stopped),
            false => Ok(()),
        };
        let (mut ordered, mut lookup) = (OrderedWorker::new(order, worker), client.lookup());
        let mut pass = || {
            for number in 0..minibatches {
                let batch = batch(worker, number, shift);
                ordered.pull(&Rows::all(&batch), &mut lookup, &check)?;
                for feature in 0..2 {
                    let (_, rows, grads) = lookup.backward(feature);
                    grads.iter_mut().zip(rows).for_each(|(grad, weight)| *grad = (weight * 3.0).cos());
                }
                std::thread::yield_now();
                ordered.push(&mut lookup, PushScale::default(), &check)?;
            }
            ordered.end_pass()
        };
        for _ in 0..PASSES {
            // A worker that has failed comes, too, so that no other waits for it.
            let ended = if check().is_ok() { pass() } else { Err(LearnError::Stopped) };
            if ended.is_err() {
                failed.store(true, std::sync::atomic::Ordering::Relaxed);
            }
            barrier.wait();
            ended?;
            check()?;
        }
        Ok(())
    };
    let ends: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || one(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let is_stop = |end: &Result<(), LearnError>| matches!(end, Err(LearnError::Stopped));
    let (stopped, others): (Vec<_>, Vec<_>) = ends.into_iter().partition(is_stop);
    others.into_iter().chain(stopped).find(Result::is_err).unwrap_or(Ok(()))
}

/// Records a run; the digest of its tables.
fn record(path: &Path, minibatches: u64) -> u64 {
    let tables = tables();
    let order = Order::Record(Box::new(Recorder::create(path, &header(&tables), tables.clone()).unwrap()));
    run(&order, &tables, minibatches, 0).unwrap();
    order.finish(1).unwrap();
    of_tables(&tables)
}

/// Replays a recording; the digest of its tables, and how it ended.
fn replay(path: &Path, waits: bool, minibatches: u64, shift: u64) -> (u64, Result<String, LearnError>) {
    let tables = tables();
    let reader = match RecordingReader::open(path) {
        Ok(reader) => reader,
        Err(error) => return (0, Err(error)),
    };
    let mut replayer = Replayer::new(reader, tables.clone());
    replayer.waits = waits;
    let order = Order::Replay(Box::new(replayer));
    let end = run(&order, &tables, minibatches, shift).and_then(|()| order.finish(1));
    (of_tables(&tables), end)
}

#[test]
fn replays_have_the_bits_of_their_recordings_and_races_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let (mut recorded, mut raced) = (Vec::new(), 0);
    for _ in 0..5 {
        let digest = record(&path, 150);
        for _ in 0..2 {
            let (found, end) = replay(&path, true, 150, 0);
            assert!(end.as_ref().is_ok_and(|words| words.contains("recorded bits")), "{end:?}");
            assert_eq!(found, digest);
        }
        // The planted fault: it must be seen, or this test shows nothing.
        let (found, end) = replay(&path, false, 150, 0);
        assert_eq!(found == digest, end.is_ok(), "{end:?}");
        raced += usize::from(found != digest);
        recorded.push(digest);
    }
    assert!(raced > 0, "a replay that does not wait has the recorded bits five times of five");
    recorded.sort_unstable();
    recorded.dedup();
    assert!(recorded.len() > 1, "five races ended with equal bits");
}

#[test]
fn another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record(&path, 20);
    for (minibatches, shift, expected) in
        [(20, 1, "has other rows"), (21, 0, "more minibatches"), (19, 0, "fewer minibatches")]
    {
        let error = replay(&path, true, minibatches, shift).1.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("recording"), "{error}");
    }
}

#[test]
fn damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record(&path, 20);
    let whole = std::fs::read(&path).unwrap();
    let middle = whole.len() / 2;
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    };
    for (bytes, expected) in [
        (whole[..whole.len() - 1].to_vec(), "torn"),
        (whole[..middle].to_vec(), "torn"),
        (whole[..5].to_vec(), "no recording"),
        (Vec::new(), "no recording"),
        (changed(3), "no recording"),
        (changed(9), "version"),
        (changed(20), "damaged"),
        (changed(middle), "damaged"),
        (changed(whole.len() - 1), "torn"),
    ] {
        std::fs::write(&path, &bytes).unwrap();
        let error = replay(&path, true, 20, 0).1.unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_recording_that_nothing_can_follow_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    record(&path, 20);
    // The entries of a run in which a pull has seen a version without a push.
    let forged = folder.path().join("forged");
    let mut reader = RecordingReader::open(&path).unwrap();
    let mut writer = RecordingWriter::create(&forged, &reader.header).unwrap();
    let mut bytes = Vec::new();
    loop {
        match reader.next().unwrap() {
            Entry::Minibatch(mut minibatch) => {
                if minibatch.number == 10 && minibatch.worker == 1 {
                    minibatch.tables[0].pulled[0] += 100_000;
                    minibatch.tables[0].pushed[0] += 100_000;
                }
                minibatch.encode(&mut bytes);
                writer.minibatch(&bytes).unwrap();
            }
            Entry::PassEnd { worker } => writer.pass_end(worker).unwrap(),
            Entry::End { digest, .. } => break writer.finish(digest).map(drop).unwrap(),
        }
    }
    let error = replay(&forged, true, 20, 0).1.unwrap_err().to_string();
    assert!(error.contains("no worker can go on"), "{error}");
}
