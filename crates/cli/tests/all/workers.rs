//! Jobs whose workers are processes of their own, over servers that are, too: all rows are trained, also when a worker is
//! killed; in step the tables have the same bits as if nobody had been.
// A worker's process tells its test where it is.
#![allow(clippy::explicit_write, clippy::print_stderr, clippy::type_complexity)]

mod commands;
mod over_tcp;
mod stops;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::process::Process;
use sanderling_client::{Cluster, ConnectOptions, Fixed, RemoteTable, StepGradients};
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig};
use sanderling_job::{
    Hosts, Input, JobError, Observer, OnLoss, Options, Order, Place, STAGES, Tables, Worker, run,
};
use sanderling_observe::Stages;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};
use sanderling_transport::Address;

const LONG: Duration = Duration::from_secs(120);
/// In the environment of a process that is only a worker: its arguments.
const WORKER: &str = "SANDERLING_TEST_JOB_WORKER";
const ROWS: u64 = 20_000;
const PASSES: u64 = 2;
const SCALE: PushScale = PushScale { lr_scale: 1.0 };
/// The rows of a step.
const BATCH: usize = 64;

fn input(folder: &Path) -> Input {
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
    Input {
        inputs: vec![folder.join("rows.svm").display().to_string()],
        reading: DataConfig::default(),
        encoder: Arc::new(Encoder::new(&Spec::libsvm(), &options).unwrap()),
        bad_rows: Arc::new(BadRows::new(BadRowPolicy::Fail)),
    }
}

/// Row by row its number and a few of the keys that rows share.
fn write_rows(folder: &Path, rows: u64) {
    let line = |row: u64| format!("{} {}:1 {}:1\n", row % 3 % 2, 1 + row * 7 % 41, 100 + row);
    std::fs::write(folder.join("rows.svm"), (0..rows).map(line).collect::<String>()).unwrap();
}

fn connect(addresses: &[Address]) -> Arc<Cluster> {
    let options = ConnectOptions { timeout: LONG, prefer_local: false, ..ConnectOptions::default() };
    Cluster::connect(addresses, options).unwrap()
}

/// Every key's row, in the order of keys.
fn rows_of(cluster: &Arc<Cluster>, table: &str) -> Vec<(u64, f32)> {
    let mut rows = Vec::new();
    RemoteTable::open(cluster, table)
        .unwrap()
        .export(|block| rows.extend(block.keys.iter().copied().zip(block.weights.iter().copied())))
        .unwrap();
    rows.sort_by_key(|row| row.0);
    rows
}

/// Where a worker stops so that it can be killed: says so, and waits for its end.
fn stop_here() {
    writeln!(std::io::stdout(), "\nstopped").unwrap();
    std::thread::sleep(10 * LONG);
}

/// Each goes its own way: adds 1 to each key of its rows. Stops after so many minibatches of the second pass.
fn count_rows(worker: &mut Worker, input: &Input, table: &RemoteTable, stops: u64) -> Result<(), JobError> {
    for pass in 0..PASSES {
        let mut share = worker.share(input, pass, Order::Input)?;
        let mut minibatches = 0;
        while let Some(rows) = share.next(worker, 50)? {
            let keys = rows.keys(0);
            table.push(keys, &vec![-1.0; keys.len()], SCALE)?;
            if share.wants_settling() {
                share.settled(worker);
            }
            minibatches += 1;
            if pass == 1 && minibatches == stops {
                stop_here();
            }
        }
        let mut sum = [1.0];
        worker.sum("the end of a pass", &mut sum)?;
    }
    Ok(())
}

/// The most minibatches that a worker of [`keep_within`] may be ahead of the slowest.
const BOUND: u64 = 2;
/// So many minibatches of a pass worker 1 makes only when nobody else can make any more.
const SLOW: u64 = 20;
/// From this key on are the rows in which the workers count their minibatches.
const COUNTS: u64 = 1 << 40;

