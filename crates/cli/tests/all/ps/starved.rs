//! A server that is short of something because of others: of open files, of a reader of what it says, of threads. Saves, the
//! control plane and the end go on.

use std::net::TcpStream;
use std::process::Command;

use sanderling_client::{Cluster, ConnectOptions};
use sanderling_transport::Address;
use sanderling_wire::{Fault, Push, Reply, Request};

use super::{greet, save};
use crate::process::Process;
use sanderling_testkit::{DIM, LONG, TABLE};

/// `ctl` with these words, by the line that names the control plane.
fn ctl(control: &str, words: &str) -> (bool, String) {
    let url = control.strip_prefix("control at ").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    let output = command.args(["ctl", "--server", url]).args(words.split(' ')).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn port(address: &Address) -> u16 {
    address.to_string().rsplit(':').next().unwrap().parse().unwrap()
}

#[test]
fn silent_connections_leave_descriptors_to_saves_and_to_the_control_plane() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path(), "ulimit -n 700;", "--data data");
    let control = process.line();
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &[1, 2, 3], 0.5).unwrap();
    let places = peer.counter("connections_max");
    assert!((16..=188).contains(&places), "{places}");
    let silent: Vec<TcpStream> =
        (0..500).map(|_| TcpStream::connect(("127.0.0.1", port(&process.addresses[0]))).unwrap()).collect();
    for name in ["latest", "other"] {
        assert_eq!(save(&mut peer, name), Ok(3), "{name}");
    }
    let (done, said) = ctl(&control, "status");
    assert!(done, "{said}");
    // Who has something to say finds a place, in time.
    let options = ConnectOptions {
        timeout: LONG,
        connect_timeout: LONG,
        prefer_local: false,
        ..ConnectOptions::default()
    };
    Cluster::connect(&process.addresses[..1], options).unwrap();
    drop(silent);
    process.signal("TERM");
    let (status, errors) = process.end();
    assert!(status.success() && errors.contains("saved latest: 3 rows"), "{errors}");
}

#[test]
fn standard_error_that_nobody_reads_stops_neither_saves_nor_the_end() {
    let folder = tempfile::tempdir().unwrap();
    // A pipe, of which nobody reads until the end.
    let mut process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &[1, 2, 3], 0.5).unwrap();
    for _ in 0..3000 {
        assert_eq!(save(&mut peer, "../it-is-said-that-this-is-refused"), Err(Fault::BadRequest));
    }
    assert_eq!(save(&mut peer, "other"), Ok(3));
    drop(peer);
    process.signal("TERM");
    assert!(process.wait_unread().success());
    let (_, errors) = process.end();
    assert!(errors.lines().count() > 100 && errors.len() < 1 << 20, "{}", errors.len());
    let process = Process::start(folder.path(), "", "--data data");
    assert_eq!(greet(&process).counter("rows"), 3, "it was saved at the end");
}

#[test]
fn the_control_plane_needs_no_thread_that_it_has_not_from_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path(), "", "--data data");
    let control = process.line();
    // A thread gives itself its name once it runs.
    let is_named = |names: &Vec<String>| names.iter().filter(|name| *name == "sanderling").count() == 1;
    let before = std::iter::repeat_with(|| process.threads()).find(is_named).unwrap();
    assert_eq!(before.iter().filter(|name| name.starts_with("control-work")).count(), 6, "{before:?}");
    std::thread::scope(|scope| {
        for words in ["status", "tables", "stats", "save a", "save b", "checkpoints"] {
            let control = &control;
            scope.spawn(move || {
                let (done, said) = ctl(control, words);
                assert!(done, "{words}: {said}");
            });
        }
    });
    assert_eq!(process.threads(), before);
}

/// What a server may map beyond what it has, in bytes.
const MAPPED_MORE: u64 = 32 << 20;
/// Connections whose buffers take more than that, by far.
const LONG_CONNECTIONS: u64 = 16;

#[test]
fn a_connection_for_whose_buffer_there_is_no_memory_ends_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::start(folder.path(), "", "--data data");
    let control = process.line();
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &[1, 2, 3], 0.5).unwrap();
    let keys: Vec<u64> = (0..550_000).collect();
    // The table has every row before, so that only connections need more.
    for (sequence, keys) in (2..).zip(keys.chunks(50_000)) {
        peer.push(table, sequence, keys, 0.5).unwrap();
    }
    process.limit_address_space(MAPPED_MORE);
    // Pushes of 15 MiB, each over a connection whose buffer keeps its length: for one of them there is no more.
    let (counts, grads) = (vec![1; keys.len()], vec![0.5; keys.len() * DIM as usize]);
    let (counts, grads, keys) = (&counts[..], &grads[..], &keys[..]);
    let mut long = Vec::new();
    let is_answered = |sequence: u64| {
        let mut peer = greet(&process);
        let push = Push {
            table,
            client: 78,
            sequence,
            continues: false,
            dim: DIM,
            lr_scale: 1.0,
            keys,
            counts,
            grads,
        };
        let sent = peer.send(&Request::Push(push));
        let answered = sent.and_then(|_| peer.receive(|reply| matches!(reply, Reply::Push(_))));
        long.push(peer);
        matches!(answered, Ok(Some((_, Ok(true)))))
    };
    assert!(!(1..=LONG_CONNECTIONS).all(is_answered), "the limit is too wide for this test");
    // The others notice nothing.
    peer.push(table, 100, &[1, 2, 3, 4], 0.5).unwrap();
    assert!(save(&mut peer, "other").unwrap() >= 4);
    let (done, said) = ctl(&control, "status");
    assert!(done, "{said}");
    process.signal("TERM");
    let (status, errors) = process.end();
    assert!(status.success() && errors.contains("no memory for a buffer of"), "{errors}");
}
