//! Checkpoints of several shards: restoring on another number of them, lost parts, and parts of different saves.

use std::path::Path;
use std::time::Duration;

use sanderling_server::{Config, Event, LATEST, Server};
use sanderling_testkit::{RawClient, TABLE, TestServer};
use sanderling_wire::*;

use super::save;

/// A server, and a connection to it with its table.
fn start(data: &Path, shard: u16, shards: u16) -> (TestServer, RawClient, u32) {
    let place = TestServer::new(|config| {
        config.data = Some(data.to_path_buf());
        (config.shard, config.shards) = (shard, shards);
    });
    let mut peer = RawClient::new(&place.address("tcp"));
    let table = peer.create("t", TABLE).unwrap();
    (place, peer, table)
}

/// Servers that share a folder, and their answers to pulls of all keys: who has a row of it, and what is in the rows.
fn cluster(data: &Path, shards: u16) -> Vec<(TestServer, RawClient, u32)> {
    (0..shards).map(|shard| start(data, shard, shards)).collect()
}

/// The keys of every server.
fn shares(keys: &[u64], shards: usize) -> Vec<Vec<u64>> {
    let mut shares = vec![Vec::new(); shards];
    keys.iter().for_each(|&key| shares[slot_of(key, 4096) * shards / 4096].push(key));
    shares
}

#[test]
fn what_some_servers_saved_is_restored_on_another_number_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let (data, keys) = (folder.path().join("data"), (0..3000).collect::<Vec<u64>>());
    let mut expected: Option<Vec<(u64, Vec<f32>)>> = None;
    for (round, shards) in [2_u16, 3, 1, 2, 2].into_iter().enumerate() {
        let round = round as u64;
        let mut found = Vec::new();
        let shares = shares(&keys, usize::from(shards));
        for ((place, mut peer, table), share) in cluster(&data, shards).into_iter().zip(&shares) {
            let rows = |peer: &mut RawClient| {
                let (rows, missing) = peer.pull(table, share).unwrap();
                assert!(missing.is_empty() || round == 0, "{shards}: {} rows are gone", missing.len());
                share.iter().copied().zip(rows.chunks(4).map(<[f32]>::to_vec)).collect::<Vec<_>>()
            };
            let before = rows(&mut peer);
            if let Some(expected) = &expected {
                assert!(before.iter().all(|row| expected[row.0 as usize] == *row), "{round}");
                assert_eq!(peer.counter("rows"), share.len() as u64);
                let taken = |event: &Event| matches!(event, Event::RowsTaken { .. });
                let parts = place.events.lock().unwrap().iter().filter(|event| taken(event)).count();
                assert_eq!(parts, [0, 2, 3, 1, 0][round as usize]);
            }
            // A server with its own part knows its earlier pushes. Otherwise their outcome is unknown.
            if round > 0 {
                let again = peer.push(table, round, share, 0.5).map_err(|(fault, _)| fault);
                let stale = Err(Fault::StalePush { sequence: round });
                assert_eq!(again, if round == 4 { Ok(true) } else { stale });
            }
            assert_eq!(rows(&mut peer), before);
            assert_eq!(peer.push(table, round + 1, share, 0.5), Ok(false));
            found.extend(rows(&mut peer));
            drop(peer);
            // Later than all that was saved so far, by the clock that tells which is later.
            std::thread::sleep(Duration::from_millis(5));
            assert!(place.server.unwrap().finish().unwrap().unwrap().rows > 0);
        }
        found.sort_by_key(|row| row.0);
        expected = Some(found);
    }
}

#[test]
fn parts_of_different_saves_are_not_restored_together() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let save_as = |peer: &mut RawClient, number| {
        peer.ask(&Request::SaveAs(SaveAs { number, name: "x" }), |reply| matches!(reply, Reply::SaveAs(_)))
            .unwrap()
    };
    let saved = |peer: &mut RawClient| {
        peer.ask(&Request::Saved("x"), |reply| match reply {
            Reply::Saved(number) => number,
            other => panic!("{other:?}"),
        })
        .map_err(|(fault, _)| fault)
    };
    let mut two = cluster(&data, 2);
    for (number, savers, expected) in [(5, 2, [5, 5]), (6, 1, [6, 5]), (7, 2, [7, 7]), (8, 1, [8, 7])] {
        for (_, peer, _) in &mut two[..savers] {
            assert!(save_as(peer, number));
        }
        assert_eq!(two.iter_mut().map(|(_, peer, _)| saved(peer).unwrap()).collect::<Vec<_>>(), expected);
    }
    assert_eq!(save(&mut two[1].1, "y").map(|saved| saved.generation), Ok(1));
    drop(two);
    let mut one = cluster(&data, 1);
    let (_, peer, _) = &mut one[0];
    let refused = peer.ask(&Request::Restore(Restore { name: "x" }), |_| ()).unwrap_err();
    assert!(refused.0 == Fault::UnknownCheckpoint && refused.1.contains("different saves"), "{refused:?}");
}

