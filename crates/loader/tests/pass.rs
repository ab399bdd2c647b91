//! Passes over real files: every row exactly once, the order a function of the seed alone, resumption exact.
#![allow(clippy::unwrap_used)] // In a test a panic is the report.

use std::path::Path;
use std::sync::Arc;

use sanderling_formats::batch_file::{BatchFileOptions, BatchFileWriter, BlockCompression};
use sanderling_formats::{BLOCK_BYTES, BadRows, DataConfig, Reader};
use sanderling_loader::{Feed, Pass, PassOptions, STAGES};
use sanderling_observe::{StageTimer, Stages};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Rows, Spec};

/// Rows of the input: several units of text, the last one short.
const ROWS: u64 = 9_000;

struct Input {
    _dir: tempfile::TempDir,
    files: Vec<String>,
    encoder: Arc<Encoder>,
}

impl Input {
    /// The rows 0..ROWS, whose only key is their number, over two files of the kind.
    fn new(kind: &str) -> Input {
        if kind == "batch" {
            return Input::batches();
        }
        let dir = tempfile::tempdir().unwrap();
        // Fields nobody asks for make the lines long, and so the units many.
        let padding = "x".repeat(120);
        let line = |row: u64| match kind {
            "csv" => format!("{},{row},{padding}\n", row % 2),
            _ => format!("{} {row}:1\n", row % 2),
        };
        let cut = ROWS / 3;
        let files = [0..cut, cut..ROWS].into_iter().enumerate().map(|(number, rows)| {
            let path = dir.path().join(format!("{number}.{kind}"));
            let head = if kind == "csv" { "label,id,padding\n" } else { "" };
            std::fs::write(&path, head.to_string() + &rows.map(line).collect::<String>()).unwrap();
            path.to_string_lossy().into_owned()
        });
        let files = files.collect();
        let spec = match kind {
            "csv" => toml::from_str("[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap(),
            _ => Spec::libsvm(),
        };
        let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
        Input { _dir: dir, files, encoder: Arc::new(Encoder::new(&spec, &options).unwrap()) }
    }

    /// The same rows as batch files: of blocks used where they lie, and of blocks that are unpacked.
    fn batches() -> Input {
        let input = Input::new("csv");
        let files = input.files.iter().zip([BlockCompression::None, BlockCompression::Lz4]);
        let files = files.map(|(csv, compression)| {
            let path = csv.replace(".csv", ".batch");
            let options = BatchFileOptions { compression, overwrite: false };
            let mut out = BatchFileWriter::create(Path::new(&path), input.encoder.spec(), options).unwrap();
            let mut reader =
                Reader::open(std::slice::from_ref(csv), &DataConfig::default(), &input.encoder).unwrap();
            let mut rows = input.encoder.new_batch();
            while reader.next(&mut rows).unwrap() {}
            // Minibatches of the tests lie within blocks, on their bounds, and across several.
            for start in (0..rows.len()).step_by(512) {
                out.write(&Rows::new(&rows, start..rows.len().min(start + 512))).unwrap();
            }
            assert!(out.finish().unwrap().blocks > 3);
            path
        });
        Input { files: files.collect(), ..input }
    }

    fn pass(&self, options: PassOptions) -> Pass {
        let config = DataConfig::default();
        let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
        Pass::open(&self.files, &config, &self.encoder, &bad_rows, options).unwrap()
    }
}

fn options(shuffle: usize, workers: usize, used_rows: u64) -> PassOptions {
    PassOptions { shuffle, seed: 1, number: 0, workers, used_rows, unit_bytes: BLOCK_BYTES }
}

/// The ids of the next minibatch.
fn take(feed: &mut Feed<'_>, batch: usize, timer: &mut StageTimer) -> Option<Vec<u64>> {
    let rows = feed.next(batch, timer).unwrap()?;
    assert!((1..=batch).contains(&rows.len()));
    assert!(rows.labels().iter().zip(rows.keys(0)).all(|(label, id)| *label == (id % 2) as f32));
    Some(rows.keys(0).to_vec())
}

/// The minibatches of each of the workers, which run at the same time; each stops the pass after `stop` minibatches.
fn run(pass: &Pass, workers: usize, batch: usize, stop: Option<usize>) -> Vec<Vec<Vec<u64>>> {
    let stages = Stages::new(&STAGES);
    let work = |mut feed: Feed<'_>| {
        let mut timer = stages.timer();
        let mut batches = Vec::new();
        while let Some(ids) = take(&mut feed, batch, &mut timer) {
            batches.push(ids);
            if stop == Some(batches.len()) {
                pass.stop();
            }
        }
        batches
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(|| work(pass.feed()))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    })
}

