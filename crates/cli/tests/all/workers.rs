//! Jobs whose workers are processes of their own, over servers that are, too: all rows are trained, also when a worker is
//! killed; in step the tables have the same bits as if nobody had been.
// A worker's process tells its test where it is.
#![allow(clippy::explicit_write, clippy::print_stderr, clippy::type_complexity)]

mod commands;
mod job;
mod over_tcp;
mod stops;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use self::job::{COUNTS, Job, SLOW};
use crate::process::Process;
use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig};
use sanderling_job::{Input, OnLoss};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};
use sanderling_store::{Init, Optimizer, PushScale, TableConfig};
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
