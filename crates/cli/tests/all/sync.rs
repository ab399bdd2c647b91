//! Workers that go in step over servers that are processes of their own: what comes of it is what comes of it in one process,
//! and a worker that is killed disturbs nobody for longer than the others are willing to wait.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::process::Process;
use crate::relay::Relay;
use sanderling_client::{Cluster, ConnectOptions, RemoteTable, SyncGroup, SyncOptions};
use sanderling_store::{Optimizer, TableConfig};
use sanderling_testkit::sync_workers::{
    self, LONG, PATIENCE, Place, config, expect_awaited, hand_in, options,
};
use sanderling_transport::Address;

/// In the environment of a process that is only a worker: where the servers are, and when it stops to go on.
const WORKER_OF: &str = "SANDERLING_TEST_WORKER_OF";
const STOPS: &str = "SANDERLING_TEST_WORKER_STOPS";
const PLAIN: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
const GROUP: u64 = 99;
/// After so long a worker gives up that is meant to, of several things that take time.
const SECOND: Duration = Duration::from_secs(1);

/// Two shards, reached over TCP or unix sockets.
fn shards(folder: &Path, kind: &str) -> (Vec<Process>, Vec<Address>) {
    let start = |shard: u32| {
        let folder = folder.join(format!("shard{shard}"));
        std::fs::create_dir(&folder).unwrap();
        let (listen, lines) = match kind {
            "tcp" => ("127.0.0.1:0".to_owned(), 3),
            _ => (format!("unix:{}/socket", folder.display()), 1),
        };
        Process::start_at(&folder, &listen, lines, "exec 2>>errors;", &format!("--shard {shard}/2"))
    };
    let processes = vec![start(0), start(1)];
    let addresses = processes.iter().map(|process| process.addresses[0].clone()).collect();
    (processes, addresses)
}

fn connect(addresses: &[Address]) -> Arc<Cluster> {
    connect_for(addresses, LONG)
}

fn connect_for(addresses: &[Address], timeout: Duration) -> Arc<Cluster> {
    let options = ConnectOptions { timeout, prefer_local: false, ..ConnectOptions::default() };
    Cluster::connect(addresses, options).unwrap()
}

