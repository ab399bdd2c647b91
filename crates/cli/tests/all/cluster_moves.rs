//! Slots and pinned tables that move between the groups of a cluster under pushes: a group is added and another one
//! drained, and primaries are killed while rows are on their way. SANDERLING_KILLS sets the number of kills.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sanderling_client::RemoteTable;
use sanderling_registry::{Edit, PinnedPlace, Placement, PlannedMove, begin_moves, layout, member_name};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};
use serde_json::{Value, json};

use crate::cluster::{LONG, Place, Pushed, disturbances, drill, drill_with, report};

pub(crate) fn ctl(place: &Place, words: &[&str]) -> Value {
    let (is_done, text, errors) = try_ctl(place, words);
    assert!(is_done, "{words:?}: {text}{errors}");
    serde_json::from_str(&text).unwrap()
}

/// Whether a command has succeeded, and what it said.
fn try_ctl(place: &Place, words: &[&str]) -> (bool, String, String) {
    let program = env!("CARGO_BIN_EXE_sanderling");
    let mut command = Command::new(program);
    command.args(["ctl", "--json"]).args(words).args(["--registry", &place.keeper.url()]);
    let done = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.success(), text(done.stdout), text(done.stderr))
}

/// Slots of each group.
pub(crate) fn shares(place: &Place, groups: u32) -> Vec<usize> {
    let placement = layout(&*place.registry).unwrap().1.groups();
    (0..groups).map(|group| placement.iter().filter(|of| **of == group).count()).collect()
}

#[test]
fn a_group_is_added_and_another_one_drained_under_pushes() {
    // Equal numbers of slots, whatever the load is.
    let mut place = Place::with(2, "--rebalance off");
    drill(&mut place, |place, pushed| {
        pushed.wait(20);
        let plan = ctl(place, &["rebalance", "--plan"]);
        assert_eq!(plan["moves"], serde_json::json!([]), "{plan}");
        assert_eq!(ctl(place, &["groups", "add"])["group"], 2);
        for at in 4..6 {
            place.servers.push(("127.0.0.1:0".to_owned(), None));
            place.start(at);
        }
        place.settled(2, 0);
        assert_eq!(shares(place, 3), [2048, 2048, 0]);
        pushed.gap_us.store(0, Ordering::Relaxed);
        let moved = ctl(place, &["rebalance", "--yes"]);
        assert_eq!(moved["moves"].as_array().unwrap().len(), 2, "{moved}");
        assert_eq!(shares(place, 3), [1366, 1365, 1365]);
        pushed.wait(40);
        let mut gaps = vec![pushed.gap_us.swap(0, Ordering::Relaxed)];
        ctl(place, &["groups", "drain", "0"]);
        assert_eq!(shares(place, 3), [0, 2048, 2048]);
        pushed.wait(40);
        gaps.push(pushed.gap_us.load(Ordering::Relaxed));
        // Clients need the drained group no more.
        place.kill_group(0);
        pushed.wait(40);
        report("slots of a group moved", &mut gaps);
    });
    let view = ctl(&place, &["cluster"]);
    assert_eq!((&view["groups"], &view["moves"]), (&serde_json::json!(3), &serde_json::json!([])));
}

/// The whole rows of a table, in the order of keys: key, use, version, weights and optimizer state.
type Rows = Vec<(u64, [u32; 3], Vec<u32>)>;

fn whole_rows(table: &RemoteTable) -> Rows {
    let mut found = Rows::new();
    table
        .export(|rows| {
            let (dim, state) = (rows.dim as usize, rows.state as usize);
            for (at, &key) in rows.keys.iter().enumerate() {
                let meta = [rows.frequencies[at], rows.last_uses[at], rows.versions[at]];
                let weights = &rows.weights[at * dim..][..dim];
                let values = weights.iter().chain(&rows.states[at * state..][..state]);
                found.push((key, meta, values.map(|value| value.to_bits()).collect()));
            }
        })
        .unwrap();
    found.sort_unstable();
    found
}

fn adam(name: &str) -> TableConfig {
    let adam = Optimizer::Adam { lr: 0.05, beta1: 0.9, beta2: 0.99, eps: 1e-6, l2: 0.0 };
    TableConfig::single(name, 3, Init::Normal { std: 0.1 }, adam)
}

/// Pushes to 3,000 keys, some of them several times.
fn push_some(table: &RemoteTable) {
    for round in 1..4_u64 {
        let keys: Vec<u64> = (0..3000).filter(|key| key % round == 0).collect();
        let grads: Vec<f32> = keys.iter().flat_map(|&key| [key as f32 / 500.0 - 2.0; 3]).collect();
        table.push(&keys, &grads, PushScale::default()).unwrap();
    }
}