/// Each goes its own way, at most [`BOUND`] minibatches ahead of the slowest, whose number it looks up: adds 1 to each key of its
/// rows, and to the row of its minibatches. Stops after so many of the second pass, when all others are as far ahead as they may
/// be.
fn keep_within(worker: &mut Worker, input: &Input, table: &RemoteTable, stops: u64) -> Result<(), JobError> {
    let rank = worker.rank() as usize;
    for pass in 0..PASSES {
        let counts: Vec<u64> =
            (0..worker.workers()).map(|rank| COUNTS + 1000 * pass + u64::from(rank)).collect();
        let look = || -> Result<Vec<u64>, JobError> {
            let mut found = vec![0.0; counts.len()];
            table.pull(&counts, Absent::Zero, &mut found, None)?;
            Ok(found.into_iter().map(|count| count as u64).collect())
        };
        let mut share = worker.share(input, pass, Order::Input)?;
        let mut own = 0;
        while let Some(rows) = share.next(worker, 50)? {
            let all_wait = |found: &[u64]| {
                found.iter().filter(|&&count| count == own + BOUND + 1).count() == found.len() - 1
            };
            while rank == 1 && own <= SLOW && !all_wait(&look()?) {
                // The others are to have the time.
                std::thread::sleep(Duration::from_millis(1));
            }
            if pass == 1 && stops > 0 && own == stops {
                stop_here();
            }
            let keys = rows.keys(0);
            table.push(keys, &vec![-1.0; keys.len()], SCALE)?;
            table.push(&counts[rank..=rank], &[-1.0], SCALE)?;
            own += 1;
            let found = look()?;
            // Later somebody may be at the end, or dead.
            if own <= SLOW {
                assert!(found.iter().all(|&count| own <= count + BOUND + 1), "{own}: {found:?}");
            }
            assert!(worker.keep_pace(BOUND)? <= BOUND);
            if share.wants_settling() {
                share.settled(worker);
            }
        }
        worker.barrier("the end of a pass")?;
    }
    Ok(())
}

/// All leave a pass after a minibatch that not everybody has, and then count the rows of a whole one.
fn leave(worker: &mut Worker, input: &Input) -> Result<(), JobError> {
    for pass in 0..10 {
        // Some have rows, and some come to the end.
        let found = worker.share(input, pass, Order::Input)?.next(worker, 50)?.map_or(0, |rows| rows.len());
        let mut sum = [found as f64];
        worker.sum("rows of some", &mut sum)?;
        assert!(sum[0] > 0.0);
        let mut share = worker.share(input, pass, Order::Input)?;
        let mut rows = [0.0];
        while let Some(more) = share.next(worker, 50)? {
            rows[0] += more.len() as f64;
        }
        worker.sum("rows of all", &mut rows)?;
        assert_eq!(rows[0], 100.0);
        assert!(worker.steps(input, pass, Order::Shuffled, BATCH)?.next(worker)?.is_some());
        drop(worker.share(input, pass, Order::Shuffled)?);
    }
    Ok(())
}

/// All in step: each key's row is drawn to the number of the rows that it has. Stops in a step of the second pass, before it
/// has handed anything in.
fn step_rows(
    worker: &mut Worker,
    input: &Input,
    table: &RemoteTable,
    order: Order,
    stops: u64,
) -> Result<(), JobError> {
    for pass in 0..PASSES {
        let mut steps = worker.steps(input, pass, order, BATCH)?;
        let mut given = 0;
        while let Some(rows) = steps.next(worker)? {
            given += 1;
            if pass == 1 && given == stops {
                stop_here();
            }
            let keys = rows.keys(0);
            let mut weights = vec![0.0; keys.len()];
            table.pull(keys, Absent::Init, &mut weights, None)?;
            let mut sums = vec![0; keys.len()];
            for (at, sum) in sums.iter_mut().enumerate() {
                let gradient = (weights[at] - (keys[at] % 7) as f32) * 0.01;
                Fixed::default().add(std::slice::from_mut(sum), &[gradient]).unwrap();
            }
            let gradients = StepGradients::Fixed { unit_log2: Fixed::default().unit_log2(), sums: &sums };
            let step = worker.group().applied() + 1;
            worker.group().push_step(step, 0, keys, &vec![1; keys.len()], gradients, SCALE)?;
            worker.wait_applied(step)?;
        }
        worker.barrier("the end of a pass")?;
    }
    Ok(())
}

