//! `sanderling ps` as a process of its own: readiness, signals, what survives a kill and a full disk.

mod deltas;
mod drift;
mod fd_store;
mod kept;
mod log;
mod starved;

use std::os::unix::net::UnixDatagram;
use std::process::Command;

use crate::process::Process;
use sanderling_client::{Cluster, ConnectOptions};
use sanderling_testkit::{LONG, RawClient, TABLE};
use sanderling_wire::{Fault, Reply, Request, Save};

fn greet(process: &Process) -> RawClient {
    RawClient::new(&process.addresses[0])
}

fn save(peer: &mut RawClient, name: &str) -> Result<u64, Fault> {
    let saved = peer.ask(&Request::Save(Save { name }), |reply| match reply {
        Reply::Save(saved) => saved.rows,
        other => panic!("{other:?}"),
    });
    saved.map_err(|(fault, _)| fault)
}

/// The next thing that the service manager is told.
#[track_caller]
fn told(manager: &UnixDatagram, expected: &str) {
    let mut bytes = [0; 100];
    let count = manager.recv(&mut bytes).unwrap();
    assert_eq!(str::from_utf8(&bytes[..count]).unwrap(), expected);
}

#[test]
fn it_tells_when_it_is_ready_and_comes_back_after_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let mut expected = None;
    for (round, signal) in ["TERM", "INT", "TERM"].into_iter().enumerate() {
        let process = Process::start(folder.path(), "", "--data data --save-every 1h");
        told(&manager, "READY=1");
        for address in &process.addresses {
            RawClient::new(address).create("t", TABLE).unwrap();
        }
        let mut peer = greet(&process);
        let table = peer.create("t", TABLE).unwrap();
        let found = peer.pull(table, &keys).unwrap();
        assert_eq!(found, *expected.get_or_insert(found.clone()), "round {round}");
        assert_eq!(peer.push(table, round as u64 + 1, &keys, 0.5), Ok(false));
        expected = Some(peer.pull(table, &keys).unwrap());
        process.signal(signal);
        told(&manager, "STOPPING=1");
        let (_, notice) = peer.receive(|reply| matches!(reply, Reply::Goaway(_))).unwrap().unwrap();
        assert_eq!(notice, Ok(true));
        let (status, errors) = process.end();
        assert!(status.success(), "{errors}");
        assert!(errors.contains("saved latest: 100 rows"), "{errors}");
    }
}

/// Whoever started it may be gone, and the terminal with it.
#[test]
fn it_saves_though_nobody_reads_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..100).collect();
    let mut process = Process::start(folder.path(), "", "--data data --save-every 1s");
    process.close_errors();
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &keys, 0.5).unwrap();
    let expected = peer.pull(table, &keys).unwrap();
    process.signal("TERM");
    let (status, _) = process.end();
    assert_eq!(status.code(), Some(0));

    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys), Ok(expected));
}

#[test]
fn a_request_under_way_is_answered_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..100_000).collect();
    peer.push(table, 1, &keys, 0.5).unwrap();
    let id = peer.send(&Request::Save(Save { name: "other" })).unwrap();
    process.signal("TERM");
    let mut answered = false;
    while let Ok(Some((found, result))) = peer.receive(|reply| matches!(reply, Reply::Save(_))) {
        answered |= found == id && result == Ok(true);
    }
    let (status, errors) = process.end();
    assert!(status.success() && answered, "{errors}");
}

#[test]
fn a_killed_server_has_what_it_acknowledged_as_saved() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..20_000).collect();
    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &keys, 0.5).unwrap();
    assert_eq!(save(&mut peer, "latest"), Ok(20_000));
    let expected = peer.pull(table, &keys).unwrap();
    // In the middle of another save.
    for sequence in 2..10 {
        peer.push(table, sequence, &keys, 0.5).unwrap();
    }
    let pushed = peer.pull(table, &keys).unwrap();
    peer.send(&Request::Save(Save { name: "latest" })).unwrap();
    process.signal("KILL");
    while let Ok(Some(_)) = peer.receive(|_| ()) {}
    drop(process.end());

    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    let found = peer.pull(table, &keys).unwrap();
    // The second save was whole before the kill, or it is as if it had never been.
    assert!(found == expected || found == pushed);
}

#[test]
fn a_full_disk_leaves_the_checkpoint_before_it() {
    let folder = tempfile::tempdir().unwrap();
    // Files of more than 256 blocks, of 512 or 1024 bytes as the shell counts, cannot be written.
    let process = Process::start(folder.path(), "ulimit -f 256;", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    let (few, many): (Vec<u64>, Vec<u64>) = ((0..100).collect(), (0..50_000).collect());
    peer.push(table, 1, &few, 0.5).unwrap();
    assert_eq!(save(&mut peer, "latest"), Ok(100));
    let expected = peer.pull(table, &few).unwrap();
    peer.push(table, 2, &many, 0.5).unwrap();
    const FILE_TOO_LARGE: u32 = 27;
    assert_eq!(save(&mut peer, "latest"), Err(Fault::Io { os_error: FILE_TOO_LARGE }));
    assert!(peer.pull(table, &many).is_ok(), "it goes on serving");
    process.signal("TERM");
    let (status, errors) = process.end();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(errors.contains("saving latest failed, the checkpoint before it is intact"), "{errors}");

    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &few).unwrap(), expected);
    assert_eq!(peer.counter("rows"), 100);
}

