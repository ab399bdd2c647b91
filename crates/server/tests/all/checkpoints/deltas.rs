//! Deltas of a server: what is saved with them is there afterwards, and damage names the state before it.

use std::path::Path;
use std::time::{Duration, Instant};

use sanderling_server::{Config, Event, LATEST, SaveMode, SaveReport};
use sanderling_testkit::{LONG, RawClient, TABLE, TestServer};
use sanderling_wire::Fault;

fn start(data: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
    TestServer::new(|config| {
        config.data = Some(data.to_path_buf());
        change(config);
    })
}

fn save_delta(place: &TestServer, name: &str) -> SaveReport {
    place.server.as_ref().unwrap().control().save(name, 0, SaveMode::Delta).unwrap()
}

#[test]
fn each_state_of_a_chain_is_restored() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let keys: Vec<u64> = (0..1_000).collect();
    let mut states = Vec::new();
    {
        let place = start(&data, |_| {});
        let mut peer = RawClient::new(&place.address("tcp"));
        let table = peer.create("t", TABLE).unwrap();
        peer.push(table, 1, &keys, 0.5).unwrap();
        let first = save_delta(&place, "a/b");
        assert_eq!((first.deltas, first.saved.rows), (0, 1_000));
        assert!(first.full_because.contains("there is no full checkpoint yet"), "{}", first.full_because);
        states.push(peer.pull(table, &keys).unwrap());
        for delta in 1..4 {
            peer.push(table, delta + 1, &keys[..10], 0.5).unwrap();
            let saved = save_delta(&place, "a/b");
            assert_eq!((saved.deltas, saved.saved.rows, saved.full_because.as_str()), (delta, 10, ""));
            assert!(saved.saved.bytes * 10 < first.saved.bytes);
            states.push(peer.pull(table, &keys).unwrap());
        }
        assert_ne!(states[2], states[3]);
    }
    let restored = |place: &TestServer, name: &str| {
        let control = place.server.as_ref().unwrap().control();
        control.restore(name).map(|restored| {
            assert_eq!((restored.tables, restored.rows), (1, 1_000));
            let mut peer = RawClient::new(&place.address("tcp"));
            let table = peer.create("t", TABLE).unwrap();
            peer.pull(table, &keys).unwrap()
        })
    };
    let place = start(&data, |_| {});
    for (name, expected) in [("a/b", 3), ("a/b@0", 0), ("a/b@2", 2), ("a/b@3", 3)] {
        assert_eq!(restored(&place, name).unwrap(), states[expected], "{name}");
    }
    for (name, fault) in [("a/b@4", Fault::UnknownCheckpoint), ("a/b@x", Fault::BadRequest)] {
        assert_eq!(restored(&place, name).unwrap_err().fault, fault, "{name}");
    }
    // Restored tables are others: their changes since the checkpoint are not known.
    let saved = save_delta(&place, "a/b2");
    assert_eq!(saved.deltas, 0);
    let saved = save_delta(&place, "a/b");
    assert!(saved.deltas == 0 && saved.full_because.contains("are not kept"), "{}", saved.full_because);
    assert_eq!(save_delta(&place, "a/b").deltas, 1);
}

#[test]
fn a_damaged_chain_offers_its_last_whole_state() {
    for (damaged, damage) in [(3, "missing"), (2, "missing"), (2, "flipped")] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        {
            let place = start(&data, |_| {});
            let mut peer = RawClient::new(&place.address("tcp"));
            let table = peer.create("t", TABLE).unwrap();
            for push in 1..5 {
                peer.push(table, push, &[push, 100], 0.5).unwrap();
                save_delta(&place, "chain");
            }
        }
        let path = data.join("chain").join(format!("g{}-0.delta", damaged + 1));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        match damage {
            "missing" => std::fs::remove_file(&path).unwrap(),
            _ => std::fs::write(&path, bytes).unwrap(),
        }
        let place = start(&data, |_| {});
        let control = place.server.as_ref().unwrap().control();
        let refusal = control.restore("chain").unwrap_err();
        assert_eq!(refusal.fault, Fault::Damaged);
        let offered = format!("chain@{}", damaged - 1);
        let expected =
            [format!("delta {damaged} of 3"), format!("{offered} is whole"), path.display().to_string()];
        assert!(expected.iter().all(|part| refusal.reason.contains(part)), "{}", refusal.reason);
        assert_eq!(control.restore(&offered).unwrap().rows, damaged as u64 + 1);
    }
}