#[test]
fn a_part_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let keys: Vec<u64> = (0..300).collect();
    for ((place, mut peer, table), share) in cluster(&data, 3).into_iter().zip(shares(&keys, 3)) {
        peer.push(table, 1, &share, 0.5).unwrap();
        save(&mut peer, LATEST).unwrap();
        save(&mut peer, "daily/1").unwrap();
        // Without the save at the end.
        drop(place);
    }
    std::fs::rename(data.join("latest/shard-1-of-3"), folder.path().join("elsewhere")).unwrap();
    let mut config = Config { data: Some(data.clone()), runtime_dir: data.join("run"), ..Config::default() };
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let error = Server::start(&config, |_| {}).unwrap_err().to_string();
    assert!(error.contains("latest/shard-1-of-3 is missing"), "{error}");
    config.restore = Some("daily/1".to_owned());
    Server::start(&config, |_| {}).unwrap();
    // To one of the three, its own part is enough, and needed.
    (config.shard, config.shards, config.restore) = (2, 3, None);
    Server::start(&config, |_| {}).unwrap();
    config.shard = 1;
    let error = Server::start(&config, |_| {}).unwrap_err().to_string();
    assert!(error.contains("latest/shard-1-of-3 is missing"), "{error}");
    assert!(!data.join("latest/shard-1-of-3").exists());
    std::fs::rename(folder.path().join("elsewhere"), data.join("latest/shard-1-of-3")).unwrap();
    Server::start(&config, |_| {}).unwrap();
}

/// From one server to two, of which the second starts when the first has saved: it finds the rows of the one, until it has
/// saved once. After that it starts with what it has saved or not at all.
#[test]
fn a_shard_whose_part_is_lost_does_not_go_back_to_what_was_saved_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, lost) = (folder.path().join("data"), folder.path().join("lost"));
    let (keys, part) = ((0..300).collect::<Vec<u64>>(), data.join("latest/shard-1-of-2"));
    // Starts, pushes and ends: the rows before and after.
    let run = |shard: u16, shards: u16, sequence| {
        let (place, mut peer, table) = start(&data, shard, shards);
        let share = &shares(&keys, usize::from(shards))[usize::from(shard)];
        let before = peer.pull(table, share).unwrap().0;
        peer.push(table, sequence, share, 0.5).unwrap();
        let after = peer.pull(table, share).unwrap().0;
        drop(peer);
        place.server.unwrap().finish().unwrap();
        (before, after)
    };
    let refused = |why: &str| {
        let mut config =
            Config { data: Some(data.clone()), runtime_dir: data.join("run"), ..Config::default() };
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        (config.shard, config.shards) = (1, 2);
        let error = Server::start(&config, |_| {}).unwrap_err().to_string();
        let expected = format!("{} is {why}; put back", part.display());
        assert!(error.contains(&expected), "{error}");
    };
    run(0, 1, 1);
    run(0, 2, 2);
    // Killed before it has saved by itself.
    drop(start(&data, 1, 2));
    assert!(!part.join("manifest.json").exists());
    let (of_one, saved) = run(1, 2, 3);
    assert_ne!(of_one, saved);

    std::fs::rename(&part, &lost).unwrap();
    refused("missing");
    // However little of it is left, and whatever the other one does meanwhile.
    std::fs::create_dir(&part).unwrap();
    run(0, 2, 3);
    refused("missing");
    std::fs::remove_dir_all(&part).unwrap();
    std::fs::rename(&lost, &part).unwrap();
    let (found, latest) = run(1, 2, 4);
    assert_eq!(found, saved);

    // Back to one, and to two again: who has not started yet finds what the one has, beside what it had itself.
    std::fs::create_dir(&lost).unwrap();
    for file in std::fs::read_dir(&part).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), lost.join(file.file_name())).unwrap();
    }
    run(0, 1, 5);
    run(0, 2, 6);
    let (found, _) = run(1, 2, 7);
    assert_ne!(found, latest);
    // An earlier part of this shard in place of its last one.
    std::fs::remove_dir_all(&part).unwrap();
    std::fs::rename(&lost, &part).unwrap();
    refused("from before");

    // Deliberately back to what the one has.
    std::fs::remove_dir_all(&part).unwrap();
    std::fs::rename(part.with_file_name("shard-0-of-2"), &lost).unwrap();
    run(0, 2, 8);
    assert_eq!(run(1, 2, 9).0, found);
}

/// Shards start one after the other, and may be killed before they save by themselves.
#[test]
fn a_shard_without_rows_has_a_part_from_its_start_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let servers = cluster(&data, 2);
    let keys: Vec<u64> = (0..300).collect();
    for (at, ((place, mut peer, table), share)) in servers.into_iter().zip(shares(&keys, 2)).enumerate() {
        assert!(data.join(format!("latest/shard-{at}-of-2/manifest.json")).exists());
        peer.push(table, 1, &share, 0.5).unwrap();
        drop(peer);
        if at == 0 {
            place.server.unwrap().finish().unwrap();
        }
    }
    let rows: Vec<u64> = cluster(&data, 2).iter_mut().map(|(_, peer, _)| peer.counter("rows")).collect();
    assert!(rows[0] > 0 && rows[1] == 0, "{rows:?}");
}
