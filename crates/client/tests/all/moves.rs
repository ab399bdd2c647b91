//! Slots of keys that move between the groups of a cluster, under clients that go on: every answer is as if all rows were
//! in one table in this process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::servers::options;
use crate::servers::placed::{Groups, SLOTS};
use sanderling_client::{
    Answered, Call, Client, Cluster, ConnectOptions, Hedge, Notice, OnWait, RemoteTable, RowBlock,
};
use sanderling_registry::PLACEMENT;
use sanderling_sample::{Batch, Rows};
use sanderling_store::{Absent, Init, Optimizer, Pooling, PushScale, Table, TableConfig, WholeRows};
use sanderling_wire::slot_of;
use serde_json::json;

const DIM: usize = 2;
/// Between two steps of a move.
const STEP: Duration = Duration::from_millis(8);

/// Whole numbers stay whole, so that sums are exact in any order.
fn config() -> TableConfig {
    TableConfig::single("t", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 })
}

fn impatient() -> ConnectOptions {
    ConnectOptions { timeout: Duration::from_secs(1), ..options() }
}

/// The parties of a move, in the order in which they learn of it: a server that gives slots away, the clients, a server
/// that gets slots.
#[derive(Debug, Clone, Copy)]
enum Learns {
    Giver,
    Clients,
    Receiver,
}

/// In every order the giver takes no requests any more when the receiver begins to.
const ORDERS: [[Learns; 3]; 3] = [
    [Learns::Giver, Learns::Receiver, Learns::Clients],
    [Learns::Giver, Learns::Clients, Learns::Receiver],
    [Learns::Clients, Learns::Giver, Learns::Receiver],
];

/// Moves slots back and forth, to a third group, and off the first one.
fn move_slots(groups: &mut Groups, folder: &tempfile::TempDir, has_third: bool) {
    type Move = (&'static [usize], fn(u32, u32) -> u32, &'static [usize]);
    // Servers that give and get slots give theirs last: then the rows that they get are there.
    let moves: [Move; 5] = [
        (&[0], |slot, group| if slot % 2 == 0 { 1 } else { group }, &[1]),
        (&[1], |slot, _| slot * 2 / SLOTS, &[0]),
        (&[0, 1], |slot, group| if slot % 3 == 0 { 2 } else { group }, &[2]),
        (&[0], |_, group| group.max(1), &[1]),
        (&[2, 1], |slot, _| slot * 2 / SLOTS, &[0]),
    ];
    for order in ORDERS {
        for (givers, group_of, receivers) in moves {
            if groups.servers.len() == 2 && receivers == [2] {
                if !has_third {
                    continue;
                }
                groups.add(folder);
            }
            groups.place(group_of);
            for learns in order {
                match learns {
                    Learns::Giver => givers.iter().for_each(|&server| groups.tell(server)),
                    Learns::Clients => groups.publish(),
                    Learns::Receiver => receivers.iter().for_each(|&server| groups.tell(server)),
                }
                std::thread::sleep(STEP);
            }
            // All others.
            (0..groups.servers.len()).for_each(|server| groups.tell(server));
        }
    }
}

/// Works while slots move, and once more.
fn while_slots_move(has_third: bool, options: ConnectOptions, mut work: impl FnMut(&Arc<Cluster>, usize)) {
    let folder = tempfile::tempdir().unwrap();
    let mut groups = Groups::start(&folder, 2);
    let cluster = groups.connect(options);
    work(&cluster, 0);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| move_slots(&mut groups, &folder, has_third));
        (1..).take_while(|_| !mover.is_finished()).for_each(|round| work(&cluster, round));
        mover.join().unwrap();
    });
    work(&cluster, usize::MAX);
}

fn keys_of(round: usize) -> Vec<u64> {
    (0..48_u64).map(|at| (round as u64).wrapping_mul(31).wrapping_add(at * at * 7) % 257).collect()
}