/// What one worker does, as words: see [`Job::words`].
struct Job {
    folder: std::path::PathBuf,
    servers: Vec<Address>,
    kind: String,
    rank: u32,
    workers: u32,
    on_loss: OnLoss,
    stops: u64,
}

impl Job {
    fn words(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        let Job { folder, kind, rank, workers, stops, .. } = self;
        let on_loss = if self.on_loss == OnLoss::Redo { "redo" } else { "stop" };
        format!("{} {} {kind} {rank} {workers} {on_loss} {stops}", folder.display(), servers.join(","))
    }

    fn of_words(words: &str) -> Job {
        let words: Vec<&str> = words.split(' ').collect();
        let [folder, servers, kind, rank, workers, on_loss, stops] = words[..] else { panic!("{words:?}") };
        Job {
            folder: folder.into(),
            servers: sanderling_client::addresses(servers).unwrap(),
            kind: kind.to_owned(),
            rank: rank.parse().unwrap(),
            workers: workers.parse().unwrap(),
            on_loss: if on_loss == "redo" { OnLoss::Redo } else { OnLoss::Stop },
            stops: stops.parse().unwrap(),
        }
    }

    fn run(&self) -> Result<(), JobError> {
        let cluster = connect(&self.servers);
        let table = RemoteTable::open(&cluster, &self.kind)?;
        let host = |rank| match (&self.kind[..], self.rank, rank) {
            // See [`relay`].
            ("late", 2, 1) => format!("unix:{}/relay", self.folder.display()).parse().unwrap(),
            _ => format!("unix:{}/{}-{rank}", self.folder.display(), self.kind).parse().unwrap(),
        };
        let hosts = Hosts::new(self.rank, (0..self.workers).map(host).collect(), 7);
        // A machine that stands still for a minute is nobody's death; who is killed is missed by the connection.
        let hosts = Hosts { silence: LONG, ..hosts };
        let options = Options {
            workers: self.workers,
            place: Place::Hosts(hosts),
            timeout: LONG,
            on_loss: self.on_loss,
            observer: Some(Observer(Arc::new(|event| eprintln!("{event}")))),
            ..Options::default()
        };
        let tables = Tables::Servers(cluster, vec![table.clone()]);
        let input = input(&self.folder);
        run(&options, &tables, &Stages::new(&STAGES), |worker| match &self.kind[..] {
            "async" => count_rows(worker, &input, &table, self.stops),
            "paced" => keep_within(worker, &input, &table, self.stops),
            "left" => leave(worker, &input),
            "in-order" => step_rows(worker, &input, &table, Order::Input, self.stops),
            _ => step_rows(worker, &input, &table, Order::Shuffled, self.stops),
        })?;
        Ok(())
    }

    fn start(self) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["workers::worker", "--exact", "--nocapture"])
            .env(WORKER, self.words())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Running { child, said }
    }
}

/// Not a test of its own: the process that the tests start.
#[test]
fn worker() {
    let Ok(words) = std::env::var(WORKER) else { return };
    if let Err(error) = Job::of_words(&words).run() {
        writeln!(std::io::stderr(), "failed: {error}").unwrap();
        std::process::exit(1);
    }
}

