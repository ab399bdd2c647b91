//! Who is given which rows, beside a plain reference: every row exactly once, in an order that depends on seed and pass
//! alone, and in steps that do not depend on the number of workers; and what workers agree on, and how they fail.

use std::collections::VecDeque;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sanderling_client::StepGradients;
use sanderling_formats::batch_file::{BatchFileOptions, BatchFileWriter};
use sanderling_formats::{BLOCK_BYTES, BadRows, DataConfig, Decoder, Reader, Source, Unit};
use sanderling_job::{Input, JobError, Options, Order, STAGES, Tables, Worker, run};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Rows, Spec};
use sanderling_store::{Init, Optimizer, PushScale, Table, TableConfig};

const SEED: u64 = 11;
const PASS: u64 = 3;
/// Row `n` has the key `n`, and this plus it, 1 to 3 keys in all.
const MORE_KEYS: u64 = 1 << 40;
/// Rows of a block of a batch file.
const BLOCK_ROWS: usize = 1000;

/// Files of these many rows, of which the first half has label 0, the second 1.
fn input(dir: &Path, files: &[(&str, u64)]) -> Input {
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
    let (reading, encoder) = (DataConfig::default(), Encoder::new(&Spec::libsvm(), &options).unwrap());
    let bad_rows = Arc::new(BadRows::new(reading.on_bad_row));
    let encoder = Arc::new(encoder);
    let total: u64 = files.iter().map(|(_, rows)| rows).sum();
    let (mut inputs, mut next) = (Vec::new(), 0);
    for (number, &(kind, rows)) in files.iter().enumerate() {
        let line = |row: u64| {
            let more: String =
                (1..=row % 3).map(|more| format!(" {}:0.{more}", MORE_KEYS + 3 * row + more)).collect();
            format!("{} {row}:1{more}\n", u8::from(row >= total / 2))
        };
        let text: String = (next..next + rows).map(line).collect();
        next += rows;
        let path = dir.join(format!("{number}.{kind}"));
        if kind.ends_with(".gz") {
            let file = std::fs::File::create(&path).unwrap();
            let mut file = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            file.write_all(text.as_bytes()).unwrap();
            file.finish().unwrap();
        } else if kind == "batch" {
            write_batch_file(&path, &text, &encoder);
        } else {
            std::fs::write(&path, text).unwrap();
        }
        inputs.push(path.to_string_lossy().into_owned());
    }
    Input { inputs, reading, encoder, bad_rows }
}

/// A file of few, large units.
fn write_batch_file(path: &Path, text: &str, encoder: &Arc<Encoder>) {
    let lines = path.with_extension("libsvm");
    std::fs::write(&lines, text).unwrap();
    let lines = [lines.to_string_lossy().into_owned()];
    let mut reader = Reader::open(&lines, &DataConfig::default(), encoder).unwrap();
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch).unwrap() {}
    let mut out = BatchFileWriter::create(path, encoder.spec(), BatchFileOptions::default()).unwrap();
    for start in (0..batch.len()).step_by(BLOCK_ROWS) {
        out.write(&Rows::new(&batch, start..batch.len().min(start + BLOCK_ROWS))).unwrap();
    }
    out.finish().unwrap();
}

