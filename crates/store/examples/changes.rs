//! Measures the change stream and delta checkpoints: `changes [KEYS] [DIM] [ROUNDS] [FOLDER]`, tiny by default.
//!
//! It prints the medians over interleaved rounds: pushes of 512 uniform keys to a table without a subscriber, to one with
//! a subscriber that drains every 200 ms, and their ratio; then a full checkpoint of a table, a delta of 1 % changed rows,
//! and the ratios of time and bytes; then the restore of that chain, of the full checkpoint alone, and of one whose deltas
//! have as many rows as it, in millions of rows per second.

#![allow(clippy::print_stdout)] // its purpose

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use sanderling_random::SplitMix64;
use sanderling_store::{
    Checkpoint, CheckpointWriter, DeltaWriter, Init, Optimizer, PushScale, Table, TableConfig,
};

/// Keys per push.
const BATCH: usize = 512;
/// Pushes of a measurement.
const PUSHES: usize = 2_000;
/// Interval of drains.
const DRAIN_EVERY: Duration = Duration::from_millis(200);

fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn table(keys: u64, dim: usize) -> Table {
    let adagrad = Optimizer::Adagrad { lr: 0.01, eps: 1e-10, initial: 0.1, l2: 0.0 };
    let table = Table::new(TableConfig::single("t", dim, Init::Zero, adagrad)).expect("a table");
    table.reserve(keys);
    push_all(&table, (0..keys).map(key), dim);
    table
}

fn push_all(table: &Table, keys: impl Iterator<Item = u64>, dim: usize) {
    let (keys, grads): (Vec<u64>, _) = (keys.collect(), vec![0.1; BATCH * dim]);
    for keys in keys.chunks(BATCH) {
        table.push(keys, &grads[..keys.len() * dim], PushScale::default()).expect("a push");
    }
}

/// Millions of pushed keys per second of this thread's processor time, so that other programs change it little.
fn push_rate(table: &Table, keys: u64, dim: usize, random: &mut SplitMix64) -> f64 {
    let grads = vec![0.1; BATCH * dim];
    let (mut batch, begun) = (vec![0; BATCH], processor_seconds());
    for _ in 0..PUSHES {
        batch.iter_mut().for_each(|place| *place = key(random.next() % keys));
        table.push(&batch, &grads, PushScale::default()).expect("a push");
    }
    (PUSHES * BATCH) as f64 / (processor_seconds() - begun) / 1e6
}

/// The time that this thread has had a processor.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds: u64 = text.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    nanoseconds as f64 / 1e9
}

/// Measures [`push_rate`] beside a subscriber; returns the rows per drain, too.
fn push_rate_beside_drains(table: &Table, keys: u64, dim: usize, random: &mut SplitMix64) -> (f64, f64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| {
            let mut epoch = table.subscribe_changes(Table::CHANGE_KEYS).expect("a subscription");
            let (mut rows, mut drains) = (0, 0);
            while !done.load(Relaxed) {
                std::thread::sleep(DRAIN_EVERY);
                let drained = table.drain_changes(epoch, |frame| {
                    rows += frame.len();
                    ControlFlow::Continue(())
                });
                epoch = drained.expect("in time").expect("whole");
                drains += 1;
            }
            rows as f64 / f64::from(drains)
        });
        let rate = push_rate(table, keys, dim, random);
        done.store(true, Relaxed);
        (rate, draining.join().expect("no panic"))
    })
}

fn full(folder: &Path, table: &Table) {
    let mut writer = CheckpointWriter::create(folder).expect("a folder");
    writer.begin_chain(1 << 26);
    writer.table(table).and_then(|()| writer.commit()).expect("a checkpoint");
}

fn delta(folder: &Path, table: &Table) {
    let mut writer = DeltaWriter::create(folder).expect("a checkpoint");
    writer.changes(table).expect("changes");
    writer.commit().expect("a delta");
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, default: u64| args.get(at).map_or(default, |text| text.parse().expect("a number"));
    let (keys, dim, rounds) = (number(0, 10_000), number(1, 8) as usize, number(2, 3));
    let folder = args.get(3).map_or_else(std::env::temp_dir, Into::into).join("sanderling-changes");
    let mut random = SplitMix64::new(7);

    let (alone, noted, drained) = (table(keys, dim), table(keys, dim), table(keys, dim));
    noted.subscribe_changes(Table::CHANGE_KEYS).expect("a subscription");
    let mut rates: [Vec<f64>; 3] = Default::default();
    let mut rows = Vec::new();
    for _ in 0..rounds {
        rates[0].push(push_rate(&alone, keys, dim, &mut random));
        rates[1].push(push_rate(&noted, keys, dim, &mut random));
        let (rate, drained) = push_rate_beside_drains(&drained, keys, dim, &mut random);
        rates[2].push(rate);
        rows.push(drained);
    }
    let [alone, noted, drained] = rates.map(median);
    let ratio = noted / alone;
    println!(
        "push {alone:.2} M keys/s, noted {noted:.2} ({ratio:.3}), drained {drained:.2} ({:.3})",
        drained / alone
    );
    println!("rows per drain {:.0}", median(rows));

    let table = table(keys, dim);
    let (mut fulls, mut deltas, mut restores) =
        (Vec::new(), Vec::new(), [Vec::new(), Vec::new(), Vec::new()]);
    let restore = |deltas: usize, rows: u64| {
        let checkpoint = Checkpoint::open_through(&folder, deltas).expect("a checkpoint");
        let mut loaded = None;
        let seconds = seconds(|| loaded = Some(checkpoint.load_table("t").expect("a table")));
        rows as f64 / seconds / 1e6
    };
    let changed = keys / 100;
    let mut bytes = (0, 0);
    for round in 0..rounds {
        fulls.push(seconds(|| full(&folder, &table)));
        push_all(&table, (0..changed).map(|_| key(random.next() % keys)), dim);
        deltas.push(seconds(|| delta(&folder, &table)));
        let checkpoint = Checkpoint::open(&folder).expect("a checkpoint");
        bytes = (checkpoint.tables()[0].bytes - checkpoint.deltas()[0].bytes, checkpoint.deltas()[0].bytes);
        restores[0].push(restore(0, keys));
        restores[1].push(restore(1, keys + changed));
        // Every row once more, in ten deltas.
        if round == 0 {
            for part in 0..10 {
                push_all(&table, (0..keys).filter(|number| number % 10 == part).map(key), dim);
                delta(&folder, &table);
            }
            restores[2] = (0..rounds).map(|_| restore(11, 2 * keys + changed)).collect();
        }
    }
    let (full, delta) = (median(fulls), median(deltas));
    println!("full {full:.3} s, {} bytes; delta of 1 % {delta:.4} s, {} bytes", bytes.0, bytes.1);
    println!("delta / full: time {:.4}, bytes {:.4}", delta / full, bytes.1 as f64 / bytes.0 as f64);
    let [full, one, all] = restores.map(median);
    println!(
        "restore M rows/s: full {full:.2}, with a delta of 1 % {one:.2}, with deltas of all rows {all:.2}"
    );
    std::fs::remove_dir_all(&folder).expect("it is there");
}
