//! Saving, restoring and stopping through the wire: what was acknowledged is there afterwards.
#![allow(clippy::unwrap_used)] // a panic is a failed test

mod peer;

use peer::{Peer, Place, TABLE};
use sanderling_server::{Event, LATEST};
use sanderling_wire::*;

fn save(peer: &mut Peer, name: &str) -> Result<Saved, Fault> {
    peer.ask(&Request::Save(Save { name }), |reply| match reply {
        Reply::Save(saved) => saved,
        other => panic!("{other:?}"),
    })
    .map_err(|(fault, _)| fault)
}

fn restore(peer: &mut Peer, name: &str) -> Result<Restored, Fault> {
    peer.ask(&Request::Restore(Restore { name }), |reply| match reply {
        Reply::Restore(restored) => restored,
        other => panic!("{other:?}"),
    })
    .map_err(|(fault, _)| fault)
}

#[test]
fn a_server_comes_back_with_what_it_saved() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = Place::new(|config| config.data = Some(data.clone()));
    let mut peer = Peer::new(&place.address("tcp"));
    let table = peer.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..1000).collect();
    peer.push(table, 1, &keys, 0.5).unwrap();
    let before = peer.pull(table, &keys).unwrap();
    let saved = save(&mut peer, "daily/monday").unwrap();
    assert_eq!((saved.generation, saved.rows), (1, 1000));
    assert!(saved.bytes > 16 * 1000);
    assert_eq!(save(&mut peer, "../escape"), Err(Fault::BadRequest));
    assert_eq!(restore(&mut peer, "nothing"), Err(Fault::UnknownCheckpoint));

    // Other rows, another number.
    peer.push(table, 2, &keys, 0.5).unwrap();
    assert_ne!(peer.pull(table, &keys).unwrap(), before);
    assert_eq!(restore(&mut peer, "daily/monday"), Ok(Restored { tables: 1, rows: 1000 }));
    assert_eq!(peer.pull(table, &keys).unwrap_err().0, Fault::UnknownTable);
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), before);

    // The end: clients are told, and everything is saved.
    peer.push(table, 3, &[5000], 0.5).unwrap();
    let after = peer.pull(table, &keys).unwrap();
    let Place { server, events, .. } = place;
    let saved = server.unwrap().finish().unwrap().unwrap();
    assert_eq!(saved.rows, 1001);
    let (id, notice) = peer.receive(|reply| matches!(reply, Reply::Goaway(_))).unwrap().unwrap();
    assert_eq!((id, notice), (0, Ok(true)));
    assert!(matches!(peer.receive(|_| ()), Ok(None) | Err(_)));
    assert!(
        events
            .lock()
            .unwrap()
            .iter()
            .any(|event| matches!(event, Event::Saved { name, .. } if name == LATEST))
    );

    let place = Place::new(|config| config.data = Some(data.clone()));
    let mut peer = Peer::new(&place.address("unix"));
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), after);

    // A checkpoint of another shard is not taken for one's own.
    drop(place);
    let place = Place::new(|config| {
        config.data = Some(data);
        (config.shard, config.shards) = (1, 2);
    });
    let mut peer = Peer::new(&place.address("tcp"));
    assert_eq!(restore(&mut peer, LATEST), Err(Fault::UnknownCheckpoint));
    assert_eq!(peer.counter("rows"), 0);
}

#[test]
fn requests_go_on_while_a_save_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place::new(|config| config.data = Some(folder.path().join("data")));
    let (mut saver, mut other) = (Peer::new(&place.address("tcp")), Peer::new(&place.address("tcp")));
    let table = other.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..200_000).collect();
    for (sequence, keys) in (0..).zip(keys.chunks(20_000)) {
        other.push(table, sequence, keys, 0.5).unwrap();
    }
    let id = saver.send(&Request::Save(Save { name: "x" })).unwrap();
    for sequence in 100..150 {
        other.push(table, sequence, &keys[..100], 0.5).unwrap();
        other.pull(table, &keys[..100]).unwrap();
    }
    let (found, rows) = saver
        .receive(|reply| match reply {
            Reply::Save(saved) => saved.rows,
            other => panic!("{other:?}"),
        })
        .unwrap()
        .unwrap();
    assert_eq!((found, rows), (id, Ok(200_000)));
    assert!(place.events.lock().unwrap().iter().any(|event| matches!(event, Event::Saved { .. })));
}

#[test]
fn a_token_is_asked_for_on_every_transport() {
    let place = Place::new(|config| config.token = Some("secret".to_owned()));
    for kind in ["tcp", "unix", "shm"] {
        for (token, expected) in
            [("secret", None), ("", Some(Fault::Unauthorized)), ("secre", Some(Fault::Unauthorized))]
        {
            let mut peer = Peer::silent(&place.address(kind)).unwrap();
            assert_eq!(peer.hello(token, "n").err().map(|(fault, _)| fault), expected, "{kind} {token:?}");
            if expected.is_some() {
                assert!(matches!(peer.receive(|_| ()), Ok(None) | Err(_)), "it is closed");
            }
        }
    }
}
