//! `sanderling ps --delta-every`: a killed server comes back with its deltas, and `inspect` shows them.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::process::Process;
use sanderling_testkit::{LONG, RawClient, TABLE};
use serde_json::Value;

fn run(folder: &Path, words: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
    command.args(words.split(' ')).current_dir(folder).output().unwrap()
}

fn inspected(folder: &Path) -> Value {
    let said = run(folder, "inspect --json data/latest");
    serde_json::from_str(String::from_utf8(said.stdout).unwrap().trim()).unwrap_or_default()
}

#[test]
fn a_killed_server_comes_back_with_its_deltas() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..5_000).collect();
    let process = Process::start(folder.path(), "", "--data data --delta-every 1s");
    let mut peer = RawClient::new(&process.addresses[0]);
    let table = peer.create("t", TABLE).unwrap();
    peer.push(table, 1, &keys, 0.5).unwrap();
    let (begun, mut push) = (Instant::now(), 1);
    let deltas = |view: &Value| view["deltas"].as_array().map_or(0, Vec::len);
    while deltas(&inspected(folder.path())) < 2 && begun.elapsed() < LONG {
        push += 1;
        peer.push(table, push, &keys[..10], 0.5).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    // From here on nothing changes, so that the next deltas are empty.
    let expected = peer.pull(table, &keys).unwrap();
    let before = deltas(&inspected(folder.path()));
    while deltas(&inspected(folder.path())) < before + 2 && begun.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(20));
    }
    process.signal("KILL");
    process.end();

    let view = inspected(folder.path());
    let found = view["deltas"].as_array().unwrap();
    assert!(found.len() >= 4 && view["damage"].is_null(), "{view}");
    assert_eq!((&view["tables"][0]["rows"], &found[0]["sequence"]), (&5_000.into(), &1.into()));
    assert!(found.iter().any(|delta| delta["rows"] == 10) && found.last().unwrap()["rows"] == 0, "{view}");
    let text = String::from_utf8(run(folder.path(), "inspect data/latest").stdout).unwrap();
    assert!(text.contains("delta 1: ") && text.contains("table t: dim 4"), "{text}");

    let process = Process::start(folder.path(), "", "--data data");
    let mut peer = RawClient::new(&process.addresses[0]);
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), expected);
    process.signal("KILL");
    process.end();

    // The file of a delta is lost: the start names it, and the state before it.
    let delta = found.iter().find(|delta| delta["rows"] == 10).unwrap();
    let file = folder.path().join(format!("data/latest/g{}-0.delta", delta["generation"]));
    std::fs::remove_file(&file).unwrap();
    let view = inspected(folder.path());
    assert!(view["damage"].as_str().unwrap().contains("it is missing"), "{view}");
    let whole = deltas(&view);
    assert_eq!(whole as u64 + 1, delta["sequence"].as_u64().unwrap());
    let refused = run(folder.path(), "ps --listen 127.0.0.1:0 --runtime-dir run --data data");
    let errors = String::from_utf8(refused.stderr).unwrap();
    let said = errors.contains(file.file_name().unwrap().to_str().unwrap())
        && errors.contains(&format!("latest@{whole} is whole"));
    assert!(refused.status.code() == Some(4) && said, "{errors}");
    let process = Process::start(folder.path(), "", &format!("--data data --restore latest@{whole}"));
    let mut peer = RawClient::new(&process.addresses[0]);
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap().1.len(), expected.1.len());
    process.signal("TERM");
    let (status, errors) = process.end();
    assert!(status.success() && errors.contains("saved latest: 5000 rows"), "{errors}");
}
