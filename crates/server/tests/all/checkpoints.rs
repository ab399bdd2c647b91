//! Saving, restoring and stopping through the wire: what was acknowledged is there afterwards.

mod deltas;
mod log;
mod refused;
mod shards;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sanderling_server::limit::DRAIN_QUIET;
use sanderling_server::{Config, Event, LATEST, Server};
use sanderling_testkit::{DIM, LONG, RawClient, TABLE, TestServer};
use sanderling_transport::Address;
use sanderling_wire::*;

fn save(peer: &mut RawClient, name: &str) -> Result<Saved, Fault> {
    peer.ask(&Request::Save(Save { name }), |reply| match reply {
        Reply::Save(saved) => saved,
        other => panic!("{other:?}"),
    })
    .map_err(|(fault, _)| fault)
}

fn restore(peer: &mut RawClient, name: &str) -> Result<Restored, Fault> {
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
    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let mut peer = RawClient::new(&place.address("tcp"));
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
    let TestServer { server, events, .. } = place;
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

    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let mut peer = RawClient::new(&place.address("unix"));
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), after);
}

#[test]
fn a_restored_table_has_the_limit_that_the_server_is_started_with() {
    let folder = tempfile::tempdir().unwrap();
    let config = |budget_bytes: Option<u64>| {
        let mut config = Config { workers: 2, table_budget_bytes: budget_bytes, ..Config::default() };
        config.data = Some(folder.path().join("data"));
        config.runtime_dir = folder.path().join("run");
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        config
    };
    let keys: Vec<u64> = (0..100_000).collect();
    // Starts with this limit, pushes these keys and ends; the rows that there are then.
    let mut sequence = 0;
    let mut check = |budget_bytes: Option<u64>, keys: &[u64], is_full: bool| {
        let server = Server::start(&config(budget_bytes), |_| {}).unwrap();
        let tcp = |address: &&Address| address.to_string().starts_with("tcp");
        let mut peer = RawClient::new(server.addresses().iter().find(tcp).unwrap());
        let table = peer.create("t", TABLE).unwrap();
        sequence += 1;
        let pushed = peer.push(table, sequence, keys, 0.5).map_err(|(fault, _)| fault);
        let rows = peer.counter("rows");
        match pushed {
            Ok(_) => assert!(!is_full, "{budget_bytes:?}"),
            Err(Fault::TableFull { budget_bytes: told, .. }) => {
                assert!(is_full && Some(told) == budget_bytes, "{budget_bytes:?}: {told}");
            }
            other => panic!("{other:?}"),
        }
        // A server that ends waits a moment for further requests of who is there.
        drop(peer);
        assert_eq!(server.finish().unwrap().unwrap().rows, rows);
        rows
    };
    let (small, large) = (Some(1 << 20), Some(16 << 20));
    let few = check(small, &keys[..50_000], true);
    assert!(few < 50_000);
    assert_eq!(check(large, &keys[..50_000], false), 50_000);
    let refused = Server::start(&config(small), |_| {}).unwrap_err().to_string();
    for part in ["table \"t\"", "its 50000 rows", "budget of 1.00 MiB", "16.0 MiB", "--table-budget"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    // Nothing was lost, and a limit can be taken away.
    assert_eq!(check(None, &keys, false), 100_000);
    let refused = Server::start(&config(small), |_| {}).unwrap_err().to_string();
    assert!(refused.contains("saved with none"), "{refused}");
}

/// Pushes during a save, repeated after a restore: each is known and in the rows, or may come again and is in no row,
/// or its outcome is unknown.
#[test]
fn a_push_is_in_the_rows_if_it_is_known_and_only_then() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let table_json = r#"{"blocks":[{"dims":4,"init":{"type":"zero"},"optimizer":{"type":"sgd","lr":1.0}}]}"#;
    let mut peers = [0, 1].map(|_| RawClient::new(&place.address("tcp")));
    let table = peers[0].create("t", table_json).unwrap();
    // A push has keys of its own, so that the rows say whether it was applied.
    let keys_of = |sequence: u64| (0..20).map(|at| sequence * 20 + at).collect::<Vec<u64>>();
    let [pusher, saver] = &mut peers;
    let many: Vec<u64> = (1 << 32..(1 << 32) + 100_000).collect();
    saver.push(table, 1, &many, 1.0).unwrap();
    let mut last = 0;
    let id = saver.send(&Request::Save(Save { name: "x" })).unwrap();
    for sequence in 2..=300 {
        pusher.push(table, sequence, &keys_of(sequence), 1.0).unwrap();
        last = sequence;
    }
    let (found, saved) = saver.receive(|reply| matches!(reply, Reply::Save(_))).unwrap().unwrap();
    assert_eq!((found, saved), (id, Ok(true)));
    drop(place);

    let place = TestServer::new(|config| {
        config.data = Some(data);
        config.restore = Some("x".to_owned());
    });
    let mut peer = RawClient::new(&place.address("tcp"));
    let table = peer.create("t", table_json).unwrap();
    for sequence in 2..=last {
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

#[test]
fn requests_go_on_while_a_save_is_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let place = TestServer::new(|config| config.data = Some(folder.path().join("data")));
    let (mut saver, mut other) =
        (RawClient::new(&place.address("tcp")), RawClient::new(&place.address("tcp")));
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

fn export(peer: &mut RawClient, table: u32, deadline_us: u32) -> Result<usize, Fault> {
    let request = Request::Export(Export { table, cursor: 0, rows_max: 100 });
    let id = peer.send_within(&request, deadline_us).unwrap();
    let read = |reply: Reply<'_>| match reply {
        Reply::Export(exported) => exported.rows.keys.len(),
        other => panic!("{other:?}"),
    };
    let (found, rows) = peer.receive(read).unwrap().unwrap();
    assert_eq!(found, id);
    rows.map_err(|(fault, _)| fault)
}

/// A job behind a save runs if its client still waits. An export does not wait for saves.
#[test]
fn an_export_waits_for_no_save_and_nothing_is_done_for_who_has_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let [mut saver, mut late, mut patient, mut other] =
        [(); 4].map(|()| RawClient::new(&place.address("tcp")));
    let table = other.create("t", TABLE).unwrap();
    other.push(table, 1, &[1, 2, 3], 0.5).unwrap();
    let (_, stuck) = saver.save_stuck(&place, &data, "x");
    late.send_within(&Request::Save(Save { name: "late" }), 1000).unwrap();
    patient.send_within(&Request::Save(Save { name: "y" }), u32::MAX).unwrap();
    for _ in 0..3 {
        assert_eq!(export(&mut other, table, 20_000_000), Ok(3));
    }
    std::thread::sleep(Duration::from_millis(5));
    drop(stuck);
    for (peer, expected) in
        [(&mut saver, None), (&mut late, Some(Fault::DeadlineExceeded)), (&mut patient, None)]
    {
        let (_, saved) = peer.receive(|_| ()).unwrap().unwrap();
        assert_eq!(saved.err().map(|(fault, _)| fault), expected);
    }
    assert!(!data.join("late").exists());
}