fn pull(remote: &RemoteTable, local: &Table, keys: &[u64]) {
    let rows = || (vec![9.0; keys.len() * DIM], vec![9]);
    let ((mut a, mut missing_a), (mut b, mut missing_b)) = (rows(), rows());
    let found_a = remote.pull(keys, Absent::Zero, &mut a, Some(&mut missing_a)).unwrap();
    let found_b = local.pull(keys, Absent::Zero, &mut b, Some(&mut missing_b)).unwrap();
    assert_eq!((found_a, missing_a, a), (found_b, missing_b, b));
}

fn pull_pooled(remote: &RemoteTable, local: &Table, keys: &[u64], pooling: Pooling) {
    let offsets = [0, 1, 1, 20, keys.len() as u32];
    let values: Vec<f32> = (0..keys.len()).map(|at| (at % 5) as f32 - 1.5).collect();
    let values = Some(&values[..]).filter(|_| pooling == Pooling::Sum);
    let rows = || (vec![9.0; 4 * DIM], vec![9]);
    let ((mut a, mut missing_a), (mut b, mut missing_b)) = (rows(), rows());
    let absent = Absent::Zero;
    let found_a =
        remote.pull_pooled(keys, values, &offsets, pooling, absent, &mut a, Some(&mut missing_a)).unwrap();
    let found_b =
        local.pull_pooled(keys, values, &offsets, pooling, absent, &mut b, Some(&mut missing_b)).unwrap();
    assert_eq!((found_a, missing_a), (found_b, missing_b));
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs()), "{a:?} {b:?}");
}

fn push(remote: &RemoteTable, local: &Table, keys: &[u64]) {
    let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at % 7) as f32 - 3.0).collect();
    remote.push(keys, &grads, PushScale::default()).unwrap();
    local.push(keys, &grads, PushScale::default()).unwrap();
}

fn remove(remote: &RemoteTable, local: &Table, keys: &[u64]) {
    let gone = keys.iter().filter(|key| local.remove(**key)).count();
    assert_eq!(remote.remove(keys).unwrap(), gone as u64);
}

fn import(remote: &RemoteTable, local: &Table, keys: &[u64]) {
    let mut keys = keys.to_vec();
    keys.sort_unstable();
    keys.dedup();
    let numbers: Vec<u32> = keys.iter().map(|&key| key as u32 + 1).collect();
    let weights: Vec<f32> = (0..keys.len() * DIM).map(|at| (at % 11) as f32).collect();
    let (keys, weights, states) = (&keys[..], &weights[..], &[][..]);
    let (frequencies, last_uses, versions) = (&numbers[..], &numbers[..], &numbers[..]);
    local.import(WholeRows { keys, frequencies, last_uses, versions, weights, states }).unwrap();
    let (dim, state) = (DIM as u32, 0);
    remote.import(&RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states }).unwrap();
}

/// By key, what its row is on servers.
fn rows_of(remote: &RemoteTable) -> BTreeMap<u64, (Vec<f32>, u32, u32)> {
    let mut rows = BTreeMap::new();
    remote
        .export(|block| {
            for (at, &key) in block.keys.iter().enumerate() {
                let weights = block.weights[at * DIM..(at + 1) * DIM].to_vec();
                let row = (weights, block.frequencies[at], block.versions[at]);
                assert!(rows.insert(key, row).is_none(), "key {key} is there twice");
            }
        })
        .unwrap();
    rows
}

fn check_answers(options: ConnectOptions) {
    let (mut remote, local) = (None, Table::new(config()).unwrap());
    while_slots_move(true, options, |cluster, round| {
        let remote = remote.get_or_insert_with(|| RemoteTable::create(cluster, &config()).unwrap());
        let keys = keys_of(round);
        match round % 7 {
            0 | 3 => push(remote, &local, &keys),
            1 => pull_pooled(remote, &local, &keys, Pooling::Sum),
            2 => pull_pooled(remote, &local, &keys, Pooling::Mean),
            4 => remove(remote, &local, &keys[..9]),
            5 => import(remote, &local, &keys[..20]),
            _ => {}
        }
        pull(remote, &local, &keys);
    });
    let remote = remote.unwrap();
    let mut expected = BTreeMap::new();
    local.for_each_row(|row| {
        let row = local.get(row.key).unwrap();
        expected.insert(row.key, (row.weights.clone(), row.frequency, row.version));
    });
    assert_eq!(rows_of(&remote), expected);
    assert_eq!(remote.size().unwrap().0, local.len() as u64);
    assert_eq!(remote.cluster().shards(), [0, 1]);
    assert_eq!(remote.clear().unwrap(), local.len() as u64);
}

