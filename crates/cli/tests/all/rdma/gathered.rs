//! Rows that the network card gathers: what a client that stops, a limit of locked memory, TLS and wrong tables do to that.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::CapabilitySet;
use sanderling_client::{Cluster, ConnectOptions, RemoteTable, TlsClient};
use sanderling_store::Writes;
use sanderling_testkit::LONG;

use super::{
    COMPARED, HOST, KEYS, Other, batch, cluster, compare, config, count, eventually, fill, listen, options,
    start,
};
use crate::process::{Process, show};

/// The address of a server's control plane.
pub(super) fn control(process: &mut Process) -> String {
    process.line().strip_prefix("control at ").unwrap().to_owned()
}

/// What the server says of its table.
pub(super) fn status(folder: &Path, control: &str) -> serde_json::Value {
    let said = Command::new(env!("CARGO_BIN_EXE_sanderling"))
        .args(["ctl", "--json", "--server", control, "tables"])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    said["tables"][0].clone()
}

#[test]
fn a_card_is_wanted_only_where_one_can_gather() {
    let said = |options: &str| {
        let said = Command::new(env!("CARGO_BIN_EXE_sanderling"))
            .args("ps --listen 127.0.0.1:0 --no-control --gather".split(' '))
            .args(options.split(' '))
            .output()
            .unwrap();
        assert!(!said.status.success());
        String::from_utf8(said.stderr).unwrap()
    };
    assert!(said("rows=nic").contains("listen at an rdma:// address"));
    assert!(said("card").contains("--gather: \"card\" is none of auto, cpu and nic"));
}

#[test]
fn tables_that_no_card_can_gather_are_refused_by_name() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path(), &listen, "", "nic");
    let cluster = cluster(&process.addresses[0], LONG);
    let error = RemoteTable::create(&cluster, &config(Writes::InPlace)).unwrap_err().to_string();
    assert!(error.contains("\"rows\"") && error.contains("copy_on_write"), "{error}");
}

/// The card is measured where the way is to be found out.
#[test]
fn both_ways_are_measured() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut process = start(folder.path(), &listen, "", "auto");
    let control = control(&mut process);
    let table =
        RemoteTable::create(&cluster(&process.addresses[0], LONG), &config(Writes::CopyOnWrite)).unwrap();
    fill(&table);
    eventually("both ways are measured", || {
        let status = status(folder.path(), &control);
        let ns = |name: &str| status[name].as_f64().filter(|ns| *ns > 0.0);
        let (Some(cpu), Some(nic)) = (ns("cpu_ns_per_row"), ns("nic_ns_per_row")) else { return false };
        show(&format!("measured: {cpu:.0} ns per row by the CPU, {nic:.0} ns by the card"));
        assert_eq!(status["gather"], if cpu > 2.0 * nic { "nic" } else { "cpu" });
        true
    });
}

/// A stopped client is closed when it has taken nothing for the write timeout. Its rows are let go then, and others write
/// on all the time.
#[test]
fn a_client_that_stops_pins_no_rows() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path(), &listen, "", "nic --write-timeout 3s");
    let address = &process.addresses[0];
    let table = RemoteTable::create(&cluster(address, LONG), &config(Writes::CopyOnWrite)).unwrap();
    fill(&table);
    let before = process.files();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let table = RemoteTable::open(&cluster(address, LONG), "rows").unwrap();
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let keys: Vec<u64> = batch(round, 512).into_iter().filter(|key| *key < KEYS).collect();
                count(&table, &keys).unwrap();
            }
        });
        let with_writer = before + {
            eventually("the writer connects", || process.files() > before);
            process.files() - before
        };
        // Answers are longer than the ring, so that the rest waits for the client.
        let child = Other::start(address, 60_000);
        let with_client = process.files();
        assert!(with_client > with_writer);
        // It may be stopped between two pulls, and then nothing waits for it.
        let is_closed = (0..20).any(|_| {
            child.signal("STOP");
            let stopped = Instant::now();
            while stopped.elapsed() < Duration::from_secs(6) {
                compare(&table, &batch(1, 512)).unwrap();
                if process.files() < with_client {
                    return true;
                }
            }
            child.signal("CONT");
            std::thread::sleep(Duration::from_millis(300));
            false
        });
        assert!(is_closed, "a stopped client keeps its connection");
        for round in 0..20 {
            compare(&table, &batch(round, 5000)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Rings fit into the limit and the rows do not: they are copied, and the server says why.
#[test]
fn rows_beyond_the_limit_of_locked_memory_are_copied() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let limited = std::thread::spawn(move || {
        rustix::thread::remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).unwrap();
        let process = start(folder.path(), &listen, "ulimit -l 3000;", "nic");
        (process, folder)
    });
    let (mut process, folder) = limited.join().unwrap();
    let control = control(&mut process);
    let table =
        RemoteTable::create(&cluster(&process.addresses[0], LONG), &config(Writes::CopyOnWrite)).unwrap();
    fill(&table);
    compare(&table, &batch(1, 5000)).unwrap();
    let status = status(folder.path(), &control);
    let because = status["gather_because"].as_str().unwrap();
    assert_eq!(status["gather"], "cpu", "{status}");
    assert!(because.contains("RLIMIT_MEMLOCK") && because.contains("KiB of memory beside"), "{because}");
}

#[test]
fn a_token_is_asked_for_and_tls_is_used_before_the_card_is() {
    let Some(listen) = listen() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let host = std::env::var(HOST).unwrap();
    let made = rcgen::generate_simple_self_signed([host]).unwrap();
    std::fs::write(path("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(path("cert.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(path("token"), "secret\n").unwrap();
    std::fs::set_permissions(path("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let safe = "--no-local --expose --token-file token --cert-file cert.pem --key-file cert.key --gather nic";
    let process = Process::start_at(folder.path(), &listen, 1, "", safe);
    let address = &process.addresses[0];
    let connect = |ca: bool, token: &str| {
        let tls = ca.then(|| TlsClient::from_ca_file(&path("cert.pem")).unwrap());
        let timeout = if ca { LONG } else { Duration::from_secs(5) };
        let options = ConnectOptions { tls, token: token.to_owned(), ..options(timeout) };
        Cluster::connect(std::slice::from_ref(address), options).map_err(|error| error.to_string())
    };
    let error = connect(true, "wrong").and_then(|cluster| {
        RemoteTable::create(&cluster, &config(Writes::CopyOnWrite))
            .map(|_| ())
            .map_err(|error| error.to_string())
    });
    assert!(error.as_ref().is_err_and(|error| error.contains("token")), "{error:?}");
    let error = connect(false, "secret").map(|_| ());
    assert!(error.is_err(), "without TLS it connects");
    let table = RemoteTable::create(&connect(true, "secret").unwrap(), &config(Writes::CopyOnWrite)).unwrap();
    assert_eq!(table.cluster().transport(), "rdma");
    fill(&table);
    for round in 0..COMPARED as u64 / 100_000 {
        compare(&table, &batch(round, 5000)).unwrap();
    }
}