/// All ids of one worker in its order.
fn order(input: &Input, options: PassOptions, batch: usize) -> Vec<u64> {
    run(&input.pass(options), 1, batch, None).concat().concat()
}

#[test]
fn every_row_once_and_minibatches_full() {
    for kind in ["csv", "libsvm", "batch"] {
        let input = Input::new(kind);
        for (batch, shuffle, workers) in [
            (1, 0_usize, 1_usize),
            (7, 0, 1),
            (256, 0, 2),
            (20_000, 0, 3),
            (1, 1, 1),
            (64, 1000, 1),
            (64, 1000, 3),
            (100, 17, 2),
            (512, 20_000, 1),
            (33, 20_000, 5),
        ] {
            let what = format!("{kind}, batch {batch}, shuffle {shuffle}, {workers} workers");
            let mut all = Vec::new();
            for batches in run(&input.pass(options(shuffle, workers, 0)), workers, batch, None) {
                // Only the end of the pass cuts a minibatch short.
                let full = batches.iter().rev().skip(1).all(|ids| ids.len() == batch);
                assert!(full, "{what}: a short minibatch within the pass");
                all.extend(batches.concat());
            }
            if workers == 1 && shuffle <= 1 {
                assert!(all.iter().copied().eq(0..ROWS), "{what}: not in the order of the input");
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..ROWS), "{what}: not every row once");
        }
    }
}

#[test]
fn the_order_depends_on_seed_and_pass_alone() {
    let input = Input::new("csv");
    let with = |seed, number| PassOptions { seed, number, ..options(1000, 1, 0) };
    let first = order(&input, with(1, 0), 64);
    assert_eq!(first, order(&input, with(1, 0), 7), "the size of minibatches must not matter");
    for (seed, number) in [(1, 1), (2, 0), (0, 1)] {
        assert_ne!(first, order(&input, with(seed, number), 64), "seed {seed}, pass {number}");
    }
    // Rows stay within their shuffle buffer, and within it hardly one stays where it was.
    assert!(first.iter().enumerate().all(|(place, id)| place / 1000 == *id as usize / 1000));
    let stayed = first.iter().enumerate().filter(|(place, id)| *place as u64 == **id).count();
    assert!(stayed < 60, "{stayed} of {ROWS} rows stayed in place, about 9 are expected");
}

#[test]
fn one_worker_goes_on_where_it_stopped() {
    for input in ["csv", "batch"].map(Input::new) {
        for shuffle in [0, 1, 1000, 20_000] {
            let whole = order(&input, options(shuffle, 1, 0), 64);
            for used in [0, 1, 64, 999, 1000, 1001, 2500, 2999, 3000, 3001, ROWS - 1, ROWS] {
                let rest = order(&input, options(shuffle, 1, used), 64);
                assert_eq!(rest, whole[used as usize..], "shuffle {shuffle}, {used} rows used");
            }
        }
    }
}

/// Who assembles the next minibatch while the one before is in use gets the same rows, even if he then wants fewer, or more.
#[test]
fn assembling_ahead_changes_nothing() {
    for input in ["csv", "batch"].map(Input::new) {
        let stages = Stages::new(&STAGES);
        for (shuffle, sizes, used) in [
            (0, [64, 64], 0),
            (1000, [64, 64], 0),
            (1000, [64, 10], 17),
            (700, [1000, 3], 3100),
            (20_000, [7, 90], 64),
        ] {
            let pass = input.pass(options(shuffle, 1, used));
            let (mut feed, mut timer) = (pass.feed(), stages.timer());
            let (mut all, mut ahead) = (Vec::new(), 0);
            for size in sizes.into_iter().cycle() {
                let Some((rows, following)) = feed.next_and(size, &mut timer).unwrap() else { break };
                let before = rows.keys(0).to_vec();
                ahead += u64::from(following.assemble(&mut timer).is_some());
                assert_eq!(rows.keys(0), before);
                assert!((1..=size).contains(&rows.len()));
                all.extend(before);
            }
            assert_eq!(
                all,
                order(&input, options(shuffle, 1, used), 64),
                "shuffle {shuffle}, {sizes:?} rows"
            );
            assert_eq!(ahead > 0, shuffle > 0);
        }
    }
}

