//! A hub that feeds the groups of a cluster, whose primaries are killed and whose slots move between a lookup and its
//! push.

use std::time::Instant;

use sanderling_feed::FeaturePooling as Pooling;
use sanderling_registry::{PlannedMove, begin_moves, layout};
use sanderling_store::{Optimizer, PushScale};

use super::{
    BATCH, PASSES, ROWS, check_once_per_pass, check_same_on, counting, folder, hub, next, open, train, url,
};
use crate::cluster::{LONG, Place};
use crate::process::counters;

/// Moves every second slot of a group to the other one.
fn move_slots(place: &Place, from: u32) {
    let groups = layout(&*place.registry).unwrap().1.groups();
    let slots = (0..4096).filter(|slot| groups[*slot as usize] == from && slot % 2 == 0).collect();
    begin_moves(&*place.registry, &[PlannedMove { from, to: 1 - from, slots, pinned: vec![] }]).unwrap();
    place.connect().settle(LONG).unwrap();
}

#[test]
fn groups_pool_what_a_trainer_with_the_keys_pools() {
    let (place, dir) = (Place::new(2), folder());
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.1, l2: 0.0 };
    let options = "--feed history=fed/history:mean,amount=fed/amount";
    let fed = check_same_on(dir.path(), &place.keeper.url(), Pooling::MEAN, adagrad, options);
    assert_eq!(fed, 2 * PASSES * ROWS / BATCH);
}

#[test]
fn each_row_is_used_once_though_primaries_die_and_slots_move() {
    let mut place = Place::with(2, "--rebalance off");
    let ps = place.keeper.url();
    let (tables, embedding) = counting(&ps);
    let dir = folder();
    let options = "--listen 127.0.0.1:0 --feed history=run/history,amount=run/amount";
    let hub = hub(dir.path(), &format!("{options} --ps {ps}"));
    let queue = open(&url(&[&hub]), "t", Some(&embedding)).unwrap();
    let disturb: [&mut dyn FnMut(&mut Place); 5] = [
        &mut |place| place.kill_primary(0),
        &mut |place| move_slots(place, 0),
        &mut |place| place.kill_primary(1),
        &mut |place| move_slots(place, 1),
        &mut |place| {
            move_slots(place, 0);
            place.kill_primary(1);
        },
    ];
    let (mut trained, start) = (0, Instant::now());
    for (round, disturb) in disturb.into_iter().enumerate() {
        trained += train(&queue, 18);
        let asked = || counters(&hub.addresses[0])["trainer t asked_whole"];
        let (mut looked_up, before) = (next(&queue).unwrap(), asked());
        disturb(&mut place);
        let ones = vec![1.0; looked_up.pooled().len()];
        looked_up.add_grads(Some(&ones), &[]).unwrap();
        looked_up.push(PushScale::default()).unwrap();
        trained += 1;
        embedding.finish().unwrap();
        // Later ones may have been looked up by their keys, since they were fed before the last disturbance.
        assert!(asked() > before || round > 0, "the servers have what they had before");
    }
    trained += train(&queue, usize::MAX);
    assert_eq!(trained as u64, PASSES * ROWS / BATCH);
    embedding.finish().unwrap();
    check_once_per_pass(&tables);
    let pooled_at = embedding.pooled_at();
    assert_eq!(pooled_at.late.features, 0);
    assert!(pooled_at.hub.features > 0 && start.elapsed() < 2 * LONG, "{pooled_at:?}");
}
