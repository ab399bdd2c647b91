//! Servers and clients by RDMA. Most of it needs a device, such as that of the guest of `tests/guest_rdma.sh`, which names the
//! address of this machine on it, and is skipped elsewhere.

mod gathered;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use sanderling_client::{Cluster, ConnectOptions, RemoteTable};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig, Writes};
use sanderling_testkit::LONG;
use sanderling_transport::Address;

use crate::process::{Process, show};

/// The address of this machine on the device.
const HOST: &str = "SANDERLING_TEST_RDMA_HOST";
/// The interface below the device, which a test may take down.
const INTERFACE: &str = "SANDERLING_TEST_RDMA_INTERFACE";
/// In the environment of a process that is only a client: where the server is.
const CLIENT_OF: &str = "SANDERLING_TEST_RDMA_CLIENT_OF";
/// In the environment of that process: keys of its pulls.
const CLIENT_KEYS: &str = "SANDERLING_TEST_RDMA_CLIENT_KEYS";
/// Where the kernel lists its devices.
const CLASS: &str = "/sys/class/infiniband";
/// After so long a client gives up where it is meant to.
const PATIENCE: Duration = Duration::from_secs(15);
/// Keys with a row, weights of a row, and rows to compare.
const KEYS: u64 = 20_000;
const DIM: usize = 16;
const COMPARED: usize = 1_000_000;
/// Keys that come and go.
const OTHERS: u64 = 1 << 32;
const MOST_OTHERS: u64 = 150_000;

/// The address to listen at, where there is a device.
fn listen() -> Option<String> {
    let host = std::env::var(HOST).ok();
    if host.is_none() {
        show(&format!("skipped: {HOST} names no address on an RDMA device"));
    }
    Some(format!("rdma://{}:0", host?))
}

/// Starts a server that has rows gathered by `gather`.
fn start(folder: &std::path::Path, listen: &str, before: &str, gather: &str) -> Process {
    let options = format!("--no-local --expose --insecure --no-token --gather {gather}");
    Process::start_at(folder, listen, 1, before, &options)
}

fn options(timeout: Duration) -> ConnectOptions {
    ConnectOptions { timeout, prefer_local: false, ..ConnectOptions::default() }
}

fn cluster(address: &Address, timeout: Duration) -> Arc<Cluster> {
    Cluster::connect(std::slice::from_ref(address), options(timeout)).unwrap()
}