/// The rows of a pass, then how it ended: the error if any, the number of bad rows and what was said of them.
fn with_account(
    input: &Input,
    policy: &str,
    decoders: usize,
) -> (Vec<u64>, Option<String>, u64, Vec<String>, u64) {
    let config = DataConfig { on_bad_row: policy.parse().unwrap(), ..DataConfig::default() };
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
    let pass = Pass::open(&input.files, &config, &input.encoder, &bad_rows, options(0, 1, 0)).unwrap();
    let stages = Stages::new(&STAGES);
    let mut feed = match decoders {
        0 => pass.feed(),
        _ => pass.feed_ahead_by((0..decoders).map(|_| stages.timer())),
    };
    let (mut rows, mut timer) = (Vec::new(), stages.timer());
    let error = loop {
        match feed.next_some(64, &mut timer) {
            Ok(Some(some)) => rows.extend_from_slice(some.keys(0)),
            Ok(None) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    (rows, error, bad_rows.count(), bad_rows.messages(), bad_rows.headers())
}

#[test]
fn decoders_account_for_bad_rows_in_the_order_of_the_input() {
    let input = Input::new("csv");
    for file in &input.files {
        let text = std::fs::read_to_string(file).unwrap();
        let header = text.lines().next().unwrap();
        let spoil = |(at, line): (usize, &str)| match at % 700 {
            5 => "1,none,x\n".to_owned(),
            3 if at > 3 => format!("{header}\n{line}\n"),
            _ => format!("{line}\n"),
        };
        std::fs::write(file, text.lines().enumerate().map(spoil).collect::<String>()).unwrap();
    }
    for policy in ["fail", "skip", "skip:0", "skip:3", "skip:7"] {
        let expected = with_account(&input, policy, 0);
        assert_eq!(expected.1.is_some(), policy != "skip", "{policy}");
        assert!(expected.4 > 0 || policy != "skip", "no repeated header was counted");
        for decoders in [1, 2, 5] {
            let found = with_account(&input, policy, decoders);
            assert_eq!(found, expected, "{policy}, {decoders} decoders");
        }
    }
}

#[test]
fn decoding_ahead_changes_nothing() {
    for (input, decoders) in [("csv", 1), ("csv", 4), ("batch", 1), ("batch", 3)] {
        let (input, stages) = (Input::new(input), Stages::new(&STAGES));
        let timers = || (0..decoders).map(|_| stages.timer());
        for (shuffle, batch, used) in
            [(0, 64, 0), (0, 64, 3100), (1000, 64, 0), (700, 1000, 3100), (20_000, 7, 64)]
        {
            let pass = input.pass(options(shuffle, 1, used));
            let (mut feed, mut timer) = (pass.feed_ahead_by(timers()), stages.timer());
            let batches = std::iter::from_fn(|| take(&mut feed, batch, &mut timer)).collect::<Vec<_>>();
            let inline = run(&input.pass(options(shuffle, 1, used)), 1, batch, None).concat();
            assert_eq!(batches, inline, "shuffle {shuffle}, batch {batch}, {used} rows used");
            // Pieces of whatever size are the same rows in the same order.
            let pass = input.pass(options(shuffle, 1, used));
            let mut feed = pass.feed_ahead_by(timers());
            let mut rows = Vec::new();
            while let Some(some) = feed.next_some(batch, &mut timer).unwrap() {
                assert!((1..=batch).contains(&some.len()));
                rows.extend_from_slice(some.keys(0));
            }
            assert_eq!(rows, inline.concat());
            // A feed that is given up does not wait for the input to end.
            let pass = input.pass(options(shuffle, 1, used));
            let mut feed = pass.feed_ahead_by(timers());
            assert!(take(&mut feed, batch, &mut timer).is_some());
        }
    }
}

#[test]
fn minibatches_fall_as_if_the_run_had_not_stopped() {
    let input = Input::new("libsvm");
    for (shuffle, batch) in [(0, 64), (1000, 64), (1000, 1000)] {
        let whole = run(&input.pass(options(shuffle, 1, 0)), 1, batch, None).concat();
        for steps in [1, 3, 15, 16, 17, 40].into_iter().filter(|steps| *steps < whole.len()) {
            let used = whole[..steps].iter().map(Vec::len).sum::<usize>();
            let rest = run(&input.pass(options(shuffle, 1, used as u64)), 1, batch, None).concat();
            assert_eq!(rest, whole[steps..], "shuffle {shuffle}, batch {batch}, after {steps} steps");
        }
    }
}

#[test]
fn several_workers_stop_with_a_prefix_and_go_on_with_the_rest() {
    for input in ["csv", "batch"].map(Input::new) {
        for (workers, shuffle, stop) in [(2, 0, 1), (3, 0, 5), (2, 500, 1), (4, 500, 3), (2, 500, 1000)] {
            let what = format!("{workers} workers, shuffle {shuffle}, stopped after {stop}");
            let mut used =
                run(&input.pass(options(shuffle, workers, 0)), workers, 10, Some(stop)).concat().concat();
            used.sort_unstable();
            let count = used.len() as u64;
            assert!(used.into_iter().eq(0..count), "{what}: {count} rows are no prefix");
            // Whoever goes on, with however many workers, gets the others; one shuffling worker counts by its own order.
            for others in [1, 2, 3].into_iter().filter(|others| *others > 1 || shuffle == 0) {
                let mut rest =
                    run(&input.pass(options(shuffle, others, count)), others, 10, None).concat().concat();
                rest.sort_unstable();
                assert!(
                    rest.into_iter().eq(count..ROWS),
                    "{what}: {others} workers did not get exactly the rest"
                );
            }
        }
    }
}

#[test]
fn progress_ends_at_the_size_of_the_files() {
    for input in ["csv", "batch"].map(Input::new) {
        let pass = input.pass(options(0, 1, 0));
        let size: u64 = input.files.iter().map(|file| Path::new(file).metadata().unwrap().len()).sum();
        assert_eq!((pass.bytes_read(), pass.bytes_total()), (0, Some(size)));
        run(&pass, 1, 64, None);
        assert_eq!(pass.bytes_read(), size);
    }
}

#[test]
fn a_bad_row_reaches_the_worker_that_reads_it() {
    let input = Input::new("csv");
    let text = std::fs::read_to_string(&input.files[1]).unwrap();
    std::fs::write(&input.files[1], text + "1,none,x\n").unwrap();
    let stages = Stages::new(&STAGES);
    for ahead in [false, true] {
        let pass = input.pass(options(0, 1, 0));
        let mut feed = if ahead { pass.feed_ahead(stages.timer()) } else { pass.feed() };
        let mut timer = stages.timer();
        let error = loop {
            match feed.next(64, &mut timer) {
                Ok(rows) => assert!(rows.is_some(), "the pass ended without an error"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("1.csv:6002: column id"), "{error}");
    }
}

#[test]
fn passing_over_used_rows_is_told_of_and_can_be_stopped() {
    let input = Input::new("csv");
    let config = DataConfig::default();
    for stop_after in [0, 1, usize::MAX] {
        let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
        let mut told = Vec::new();
        let mut go_on = |bytes_read: u64, bytes_total: Option<u64>| {
            assert!(bytes_read <= bytes_total.unwrap());
            told.push(bytes_read);
            told.len() <= stop_after
        };
        let options = options(0, 1, ROWS - 1);
        let stopped = Arc::default();
        let (files, encoder) = (&input.files, &input.encoder);
        let pass =
            Pass::open_while(files, &config, encoder, &bad_rows, options, stopped, &mut go_on).unwrap();
        let enough = if stop_after < usize::MAX { told.len() == stop_after + 1 } else { told.len() > 2 };
        assert!(enough && told.is_sorted(), "{told:?}");
        assert_eq!(pass.is_stopped(), stop_after < usize::MAX);
        let left = run(&pass, 1, 64, None).concat().concat();
        assert_eq!(left.len(), usize::from(!pass.is_stopped()), "{told:?}");
    }
}