#[test]
fn answers_are_those_of_one_table_while_slots_move() {
    check_answers(options());
}

#[test]
fn answers_are_those_of_one_table_while_slots_move_and_pulls_are_hedged() {
    check_answers(ConnectOptions { hedge: Some(Hedge::After(Duration::from_micros(100))), ..options() });
}

#[test]
fn a_pull_sees_the_pushes_before_it_wherever_their_keys_went() {
    let mut batch = Batch::new(&[false]);
    (0..40).for_each(|key| batch.columns[0].push(key, 1.0));
    batch.close_row(0.0, 1.0);
    let (mut of, mut pushes) = (None, 0);
    while_slots_move(true, options(), |cluster, _| {
        let (client, lookup) = of.get_or_insert_with(|| {
            let table = RemoteTable::create(cluster, &config()).unwrap();
            let client = Client::remote(vec![("t".to_owned(), table)], [("a", "t")], None).unwrap();
            let lookup = client.lookup();
            (client, lookup)
        });
        client.pull(&Rows::new(&batch, 0..1), Absent::Zero, lookup).unwrap();
        let (_, rows, grads) = lookup.backward(0);
        assert!(rows.iter().all(|&weight| weight == pushes as f32), "{pushes} pushes, {rows:?}");
        grads.fill(-1.0);
        client.begin_push(lookup, PushScale::default()).unwrap();
        pushes += 1;
    });
}

#[test]
fn requests_of_a_pipeline_end_once_each_while_slots_move() {
    let local = Table::new(config()).unwrap();
    let mut of = None;
    while_slots_move(true, options(), |cluster, round| {
        let pipeline = of.get_or_insert_with(|| {
            let mut pipeline = cluster.pipeline().unwrap();
            pipeline.add(RemoteTable::create(cluster, &config()).unwrap());
            pipeline
        });
        // All of a kind at once, so that the order does not matter.
        let all: Vec<Vec<u64>> = (0..8).map(|slot| keys_of(round.wrapping_add(slot))).collect();
        let (grads, scale) = (&[1.0; 48 * DIM], PushScale::default());
        let mut expected = vec![Answered::default(); all.len()];
        let calls: Vec<Call<'_>> = match round % 3 {
            0 => {
                all.iter().for_each(|keys| local.push(keys, grads, scale).unwrap());
                all.iter().map(|keys| Call::Push { keys, grads, scale }).collect()
            }
            1 => {
                for (expected, keys) in expected.iter_mut().zip(&all) {
                    let mut rows = [0.0; 48 * DIM];
                    expected.missing = local.pull(keys, Absent::Zero, &mut rows, None).unwrap();
                    expected.row_bytes = size_of_val(&rows) as u64;
                }
                all.iter().map(|keys| Call::Pull { keys, absent: Absent::Zero }).collect()
            }
            _ => {
                let keys = &all[0];
                let gone = keys.iter().filter(|key| local.remove(**key)).count();
                expected = vec![Answered { missing: keys.len() - gone, row_bytes: 0 }];
                vec![Call::Delete { keys }]
            }
        };
        for (slot, call) in calls.iter().enumerate() {
            pipeline.begin(slot, 0, call).unwrap();
        }
        let (mut found, until) = (vec![None; calls.len()], Instant::now() + Duration::from_secs(60));
        while found.contains(&None) {
            assert!(Instant::now() < until, "{found:?}");
            pipeline.poll(Some(until), |slot, _, result| {
                assert!(found[slot].replace(result.unwrap()).is_none(), "slot {slot} ended twice");
            });
        }
        assert_eq!(found, expected.into_iter().map(Some).collect::<Vec<_>>());
    });
}