#[test]
fn a_server_saves_by_itself_however_much_is_asked_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let place = TestServer::new(|config| {
        config.data = Some(folder.path().join("data"));
        config.save_every = Some(Duration::from_secs(1));
    });
    let table = RawClient::new(&place.address("tcp")).create("t", TABLE).unwrap();
    let over = AtomicBool::new(false);
    let is_own = |event: &Event| matches!(event, Event::Saved { name, .. } if name == LATEST);
    std::thread::scope(|scope| {
        for at in 0..4 {
            let (place, over) = (&place, &over);
            scope.spawn(move || {
                let mut peer = RawClient::new(&place.address("tcp"));
                // Always some in the queue.
                let request = match at % 2 {
                    0 => Request::Save(Save { name: "asked" }),
                    _ => Request::Export(Export { table, cursor: 0, rows_max: 1 }),
                };
                (0..3).for_each(|_| _ = peer.send(&request).unwrap());
                while !over.load(Ordering::Relaxed) {
                    peer.send(&request).unwrap();
                    assert_eq!(peer.receive(|_| ()).unwrap().unwrap().1, Ok(()));
                }
            });
        }
        let start = Instant::now();
        let saved = || place.events.lock().unwrap().iter().filter(|event| is_own(event)).count();
        while saved() < 2 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::Relaxed);
        assert!(saved() >= 2);
    });
}