#[test]
fn a_server_saves_deltas_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let keys: Vec<u64> = (0..1_000).collect();
    let place = start(&data, |config| {
        (config.save_every, config.delta_every) = (Some(3 * LONG), Some(Duration::from_secs(1)));
    });
    let mut peer = RawClient::new(&place.address("tcp"));
    let table = peer.create("t", TABLE).unwrap();
    let begun = Instant::now();
    let saved = |deltas: u64| {
        let events = place.events.lock().unwrap();
        events.iter().any(
            |event| matches!(event, Event::Saved { name, deltas: found, .. } if name == LATEST && *found >= deltas),
        )
    };
    let mut push = 0;
    while !saved(2) && begun.elapsed() < LONG {
        push += 1;
        peer.push(table, push, &keys[..1 + push as usize % 1_000], 0.5).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(saved(2));
    peer.push(table, push + 1, &keys, 0.5).unwrap();
    let expected = peer.pull(table, &keys).unwrap();
    drop(peer);
    // The save at the end is a delta, too.
    let TestServer { server, events, .. } = place;
    server.unwrap().finish().unwrap();
    let is_delta =
        |event: &Event| matches!(event, Event::Saved { deltas, rows, .. } if *deltas > 0 && *rows == 1_000);
    assert!(events.lock().unwrap().iter().any(is_delta));
    let place = start(&data, |_| {});
    let mut peer = RawClient::new(&place.address("unix"));
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), expected);
}

/// Pushes during deltas, repeated after a restore: each is known and in the rows, or may come again and is in no row, or
/// its outcome is unknown.
#[test]
fn a_push_is_in_the_deltas_if_it_is_known_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let table_json = r#"{"blocks":[{"dims":4,"init":{"type":"zero"},"optimizer":{"type":"sgd","lr":1.0}}]}"#;
    // A push has keys of its own, so that the rows say whether it was applied.
    let keys_of = |sequence: u64| (0..20).map(|at| sequence * 20 + at).collect::<Vec<u64>>();
    let deltas = {
        let place = start(&data, |_| {});
        let mut peer = RawClient::new(&place.address("tcp"));
        let table = peer.create("t", table_json).unwrap();
        assert_eq!(save_delta(&place, "x").deltas, 0);
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| {
                (1..=600)
                    .for_each(|sequence| _ = peer.push(table, sequence, &keys_of(sequence), 1.0).unwrap());
            });
            let mut deltas = 0;
            while deltas < 2 || (!pushing.is_finished() && deltas < 100) {
                deltas = save_delta(&place, "x").deltas;
            }
            deltas
        })
    };
    for state in [deltas, deltas / 2] {
        let place = start(&data, |config| config.restore = Some(format!("x@{state}")));
        let mut peer = RawClient::new(&place.address("tcp"));
        let table = peer.create("t", table_json).unwrap();
        for sequence in 1..=600 {
            let (rows, missing) = peer.pull(table, &keys_of(sequence)).unwrap();
            match peer.push(table, sequence, &keys_of(sequence), 1.0) {
                Ok(true) => {
                    assert!(missing.is_empty() && rows.iter().all(|&weight| weight == -1.0), "{sequence}");
                }
                Ok(false) => assert_eq!(missing.len(), 20, "{sequence}"),
                Err((fault, _)) => assert_eq!(fault, Fault::StalePush { sequence }),
            }
        }
    }
}
