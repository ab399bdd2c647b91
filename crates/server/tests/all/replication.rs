//! Servers that are replicas of one shard: primaries end at any moment under pushes, and no acknowledged push is lost or
//! applied twice.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sanderling_server::{Config, Event, GroupStatus, MemoryRecords, ReplicaConfig, Server};
use sanderling_testkit::{LONG, RawClient};
use sanderling_transport::Address;
use sanderling_wire::*;

/// Counts: an update with gradient -1 adds 1.
const COUNTERS: &str =
    r#"{"blocks":[{"dims":4,"init":{"type":"zero"},"optimizer":{"type":"sgd","lr":1.0}}]}"#;
/// Adam with rounded rows: bits depend on the order of a row's updates.
const ORDERED: &str = r#"{"blocks":[{"dims":4,"init":{"type":"uniform","bound":0.5},
    "optimizer":{"type":"adam","lr":0.05}}],"seed":3,"dtype":"bf16"}"#;
const DIM: usize = 4;
const KEYS: u64 = 64;

/// The servers of a group, by number. A server that is started again is another member.
struct Place {
    records: MemoryRecords,
    folder: tempfile::TempDir,
    servers: Mutex<Vec<Option<Server>>>,
    boots: AtomicU32,
    min_in_sync: usize,
    acknowledge_local: bool,
    /// By server, the newest version of messages between servers.
    speaks: Mutex<Vec<Option<u8>>>,
    /// What the servers have reported.
    said: Arc<Mutex<Vec<String>>>,
}

impl Place {
    fn new(servers: usize, min_in_sync: usize) -> Place {
        Place::acknowledging(servers, min_in_sync, false)
    }

    fn acknowledging(servers: usize, min_in_sync: usize, acknowledge_local: bool) -> Place {
        let place = Place {
            records: MemoryRecords::default(),
            folder: tempfile::tempdir().unwrap(),
            servers: Mutex::new((0..servers).map(|_| None).collect()),
            boots: AtomicU32::new(0),
            min_in_sync,
            acknowledge_local,
            speaks: Mutex::new(vec![None; servers]),
            said: Arc::default(),
        };
        (0..servers).for_each(|server| place.start(server));
        place.wait(|status| status.in_sync() == servers);
        place
    }