/// Keys that are in slots of the first half, which group 0 has of two, and of the second.
fn halves() -> (Vec<u64>, Vec<u64>) {
    (0..100).partition(|&key| slot_of(key, SLOTS as usize) < SLOTS as usize / 2)
}

#[test]
fn a_push_that_is_split_has_numbers_of_its_own_and_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut groups = Groups::start(&folder, 2);
    let cluster = groups.connect(options());
    let table = RemoteTable::create(&cluster, &config()).unwrap();
    let (first, second) = halves();
    let keys = [first[0], first[1], first[2], second[0]];
    let moved = slot_of(first[0], SLOTS as usize) as u32;
    assert!(keys[1..].iter().all(|&key| slot_of(key, SLOTS as usize) as u32 != moved));
    groups.place(|slot, group| if slot == moved { 1 } else { group });
    (0..2).for_each(|server| groups.tell(server));
    std::thread::scope(|scope| {
        let push = scope.spawn(|| table.push(&keys, &[-1.0; 4 * DIM], PushScale::default()));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!push.is_finished());
        groups.publish();
        push.join().unwrap().unwrap();
    });
    let sequences = |server: usize| groups.servers[server].memory.sequences.lock().unwrap().clone();
    // The first number of group 0 was refused. Group 1 has counted the push by the key that it had already.
    assert_eq!((sequences(0), sequences(1)), (vec![(2, false)], vec![(1, false), (2, true)]));
    let mut rows = [0.0; 4 * DIM];
    table.pull(&keys, Absent::Zero, &mut rows, None).unwrap();
    assert_eq!(rows, [1.0; 4 * DIM]);
}

#[test]
fn a_placement_is_waited_for_as_long_as_a_request_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let mut groups = Groups::start(&folder, 2);
    let cluster = groups.connect(impatient());
    let table = RemoteTable::create(&cluster, &config()).unwrap();
    let (keys, _) = halves();
    groups.place(|_, _| 1);
    (0..2).for_each(|server| groups.tell(server));
    let numbers = vec![1; keys.len()];
    let weights = vec![1.0; keys.len() * DIM];
    let block = RowBlock {
        dim: DIM as u32,
        state: 0,
        keys: &keys,
        frequencies: &numbers,
        last_uses: &numbers,
        versions: &numbers,
        weights: &weights,
        states: &[],
    };
    let mut rows = weights.clone();
    let offsets = [0, keys.len() as u32];
    type Deed<'a> = (&'a str, Box<dyn FnMut() -> Result<(), sanderling_client::ClientError> + 'a>);
    let deeds: [Deed<'_>; 4] = [
        ("push", Box::new(|| table.push(&keys, &weights, PushScale::default()))),
        ("remove", Box::new(|| table.remove(&keys).map(|_| ()))),
        ("import", Box::new(|| table.import(&block))),
        (
            "pull",
            Box::new(|| {
                table.pull(&keys, Absent::Zero, &mut rows, None)?;
                let row = &mut rows[..DIM];
                table.pull_pooled(&keys, None, &offsets, Pooling::Sum, Absent::Zero, row, None).map(|_| ())
            }),
        ),
    ];
    let mut deeds = deeds.map(|(name, mut deed)| {
        let text = deed().unwrap_err().to_string();
        let expected = ["group 0 of memory", "table \"t\"", "no answer within 1s", "placement", "moved"];
        assert!(expected.iter().all(|part| text.contains(part)), "{name}: {text}");
        deed
    });
    groups.publish();
    deeds.iter_mut().for_each(|deed| deed().unwrap());
}

