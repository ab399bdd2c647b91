//! Pulls from any replica: spread over primary and follower, answered by the follower while the primary is stopped, and
//! refused by a follower that has not heard its primary for too long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_client::{Cluster, ConnectOptions, PullFrom, RemoteTable};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

use super::{LONG, Place, ctl};

/// Clients, each with a replica of its own draw: all of them draw the same one in one of 2^23 tests.
const CLIENTS: usize = 24;
const KEYS: [u64; 3] = [1, 2, 3];

/// A client that pulls from any replica.
fn reader(place: &Place, timeout: Duration) -> RemoteTable {
    let options = ConnectOptions { pull_from: PullFrom::Any, timeout, ..ConnectOptions::default() };
    let cluster: Arc<Cluster> = Cluster::of(&place.keeper.url(), options).unwrap();
    RemoteTable::open(&cluster, "t").unwrap()
}

fn pull(table: &RemoteTable) -> Result<f32, sanderling_client::ClientError> {
    let mut rows = [0.0; KEYS.len()];
    table.pull(&KEYS, Absent::Zero, &mut rows, None)?;
    Ok(rows[0])
}

/// A table on the primary, to count pushes with.
fn counter(place: &Place) -> RemoteTable {
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    RemoteTable::create(&place.connect(), &TableConfig::single("t", 1, Init::Zero, sgd)).unwrap()
}

/// Pulls that each server has answered, by its number.
fn answered(place: &Place) -> Vec<(u64, u64)> {
    let view = ctl(&["cluster", "--registry", &place.keeper.url()]);
    let servers = view["servers"].as_array().unwrap().iter();
    let count = |server: &serde_json::Value| {
        let stats = ctl(&["--server", server["control"].as_str().unwrap(), "stats"]);
        let rows = stats["latencies"].as_array().unwrap().clone();
        let pulls = rows.iter().find(|row| row["command"] == "pull");
        (server["server"].as_u64().unwrap(), pulls.map_or(0, |row| row["count"].as_u64().unwrap()))
    };
    servers.map(count).collect()
}

#[test]
fn the_load_generator_finds_the_servers_of_a_cluster() {
    let place = Place::new(1);
    let words = ["load", "run", "ycsb_a", "--create", "-P", "keys=1000", "-n", "200", "--json", "--ps"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_sanderling"));
    let done = command.args(words).arg(place.keeper.url()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let of_kind = |kind: &str| {
        let view = ctl(&["cluster", "--registry", &place.keeper.url()]);
        let primary = view["servers"][0]["control"].as_str().unwrap().to_owned();
        let stats = ctl(&["--server", &primary, "stats"]);
        let rows = stats["latencies"].as_array().unwrap().clone();
        rows.iter().find(|row| row["command"] == kind).map_or(0, |row| row["count"].as_u64().unwrap())
    };
    assert!(of_kind("push") > 50 && of_kind("pull") > 50);
}

#[test]
fn a_backup_answers_pulls_while_its_primary_is_stopped() {
    let place = Place::with(1, "--pull-staleness 60s");
    let table = counter(&place);
    let readers: Vec<RemoteTable> = (0..CLIENTS).map(|_| reader(&place, LONG)).collect();
    for round in 1..=3 {
        table.push(&KEYS, &[-1.0; 3], PushScale::default()).unwrap();
        let start = Instant::now();
        for reader in &readers {
            // A follower has the push, and applies it within moments.
            while pull(reader).unwrap() < round as f32 {
                assert!(start.elapsed() < LONG, "push {round} does not come to a replica");
            }
        }
    }
    let before = answered(&place);
    assert_eq!(before.len(), 2);
    assert!(before.iter().all(|(_, pulls)| *pulls >= 3), "a replica answers no pulls: {before:?}");

    // Without the registry there is no failover: only a follower can answer.
    let record = place.settled(0, 0);
    let primary = place.at(&record, record.group.primary.server);
    place.keeper.signal("STOP");
    place.servers[primary].1.as_ref().unwrap().signal("STOP");
    let values: Vec<_> =
        readers.iter().map(|reader| pull(reader).map_err(|error| error.to_string())).collect();
    place.servers[primary].1.as_ref().unwrap().signal("CONT");
    place.keeper.signal("CONT");
    assert_eq!(values, vec![Ok(3.0); CLIENTS]);
}

#[test]
fn a_backup_that_has_not_heard_its_primary_refuses_pulls() {
    let place = Place::with(1, "--pull-staleness 0s");
    let table = counter(&place);
    table.push(&KEYS, &[-1.0; 3], PushScale::default()).unwrap();
    let readers: Vec<RemoteTable> = (0..CLIENTS).map(|_| reader(&place, LONG)).collect();
    // Connections that have drawn the follower fall back to the primary, and see every push.
    assert!(readers.iter().all(|reader| pull(reader).unwrap() == 1.0));

    let impatient = reader(&place, Duration::from_secs(2));
    let record = place.settled(0, 0);
    let primary = place.at(&record, record.group.primary.server);
    place.keeper.signal("STOP");
    place.servers[primary].1.as_ref().unwrap().signal("STOP");
    let value = pull(&impatient);
    place.servers[primary].1.as_ref().unwrap().signal("CONT");
    place.keeper.signal("CONT");
    assert!(value.is_err(), "{value:?}");
}

#[test]
fn pulls_from_any_replica_need_a_cluster() {
    let options = ConnectOptions { pull_from: PullFrom::Any, ..ConnectOptions::default() };
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}/socket", folder.path().display());
    let server = crate::process::Process::start_at(folder.path(), &listen, 1, "", "");
    let error = Cluster::connect(&server.addresses, options).unwrap_err().to_string();
    assert!(error.contains("need a cluster"), "{error}");
}
