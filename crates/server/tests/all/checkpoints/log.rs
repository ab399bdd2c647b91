//! The delta log of a server: what was answered is there after an end without a save, and what a start says otherwise.

use std::path::Path;
use std::time::{Duration, Instant};

use sanderling_server::{Config, Event, LATEST, SaveMode, Server};
use sanderling_testkit::{LONG, RawClient, TABLE, TestServer};
use sanderling_wire::{Fault, Request};

type Pulled = (Vec<f32>, Vec<usize>);

fn start(folder: &Path, change: impl FnOnce(&mut Config)) -> TestServer {
    TestServer::new(|config| {
        config.data = Some(folder.join("data"));
        config.log = Some(folder.join("log"));
        config.lose = Duration::ZERO;
        change(config);
    })
}

/// Ends a server as a kill does: it saves nothing.
fn end(mut place: TestServer) -> Vec<Event> {
    drop(place.server.take());
    let events = place.events.lock().unwrap();
    events.clone()
}

/// Why a server does not start.
fn refused(folder: &Path, change: impl FnOnce(&mut Config)) -> String {
    let runtime_dir = tempfile::tempdir().unwrap();
    let mut config = Config {
        listen: vec!["tcp://127.0.0.1:0".parse().unwrap()],
        runtime_dir: runtime_dir.path().to_path_buf(),
        local: false,
        data: Some(folder.join("data")),
        log: Some(folder.join("log")),
        ..Config::default()
    };
    change(&mut config);
    match Server::start(&config, |_| {}) {
        Ok(_) => panic!("it starts"),
        Err(error) => error.to_string(),
    }
}

fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let found = std::fs::read_dir(folder.join("log/shard-0-of-1")).unwrap();
    let mut found: Vec<_> = found.map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "log"));
    found.sort();
    found
}

fn client(place: &TestServer) -> (RawClient, u32) {
    let mut peer = RawClient::new(&place.address("tcp"));
    let table = peer.create("t", TABLE).unwrap();
    (peer, table)
}

#[test]
fn what_was_answered_is_there_after_any_end() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<u64> = (0..2_000).collect();
    let mut expected: Option<(Pulled, Pulled)> = None;
    for round in 0..8_u64 {
        let place = start(folder.path(), |_| {});
        let (mut peer, table) = client(&place);
        let other = peer.create("other", TABLE).unwrap();
        if let Some((rows, others)) = &expected {
            assert_eq!(peer.pull(table, &keys).unwrap(), *rows, "round {round}");
            assert_eq!(peer.pull(other, &keys).unwrap(), *others, "round {round}");
            // The last push of the server before is answered, and not applied again.
            assert_eq!(peer.push(table, 100 * round - 1, &keys, 0.5), Ok(true), "round {round}");
            assert_eq!(peer.pull(table, &keys).unwrap(), *rows, "round {round}");
        }
        let control = place.server().control();
        peer.push(table, 100 * round, &keys[round as usize..], 0.25).unwrap();
        match round {
            1 => _ = control.save(LATEST, 0, SaveMode::Full).unwrap(),
            2 => _ = control.save(LATEST, 0, SaveMode::Delta).unwrap(),
            3 => {
                peer.ask(&Request::Drop("other"), |_| ()).unwrap();
                peer.create("other", TABLE).unwrap();
            }
            4 => {
                control.save("named", 0, SaveMode::Full).unwrap();
                peer.push(table, 100 * round + 1, &keys, 0.5).unwrap();
                control.restore("named").unwrap();
            }
            _ => {}
        }
        let (mut peer, table) = client(&place);
        let other = peer.create("other", TABLE).unwrap();
        peer.push(other, 100 * round + 50, &keys[..300], 0.5).unwrap();
        peer.push(table, 100 * round + 99, &keys, 0.5).unwrap();
        expected = Some((peer.pull(table, &keys).unwrap(), peer.pull(other, &keys).unwrap()));
        let events = if round == 5 {
            let mut place = place;
            place.server.take().unwrap().finish().unwrap();
            let events = place.events.lock().unwrap();
            events.clone()
        } else {
            end(place)
        };
        let replayed = events.iter().any(|event| matches!(event, Event::LogReplayed { groups: 1.., .. }));
        // After the first start, and after an end with a save, there is nothing to read.
        assert_eq!(replayed, round != 0 && round != 6, "round {round}: {events:?}");
        assert!(segments(folder.path()).len() < 8, "old segments stay");
    }
}

#[test]
fn a_log_is_written_within_the_time_that_may_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let place = start(folder.path(), |config| config.lose = Duration::from_millis(50));
    let (mut peer, table) = client(&place);
    peer.push(table, 1, &[1, 2, 3], 0.5).unwrap();
    let expected = peer.pull(table, &[1, 2, 3]).unwrap();
    let begun = Instant::now();
    while segments(folder.path()).is_empty()
        || std::fs::metadata(&segments(folder.path())[0]).unwrap().len() < 300
    {
        assert!(begun.elapsed() < LONG, "nothing is logged");
        std::thread::sleep(Duration::from_millis(5));
    }
    // A group that began before the push has the table only.
    std::thread::sleep(Duration::from_millis(200));
    end(place);
    let place = start(folder.path(), |_| {});
    let (mut peer, table) = client(&place);
    assert_eq!(peer.pull(table, &[1, 2, 3]).unwrap(), expected);
    assert_eq!(peer.push(table, 1, &[1, 2, 3], 0.5), Ok(true));
}

