//! Slots that move between the groups of a cluster under pushes: a group is added and another one drained, and primaries
//! are killed while rows are on their way. SANDERLING_KILLS sets the number of kills.

use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sanderling_registry::{PlannedMove, begin_moves, layout};
use serde_json::Value;

use crate::cluster::{LONG, Place, disturbances, drill, report};

pub(crate) fn ctl(place: &Place, words: &[&str]) -> Value {
    let program = env!("CARGO_BIN_EXE_sanderling");
    let mut command = Command::new(program);
    command.args(["ctl", "--json"]).args(words).args(["--registry", &place.keeper.url()]);
    let done = command.output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{words:?}: {text}{}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_str(&text).unwrap()
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
        let drained = place.settled(0, 0);
        for server in [drained.group.primary.server, drained.group.in_sync[0].server] {
            let at = place.at(&drained, server);
            place.servers[at].1.as_ref().unwrap().signal("KILL");
            place.servers[at].1 = None;
        }
        pushed.wait(40);
        report("slots of a group moved", &mut gaps);
    });
    let view = ctl(&place, &["cluster"]);
    assert_eq!((&view["groups"], &view["moves"]), (&serde_json::json!(3), &serde_json::json!([])));
}

#[test]
fn killed_primaries_delay_a_move_and_lose_nothing() {
    let mut place = Place::new(2);
    let mut gaps = Vec::new();
    drill(&mut place, |place, pushed| {
        for round in 0..disturbances(4) {
            pushed.wait(10);
            let victim = (round / 2 % 2) as u32;
            let before = place.settled(victim, 0);
            place.settled(1 - victim, 0);
            let (from, to) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            let groups = layout(&*place.registry).unwrap().1.groups();
            let slots: Vec<u32> =
                (0..4096).filter(|slot| groups[*slot as usize] == from && slot % 2 == 0).collect();
            pushed.gap_us.store(0, Ordering::Relaxed);
            begin_moves(&*place.registry, &[PlannedMove { from, to, slots }]).unwrap();
            std::thread::sleep(Duration::from_millis(round * 7 % 40));
            let at = place.at(&before, before.group.primary.server);
            place.servers[at].1.as_ref().unwrap().signal("KILL");
            place.servers[at].1 = None;
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
            let moved = placement.groups().iter().zip(&groups).filter(|(one, other)| one != other).count();
            assert!(moved >= 512, "{moved} slots moved");
            pushed.wait(10);
            gaps.push(pushed.gap_us.load(Ordering::Relaxed));
            place.start(at);
            place.settled(victim, before.group.epoch + 1);
        }
    });
    report("primary killed during a move", &mut gaps);
}