fn place(cluster: &Arc<Cluster>, config: &TableConfig) -> Place {
    static GROUPS: AtomicU64 = AtomicU64::new(1);
    let table = RemoteTable::create(cluster, config).unwrap();
    Place::Servers(Arc::clone(cluster), table, GROUPS.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn at_two_servers_it_is_as_in_one_process() {
    for kind in ["tcp", "unix"] {
        let folder = tempfile::tempdir().unwrap();
        let (_processes, addresses) = shards(folder.path(), kind);
        let cluster = connect(&addresses);
        sync_workers::workers_do_not_matter(|config, _| place(&cluster, &config));
        let plain = config("plain", PLAIN);
        sync_workers::a_worker_that_does_not_come_is_named_and_can_be_replaced(&place(&cluster, &plain));
        sync_workers::what_is_gathered_is_the_same_for_all(&place(&cluster, &plain));
    }
}

/// Not a test of its own: the process that the next test starts, a worker that goes on until it is told to stop, says so, and
/// waits for its end.
#[test]
fn worker() {
    let (Ok(addresses), Ok(stops)) = (std::env::var(WORKER_OF), std::env::var(STOPS)) else { return };
    let addresses = sanderling_client::addresses(&addresses).unwrap();
    let cluster = connect(&addresses);
    let table = RemoteTable::open(&cluster, "t").unwrap();
    let mut group = Place::Servers(cluster, table, GROUP).join(1, 2, options(LONG));
    for step in 1..=2 {
        (0..20).for_each(|key| hand_in(&mut group, step, key, 1.0));
        group.wait_applied(step).unwrap();
    }
    (0..20).for_each(|key| hand_in(&mut group, 3, key, 100.0));
    if stops == "whole" {
        // The other has said so, too, so this is decided.
        group.wait_applied(3).unwrap();
    }
    writeln!(std::io::stdout(), "\nstopped").unwrap();
    std::thread::sleep(10 * LONG);
}

/// It has come to where it stops.
struct Worker(Child);

impl Worker {
    fn start(addresses: &[Address], stops: &str) -> Worker {
        let text: Vec<String> = addresses.iter().map(Address::to_string).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["sync::worker", "--exact", "--nocapture"])
            .env(WORKER_OF, text.join(","))
            .env(STOPS, stops)
            .stdout(Stdio::piped())
            .spawn();
        Worker(child.unwrap())
    }

    fn wait_until_it_stops(&mut self) {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "stopped"), "it failed");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_worker_killed_in_the_middle_of_a_step_is_named_and_another_takes_its_place() {
    // Killed when it has handed in its part of step 3 but not said so, or when that is applied.
    for (stops, applied, total) in [("part", 2, 1.0 + 1.0 + 5.0), ("whole", 3, 1.0 + 1.0 + 100.0)] {
        let folder = tempfile::tempdir().unwrap();
        let (_processes, addresses) = shards(folder.path(), "tcp");
        let cluster = connect(&addresses);
        let config = TableConfig::single("t", sync_workers::DIM, sanderling_store::Init::Zero, PLAIN);
        let table = RemoteTable::create(&cluster, &config).unwrap();
        let place = Place::Servers(Arc::clone(&cluster), table, GROUP);
        let mut killed = Worker::start(&addresses, stops);
        let mut one = place.join(0, 2, options(LONG));
        for step in 1..=applied {
            (0..20).for_each(|key| hand_in(&mut one, step, key, 10.0));
            one.wait_applied(step).unwrap();
        }
        killed.wait_until_it_stops();
        killed.kill();
        let mut impatient = place.join(0, 2, options(PATIENCE));
        let next = applied + 1;
        (0..20).for_each(|key| hand_in(&mut impatient, next, key, 10.0));
        expect_awaited(impatient.wait_applied(next), &[1], &format!("step {next}"));
        // The servers go on serving, other groups too.
        assert_eq!(
            place.pull(&[3])[0],
            -(10.0 * applied as f32 + total - if applied == 2 { 5.0 } else { 0.0 })
        );
        let other =
            Place::Servers(Arc::clone(&cluster), RemoteTable::open(&cluster, "t").unwrap(), GROUP + 1);
        other.join(0, 1, options(LONG)).barrier("alone").unwrap();

        let attempt = SyncOptions { attempt: 1, timeout: LONG };
        let mut second = place.join(1, 2, attempt);
        assert_eq!(second.applied(), applied, "{stops}");
        (0..20).for_each(|key| hand_in(&mut second, next, key, 5.0));
        second.wait_applied(next).unwrap();
        impatient.wait_applied(next).unwrap();
        let more = if applied == 2 { 0.0 } else { 5.0 };
        let expected = -(10.0 * next as f32 + total + more);
        assert_eq!(place.pull(&(0..20).collect::<Vec<u64>>()), [expected; 20 * sync_workers::DIM]);
    }
}

/// Two workers die together, as those of one machine do, when one server has decided the step and the other has the word of
/// neither.
#[test]
fn a_step_that_one_server_has_decided_is_completed_for_all_who_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (_processes, addresses) = shards(folder.path(), "tcp");
    let cluster = connect(&addresses);
    let config = TableConfig::single("t", sync_workers::DIM, sanderling_store::Init::Zero, PLAIN);
    let place = Place::Servers(Arc::clone(&cluster), RemoteTable::create(&cluster, &config).unwrap(), GROUP);

    let relay = Relay::start(&addresses[1]);
    let far = connect_for(&[addresses[0].clone(), relay.address.clone()], 5 * SECOND);
    let dying = Place::Servers(Arc::clone(&far), RemoteTable::open(&far, "t").unwrap(), GROUP);
    let mut living = place.join(0, 3, options(SECOND));
    let mut gone = [1, 2].map(|worker| dying.join(worker, 3, options(PATIENCE)));
    (0..20).for_each(|key| hand_in(&mut living, 1, key, 1.0));
    gone.iter_mut().for_each(|worker| (0..20).for_each(|key| hand_in(worker, 1, key, 2.0)));
    relay.cut();
    std::thread::scope(|scope| {
        for mut worker in gone {
            scope.spawn(move || assert!(worker.wait_applied(1).is_err()));
        }
    });
    expect_awaited(living.wait_applied(1), &[1, 2], "step 1");

    let table = RemoteTable::open(&cluster, "t").unwrap();
    let take_over = |gone: &[u32], attempt, timeout| {
        let options = SyncOptions { attempt, timeout };
        SyncGroup::take_over(&cluster, std::slice::from_ref(&table), GROUP, gone, 3, options)
    };
    // One after the other they would wait for each other.
    expect_awaited(take_over(&[1], 1, SECOND).map(drop), &[2], "step 1");
    assert_eq!(take_over(&[1, 2], 2, LONG).unwrap(), 1);
    living.wait_applied(1).unwrap();
    assert_eq!(place.pull(&(0..20).collect::<Vec<u64>>()), [-5.0; 20 * sync_workers::DIM]);
}