    fn start(&self, server: usize) {
        let boot = self.boots.fetch_add(1, Ordering::Relaxed);
        let config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            runtime_dir: self.folder.path().join(boot.to_string()),
            workers: 2,
            replica: Some(ReplicaConfig {
                server: server as u32,
                advertise: String::new(),
                min_in_sync: self.min_in_sync,
                acknowledge_local: self.acknowledge_local,
                pull_staleness: Duration::from_secs(2),
                authorities: None,
                move_bytes_per_s: u64::MAX,
                speaks: self.speaks.lock().unwrap()[server],
            }),
            ..Config::default()
        };
        let said = Arc::clone(&self.said);
        let report = move |event: Event| {
            if let Event::OtherVersion { reason } = event {
                said.lock().unwrap().push(format!("at {server}: {reason}"));
            }
        };
        let started = Server::start_replica(&config, Box::new(self.records.clone()), None, report).unwrap();
        self.servers.lock().unwrap()[server] = Some(started);
    }

    /// Ends a server, and starts it as one that speaks up to this version.
    fn replace(&self, server: usize, speaks: Option<u8>) {
        let ended = self.servers.lock().unwrap()[server].take();
        drop(ended);
        self.speaks.lock().unwrap()[server] = speaks;
        self.start(server);
    }

    /// Waits until a server has reported a line.
    fn wait_for_line(&self, is_wanted: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let said = self.said.lock().unwrap().clone();
            if let Some(line) = said.iter().find(|line| is_wanted(line)) {
                return line.clone();
            }
            assert!(start.elapsed() < LONG, "{said:#?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What the primary says of its group, if it says so; otherwise what all servers say.
    fn look(&self, is_wanted: impl Fn(&GroupStatus) -> bool) -> Result<GroupStatus, Vec<GroupStatus>> {
        let all: Vec<_> = {
            let servers = self.servers.lock().unwrap();
            servers.iter().flatten().filter_map(|server| server.control().group()).collect()
        };
        let found = all.iter().find(|status| status.is_primary && is_wanted(status)).cloned();
        found.ok_or(all)
    }

    /// Waits until the primary says so of its group, and returns what it says.
    fn wait(&self, is_wanted: impl Fn(&GroupStatus) -> bool) -> GroupStatus {
        let start = Instant::now();
        loop {
            match self.look(&is_wanted) {
                Ok(status) => return status,
                Err(all) => assert!(start.elapsed() < LONG, "{all:?}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Has the primary pass its role on. On a busy machine an attempt may be called off.
    fn pass_on(&self, before: &GroupStatus) -> GroupStatus {
        let is_next = |status: &GroupStatus| status.server != before.server && status.epoch > before.epoch;
        let (start, mut asked) = (Instant::now(), None::<Instant>);
        loop {
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(1)) {
                let servers = self.servers.lock().unwrap();
                servers[before.server as usize].as_ref().unwrap().control().hand_over();
                asked = Some(Instant::now());
            }
            match self.look(is_next) {
                Ok(status) => return status,
                Err(all) => assert!(start.elapsed() < LONG, "{all:?}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The client's connection to the primary, and the table.
    fn reach(&self, table: &str, config: &str) -> (RawClient, u32) {
        let start = Instant::now();
        loop {
            let status = self.wait(|_| true);
            let address: Address = status.primary_url().unwrap().parse().unwrap();
            if let Ok(mut peer) = RawClient::silent(&address)
                && try_hello(&mut peer)
                && let Some(Ok(table)) = try_create(&mut peer, table, config)
            {
                return (peer, table);
            }
            assert!(start.elapsed() < LONG, "no primary creates the table");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The rows of a table at a server, whatever its role.
    fn rows(&self, server: usize) -> Vec<(String, u64, u64)> {
        let servers = self.servers.lock().unwrap();
        let control = servers[server].as_ref().unwrap().control();
        control
            .tables()
            .into_iter()
            .map(|table| (table.name.clone(), table.stats.rows))
            .zip(control.digests())
            .map(|((name, rows), digest)| (name, rows, digest))
            .collect()
    }
}

fn ask<T>(
    peer: &mut RawClient,
    request: &Request<'_>,
    read: impl FnOnce(Reply<'_>) -> T,
) -> Option<Result<T, (Fault, String)>> {
    peer.send(request).ok()?;
    Some(peer.receive(read).ok()??.1)
}

fn try_hello(peer: &mut RawClient) -> bool {
    let offer = Offer::of(Features::NONE);
    let hello = Request::Hello(Hello { offer, token: "", name: "test" });
    let agreed = ask(peer, &hello, |reply| match reply {
        Reply::Hello(identity) => Some(identity.agreed),
        // The server is about to stop.
        Reply::Goaway(_) => None,
        other => panic!("{other:?}"),
    });
    let Some(Ok(Some(agreed))) = agreed else { return false };
    peer.agreed = agreed;
    true
}

fn try_create(peer: &mut RawClient, name: &str, config: &str) -> Option<Result<u32, (Fault, String)>> {
    let made =
        ask(peer, &Request::Create(Create { home: Home::Sharded, name, config }), |reply| match reply {
            Reply::Create(info) => Some(info.table),
            Reply::Goaway(_) => None,
            other => panic!("{other:?}"),
        });
    made?.transpose()
}

/// Pushes until some primary acknowledges it.
fn push_surely(place: &Place, at: &mut (RawClient, u32), (name, config): (&str, &str), push: Push<'_>) {
    let start = Instant::now();
    loop {
        let push = Request::Push(Push { table: at.1, ..push });
        // Instead of the reply, a server may say that it is about to stop.
        let answer = ask(&mut at.0, &push, |reply| matches!(reply, Reply::Push(_)));
        match answer {
            Some(Ok(true)) => return,
            Some(Ok(false)) => *at = place.reach(name, config),
            Some(Err((Fault::Busy { .. }, _))) => std::thread::sleep(Duration::from_millis(2)),
            Some(Err((Fault::NotHere { .. } | Fault::NotPrimary { .. } | Fault::Draining, _))) | None => {
                *at = place.reach(name, config);
            }
            Some(Err(failure)) => panic!("{failure:?}"),
        }
        assert!(start.elapsed() < LONG, "no primary takes the push");
    }
}

fn pull(peer: &mut RawClient, table: u32, keys: &[u64]) -> Vec<f32> {
    let pull = Pull { table, dim: DIM as u32, absent: Absent::Zero, format: RowFormat::F32, keys };
    let start = Instant::now();
    loop {
        match ask(peer, &Request::Pull(pull), |reply| sanderling_testkit::rows(reply).0).unwrap() {
            Ok(rows) => return rows,
            Err((Fault::Busy { .. }, _)) if start.elapsed() < LONG => {}
            Err(failure) => panic!("{failure:?}"),
        }
    }
}

/// Clients push to counters and to rows whose bits depend on the order, while `disturb` ends and starts servers.
fn drill(place: &Place, clients: u64, disturb: impl FnOnce(&Place)) {
    let (counters, ordered) = (("counters", COUNTERS), ("ordered", ORDERED));
    place.reach(counters.0, counters.1);
    place.reach(ordered.0, ordered.1);
    let is_over = AtomicBool::new(false);
    let expected: Vec<AtomicU32> = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (is_over, expected) = (&is_over, &expected);
            scope.spawn(move || {
                let mut places = [place.reach(counters.0, counters.1), place.reach(ordered.0, ordered.1)];
                let mut sequence = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let keys: Vec<u64> =
                        (0..KEYS).filter(|key| !(key + sequence * 7 + client).is_multiple_of(3)).collect();
                    let counts = vec![1; keys.len()];
                    for (at, (table, grad)) in [(counters, -1.0), (ordered, 0.25)].into_iter().enumerate() {
                        let grads: Vec<f32> = keys.iter().flat_map(|_| [grad; DIM]).collect();
                        let push = Push {
                            table: 0,
                            client: 100 + 2 * client + at as u64,
                            sequence,
                            continues: false,
                            dim: DIM as u32,
                            lr_scale: 1.0,
                            keys: &keys,
                            counts: &counts,
                            grads: &grads,
                        };
                        push_surely(place, &mut places[at], table, push);
                    }
                    keys.iter().for_each(|&key| _ = expected[key as usize].fetch_add(1, Ordering::Relaxed));
                    sequence += 1;
                }
            });
        }
        disturb(place);
        is_over.store(true, Ordering::Relaxed);
    });
    let (mut peer, table) = place.reach(counters.0, counters.1);
    let keys: Vec<u64> = (0..KEYS).collect();
    let found = pull(&mut peer, table, &keys);
    for (key, expected) in expected.iter().enumerate() {
        let row = &found[key * DIM..][..DIM];
        assert_eq!(row, [expected.load(Ordering::Relaxed) as f32; DIM], "key {key}");
    }
    // At rest all replicas are equal to the bit.
    let servers = place.servers.lock().unwrap().len();
    place.wait(|status| status.in_sync() == servers && status.backlog == 0);
    let start = Instant::now();
    loop {
        let all: Vec<_> = (0..servers).map(|server| place.rows(server)).collect();
        if all.iter().all(|rows| rows == &all[0]) {
            return;
        }
        assert!(start.elapsed() < LONG, "{all:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_was_acknowledged_outlives_primaries() {
    let place = Place::new(2, 1);
    drill(&place, 3, |place| {
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(100));
            let primary = place.wait(|status| status.in_sync() == 2).server as usize;
            // A backup in some rounds: the primary goes on without it.
            let ends = if round % 3 == 2 { 1 - primary } else { primary };
            let server = place.servers.lock().unwrap()[ends].take();
            drop(server);
            place.wait(|status| status.server as usize != ends && status.in_sync() == 1);
            place.start(ends);
        }
    });
}

#[test]
fn a_role_is_passed_on_without_a_loss() {
    let place = Place::new(3, 2);
    drill(&place, 2, |place| {
        for _ in 0..4 {
            let before = place.wait(|status| status.in_sync() == 3);
            let primary = before.server as usize;
            place.servers.lock().unwrap()[primary].as_ref().unwrap().control().hand_over();
            place.wait(|status| status.server != before.server && status.epoch > before.epoch);
        }
    });
}

#[test]
fn a_server_that_is_one_version_older_takes_both_roles() {
    let place = Place::new(2, 2);
    // A former primary may not know yet that it is none.
    let in_sync = |place: &Place, epoch| place.wait(|status| status.in_sync() == 2 && status.epoch >= epoch);
    drill(&place, 2, |place| {
        // The follower is replaced by an older one: a downgrade, which is an upgrade backwards.
        let first = in_sync(place, 1);
        let (old, mut epoch) = (1 - first.server as usize, first.epoch);
        place.replace(old, Some(3));
        place.wait(|status| status.version > first.version && status.in_sync() == 2);
        for round in 0..4 {
            let before = in_sync(place, epoch);
            assert_eq!(before.server as usize == old, round % 2 == 1, "{before:?}");
            std::thread::sleep(Duration::from_millis(50));
            epoch = place.pass_on(&before).epoch;
        }
        // As the primary it ends, and comes back upgraded.
        epoch = place.pass_on(&in_sync(place, epoch)).epoch;
        assert_eq!(in_sync(place, epoch).server as usize, old);
        place.replace(old, None);
        place.wait(|status| status.server as usize != old && status.in_sync() == 2);
    });
    assert_eq!(*place.said.lock().unwrap(), [""; 0]);
}

#[test]
fn a_server_that_is_two_versions_older_is_refused_by_name() {
    let place = Place::new(2, 1);
    drill(&place, 1, |place| {
        let newest = place.wait(|status| status.in_sync() == 2).server as usize;
        let old = 1 - newest;
        place.replace(old, Some(2));
        let line = place.wait_for_line(|line| line.starts_with(&format!("at {newest}: server {old} ")));
        assert!(line.contains("speaks version 2 of messages between servers"), "{line}");
        assert!(line.contains("this one speaks 3 to 4: upgrade server"), "{line}");
        // The other side is told, too, though it reads nothing of this one.
        let line = place.wait_for_line(|line| line.starts_with(&format!("at {old}: ")));
        assert!(line.contains("refuses messages") && line.contains("speaks 3 to 4"), "{line}");
        place.wait(|status| status.in_sync() == 1);
        place.replace(old, None);
        place.wait(|status| status.in_sync() == 2);
    });
}

/// With local acknowledgement no push waits for the followers, who get the pushes all the same.
#[test]
fn a_local_acknowledgement_does_not_wait() {
    let place = Place::acknowledging(2, 2, true);
    let (mut peer, table) = place.reach("t", COUNTERS);
    let primary = place.wait(|status| status.in_sync() == 2).server as usize;
    let ended = place.servers.lock().unwrap()[1 - primary].take();
    drop(ended);
    let (counts, grads) = ([1], [-1.0; DIM]);
    for sequence in 0..3 {
        let push = Push {
            table,
            client: 5,
            sequence,
            continues: false,
            dim: DIM as u32,
            lr_scale: 1.0,
            keys: &[9],
            counts: &counts,
            grads: &grads,
        };
        let answer = ask(&mut peer, &Request::Push(push), |reply| matches!(reply, Reply::Push(_)));
        assert_eq!(answer, Some(Ok(true)));
    }
    place.start(1 - primary);
    place.wait(|status| status.in_sync() == 2 && status.backlog == 0);
    let start = Instant::now();
    while place.rows(0) != place.rows(1) {
        assert!(start.elapsed() < LONG, "{:?} {:?}", place.rows(0), place.rows(1));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_follower_says_where_the_primary_is() {
    let place = Place::new(2, 2);
    let (mut peer, table) = place.reach("t", COUNTERS);
    let primary = place.wait(|_| true);
    let other = 1 - primary.server as usize;
    let address = {
        let servers = place.servers.lock().unwrap();
        servers[other].as_ref().unwrap().addresses()[0].clone()
    };
    let mut follower = RawClient::new(&address);
    let url = primary.primary_url().unwrap().to_owned();
    for request in [
        Request::Open("t"),
        Request::Pull(Pull { table, dim: 4, absent: Absent::Zero, format: RowFormat::F32, keys: &[1] }),
        Request::Create(Create { home: Home::Sharded, name: "u", config: COUNTERS }),
        Request::Drop("t"),
    ] {
        let (fault, reason) = follower.ask(&request, |_| ()).unwrap_err();
        assert!(matches!(fault, Fault::NotPrimary { .. }), "{request:?}: {fault:?}");
        assert!(reason.contains(&url), "{request:?}: {reason}");
    }
    // With the follower gone, the group has fewer replicas than each push needs.
    let ended = place.servers.lock().unwrap()[other].take();
    drop(ended);
    let (counts, grads) = ([1], [1.0; DIM]);
    let push = Push {
        table,
        client: 5,
        sequence: 1,
        continues: false,
        dim: 4,
        lr_scale: 1.0,
        keys: &[9],
        counts: &counts,
        grads: &grads,
    };
    let id = peer.send(&Request::Push(push)).unwrap();
    let waits = place.wait(|status| status.backlog > 0);
    assert_eq!(waits.in_sync(), 2, "a member that is needed stays in the record");
    place.start(other);
    let (found, answer) = peer.receive(|reply| matches!(reply, Reply::Push(_))).unwrap().unwrap();
    assert_eq!((found, answer), (id, Ok(true)));
}
