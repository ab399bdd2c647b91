//! A replica of a cluster whose slots move: it has the rows of the group that has their slots, though the streams of two
//! groups tell of them. The servers are as small as they can be: they tell of the rows that a test gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_client::{Address, Cluster, ConnectOptions};
use sanderling_serve::{FollowOptions, ReplicaConfig, ReplicaSource, ServedModel};
use sanderling_testkit::TestRegistry;
use sanderling_transport::{Connection, Framing, ListenOptions, Listener, Stopper};
use sanderling_wire::{
    self as wire, Agreed, Buffer, Changes, ChangesPlace, Failure, Fault, Features, Frame, HEADER_BYTES, Home,
    Identity, Offer, Parsed, PlacementMap, Reply, Request, RowValues, TableInfo, limit, slot_of,
};
use serde_json::json;

use crate::fixture::{Served, Trained, examples, numbers};
use crate::replica::wait;

const SLOTS: u32 = 8;
const KEYS: u64 = 64;
const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| wire::body_bytes(header.try_into().unwrap()).map_err(|error| error.to_string()),
    frame_bytes_max: limit::FRAME_BYTES_MAX,
};
/// Keys of a page.
const PAGE: usize = 4;
/// Number of the table whose rows a test gives; all others are empty.
const USERS: u32 = 1;

#[derive(Debug, Default)]
struct Rows {
    rows: BTreeMap<u64, f32>,
    /// Keys that changed since the last drain.
    changed: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct State {
    rows: Mutex<Rows>,
    exports: AtomicU64,
    /// Whether exports stop after their first page.
    holds: AtomicBool,
}

/// The server of a group.
struct Server {
    address: Address,
    state: Arc<State>,
    stopper: Stopper,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(folder: &tempfile::TempDir, group: u32) -> Server {
        let address = format!("unix:{}/{group}", folder.path().display()).parse().unwrap();
        let listener = Listener::bind(&address, &ListenOptions::new(FRAMING)).unwrap();
        let (address, stopper) = (listener.address().clone(), listener.stopper());
        let (state, stops) = (Arc::<State>::default(), Arc::<AtomicBool>::default());
        let shared = (Arc::clone(&state), Arc::clone(&stops));
        let thread = std::thread::spawn(move || {
            while let Some(connection) = listener.accept().unwrap() {
                let (state, stops) = (Arc::clone(&shared.0), Arc::clone(&shared.1));
                std::thread::spawn(move || talk(connection, group, &state, &stops));
            }
        });
        Server { address, state, stopper, stops, thread: Some(thread) }
    }

    /// Writes a row, or removes it.
    fn set(&self, key: u64, value: Option<f32>) {
        let mut rows = self.state.rows.lock().unwrap();
        rows.changed.insert(key);
        match value {
            Some(value) => _ = rows.rows.insert(key, value),
            None => _ = rows.rows.remove(&key),
        }
    }