/// A reply that the socket does not take at once, and the one to the request behind it.
#[test]
fn a_server_that_ends_sends_its_replies_to_their_ends() {
    let check = |kind: &str| {
        let place = TestServer::new(|config| config.drain_within = LONG);
        let mut peer = RawClient::new(&place.address(kind));
        let table = peer.create("t", TABLE).unwrap();
        let (absent, format, keys) = (Absent::Zero, RowFormat::F32, vec![5; 1 << 19]);
        let pull = peer.send(&Request::Pull(Pull { table, dim: DIM, absent, format, keys: &keys })).unwrap();
        let delete = peer.send(&Request::Delete(Delete { table, keys: &[1] })).unwrap();
        let TestServer { server, events, .. } = place;
        let ending = std::thread::spawn(move || server.unwrap().finish().unwrap());
        let start = Instant::now();
        let drains = |event: &Event| matches!(event, Event::Draining { .. });
        while !events.lock().unwrap().iter().any(drains) && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Longer than a server waits for a further request.
        std::thread::sleep(3 * DRAIN_QUIET);
        let read = |reply: Reply<'_>| match reply {
            Reply::Pull(reply) => reply.values.len(),
            _ => 0,
        };
        let mut replies = Vec::new();
        while let Some(reply) = peer.receive(read).unwrap_or_else(|error| panic!("{kind}: {error}")) {
            replies.push(reply);
        }
        // Perhaps beside a notice.
        replies.retain(|(id, _)| *id > 0);
        assert_eq!(replies, [(pull, Ok(keys.len() * DIM as usize)), (delete, Ok(0))], "{kind}");
        ending.join().unwrap();
    };
    // Beside each other: all that it takes is waiting.
    std::thread::scope(|scope| {
        for kind in ["tcp", "unix", "shm"] {
            scope.spawn(move || check(kind));
        }
    });
}

#[test]
fn a_token_is_asked_for_on_every_transport() {
    let place = TestServer::new(|config| config.token = Some("secret".to_owned()));
    for kind in ["tcp", "unix", "shm"] {
        for (token, expected) in
            [("secret", None), ("", Some(Fault::Unauthorized)), ("secre", Some(Fault::Unauthorized))]
        {
            let mut peer = RawClient::silent(&place.address(kind)).unwrap();
            assert_eq!(peer.hello(token, "n").err().map(|(fault, _)| fault), expected, "{kind} {token:?}");
            if expected.is_some() {
                assert!(matches!(peer.receive(|_| ()), Ok(None) | Err(_)), "it is closed");
            }
        }
    }
}

/// A load on a server leaves nothing on its disk.
#[test]
fn a_temporary_table_is_in_no_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let mut peer = RawClient::new(&place.address("tcp"));
    let temporary = TABLE.replacen('{', r#"{"temporary":true,"#, 1);
    let lasting = peer.create("lasting", TABLE).unwrap();
    let passing = peer.create("passing", &temporary).unwrap();
    peer.push(lasting, 1, &[1, 2, 3], 0.5).unwrap();
    peer.push(passing, 2, &(0..1000).collect::<Vec<u64>>(), 0.5).unwrap();
    // A permanent table is opened as it is. A temporary one is never opened as a permanent one.
    assert_eq!(peer.create("lasting", &temporary), Ok(lasting));
    assert_eq!(peer.create("passing", &temporary), Ok(passing));
    let (fault, reason) = peer.create("passing", TABLE).unwrap_err();
    assert!(fault == Fault::TableExists && reason.contains("is temporary"), "{fault:?}: {reason}");
    assert_eq!(save(&mut peer, "now").unwrap().rows, 3);
    // It is there as before, and gone with a restore.
    assert_eq!(peer.pull(passing, &[5]).unwrap().1, [0_usize; 0]);
    assert_eq!(restore(&mut peer, "now"), Ok(Restored { tables: 1, rows: 3 }));
    assert_eq!(peer.pull(passing, &[5]).unwrap_err().0, Fault::UnknownTable);

    let passing = peer.create("passing", &temporary).unwrap();
    peer.push(passing, 3, &[1], 0.5).unwrap();
    let TestServer { server, .. } = place;
    assert_eq!(server.unwrap().finish().unwrap().unwrap().rows, 3);
    let place = TestServer::new(|config| config.data = Some(data.clone()));
    let mut peer = RawClient::new(&place.address("tcp"));
    assert!(peer.create("passing", TABLE).is_ok(), "it came back");
}
