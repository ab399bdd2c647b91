//! Many requests of one thread under way at once against the same ones one after the other in this process: what they
//! find and what they leave behind is the same, also when connections break; what fails is told to the slot that it was of.

use std::time::{Duration, Instant};

use crate::servers::{self, Misdeed};
use sanderling_client::{Answered, Call, ClientError, Pipeline, RemoteTable};
use sanderling_store::{Absent, Block, Init, Optimizer, Pooling, PushScale, Table, TableConfig};

/// Slots used at once; more than a server has room for, so that beginning must wait.
const SLOTS: usize = 150;
const DIM: usize = 3;
const KEYS: usize = 40;
const FOREVER: Duration = Duration::from_secs(60);

/// Ends all that is under way, by slot.
fn settle(pipeline: &mut Pipeline, count: usize) -> Vec<Option<Result<Answered, ClientError>>> {
    let mut results: Vec<Option<Result<Answered, ClientError>>> = (0..SLOTS).map(|_| None).collect();
    let (mut ended, until) = (0, Instant::now() + FOREVER);
    while ended < count {
        assert!(Instant::now() < until, "{ended} of {count} requests have ended");
        pipeline.poll(Some(until), |slot, _, result| {
            ended += 1;
            assert!(results[slot].replace(result).is_none(), "slot {slot} ended twice");
        });
    }
    results
}

/// Updates whose order does not matter, not even for the last bit.
fn config() -> TableConfig {
    let optimizer = Optimizer::Sgd { lr: 0.5, l2: 0.0 };
    TableConfig::new("t", vec![Block { dims: DIM, init: Init::Zero, optimizer }])
}

fn keys_of(round: usize, slot: usize) -> Vec<u64> {
    // With duplicates, some never pushed, and over all shards.
    (0..KEYS).map(|at| ((round * 31 + slot * 17 + at * at) % 900) as u64).collect()
}

/// What a request of this slot and round is, on servers and here; here, keys without a row.
fn both(pipeline: &mut Pipeline, local: &Table, round: usize, slot: usize, deletes: bool) -> Answered {
    let keys = &keys_of(round, slot)[..];
    let absent = Absent::Zero;
    let row_bytes =
        |rows: usize, answered: usize| Answered { missing: answered, row_bytes: (rows * DIM * 4) as u64 };
    let (call, expected) = match slot % 4 {
        0 => {
            let missing = local.pull(keys, absent, &mut [0.0; KEYS * DIM], None).unwrap();
            (Call::Pull { keys, absent }, row_bytes(KEYS, missing))
        }
        1 => {
            let grads = &[0.25; KEYS * DIM];
            local.push(keys, grads, PushScale::default()).unwrap();
            (Call::Push { keys, grads, scale: PushScale::default() }, Answered::default())
        }
        2 => {
            let (offsets, pooling) = (&[0, 7, 7, KEYS as u32], Pooling::Mean);
            let mut out = [0.0; 3 * DIM];
            let missing = local.pull_pooled(keys, None, offsets, pooling, absent, &mut out, None).unwrap();
            (Call::PullPooled { keys, offsets, pooling, absent }, row_bytes(3, missing))
        }
        // Where connections break, whether a removal was carried out is not known.
        _ => {
            let keys = &keys[..if deletes { 4 } else { 0 }];
            let missing = keys.iter().filter(|&&key| !local.remove(key)).count();
            pipeline.begin(slot, 0, &Call::Delete { keys }).unwrap();
            return row_bytes(0, missing);
        }
    };
    pipeline.begin(slot, 0, &call).unwrap();
    expected
}

