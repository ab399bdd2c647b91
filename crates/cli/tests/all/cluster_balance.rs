//! Slots that move because one group has more load than the other, without an operator.

use std::time::{Duration, Instant};

use sanderling_client::RemoteTable;
use sanderling_registry::{LOADS, layout, loads};
use sanderling_store::{Absent, Init, Optimizer, PushScale, TableConfig};

use crate::cluster::{LONG, Place};
use crate::cluster_moves::{ctl, shares};

/// The load has to last for a minute, unless another time is asked for.
const BALANCED_WITHIN: Duration = Duration::from_secs(180);
/// Some hundred keys, fifty times a second, are more than the load below which nothing moves.
const KEYS: usize = 400;
const EVERY: Duration = Duration::from_millis(20);

#[test]
fn a_group_with_more_load_gives_slots_away_by_itself() {
    let place = Place::with(2, "--rebalance on --rebalance-after 6s --sample-every 1");
    let cluster = place.connect();
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let table = RemoteTable::create(&cluster, &TableConfig::single("counters", 1, Init::Zero, sgd)).unwrap();
    // Keys whose slots all are in group 0.
    let slots = layout(&*place.registry).unwrap().1;
    let slot = |key: u64| sanderling_wire::slot_of(key, slots.slots as usize) as u32;
    let keys: Vec<u64> = (0..).filter(|&key| slots.group_of(slot(key)) == Some(0)).take(KEYS).collect();
    let (start, mut pushes) = (Instant::now(), 0);
    while shares(&place, 2)[0] == 2048 || !layout(&*place.registry).unwrap().1.moves.is_empty() {
        assert!(
            start.elapsed() < BALANCED_WITHIN,
            "{:?}",
            loads("", &place.registry.list(LOADS, LONG).unwrap())
        );
        table.push(&keys, &vec![-1.0; KEYS], PushScale::default()).unwrap();
        pushes += 1;
        std::thread::sleep(EVERY);
    }
    let plan = ctl(&place, &["rebalance", "--plan"]);
    let load = plan["groups"][0]["load"].as_f64().unwrap();
    assert!(plan["groups"][1]["slots"].as_u64() > Some(2048) && load > 0.5, "{plan}");
    let mut found = vec![0.0; KEYS];
    table.pull(&keys, Absent::Zero, &mut found, None).unwrap();
    assert_eq!(found, vec![pushes as f32; KEYS]);
}
