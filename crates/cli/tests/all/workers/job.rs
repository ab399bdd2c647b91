//! A worker of a job as a process of its own: its arguments, and the ways in which it goes through its rows.

use std::io::{BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sanderling_client::{Fixed, RemoteTable, StepGradients};
use sanderling_job::{
    Hosts, Input, JobError, Observer, OnLoss, Options, Order, Place, STAGES, Tables, Worker, run,
};
use sanderling_observe::Stages;
use sanderling_store::Absent;
use sanderling_transport::Address;

use super::{BATCH, LONG, PASSES, Running, SCALE, WORKER, connect, input};

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
pub(super) const SLOW: u64 = 20;
/// From this key on are the rows in which the workers count their minibatches.
pub(super) const COUNTS: u64 = 1 << 40;

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
pub(super) struct Job {
    pub(super) folder: std::path::PathBuf,
    pub(super) servers: Vec<Address>,
    pub(super) kind: String,
    pub(super) rank: u32,
    pub(super) workers: u32,
    pub(super) on_loss: OnLoss,
    pub(super) stops: u64,
}

impl Job {
    fn words(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(Address::to_string).collect();
        let Job { folder, kind, rank, workers, stops, .. } = self;
        let on_loss = if self.on_loss == OnLoss::Redo { "redo" } else { "stop" };
        format!("{} {} {kind} {rank} {workers} {on_loss} {stops}", folder.display(), servers.join(","))
    }

    pub(super) fn of_words(words: &str) -> Job {
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

    pub(super) fn run(&self) -> Result<(), JobError> {
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

    pub(super) fn start(self) -> Running {
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