struct Running {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn wait_until_it_stops(&mut self) {
        let mut lines = self.said.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "stopped"), "it ended before");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Whether it did what it was to do, and what it said.
    fn end(mut self) -> (bool, String) {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().success(), errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two servers, and a folder with the rows.
struct Site {
    folder: tempfile::TempDir,
    servers: Vec<Process>,
    addresses: Vec<Address>,
}

impl Site {
    fn new(rows: u64) -> Site {
        let folder = tempfile::tempdir().unwrap();
        write_rows(folder.path(), rows);
        let start = |shard: u32| {
            let place = folder.path().join(format!("shard{shard}"));
            std::fs::create_dir(&place).unwrap();
            let listen = format!("unix:{}/socket", place.display());
            Process::start_at(&place, &listen, 1, "exec 2>>errors;", &format!("--shard {shard}/2"))
        };
        let servers = vec![start(0), start(1)];
        let addresses = servers.iter().map(|server| server.addresses[0].clone()).collect();
        Site { folder, servers, addresses }
    }

    /// Runs a job with a new table; the worker of rank 1 stops where it is told to and is killed. What all said, and whether
    /// they did what they were to do; the rows of the table.
    fn run(
        &self,
        kind: &str,
        workers: u32,
        on_loss: OnLoss,
        stops: u64,
    ) -> (Vec<(bool, String)>, Vec<(u64, f32)>) {
        let cluster = connect(&self.addresses);
        let optimizer = match kind {
            "async" | "paced" | "left" => Optimizer::Sgd { lr: 1.0, l2: 0.0 },
            _ => Optimizer::Adagrad { lr: 0.5, eps: 1e-10, initial: 0.0, l2: 0.0 },
        };
        RemoteTable::drop_named(&cluster, kind).unwrap();
        RemoteTable::create(&cluster, &TableConfig::single(kind, 1, Init::Zero, optimizer)).unwrap();
        // In any order; here the last one first.
        let mut running: Vec<Running> = (0..workers)
            .rev()
            .map(|rank| {
                let stops = if rank == 1 { stops } else { 0 };
                let (folder, servers) = (self.folder.path().to_owned(), self.addresses.clone());
                let kind = kind.to_owned();
                Job { folder, servers, kind, rank, workers, on_loss, stops }.start()
            })
            .collect();
        running.reverse();
        if stops > 0 {
            running[1].wait_until_it_stops();
            running[1].kill();
        }
        let ends = running.into_iter().map(Running::end).collect();
        (ends, rows_of(&cluster, kind))
    }
}

fn all_went_well(ends: &[(bool, String)], but: Option<usize>) {
    for (rank, (is_good, errors)) in ends.iter().enumerate() {
        assert!(*is_good || Some(rank) == but, "worker {rank}: {errors}");
    }
}

#[test]
fn every_row_is_trained_once_and_when_a_worker_is_killed_at_least_once() {
    let site = Site::new(ROWS);
    let (ends, rows) = site.run("async", 3, OnLoss::Redo, 0);
    all_went_well(&ends, None);
    let own =
        |rows: &[(u64, f32)]| rows.iter().filter(|row| row.0 >= 100).map(|row| row.1).collect::<Vec<_>>();
    assert_eq!(own(&rows), vec![PASSES as f32; ROWS as usize]);

    let (ends, rows) = site.run("async", 3, OnLoss::Redo, 30);
    all_went_well(&ends, Some(1));
    assert!(ends[0].1.contains("worker 1 at") && ends[0].1.contains("the others take"), "{}", ends[0].1);
    let times = own(&rows);
    assert_eq!(times.len(), ROWS as usize);
    assert!(times.iter().all(|&times| times >= PASSES as f32), "rows were lost");
    // It had settled most of what it was given.
    assert!(times.iter().sum::<f32>() < 1.5 * (ROWS * PASSES) as f32);
}

#[test]
fn a_worker_that_is_killed_is_named_by_all_if_nobody_goes_on() {
    let site = Site::new(ROWS / 4);
    for kind in ["async", "in-order"] {
        let (ends, _) = site.run(kind, 3, OnLoss::Stop, 5);
        for rank in [0, 2] {
            let (is_good, errors) = &ends[rank];
            assert!(
                !is_good && errors.contains("failed: worker 1 at unix:"),
                "{kind}, worker {rank}: {errors}"
            );
            assert!(errors.contains("connection"), "{errors}");
        }
    }
}

#[test]
fn nobody_is_further_ahead_than_the_bound_and_who_is_killed_is_waited_for_no_longer() {
    let site = Site::new(ROWS);
    let own = |rows: &[(u64, f32)]| {
        rows.iter().filter(|row| (100..COUNTS).contains(&row.0)).map(|row| row.1).collect::<Vec<_>>()
    };
    let (ends, rows) = site.run("paced", 3, OnLoss::Redo, 0);
    all_went_well(&ends, None);
    assert_eq!(own(&rows), vec![PASSES as f32; ROWS as usize]);

    let (ends, rows) = site.run("paced", 3, OnLoss::Redo, SLOW);
    all_went_well(&ends, Some(1));
    assert!(ends[0].1.contains("worker 1 at") && ends[0].1.contains("the others take"), "{}", ends[0].1);
    let times = own(&rows);
    assert_eq!(times.len(), ROWS as usize);
    assert!(times.iter().all(|&times| times >= PASSES as f32), "rows were lost");

    let (ends, _) = site.run("paced", 3, OnLoss::Stop, SLOW);
    for rank in [0, 2] {
        let (is_good, errors) = &ends[rank];
        assert!(!is_good && errors.contains("failed: worker 1 at unix:"), "worker {rank}: {errors}");
    }
}

/// Takes connections at the place that is called relay, and passes on what is said only after a while.
fn relay(folder: &Path, to: &str) {
    let (listener, to) = (UnixListener::bind(folder.join("relay")).unwrap(), folder.join(to));
    let pass_on = |mut from: UnixStream, mut to: UnixStream| {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        })
    };
    std::thread::spawn(move || {
        for from in listener.incoming().map_while(Result::ok) {
            // However long it is: it only makes it likely that the others have begun.
            std::thread::sleep(Duration::from_millis(700));
            // Whoever finds nobody there, since that worker is slow to start, comes again.
            let Ok(to) = UnixStream::connect(&to) else { continue };
            pass_on(from.try_clone().unwrap(), to.try_clone().unwrap());
            pass_on(to, from);
        }
    });
}

