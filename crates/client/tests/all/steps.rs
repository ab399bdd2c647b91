//! Workers that are threads of one process and go in step over its tables.

use sanderling_client::{StepGradients, SyncGroup, SyncOptions};
use sanderling_store::{Optimizer, PushScale};
use sanderling_testkit::sync_workers::{self, Place, config, options};

const PLAIN: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };

#[test]
fn workers_do_not_matter() {
    sync_workers::workers_do_not_matter(Place::here);
}

#[test]
fn a_worker_that_does_not_come_is_named_and_can_be_replaced() {
    sync_workers::a_worker_that_does_not_come_is_named_and_can_be_replaced(&Place::here(
        config("t", PLAIN),
        2,
    ));
}

#[test]
fn what_is_gathered_is_the_same_for_all() {
    sync_workers::what_is_gathered_is_the_same_for_all(&Place::here(config("t", PLAIN), 3));
}

#[test]
fn what_cannot_be_is_refused() {
    let place = Place::here(config("t", PLAIN), 1);
    let mut group = place.join(0, 1, options(sync_workers::LONG));
    let mut push = |table, keys: &[u64], counts: &[u32], values: &[f32], lr| {
        let pushed = group.push_step(
            1,
            table,
            keys,
            counts,
            StepGradients::Single(values),
            PushScale { lr_scale: lr },
        );
        pushed.map_err(|error| error.to_string())
    };
    for (found, part) in [
        (push(1, &[1], &[1], &[0.0; 3], 1.0), "no table at place 1"),
        (push(0, &[1], &[], &[0.0; 3], 1.0), "counts"),
        (push(0, &[1], &[1], &[0.0; 2], 1.0), "gradients"),
        (push(0, &[1, 9], &[1, 1], &[0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0], 1.0), "key 9"),
        (push(0, &[1], &[1], &[0.0; 3], -1.0), "-1"),
    ] {
        assert!(found.as_ref().is_err_and(|error| error.contains(part)), "{part}: {found:?}");
    }
    let error = group.broadcast("of nobody", 1, &[]).unwrap_err().to_string();
    assert!(error.contains("from worker 1 of 1"), "{error}");
    let error = group.all_gather("much", &vec![0; (1 << 20) + 1]).unwrap_err().to_string();
    assert!(error.contains("above the limit"), "{error}");
    // Sums that no table takes fail the step, for good.
    sync_workers::hand_in(&mut group, 1, 1, 6e17);
    sync_workers::hand_in(&mut group, 1, 1, 6e17);
    for _ in 0..2 {
        let error = group.wait_applied(1).unwrap_err().to_string();
        assert!(error.contains("step 1 failed") && error.contains("gradient of key 1"), "{error}");
    }
    let Place::Here(meeting, _) = &place else { unreachable!() };
    assert!(SyncGroup::join_here(meeting, 1, SyncOptions::default()).is_err());
}

#[test]
fn a_step_is_one_push_however_many_apply_it() {
    for workers in [1, 2, 5] {
        let place = Place::here(config("t", PLAIN), workers);
        let Place::Here(_, table) = &place else { unreachable!() };
        for steps in 1..=3 {
            std::thread::scope(|scope| {
                for worker in 0..workers {
                    let mut group = place.join(worker, workers, options(sync_workers::LONG));
                    scope.spawn(move || {
                        (0..50).for_each(|key| sync_workers::hand_in(&mut group, steps, key, 1.0));
                        group.wait_applied(steps).unwrap();
                    });
                }
            });
            assert_eq!(table.stats().pushes, steps, "{workers} workers");
        }
    }
}

#[test]
fn workers_that_do_not_agree_fail_the_step_whatever_their_keys_are() {
    let place = Place::here(config("t", PLAIN), 3);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let mut group = place.join(worker, 3, options(sync_workers::LONG));
            scope.spawn(move || {
                let scale = PushScale { lr_scale: if worker == 2 { 0.5 } else { 1.0 } };
                let gradients = StepGradients::Single(&[1.0; 3]);
                group.push_step(1, 0, &[u64::from(worker)], &[1], gradients, scale).unwrap();
                let error = group.wait_applied(1).unwrap_err().to_string();
                assert!(error.contains("table number 0") && error.contains("0.5"), "{error}");
            });
        }
    });
}