fn check(kind: &str, shards: u32, misdeeds: &[Misdeed]) {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, kind, shards);
    let cluster = servers::connect(&servers, servers::options());
    let (remote, local) = (RemoteTable::create(&cluster, &config()).unwrap(), Table::new(config()).unwrap());
    let mut pipeline = cluster.pipeline().unwrap();
    pipeline.add(remote.clone());
    for round in 0..6 {
        servers.iter().for_each(|server| server.misbehave(misdeeds));
        let expected: Vec<Answered> =
            (0..SLOTS).map(|slot| both(&mut pipeline, &local, round, slot, misdeeds.is_empty())).collect();
        for (slot, (found, expected)) in settle(&mut pipeline, SLOTS).into_iter().zip(expected).enumerate() {
            let found = found.unwrap().unwrap();
            // What was refused or cut off comes later than its neighbours.
            let place = format!("{kind} {shards}, round {round}, slot {slot}");
            assert!(
                found.missing == expected.missing || !misdeeds.is_empty(),
                "{place}: {found:?} {expected:?}"
            );
            // Several servers each answer with rows of their part of the samples.
            assert!(found.row_bytes == expected.row_bytes || (shards > 1 && slot % 4 == 2));
        }
    }
    let mut keys: Vec<u64> = (0..900).collect();
    keys.push(u64::MAX);
    let (mut found, mut expected) = (vec![0.0; keys.len() * DIM], vec![0.0; keys.len() * DIM]);
    remote.pull(&keys, Absent::Init, &mut found, None).unwrap();
    local.pull(&keys, Absent::Init, &mut expected, None).unwrap();
    assert_eq!(found, expected);
}

#[test]
fn what_is_under_way_at_once_is_as_what_is_done_in_turn() {
    for (kind, shards, misdeeds) in [
        ("unix", 1, &[][..]),
        ("tcp", 3, &[]),
        ("tcp", 1, &[Misdeed::CutAfter, Misdeed::Damaged, Misdeed::CutBefore]),
        ("unix", 2, &[Misdeed::Busy, Misdeed::CutBefore, Misdeed::Goaway]),
    ] {
        check(kind, shards, misdeeds);
    }
}

#[test]
fn a_failure_is_of_its_slot() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "unix", 1);
    let cluster = servers::connect(&servers, servers::options());
    let remote = RemoteTable::create(&cluster, &config()).unwrap();
    let mut pipeline = cluster.pipeline().unwrap();
    pipeline.add(remote);
    servers[0].misbehave(&[Misdeed::Short]);
    for slot in 0..3 {
        pipeline.begin(slot, 0, &Call::Pull { keys: &[1, 2], absent: Absent::Zero }).unwrap();
    }
    let results = settle(&mut pipeline, 3);
    let kinds: Vec<bool> = results[..3].iter().map(|result| result.as_ref().unwrap().is_ok()).collect();
    assert_eq!(kinds, [false, true, true]);
    // Refused before anything is sent, and the slot is free again.
    let grads = &[f32::NAN; DIM];
    let bad = pipeline.begin(0, 0, &Call::Push { keys: &[5], grads, scale: PushScale::default() });
    assert!(bad.unwrap_err().to_string().contains("key 5"));
    // Nothing to ask is answered at once.
    pipeline.begin(0, 0, &Call::Delete { keys: &[] }).unwrap();
    assert_eq!(settle(&mut pipeline, 1)[0].take().unwrap().unwrap(), Answered::default());
    // Without a time it does not wait.
    pipeline.poll(None, |slot, _, _| panic!("slot {slot} has no request"));
}

/// More keys than a message may have.
#[test]
fn pooled_rows_of_many_keys_are_asked_for_in_several_messages() {
    let folder = tempfile::tempdir().unwrap();
    let servers = servers::start(&folder, "unix", 1);
    let cluster = servers::connect(&servers, servers::options());
    let mut pipeline = cluster.pipeline().unwrap();
    let table = pipeline.add(RemoteTable::create(&cluster, &config()).unwrap());
    let keys: Vec<u64> = (0..1_200_000).collect();
    let offsets: Vec<u32> = (0..=30_000).map(|sample| sample * 40).collect();
    let (pooling, absent) = (Pooling::Sum, Absent::Zero);
    let call = Call::PullPooled { keys: &keys, offsets: &offsets, pooling, absent };
    pipeline.begin(0, table, &call).unwrap();
    assert_eq!(settle(&mut pipeline, 1)[0].take().unwrap().unwrap().missing, keys.len());
}