#[test]
fn pinned_tables_leave_a_drained_group_under_pushes() {
    let mut place = Place::with(2, "--rebalance off");
    let cluster = place.connect();
    let still = RemoteTable::create_pinned(&cluster, &adam("still"), 0).unwrap();
    let other = RemoteTable::create_pinned(&cluster, &adam("other"), 1).unwrap();
    [&still, &other].into_iter().for_each(push_some);
    let before = [whole_rows(&still), whole_rows(&other)];
    assert_eq!((before[0].len(), still.size().unwrap().0), (3000, 3000));
    // A server of a version that would lose them keeps them where they are.
    let old = json!({ "server": 99, "boot": 1, "group": 1, "addresses": [], "speaks": 3 });
    place.registry.compare_and_set(&member_name(99), 0, Edit::put(old), LONG).unwrap();
    let (is_done, _, errors) = try_ctl(&place, &["groups", "drain", "0"]);
    assert!(!is_done && errors.contains("server 99 of group 1 speaks version 3"), "{errors}");
    let revision = place.registry.get(&member_name(99), LONG).unwrap().unwrap().revision;
    place.registry.compare_and_set(&member_name(99), revision, Edit::Delete, LONG).unwrap();

    let url = place.keeper.url();
    let create = |cluster: &_, config: &_| RemoteTable::create_pinned(cluster, config, 0).unwrap();
    drill_with(&url, create, |pushed| {
        pushed.wait(20);
        pushed.gap_us.store(0, Ordering::Relaxed);
        let drained = ctl(&place, &["groups", "drain", "0"]);
        assert_eq!(drained["moves"], json!([{ "from": 0, "to": 1, "slots": 2048, "pinned": [0] }]));
        pushed.wait(40);
        report("pinned tables moved", &mut [pushed.gap_us.load(Ordering::Relaxed)]);
        let placement = layout(&*place.registry).unwrap().1;
        assert_eq!(placement.pinned, [PinnedPlace { home: 0, group: 1 }]);
        assert_eq!(shares(&place, 2), [0, 4096]);
        // Clients need the drained group no more.
        place.kill_group(0);
        pushed.wait(40);
    });
    // By a client that was there before, and by another one, to the bit and with the state of the optimizer.
    let again = place.connect();
    for (table, before) in [(&still, &before[0]), (&other, &before[1])] {
        assert_eq!(&whole_rows(table), before);
        let opened = RemoteTable::open(&again, table.name()).unwrap();
        assert_eq!((&whole_rows(&opened), opened.size().unwrap().0), (before, 3000));
        // The rows go on from their state, and keys that are there are removed.
        push_some(&opened);
        assert_eq!(whole_rows(&opened)[0].1[2], before[0].1[2] + 3);
        assert_eq!(opened.remove(&[0, 1, 9000]).unwrap(), 2);
    }
    // Tables that are pinned to the group are made where the others are now.
    let late = RemoteTable::create_pinned(&again, &adam("late"), 0).unwrap();
    push_some(&late);
    let (mut found, keys) = ([0.0; 6], [5, 9000]);
    assert_eq!(late.pull(&keys, Absent::Zero, &mut found, None).unwrap(), 1);
    assert!(found[0] != 0.0 && found[3] == 0.0, "{found:?}");
    let view = ctl(&place, &["cluster"]);
    assert_eq!((&view["pinned"], &view["moves"]), (&json!([{ "home": 0, "group": 1 }]), &json!([])));
}

#[test]
fn killed_primaries_delay_a_move_and_lose_nothing() {
    let mut place = Place::new(2);
    let mut gaps = Vec::new();
    drill(&mut place, |place, pushed| {
        kill_in_moves(place, pushed, 4, &mut gaps, |placement, from, to| {
            let groups = placement.groups();
            let is_half = |slot: &u32| groups[*slot as usize] == from && slot.is_multiple_of(2);
            PlannedMove { from, to, slots: (0..4096).filter(is_half).collect(), pinned: vec![] }
        });
    });
    report("primary killed during a move", &mut gaps);
}

#[test]
fn killed_primaries_delay_a_move_of_pinned_tables_and_lose_nothing() {
    let mut place = Place::new(2);
    let (mut gaps, url) = (Vec::new(), place.keeper.url());
    let create = |cluster: &_, config: &_| RemoteTable::create_pinned(cluster, config, 0).unwrap();
    drill_with(&url, create, |pushed| {
        kill_in_moves(&mut place, pushed, 4, &mut gaps, |_, from, to| PlannedMove {
            from,
            to,
            slots: vec![],
            pinned: vec![0],
        });
    });
    report("primary killed during a move of a pinned table", &mut gaps);
}

/// Moves between two groups to and fro, and kills a primary in each move.
fn kill_in_moves(
    place: &mut Place,
    pushed: &Pushed,
    rounds: u64,
    gaps: &mut Vec<u64>,
    planned: impl Fn(&Placement, u32, u32) -> PlannedMove,
) {
    for round in 0..disturbances(rounds) {
        pushed.wait(10);
        let victim = (round / 2 % 2) as u32;
        let before = place.settled(victim, 0);
        place.settled(1 - victim, 0);
        let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let wanted = planned(&layout(&*place.registry).unwrap().1, from, to);
        pushed.gap_us.store(0, Ordering::Relaxed);
        begin_moves(&*place.registry, std::slice::from_ref(&wanted)).unwrap();
        std::thread::sleep(Duration::from_millis(round * 7 % 40));
        let at = place.at(&before, before.group.primary.server);
        place.kill(at);
        // The registry's process ends and comes back, too.
        if round % 4 == 3 {
            place.restart_keeper();
        }
        let start = Instant::now();
        while !layout(&*place.registry).is_ok_and(|(_, placement)| placement.moves.is_empty()) {
            assert!(start.elapsed() < LONG, "{:?}", layout(&*place.registry));
            std::thread::sleep(Duration::from_millis(5));
        }
        let placement = layout(&*place.registry).unwrap().1;
        assert!(wanted.slots.iter().all(|&slot| placement.group_of(slot) == Some(to)), "{placement:?}");
        assert!(wanted.pinned.iter().all(|&home| placement.pinned_to(home) == to), "{placement:?}");
        pushed.wait(10);
        gaps.push(pushed.gap_us.load(Ordering::Relaxed));
        place.start(at);
        place.settled(victim, before.group.epoch + 1);
    }
}