/// The numbers of rows, which are checked to be whole.
fn ids(rows: &Rows<'_>) -> Vec<u64> {
    let (keys, values, offsets) = (rows.keys(0), rows.values(0).unwrap(), rows.offsets(0));
    let start = |row: usize| (offsets[row] - offsets[0]) as usize;
    let one = |row: usize| {
        let span = start(row)..start(row + 1);
        let (id, more) = keys[span.clone()].split_first().unwrap();
        assert!(
            more.iter().copied().eq((1..=id % 3).map(|more| MORE_KEYS + 3 * id + more)),
            "{id}: {more:?}"
        );
        assert_eq!(values[span], [1.0, 0.1, 0.2][..more.len() + 1]);
        assert_eq!(rows.weights()[row], 1.0);
        *id
    };
    (0..rows.len()).map(one).collect()
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// All rows in one list of (unit, place, number), in input order.
fn reference(input: &Input) -> Vec<(u64, u64, u64)> {
    let source = Source::open(&input.inputs, &input.reading, &input.encoder).unwrap();
    let unit_bytes = (source.bytes_total().unwrap() / 1024).clamp(512, BLOCK_BYTES as u64);
    let mut source = source.with_unit_bytes(unit_bytes as usize);
    let mut decoder = Decoder::new(Arc::clone(&input.encoder), Arc::clone(&input.bad_rows));
    let (mut unit, mut rows, mut number) = (Unit::default(), Vec::new(), 0);
    let key = mix(mix(SEED).wrapping_add(PASS));
    while source.next_unit(&mut unit).unwrap() {
        let mut batch = input.encoder.new_batch();
        decoder.decode(&unit, &mut batch).unwrap();
        let place = |row: u64| mix((number << 24 | row) ^ key);
        rows.extend((0..).zip(ids(&Rows::all(&batch))).map(|(row, id)| (number, place(row), id)));
        number += 1;
    }
    rows
}

/// How rows are asked for.
#[derive(Clone, Copy, Debug)]
enum How {
    Share { minibatch: usize },
    Steps { batch: usize },
}

/// Per worker, its minibatches.
type Given = Vec<Vec<Vec<u64>>>;

fn expected(input: &Input, workers: usize, order: Order, how: How) -> Given {
    let mut rows = reference(input);
    let is_shuffled = order == Order::Shuffled;
    if is_shuffled {
        rows.sort_by_key(|&(_, place, _)| place);
    }
    let lane_of = |&(unit, place, _): &(u64, u64, u64), lanes: usize| {
        (if is_shuffled { place } else { unit }) as usize % lanes
    };
    let lane = |lane: usize, lanes: usize| -> Vec<u64> {
        rows.iter().filter(|row| lane_of(row, lanes) == lane).map(|row| row.2).collect()
    };
    match how {
        How::Share { minibatch } => (0..workers)
            .map(|worker| lane(worker, workers).chunks(minibatch).map(<[u64]>::to_vec).collect())
            .collect(),
        How::Steps { batch } => {
            let lanes = 1 << batch.trailing_zeros().min(6);
            let mut all: Vec<VecDeque<u64>> = (0..lanes).map(|number| lane(number, lanes).into()).collect();
            // Per round, the rows that each lane gets; shuffled, all are known at once.
            let mut rounds: VecDeque<Vec<usize>> = VecDeque::new();
            for row in &rows {
                let round = if is_shuffled { 0 } else { row.0 as usize / lanes };
                rounds.resize(rounds.len().max(round + 1), vec![0; lanes]);
                rounds[round][lane_of(row, lanes)] += 1;
            }
            let (mut known, mut last) = (vec![0; lanes], vec![0; lanes]);
            let mut given = vec![Vec::new(); workers];
            loop {
                let is_whole = |known: &[usize]| known.iter().sum::<usize>() >= batch;
                let is_short = |known: &[usize]| known.iter().any(|&rows| rows < batch / lanes);
                let is_in_last =
                    |known: &[usize], last: &[usize]| (0..lanes).all(|lane| known[lane] <= last[lane]);
                while !is_whole(&known) || (is_short(&known) && is_in_last(&known, &last)) {
                    let Some(round) = rounds.pop_front() else { break };
                    (0..lanes).for_each(|lane| known[lane] += round[lane]);
                    last = round;
                }
                let dealt = dealt(&known, batch);
                if dealt.iter().all(|&rows| rows == 0) {
                    return given;
                }
                given.iter_mut().for_each(|steps| steps.push(Vec::new()));
                for lane in 0..lanes {
                    known[lane] -= dealt[lane];
                    given[lane % workers].last_mut().unwrap().extend(all[lane].drain(..dealt[lane]));
                }
            }
        }
    }
}

/// What lanes of so many rows give to a step: all up to a level that a batch allows, and one more of the longest.
fn dealt(left: &[usize], batch: usize) -> Vec<usize> {
    let up_to = |level: usize| left.iter().map(|&rows| rows.min(level)).collect::<Vec<_>>();
    let level = (0..=batch).rev().find(|&level| up_to(level).iter().sum::<usize>() <= batch).unwrap();
    let mut dealt = up_to(level);
    let mut longer: Vec<usize> = (0..left.len()).filter(|&lane| left[lane] > level).collect();
    longer.sort_by_key(|&lane| (left[lane], lane));
    let more = batch - dealt.iter().sum::<usize>();
    longer.iter().rev().take(more).for_each(|&lane| dealt[lane] += 1);
    dealt
}

fn options(workers: u32) -> Options {
    Options { workers, seed: SEED, ..Options::default() }
}

fn here() -> (Tables, Stages) {
    (Tables::Embedded(Vec::new()), Stages::new(&STAGES))
}

/// What workers are given, and the bytes that went through files.
fn given(input: &Input, options: &Options, order: Order, how: How) -> (Given, u64) {
    let (tables, stages) = here();
    let ends = run(options, &tables, &stages, |worker: &mut Worker| -> Result<_, JobError> {
        let mut minibatches = Vec::new();
        let stored = match how {
            How::Share { minibatch } => {
                let mut share = worker.share(input, PASS, order)?;
                while let Some(rows) = share.next(worker, minibatch)? {
                    minibatches.push(ids(&rows));
                }
                share.stored_bytes()
            }
            How::Steps { batch } => {
                let mut steps = worker.steps(input, PASS, order, batch)?;
                while steps.next(worker)?.is_some() {
                    // With the rows after these read, or not yet.
                    if steps.given() % 3 > 0 {
                        steps.prepare(worker);
                    }
                    minibatches.push(ids(&steps.rows()));
                }
                assert_eq!(steps.given(), minibatches.len() as u64);
                steps.stored_bytes()
            }
        };
        Ok((minibatches, stored))
    });
    let (given, stored): (Given, Vec<u64>) = ends.unwrap().into_iter().unzip();
    assert_eq!(stages.totals().len(), STAGES.len());
    (given, stored.iter().sum())
}

fn check(files: &[(&str, u64)], bytes_max: u64, hows: &[How]) {
    let dir = tempfile::tempdir().unwrap();
    let scratch_dir = dir.path().join("scratch");
    std::fs::create_dir(&scratch_dir).unwrap();
    let input = input(dir.path(), files);
    for workers in 1..=4_u32 {
        for (order, &how) in [Order::Input, Order::Shuffled]
            .into_iter()
            .flat_map(|order| hows.iter().map(move |how| (order, how)))
        {
            let what = format!("{files:?}, {workers} workers, {order:?}, {how:?}");
            let options = Options {
                shuffle_bytes_max: bytes_max,
                scratch_dir: scratch_dir.clone(),
                ..options(workers)
            };
            let (given, stored) = given(&input, &options, order, how);
            assert_eq!(given, expected(&input, workers as usize, order, how), "{what}");
            if let How::Steps { batch } = how {
                let rows = |step: usize| given.iter().map(|steps| steps[step].len()).sum::<usize>();
                let steps = given[0].len();
                assert!((1..steps).all(|step| rows(step - 1) == batch), "{what}: a step is not whole");
            }
            let mut all: Vec<u64> = given.into_iter().flatten().flatten().collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..files.iter().map(|(_, rows)| rows).sum()), "{what}");
            assert_eq!(stored > 0, order == Order::Shuffled && bytes_max < 1 << 20, "{what}: {stored}");
        }
    }
    assert_eq!(std::fs::read_dir(scratch_dir).unwrap().count(), 0);
}