fn config(writes: Writes) -> TableConfig {
    let config = TableConfig::single("rows", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    TableConfig { writes, ..config }
}

/// Packets that the machine's devices have sent.
fn packets() -> u64 {
    let Ok(devices) = std::fs::read_dir(CLASS) else { return 0 };
    let sent = devices.filter_map(|device| {
        let counter = device.unwrap().path().join("ports/1/hw_counters/sent_pkts");
        std::fs::read_to_string(counter).ok()?.trim().parse::<u64>().ok()
    });
    sent.sum()
}

/// Makes the rows: the key, a count of zero in all other weights, and at last the sum of both, as a checksum.
fn fill(table: &RemoteTable) {
    let keys: Vec<u64> = (0..KEYS).collect();
    for keys in keys.chunks(4096) {
        let mut grads = vec![0.0; keys.len() * DIM];
        for (row, key) in grads.chunks_mut(DIM).zip(keys) {
            (row[0], row[DIM - 1]) = (-(*key as f32), -(*key as f32));
        }
        table.push(keys, &grads, PushScale::default()).unwrap();
    }
}

/// Counts keys up.
fn count(table: &RemoteTable, keys: &[u64]) -> Result<(), sanderling_client::ClientError> {
    let mut grads = vec![-1.0; keys.len() * DIM];
    grads.iter_mut().step_by(DIM).for_each(|key| *key = 0.0);
    table.push(keys, &grads, PushScale::default())
}

/// Pulls rows, and checks that each is its key's and of one version.
fn compare(table: &RemoteTable, keys: &[u64]) -> Result<(), sanderling_client::ClientError> {
    let mut rows = vec![f32::NAN; keys.len() * DIM];
    table.pull(keys, Absent::Zero, &mut rows, None)?;
    for (row, key) in rows.chunks(DIM).zip(keys) {
        if *key >= KEYS {
            assert!(row.iter().all(|weight| *weight == 0.0), "key {key} has no row: {row:?}");
            continue;
        }
        let (count, key) = (row[1], *key as f32);
        let is_whole = row[2..DIM - 1].iter().all(|weight| *weight == count);
        assert!(row[0] == key && is_whole && row[DIM - 1] == key + count, "key {key}: {row:?}");
    }
    Ok(())
}

/// Keys of a batch, some of which have no row.
fn batch(seed: u64, keys: usize) -> Vec<u64> {
    let key = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % (KEYS + KEYS / 50);
    let mut keys: Vec<u64> = (0..keys as u64).map(|at| key(seed.wrapping_mul(1 << 20) + at)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

#[test]
fn without_a_device_the_error_says_what_was_looked_for() {
    if std::fs::exists(CLASS).unwrap() {
        return show("skipped: this machine has RDMA devices");
    }
    let listen = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(["ps", "--listen", "rdma://127.0.0.1:0"])
        .output()
        .unwrap();
    let said = String::from_utf8(listen.stderr).unwrap();
    assert!(!listen.status.success() && said.contains("rdma://127.0.0.1:0: no RDMA device: "), "{said}");
    let is_named = |said: &str| said.contains("libibverbs.so.1") || said.contains(CLASS);
    assert!(is_named(&said), "{said}");
    let start = Instant::now();
    let address: Address = "rdma://127.0.0.1:1".parse().unwrap();
    let error = Cluster::connect(&[address], options(LONG)).unwrap_err().to_string();
    assert!(error.contains("no RDMA device: ") && is_named(&error), "{error}");
    assert!(start.elapsed() < LONG, "a device does not come by waiting");
}

#[test]
fn rows_are_right_while_others_write() {
    let Some(listen) = listen() else { return };
    for (writes, gather, rows) in [
        (Writes::InPlace, "auto", COMPARED / 4),
        (Writes::CopyOnWrite, "cpu", COMPARED / 4),
        (Writes::CopyOnWrite, "nic", COMPARED),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut process = start(folder.path(), &listen, "", gather);
        let control = gathered::control(&mut process);
        let address = &process.addresses[0];
        let table = RemoteTable::create(&cluster(address, LONG), &config(writes)).unwrap();
        assert_eq!(table.cluster().transport(), "rdma");
        fill(&table);
        let (stop, pushes, sent) = (AtomicBool::new(false), AtomicU64::new(0), packets());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let table = RemoteTable::open(&cluster(address, LONG), "rows").unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let mut keys = batch(pushes.fetch_add(1, Ordering::Relaxed), 512);
                    keys.retain(|key| *key < KEYS);
                    count(&table, &keys).unwrap();
                }
            });
            // The table and its index grow, and rows of other keys are retired and reused.
            scope.spawn(|| {
                let table = RemoteTable::open(&cluster(address, LONG), "rows").unwrap();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let keys: Vec<u64> =
                        (0..512).map(|at| OTHERS + (round * 384 + at) % MOST_OTHERS).collect();
                    table.push(&keys, &vec![-1.0; keys.len() * DIM], PushScale::default()).unwrap();
                    table.remove(&keys[..128]).unwrap();
                }
            });
            let mut compared = 0;
            // Long answers go in pieces.
            for (round, keys) in [512, 1, 5000, 64, 2000, 20_000].into_iter().cycle().enumerate() {
                let keys = batch(round as u64, keys);
                compare(&table, &keys).unwrap();
                compared += keys.len();
                if compared >= rows {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        let (pushes, sent) = (pushes.load(Ordering::Relaxed), packets() - sent);
        let status = gathered::status(folder.path(), &control);
        show(&format!(
            "{rows} rows right beside {pushes} pushes ({writes:?}, {gather}), {sent} packets: {status}"
        ));
        // At most 4 KiB each.
        assert!(sent > (rows * DIM * size_of::<f32>() / 4096) as u64, "{sent} packets");
        // Some pulls find no room for their writes.
        let by_nic = status["nic_pulls"].as_u64().unwrap();
        assert!(gather != "nic" || by_nic > 100, "{by_nic} pulls by the card");
        assert!(gather != "cpu" || by_nic == 0, "{by_nic} pulls by the card");
    }
}

/// The other process, which pulls until it is killed.
#[test]
fn the_other_process() {
    let Ok(address) = std::env::var(CLIENT_OF) else { return };
    let keys = std::env::var(CLIENT_KEYS).unwrap().parse().unwrap();
    let table = RemoteTable::open(&cluster(&address.parse().unwrap(), LONG), "rows").unwrap();
    for round in 0.. {
        compare(&table, &batch(round, keys)).unwrap();
        if round == 10 {
            show("pulling");
        }
    }
}

/// A process that is killed if a test forgets it.
struct Other(Child);

impl Other {
    /// Starts it and waits until it pulls.
    fn start(address: &Address, keys: usize) -> Other {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rdma::the_other_process", "--nocapture"])
            .env(CLIENT_OF, address.to_string())
            .env(CLIENT_KEYS, keys.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = Other(child.unwrap());
        let mut said = std::io::BufReader::new(child.0.stderr.take().unwrap());
        let mut line = String::new();
        while line.trim() != "pulling" {
            line.clear();
            let bytes = std::io::BufRead::read_line(&mut said, &mut line).unwrap();
            assert!(bytes > 0, "the other process failed");
        }
        child
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status().unwrap();
        assert!(done.success());
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn clients_that_are_killed_leave_nothing_at_the_server() {
    let Some(listen) = listen() else { return };
    for (writes, gather) in [(Writes::InPlace, "cpu"), (Writes::CopyOnWrite, "nic")] {
        let folder = tempfile::tempdir().unwrap();
        let process = start(folder.path(), &listen, "", gather);
        let table = RemoteTable::create(&cluster(&process.addresses[0], LONG), &config(writes)).unwrap();
        fill(&table);
        let before = process.files();
        for _ in 0..3 {
            let child = Other::start(&process.addresses[0], 5000);
            assert!(process.files() > before);
            drop(child);
            compare(&table, &batch(1, 512)).unwrap();
            eventually("the server keeps what a dead client had", || process.files() <= before);
        }
    }
}

#[test]
fn a_server_that_is_killed_is_missed_and_its_successor_is_found() {
    let Some(listen) = listen() else { return };
    for (writes, gather) in [(Writes::InPlace, "cpu"), (Writes::CopyOnWrite, "nic")] {
        let folder = tempfile::tempdir().unwrap();
        let process = start(folder.path(), &listen, "", gather);
        let address = process.addresses[0].clone();
        fill(&RemoteTable::create(&cluster(&address, LONG), &config(writes)).unwrap());
        let table = RemoteTable::open(&cluster(&address, PATIENCE), "rows").unwrap();
        compare(&table, &batch(1, 512)).unwrap();
        process.signal("KILL");
        let error = (0..).find_map(|round| compare(&table, &batch(round, 5000)).err()).unwrap();
        show(&format!("a killed server: {error}"));
        drop(process);
        let process = start(folder.path(), &address.to_string(), "", gather);
        assert_eq!(process.addresses[0], address);
        let table = RemoteTable::create(&cluster(&address, LONG), &config(writes)).unwrap();
        fill(&table);
        compare(&table, &batch(3, 5000)).unwrap();
    }
}

#[test]
fn a_link_that_goes_and_comes_back_loses_nothing() {
    let Some(listen) = listen() else { return };
    let Ok(interface) = std::env::var(INTERFACE) else {
        return show(&format!("skipped: {INTERFACE} names no interface that may be taken down"));
    };
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path(), &listen, "", "nic");
    let table =
        RemoteTable::create(&cluster(&process.addresses[0], LONG), &config(Writes::CopyOnWrite)).unwrap();
    fill(&table);
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                compare(&table, &batch(rounds.fetch_add(1, Ordering::Relaxed), 5000)).unwrap();
            }
        });
        // Shorter and longer than queue pairs bear.
        for down in [Duration::from_millis(100), Duration::from_secs(10)] {
            let before = rounds.load(Ordering::Relaxed);
            eventually("pulls go on", || rounds.load(Ordering::Relaxed) > before + 3);
            let set = |state: &str| {
                let done = Command::new("ip").args(["link", "set", &interface, state]).status().unwrap();
                assert!(done.success());
            };
            set("down");
            std::thread::sleep(down);
            set("up");
            let before = rounds.load(Ordering::Relaxed);
            eventually("pulls go on after the link came back", || {
                rounds.load(Ordering::Relaxed) > before + 3
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_limit_of_locked_memory_is_named() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let limited = std::thread::spawn(move || {
        // The limit does not hold for processes with this capability, such as those of root.
        rustix::thread::remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).unwrap();
        let process = start(folder.path(), &listen, "ulimit -l 512;", "cpu");
        (process, folder)
    });
    let (process, _folder) = limited.join().unwrap();
    let error = Cluster::connect(&process.addresses, options(PATIENCE)).map(|cluster| {
        RemoteTable::create(&cluster, &config(Writes::InPlace)).map_err(|error| error.to_string())
    });
    let error = match error {
        Ok(created) => created.err(),
        Err(error) => Some(error.to_string()),
    };
    let error = error.expect("it cannot pin its rings");
    assert!(error.contains("RLIMIT_MEMLOCK") && error.contains("512 KiB"), "{error}");
}