/// Who may name a checkpoint may not say lines in the server's name.
#[test]
fn a_name_stays_on_the_line_that_tells_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = greet(&process);
    assert_eq!(save(&mut peer, "\u{1b}[31m\nsaved latest: 99 rows"), Err(Fault::BadRequest));
    process.signal("TERM");
    let (status, errors) = process.end();
    assert!(status.success(), "{errors}");
    let begins = |text: &str| errors.lines().any(|line| line.starts_with(text));
    assert!(begins("saving \\u001b[31m\\u000asaved latest: 99 rows failed"), "{errors}");
    assert!(!begins("saved latest: 99 rows"), "{errors}");
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let manager = UnixDatagram::bind(folder.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(LONG)).unwrap();
    let process = Process::start(folder.path(), "", "--drain-timeout 1h --write-timeout 1h");
    told(&manager, "READY=1");
    // Somebody never takes the answers, so that it is never quiet.
    let mut peer = greet(&process);
    peer.ask_without_listening();
    process.signal("TERM");
    // Two signals of which the first is not taken yet would be one.
    told(&manager, "STOPPING=1");
    process.signal("TERM");
    let (status, errors) = process.end();
    assert_eq!(status.code(), Some(130), "{errors}");
}

#[test]
fn a_client_of_one_shard_finds_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let urls = [0, 1, 2].map(|shard| format!("unix:{}/{shard}.sock", folder.path().display()));
    let check = |peers: &str, expected: Result<(), &str>| {
        let start = |shard: usize| {
            let options = format!("--no-local --shard {shard}/3 {peers}");
            Process::start_at(folder.path(), &urls[shard], 1, "", &options)
        };
        let _servers = [0, 1, 2].map(start);
        for url in &urls {
            let address = url.parse().unwrap();
            match (Cluster::connect(&[address], ConnectOptions::default()), expected) {
                (Ok(cluster), Ok(())) => {
                    let found: Vec<String> =
                        cluster.servers().iter().map(|server| server.address.to_string()).collect();
                    assert_eq!(found, urls);
                }
                (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{error}"),
                (found, expected) => panic!("{peers}: {found:?} is not {expected:?}"),
            }
        }
    };
    check(&format!("--peers {}", urls.join(",")), Ok(()));
    check("", Err("of 3, but 1 servers were named; name each shard once, or start all of them with --peers"));
    // The addresses of the shards, but in another order: the first is there twice.
    let wrong = format!("--peers {},{},{}", urls[1], urls[0], urls[2]);
    let options = format!("--no-local --shard 0/3 {wrong}");
    let _first = Process::start_at(folder.path(), &urls[0], 1, "", &options);
    let options = format!("--no-local --shard 2/3 {wrong}");
    let _third = Process::start_at(folder.path(), &urls[2], 1, "", &options);
    let found = Cluster::connect(&[urls[0].parse().unwrap()], ConnectOptions::default());
    let error = found.unwrap_err().to_string();
    assert!(error.contains("shard 0 was named twice"), "{error}");
}

#[test]
fn what_is_wrong_is_said_before_it_listens() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.toml"), "listne = ['127.0.0.1:0']").unwrap();
    let other = Process::start(folder.path(), "", "--data taken");
    for (options, code, expected) in [
        ("--listen nonsense", 2, "nonsense"),
        ("--listen 127.0.0.1:0 --shard 2/2", 2, "shard 2/2"),
        ("--listen 127.0.0.1:0 --shard 0/2 --peers 127.0.0.1:1,x", 2, "peer \"x\""),
        ("--listen 0.0.0.0:0", 2, "; give --expose, --cert-file, --key-file and --token-file"),
        ("--listen 0.0.0.0:0 --expose", 2, "; give --cert-file, --key-file and --token-file, or --insecure"),
        ("--listen 0.0.0.0:0 --insecure", 2, "; give --expose"),
        (
            "--listen 127.0.0.1:0 --cert-file no.pem --key-file no.pem",
            2,
            "no.pem: TLS: cannot read certificates",
        ),
        (&*format!("--listen {}", other.addresses[0]), 1, "already in use"),
        ("--config bad.toml", 2, "unknown field `listne`"),
        ("--listen 127.0.0.1:0 --data d --restore nothing", 4, "no checkpoint \"nothing\""),
        ("--listen 127.0.0.1:0 --data taken", 1, "serves or saves shard 0 of 1 there"),
        ("--listen 127.0.0.1:0 --data bad.toml", 1, "bad.toml: cannot be written to"),
        (
            "--listen 127.0.0.1:0 --save-every 10m",
            2,
            "need a checkpoint directory (data); name one with --data",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_sanderling"))
            .arg("ps")
            .args(options.split_whitespace())
            .args(["--no-local"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{options}: {errors}");
        assert!(errors.contains(expected), "{options}: {errors}");
    }
}