#[test]
fn a_group_that_gets_a_table_later_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut groups = Groups::start(&folder, 1);
    let cluster = groups.connect(options());
    let budgeted = TableConfig { budget_bytes: Some(4 << 20), ..config() };
    let table = RemoteTable::create(&cluster, &budgeted).unwrap();
    // The means of one group are divided by the client, too.
    let local = Table::new(config()).unwrap();
    let keys = keys_of(1);
    push(&table, &local, &keys);
    pull_pooled(&table, &local, &keys, Pooling::Mean);
    remove(&table, &local, &keys);
    groups.add(&folder);
    groups.makes_tables = false;
    groups.place(|_, _| 1);
    (0..2).for_each(|server| groups.tell(server));
    groups.publish();
    std::thread::scope(|scope| {
        let pushed = scope.spawn(|| push(&table, &local, &keys));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!pushed.is_finished());
        groups.make_table(1);
        join(pushed);
    });
    pull(&table, &local, &keys);
    // A table that is made now is at the groups that have slots.
    RemoteTable::create(&cluster, &TableConfig { name: "u".to_owned(), ..config() }).unwrap();
    let names = |server: usize| {
        let tables = groups.servers[server].memory.tables.lock().unwrap().clone();
        tables.iter().map(|table| table.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((names(0), names(1)), (vec!["t".to_owned()], vec!["t".to_owned(), "u".to_owned()]));
    // With two groups each would get half of the budget. The table that is there has its own.
    groups.place(|slot, _| slot % 2);
    (0..2).rev().for_each(|server| groups.tell(server));
    groups.publish();
    let later = groups.connect(options());
    assert_eq!(later.shards(), [0, 1]);
    pull(&RemoteTable::create(&later, &budgeted).unwrap(), &local, &keys);
    let other = TableConfig::single("t", DIM + 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let text = RemoteTable::create(&later, &other).unwrap_err().to_string();
    assert!(text.contains("table \"t\""), "{text}");
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap()
}

#[test]
fn a_save_waits_for_moves_and_is_repeated_when_one_began_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let mut groups = Groups::start(&folder, 2);
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let on_wait = OnWait::new(move |notice| tell.lock().unwrap().push(notice.clone()));
    let cluster = groups.connect(ConnectOptions { on_wait: Some(on_wait), ..options() });
    let long = Duration::from_secs(60);
    let save = |name: &str, timeout: Duration| cluster.save(name, timeout).map(|size| size.rows);
    assert_eq!(save("a", long).unwrap(), 4);

    // A move that does not end.
    let moving = json!({
        "version": 2, "slots": SLOTS, "runs": [{ "first": 0, "group": 0 }, { "first": 32, "group": 1 }],
        "moves": [{ "id": 1, "from": 0, "to": 1, "slots": [{ "first": 0, "count": 1 }], "state": "copying" }],
    });
    groups.registry.put(PLACEMENT, moving);
    let text = save("b", Duration::from_millis(200)).unwrap_err().to_string();
    assert!(
        text.contains("1 moves of slots have not ended within 200ms; see sanderling ctl cluster"),
        "{text}"
    );
    assert!(!groups.servers[0].memory.saves.lock().unwrap().contains_key("b"));
    // It ends after a while.
    std::thread::scope(|scope| {
        let saved = scope.spawn(|| save("b", long));
        while told.lock().unwrap().is_empty() {
            std::thread::sleep(STEP);
        }
        assert!(!saved.is_finished());
        groups.placement.version = 3;
        groups.publish();
        assert_eq!(join(saved).unwrap(), 4);
    });
    let told = told.lock().unwrap().clone();
    assert!(matches!(&told[0], Notice::Moving { moves: 1, cluster, .. } if cluster == "memory"), "{told:?}");
    assert!(told[0].to_string().contains("for 1 moves of slots to end"));

    // A move begins and ends during each save, or during the first one only.
    groups.servers[0].memory.save_ms.store(100, Ordering::Relaxed);
    for (versions, is_saved) in [(1, true), (u64::MAX, false)] {
        std::thread::scope(|scope| {
            let saved = scope.spawn(|| save("c", long));
            for _ in 0..versions {
                if saved.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
                groups.placement.version += 1;
                groups.publish();
            }
            match join(saved) {
                Ok(rows) => assert!(is_saved && rows == 4),
                Err(error) => assert!(!is_saved && error.to_string().contains("each of 3 saves"), "{error}"),
            }
        });
    }
}