    fn exports(&self) -> u64 {
        self.state.exports.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn talk(mut connection: Connection, group: u32, state: &State, stops: &AtomicBool) {
    let (mut agreed, mut out) = (Agreed::BEFORE_HELLO, Buffer::new(limit::FRAME_BYTES_MAX));
    // The client may go whenever it likes.
    while let Ok(Some(bytes)) = connection.receiver.receive(None) {
        let Parsed::Frame(frame) = Frame::parse(bytes, &agreed).unwrap() else { panic!("part of a frame") };
        let (id, request) = (frame.header.id, Request::decode(&frame).unwrap());
        if stops.load(Ordering::Relaxed) {
            return;
        }
        out.clear();
        let before = agreed;
        answer(group, state, &request, &mut agreed, |reply| {
            // A hello is answered by the terms before it.
            out.append(|out| reply.encode(&before, id, out)).unwrap();
        });
        connection.sender.frame(out.len()).unwrap().write(out.bytes());
        if connection.sender.flush().is_err() {
            return;
        }
    }
}

fn answer(
    group: u32,
    state: &State,
    request: &Request<'_>,
    agreed: &mut Agreed,
    mut reply: impl FnMut(&Reply<'_>),
) {
    match request {
        Request::Hello(hello) => {
            *agreed = Offer::of(Features::CHANGES).meet(&hello.offer).unwrap();
            reply(&Reply::Hello(Identity {
                agreed: *agreed,
                in_flight_max: 8,
                shard: group,
                shards: group + 1,
                server_id: group.into(),
                boot_id: u64::from(group) + 1,
                host_id: 0,
                placement_version: 0,
                history_id: 0,
                name: "test",
                local_url: "",
            }));
        }
        Request::Placement => {
            reply(&Reply::Placement(PlacementMap { version: 0, servers: Vec::new(), slots: &[] }));
        }
        Request::Open(name) => reply(&Reply::Open(TableInfo {
            table: if name.ends_with("/user") { USERS } else { USERS + 1 },
            home: Home::Sharded,
            dim: 1,
            state: 0,
            rows: 0,
            bytes: 0,
            name,
            config: "{}",
        })),
        Request::Changes(changes) => page(state, changes, reply),
        other => {
            let fault = Fault::BadRequest;
            reply(&Reply::Failed(Failure { kind: other.kind(), fault, reason: "not for this server" }));
        }
    }
}

/// An export of all rows, in pages, or the changes since the last drain.
fn page(state: &State, changes: &Changes, mut reply: impl FnMut(&Reply<'_>)) {
    let done = ChangesPlace { since: 1, until: 1, cursor: 0 };
    let (mut keys, mut values, mut removed, mut next) = (Vec::new(), Vec::new(), Vec::new(), done);
    if changes.table == USERS {
        let is_export = changes.place.since == 0;
        if is_export && changes.place.cursor == 0 {
            state.exports.fetch_add(1, Ordering::Relaxed);
        }
        while is_export && changes.place.cursor > 0 && state.holds.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut rows = state.rows.lock().unwrap();
        if is_export {
            // Changes during an export are told afterwards, as those of a real server.
            let from = changes.place.cursor;
            for (&key, &value) in rows.rows.range(from..).take(PAGE) {
                keys.push(key);
                values.push(value);
            }
            if let Some(&last) = keys.last().filter(|_| keys.len() == PAGE) {
                next = ChangesPlace { since: 0, until: 1, cursor: last + 1 };
            }
        } else {
            for key in std::mem::take(&mut rows.changed) {
                match rows.rows.get(&key) {
                    Some(&value) => {
                        keys.push(key);
                        values.push(value);
                    }
                    None => removed.push(key),
                }
            }
        }
    }
    reply(&Reply::Changes(wire::ChangedRows {
        next,
        age_us: 0,
        has_more: false,
        dim: 1,
        keys: &keys,
        values: RowValues::F32(&values),
        removed: &removed,
    }));
}

fn slot(key: u64) -> u32 {
    slot_of(key, SLOTS as usize) as u32
}

/// By key, the row that a replica has.
fn rows_of(served: &Served) -> BTreeMap<u64, f32> {
    let keys: Vec<u64> = (0..KEYS).collect();
    let found = served.json("/tables/user/rows", Some(&json!({ "keys": keys })));
    let rows = found["rows"].as_array().unwrap().iter().filter(|row| row["found"] == true);
    rows.map(|row| (row["key"].as_u64().unwrap(), numbers(&row["weights"])[0] as f32)).collect()
}

fn expect(served: &Served, what: &str, expected: &BTreeMap<u64, f32>) {
    wait(what, || rows_of(served) == *expected);
    // And they stay.
    served.catch_up();
    assert_eq!(rows_of(served), *expected, "{what}");
}

fn sources(served: &Served) -> usize {
    served.health()["replica"]["sources"].as_array().unwrap().len()
}

#[test]
fn rows_are_those_of_the_group_that_has_their_slot() {
    let folder = tempfile::tempdir().unwrap();
    let trained = Trained::at("lr", 1, &examples(50), None);
    let registry = TestRegistry::default();
    let mut servers: Vec<Server> = Vec::new();
    let add = |servers: &mut Vec<Server>| {
        let group = servers.len() as u32;
        servers.push(Server::start(&folder, group));
        registry.add_group(SLOTS, group, &servers[servers.len() - 1].address.to_string());
    };
    add(&mut servers);
    add(&mut servers);
    let mut groups: Vec<u32> = (0..SLOTS).map(|slot| slot * 2 / SLOTS).collect();
    let mut expected: BTreeMap<u64, f32> = (0..KEYS).map(|key| (key, 1.0)).collect();
    for key in 0..KEYS {
        servers[groups[slot(key) as usize] as usize].set(key, Some(1.0));
    }
    registry.place(1, &groups);
    let options = ConnectOptions { prefer_local: false, ..ConnectOptions::default() };
    let cluster = Cluster::in_registry(registry.registry(), options).unwrap();
    let served = Served::new([]);
    let config = ReplicaConfig {
        source: ReplicaSource::Servers { cluster, start: None },
        fresh: Duration::from_millis(5),
        stale_after: Duration::from_secs(60),
        memory_bytes_max: None,
    };
    let model = ServedModel::to_follow(&trained.path, None, 1, &FollowOptions::default()).unwrap();
    served.server.follow_source(config, Arc::new(model), |_| ()).unwrap();
    wait("it is not served", || served.server.is_ready());
    expect(&served, "all rows are here", &expected);
    let exports = [servers[0].exports(), servers[1].exports()];

    // The rows of slot 0 are copied to the other group, which has another row for one of them meanwhile.
    let moving: Vec<u64> = (0..KEYS).filter(|&key| slot(key) == 0).collect();
    moving.iter().for_each(|&key| servers[1].set(key, Some(7.0)));
    expect(&served, "copies count at the group that has the slot", &expected);
    servers[0].set(moving[0], Some(2.0));
    servers[0].set(moving[1], None);
    expected.insert(moving[0], 2.0);
    expected.remove(&moving[1]);
    expect(&served, "the group that has the slot changes it", &expected);
    // It is handed over. One row is removed there before the replica learns of it, and the former group removes all.
    servers[1].set(moving[1], None);
    servers[1].set(moving[2], None);
    groups[0] = 1;
    registry.place(2, &groups);
    moving.iter().for_each(|&key| _ = expected.insert(key, 7.0));
    moving[1..3].iter().for_each(|key| _ = expected.remove(key));
    expect(&served, "the rows are those of the group that got the slot", &expected);
    moving.iter().for_each(|&key| servers[0].set(key, None));
    expect(&served, "removals at the former group count for nothing", &expected);
    servers[1].set(moving[3], Some(9.0));
    expected.insert(moving[3], 9.0);
    expect(&served, "changes at the new group count", &expected);
    // A group that has not gained slots exports nothing anew.
    assert_eq!([servers[0].exports(), servers[1].exports()], [exports[0], exports[1] + 1]);

    // A third group gets all slots of the first one, which ends.
    add(&mut servers);
    for key in (0..KEYS).filter(|&key| groups[slot(key) as usize] == 0) {
        servers[2].set(key, Some(3.0));
        expected.insert(key, 3.0);
    }
    groups.iter_mut().filter(|group| **group == 0).for_each(|group| *group = 2);
    registry.place(3, &groups);
    expect(&served, "the rows are those of the new group", &expected);
    wait("the group without slots is followed", || sources(&served) == 2);
    servers[0].stops.store(true, Ordering::Relaxed);
    expect(&served, "the first group is not needed", &expected);
    assert_eq!(served.health()["replica"]["stale"], false);

    // A group gets slots while it exports its rows because it got others.
    let (one, other) = (1, 2);
    assert_eq!((groups[one], groups[other]), (2, 2));
    for key in (0..KEYS).filter(|&key| [one, other].contains(&(slot(key) as usize))) {
        servers[1].set(key, Some(4.0));
        expected.insert(key, 4.0);
    }
    servers[1].state.holds.store(true, Ordering::Relaxed);
    let before = servers[1].exports();
    groups[one] = 1;
    registry.place(4, &groups);
    wait("it exports nothing", || servers[1].exports() > before);
    groups[other] = 1;
    registry.place(5, &groups);
    std::thread::sleep(Duration::from_millis(50));
    servers[1].state.holds.store(false, Ordering::Relaxed);
    expect(&served, "the rows of both slots are here", &expected);
}