#[test]
fn what_is_said_to_a_worker_before_it_has_found_all_others_is_heard() {
    let site = Site::new(ROWS / 8);
    let (ends, expected) = site.run("shuffled", 3, OnLoss::Redo, 0);
    all_went_well(&ends, None);
    // Worker 2 reaches worker 0 at once and worker 1 late: so worker 0 has found all when worker 1 has not.
    relay(site.folder.path(), "late-1");
    let (ends, found) = site.run("late", 3, OnLoss::Redo, 0);
    all_went_well(&ends, None);
    assert!(found == expected, "the tables differ");
}

#[test]
fn whoever_leaves_a_pass_is_not_waited_for_there() {
    let site = Site::new(100);
    let (ends, _) = site.run("left", 3, OnLoss::Redo, 0);
    all_went_well(&ends, None);
}

#[test]
fn in_step_a_killed_worker_leaves_no_trace_in_the_bits() {
    let site = Site::new(ROWS / 4);
    for kind in ["in-order", "shuffled"] {
        let (ends, expected) = site.run(kind, 3, OnLoss::Redo, 0);
        all_went_well(&ends, None);
        let (ends, alone) = site.run(kind, 1, OnLoss::Redo, 0);
        all_went_well(&ends, None);
        let bits = |rows: &[(u64, f32)]| rows.iter().map(|row| (row.0, row.1.to_bits())).collect::<Vec<_>>();
        assert!(bits(&alone) == bits(&expected), "{kind}: one worker and three do not agree");
        let (ends, found) = site.run(kind, 3, OnLoss::Redo, 20);
        all_went_well(&ends, Some(1));
        assert!(bits(&found) == bits(&expected), "{kind}: the loss shows\n{}", ends[0].1);
        assert!(ends[0].1.contains("worker 1 at"), "{}", ends[0].1);
    }
}