#[test]
fn every_row_is_given_once_to_the_worker_and_in_the_step_that_it_belongs_to() {
    let hows = [
        How::Share { minibatch: 7 },
        How::Share { minibatch: 100_000 },
        How::Steps { batch: 4 },
        How::Steps { batch: 96 },
        How::Steps { batch: 1024 },
    ];
    check(&[("libsvm", 3000), ("libsvm.gz", 2000), ("libsvm", 1)], 128 << 20, &hows);
    check(&[("libsvm", 5), ("libsvm.gz", 3000)], 0, &hows);
    check(&[("libsvm", 3)], 128 << 20, &hows);
    // Fewer units than lanes, of very different lengths.
    check(&[("batch", 5500), ("libsvm.gz", 3), ("batch", 10)], 128 << 20, &hows);
}

#[test]
fn pieces_of_many_slices_go_through_memory_and_files() {
    // Two slices of input, and some of it fits in memory.
    let hows = [How::Share { minibatch: 1000 }, How::Steps { batch: 4096 }];
    check(&[("libsvm", 120_000)], 1 << 19, &hows);
}

#[test]
fn another_pass_has_another_order_and_the_same_rows_by_steps_for_any_number_of_workers() {
    let dir = tempfile::tempdir().unwrap();
    let input = input(dir.path(), &[("libsvm", 20_000)]);
    let how = How::Steps { batch: 512 };
    let sets = |options: &Options, order| -> Vec<Vec<u64>> {
        let (given, _) = given(&input, options, order, how);
        let steps = given[0].len();
        let step = |step: usize| -> Vec<u64> {
            let mut rows: Vec<u64> = given.iter().flat_map(|worker| &worker[step]).copied().collect();
            rows.sort_unstable();
            rows
        };
        (0..steps).map(step).collect()
    };
    for order in [Order::Input, Order::Shuffled] {
        let one = sets(&options(1), order);
        for workers in [2, 3, 4] {
            assert_eq!(sets(&options(workers), order), one, "{order:?}, {workers} workers");
        }
        let other = sets(&Options { seed: SEED + 1, ..options(2) }, order);
        assert_eq!(other == one, order == Order::Input);
    }
    // The first half of the input has label 0. Five standard deviations of a mean of 512 labels are .11.
    for step in &sets(&options(2), Order::Shuffled)[..30] {
        let mean = step.iter().filter(|&&id| id >= 10_000).count() as f64 / step.len() as f64;
        assert!(step.len() == 512 && (mean - 0.5).abs() < 0.11, "{mean} of {}", step.len());
    }
}