#[test]
fn damage_is_named_and_can_be_cut() {
    let folder = tempfile::tempdir().unwrap();
    let mut states = Vec::new();
    {
        let place = start(folder.path(), |_| {});
        let (mut peer, table) = client(&place);
        for push in 1..6 {
            peer.push(table, push, &[1, 2, push + 10], 0.5).unwrap();
            states.push(peer.pull(table, &[1, 2]).unwrap());
        }
        end(place);
    }
    let without = refused(folder.path(), |config| config.log = None);
    assert!(
        without.contains("its changes go on in the log") && without.contains("--restore latest"),
        "{without}"
    );
    let (latest, away) = (folder.path().join("data/latest"), folder.path().join("away"));
    std::fs::rename(&latest, &away).unwrap();
    let gone = refused(folder.path(), |_| {});
    assert!(gone.contains("there is no checkpoint latest that it follows"), "{gone}");
    std::fs::rename(&away, &latest).unwrap();
    let path = segments(folder.path()).pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&path, &damaged).unwrap();
    let error = refused(folder.path(), |_| {});
    let name = path.file_name().unwrap().to_str().unwrap();
    for part in [name, "offset ", "checksum", "--cut-log"] {
        assert!(error.contains(part), "{error}, not {part}");
    }
    // An unfinished group at the end is cut without asking.
    let mut torn = whole;
    torn.truncate(torn.len() - 10);
    for (content, is_damaged) in [(torn, false), (damaged, true)] {
        let copy = tempfile::tempdir().unwrap();
        let copied =
            std::process::Command::new("cp").arg("-r").arg(folder.path().join(".")).arg(copy.path()).status();
        assert!(copied.unwrap().success());
        std::fs::write(copy.path().join("log/shard-0-of-1").join(name), content).unwrap();
        // The position of the checkpoint names the folder of before, which does not matter.
        let place = start(copy.path(), |config| config.cut_log = is_damaged);
        let (mut peer, table) = client(&place);
        let found = peer.pull(table, &[1, 2]).unwrap();
        let at = states.iter().position(|state| *state == found);
        assert!(if is_damaged { at < Some(4) } else { at == Some(3) }, "{at:?}");
        peer.push(table, 50, &[1], 0.5).unwrap();
        let expected = peer.pull(table, &[1, 2]).unwrap();
        let events = end(place);
        assert!(events.iter().any(|event| matches!(event, Event::LogCut { .. })), "{events:?}");
        let place = start(copy.path(), |_| {});
        let (mut peer, table) = client(&place);
        assert_eq!(peer.pull(table, &[1, 2]).unwrap(), expected);
    }
    let place = start(folder.path(), |config| config.restore = Some(LATEST.to_owned()));
    let (mut peer, table) = client(&place);
    assert_eq!(peer.pull(table, &[1]).unwrap().1, [0], "the checkpoint has no rows");
}

#[test]
fn a_log_that_cannot_be_written_refuses_pushes_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let place = start(folder.path(), |_| {});
    let (mut peer, table) = client(&place);
    peer.push(table, 1, &[1, 2], 0.5).unwrap();
    // The next segment cannot be created.
    let log = folder.path().join("log/shard-0-of-1");
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, "").unwrap();
    let control = place.server().control();
    let save = |control: &sanderling_server::Control| control.save(LATEST, 0, SaveMode::Full);
    assert!(save(&control).is_err(), "the rows are of several moments, and the log has not their changes");
    let unlogged = peer.push(table, 2, &[1, 2], 0.5).unwrap_err();
    assert!(matches!(unlogged.0, Fault::Io { .. }), "{unlogged:?}");
    let begun = Instant::now();
    while !peer.push(table, 3, &[1], 0.5).unwrap_err().1.contains("refused until") {
        assert!(begun.elapsed() < LONG, "pushes are taken");
    }
    let refused_since = || {
        let counters = control.status().counters;
        counters.into_iter().find(|(name, _)| *name == "log_refused_since_unix_ms").unwrap().1
    };
    assert!(refused_since() > 0);
    // Pulls go on, and a save has everything that was answered, without the log.
    let before = peer.pull(table, &[1, 2]).unwrap();
    save(&control).unwrap();
    std::fs::remove_file(&log).unwrap();
    std::fs::create_dir(&log).unwrap();
    let repeated = loop {
        match peer.push(table, 2, &[1, 2], 0.5) {
            Ok(repeated) => break repeated,
            Err(refused) => assert!(begun.elapsed() < LONG, "{refused:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(repeated, "it was applied, and not on disk");
    assert!(refused_since() == 0 && control.log_syncs().unwrap().count > 0);
    assert_eq!(peer.pull(table, &[1, 2]).unwrap(), before);
    peer.push(table, 4, &[1], 0.5).unwrap();
    let expected = peer.pull(table, &[1, 2]).unwrap();
    let events = end(place);
    assert!(events.contains(&Event::LogWorks), "{events:?}");
    let place = start(folder.path(), |_| {});
    let (mut peer, table) = client(&place);
    assert_eq!(peer.pull(table, &[1, 2]).unwrap(), expected);
    assert_eq!(peer.push(table, 4, &[1], 0.5), Ok(true));
}