#[test]
fn what_workers_agree_on_is_what_plain_sums_say() {
    let (tables, stages) = here();
    for workers in 1..=4_u32 {
        let number = |worker: u32, at: usize| f64::from(worker * 10) - at as f64 * 0.5;
        let part = |from: u32, to: u32| -> Vec<u8> {
            let bytes = if (from + to) % 3 == 2 { 0 } else { (from * 7 + to) as usize * 150_000 };
            (0..bytes).map(|at| (at as u32 ^ from ^ to << 4) as u8).collect()
        };
        let all = |at: usize| (0..workers).map(move |worker| number(worker, at));
        run(&options(workers), &tables, &stages, |worker| -> Result<(), JobError> {
            let rank = worker.rank();
            assert_eq!(worker.workers(), workers);
            let mine: Vec<f64> = (0..3).map(|at| number(rank, at)).collect();
            let (mut sum, mut mean, mut max) = (mine.clone(), mine.clone(), mine);
            worker.sum("sum", &mut sum)?;
            worker.mean("mean", &mut mean)?;
            worker.max("max", &mut max)?;
            for at in 0..3 {
                assert_eq!(sum[at], all(at).sum::<f64>());
                assert_eq!(mean[at], all(at).sum::<f64>() / f64::from(workers));
                assert_eq!(max[at], all(at).fold(f64::NEG_INFINITY, f64::max));
            }
            let mut counts = vec![1; rank as usize * 2];
            worker.histogram("counts", &mut counts)?;
            let expected = (0..2 * (workers as usize - 1)).map(|at| u64::from(workers) - 1 - at as u64 / 2);
            assert!(counts.into_iter().eq(expected));
            // Twice, so that one exchange begins where another ends.
            for name in ["one", "two"] {
                let given = worker.all_to_all(name, (0..workers).map(|to| part(rank, to)).collect())?;
                assert!(given == (0..workers).map(|from| part(from, rank)).collect::<Vec<_>>());
            }
            worker.barrier("end")
        })
        .unwrap();
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("worker {0} gives up")]
    Own(u32),
}

#[test]
fn the_first_error_stops_all_wherever_they_wait() {
    let dir = tempfile::tempdir().unwrap();
    let input = input(dir.path(), &[("libsvm", 5000)]);
    let (tables, stages) = here();
    type Wait = fn(&mut Worker, &Input) -> Result<(), JobError>;
    let waits: [(&str, Wait); 5] = [
        ("barrier", |worker, _| worker.barrier("wait")),
        ("sum", |worker, _| worker.sum("wait", &mut [1.0])),
        ("all_to_all", |worker, _| worker.all_to_all("wait", vec![vec![1; 10_000_000]; 3]).map(|_| ())),
        ("exchange", |worker, input| worker.share(input, 0, Order::Shuffled).map(|_| ())),
        ("steps", |worker, input| {
            let mut steps = worker.steps(input, 0, Order::Input, 64)?;
            while steps.next(worker)?.is_some() {
                let given = steps.given();
                worker.group().wait_applied(given)?;
            }
            Ok(())
        }),
    ];
    for (what, wait) in waits {
        let failed = run(&options(3), &tables, &stages, |worker| -> Result<(), Failure> {
            if worker.rank() == 1 {
                return Err(Failure::Own(1));
            }
            Ok(wait(worker, &input)?)
        });
        match failed {
            Err(Failure::Own(1)) => {}
            Err(Failure::Job(error)) => panic!("{what}: {error}"),
            other => panic!("{what}: {other:?}"),
        }
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            run(&options(3), &tables, &stages, |worker| -> Result<(), JobError> {
                assert!(worker.rank() != 2, "worker 2 gives up");
                wait(worker, &input)
            })
        }));
        let text = panicked.unwrap_err().downcast_ref::<&str>().map(|text| (*text).to_owned());
        assert_eq!(text.as_deref(), Some("worker 2 gives up"), "{what}");
    }
}

#[test]
fn what_is_handed_in_for_a_step_is_waited_for_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let input = input(dir.path(), &[("libsvm", 500)]);
    let config = TableConfig::single("weights", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let table = Arc::new(Table::new(config).unwrap());
    let (tables, (_, stages)) = (Tables::Embedded(vec![Arc::clone(&table)]), here());
    for goes_on in [false, true] {
        let failed = run(&options(2), &tables, &stages, |worker| -> Result<(), JobError> {
            let mut steps = worker.steps(&input, 0, Order::Input, 64)?;
            steps.next(worker)?;
            let gradients = StepGradients::Single(&[1.0]);
            worker.group().push_step(1, 0, &[1], &[1], gradients, PushScale { lr_scale: 1.0 })?;
            if goes_on {
                steps.next(worker)?;
            }
            Ok(())
        });
        assert!(matches!(failed, Err(JobError::OpenStep { step: 1, .. })), "{failed:?}");
    }
    assert_eq!(table.len(), 0);
}

#[test]
fn what_cannot_be_is_said_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let input = input(dir.path(), &[("libsvm", 500)]);
    let (tables, stages) = here();
    let failure =
        |options: &Options, stages: &Stages, work: &(dyn Fn(&mut Worker) -> Result<(), JobError> + Sync)| {
            run(options, &tables, stages, work).unwrap_err().to_string()
        };
    let steps = |batch: usize| {
        let input = &input;
        move |worker: &mut Worker| worker.steps(input, 0, Order::Shuffled, batch).map(|_| ())
    };
    let bad =
        Input { inputs: vec![dir.path().join("bad.libsvm").to_string_lossy().into_owned()], ..input.clone() };
    std::fs::write(dir.path().join("bad.libsvm"), "1 5:1\nnonsense\n").unwrap();
    let nowhere = Options { scratch_dir: dir.path().join("nowhere"), shuffle_bytes_max: 0, ..options(1) };
    let hasty = Options { timeout: Duration::from_millis(200), ..options(2) };
    for (found, expected) in [
        (failure(&options(0), &stages, &|_| Ok(())), "a job of 0 workers: there are 1 to 1024"),
        (failure(&options(1), &Stages::new(&["read"]), &|_| Ok(())), "the list of stages must begin with"),
        (failure(&options(4), &stages, &steps(6)), "take 8, or another multiple of 4"),
        (failure(&options(1), &stages, &steps(0)), "take 1, or another multiple of 1"),
        (failure(&options(65), &stages, &steps(640)), "65 workers cannot go in step: at most 64"),
        (failure(&nowhere, &stages, &steps(8)), "name a directory with room as the job's scratch directory"),
        (
            failure(&options(2), &stages, &|worker| {
                worker.steps(&input, 0, Order::Input, 64 << worker.rank()).map(|_| ())
            }),
            "pass 0, in the order of the input, in steps of",
        ),
        (
            failure(&options(2), &stages, &|worker| worker.share(&bad, 0, Order::Shuffled).map(|_| ())),
            "bad.libsvm:2: column 1: expected",
        ),
        (
            failure(&options(2), &stages, &|worker| worker.all_to_all("x", vec![Vec::new()]).map(|_| ())),
            "all_to_all \"x\": 1 parts for 2 workers",
        ),
        (
            failure(&options(2), &stages, &|worker| {
                let sums = worker.rank() == 0;
                if sums { worker.sum("x", &mut [1.0]) } else { worker.mean("x", &mut [1.0]) }
            }),
            "\"sum x\"",
        ),
        (
            failure(&options(2), &stages, &|worker| {
                worker.broadcast("x", worker.rank(), b"mine").map(|_| ())
            }),
            "\"broadcast x from ",
        ),
        (
            failure(&hasty, &stages, &|worker| {
                if worker.rank() == 0 { worker.barrier("a acceptor") } else { Ok(()) }
            }),
            "meeting \"barrier a acceptor\": worker 1 did not come within 200ms",
        ),
    ] {
        assert!(found.contains(expected), "{found}");
    }
}
