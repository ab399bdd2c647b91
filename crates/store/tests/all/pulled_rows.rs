//! A push with the rows that its pull found equals a push that searches, whatever happens to the rows in between.
//! `SANDERLING_TEST_SECONDS` sets the duration of the concurrent test, 0.3 by default.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use proptest::prelude::*;
use sanderling_store::{
    Absent, Admission, Dtype, Eviction, Init, Optimizer, PulledRows, PushScale, RowColumns, Table,
    TableConfig, Writes,
};

use crate::support::{Draw, Stop, duration};

const DIM: usize = 3;
const OPTIMIZERS: [Optimizer; 7] = [
    Optimizer::Sgd { lr: 0.1, l2: 0.01 },
    Optimizer::Momentum { lr: 0.05, momentum: 0.8, l2: 0.01 },
    Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 },
    Optimizer::RowAdagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 },
    Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 },
    Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, decay: 0.1 },
    Optimizer::Ftrl { alpha: 0.2, beta: 1.0, l1: 0.05, l2: 0.1 },
];

/// An event between a pull and its push.
#[derive(Debug, Clone)]
enum Event {
    Nothing,
    Push(u64, u64),
    Remove(u64),
    /// A row is removed and comes back, perhaps in the memory of another.
    Renew(u64, u64),
    Import(u64),
    Reserve(u64),
    Maintain,
    Clear,
}

fn event() -> impl Strategy<Value = Event> {
    let key = || 0_u64..200;
    prop_oneof![
        4 => Just(Event::Nothing),
        3 => (key(), 1_u64..100).prop_map(|(first, keys)| Event::Push(first, keys)),
        // New keys, for which rows are evicted where there is a budget.
        1 => (0_u64..50).prop_map(|part| Event::Push(1000 + part * 3000, 3000)),
        2 => key().prop_map(Event::Remove),
        2 => (key(), key()).prop_map(|(one, other)| Event::Renew(one, other)),
        1 => key().prop_map(Event::Import),
        1 => (1_u64..20_000).prop_map(Event::Reserve),
        1 => Just(Event::Maintain),
        1 => Just(Event::Clear),
    ]
}

fn push(t: &Table, keys: &[u64]) {
    let gradients: Vec<f32> = keys.iter().flat_map(|&key| [1.0, -0.5, (key % 7) as f32]).collect();
    // A table that evicts by age may be full.
    let _ = t.push(keys, &gradients, PushScale::default());
}

fn happens(t: &Table, event: &Event) {
    match *event {
        Event::Nothing => {}
        Event::Push(first, keys) => push(t, &(first..first + keys).collect::<Vec<_>>()),
        Event::Remove(key) => _ = t.remove(key),
        Event::Renew(one, other) => {
            t.remove(one);
            t.remove(other);
            push(t, &[other, one]);
        }
        Event::Import(key) => {
            if let Some(row) = t.get(key) {
                let mut columns = RowColumns::default();
                columns.push(sanderling_store::Row { weights: vec![0.25; DIM], ..row }.as_ref());
                t.import(columns.rows()).unwrap();
            }
        }
        Event::Reserve(rows) => _ = t.reserve(rows),
        Event::Maintain => _ = t.maintain(500),
        Event::Clear => t.clear(),
    }
}

fn tables(config: &TableConfig) -> [Table; 2] {
    [(), ()].map(|()| Table::new(config.clone()).unwrap())
}

fn assert_equal([with_rows, without]: &[Table; 2]) {
    assert_eq!(with_rows.len(), without.len());
    without.for_each_row(|row| assert_eq!(with_rows.get(row.key).unwrap().as_ref(), row));
    let counts = |t: &Table| {
        let stats = t.stats();
        (stats.admitted, stats.rejected, stats.evicted, stats.rejected_full, stats.pushes)
    };
    assert_eq!(counts(with_rows), counts(without));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_push_with_rows_equals_one_without(
        optimizer in 0..OPTIMIZERS.len(),
        variant in 0..6,
        steps in prop::collection::vec((0_u64..200, 1_u64..200, event()), 1..30),
    ) {
        let config = TableConfig::single("t", DIM, Init::Uniform { bound: 0.1 }, OPTIMIZERS[optimizer]);
        let config = match variant {
            0 => TableConfig { writes: Writes::CopyOnWrite, ..config },
            1 => TableConfig { dtype: Dtype::Bf16, ..config },
            2 => TableConfig { admission: Admission::Sightings { sightings: 2, filter_bytes: 4096 }, ..config },
            3 => TableConfig { eviction: Eviction::Clock, budget_bytes: Some(600 << 10), ..config },
            4 => TableConfig { eviction: Eviction::Age { pushes: 5 }, budget_bytes: Some(600 << 10), ..config },
            _ => config,
        };
        let both = tables(&config);
        let mut rows = PulledRows::default();
        for (first, keys, event) in steps {
            let keys: Vec<u64> = (first..first + keys).map(|key| key * 7 % 401).collect();
            let gradients: Vec<f32> = (0..keys.len() * DIM).map(|at| (at % 5) as f32 - 2.0).collect();
            let counts = vec![1; keys.len()];
            rows.clear();
            for (t, rows) in both.iter().zip([Some(&mut rows), None]) {
                // In two parts, as a client pulls the features of a table; a pull samples some of its keys as used.
                let mut out = vec![9.0; keys.len() * DIM];
                let (some, others) = keys.split_at(keys.len() / 3);
                let (out, out_others) = out.split_at_mut(some.len() * DIM);
                let Some(rows) = rows else {
                    t.pull(some, Absent::Init, out, None).unwrap();
                    t.pull(others, Absent::Init, out_others, None).unwrap();
                    happens(t, &event);
                    let _ = t.push_unique(&keys, &counts, &gradients, PushScale::default());
                    continue;
                };
                t.pull_for_push(some, Absent::Init, out, None, rows).unwrap();
                t.pull_for_push(others, Absent::Init, out_others, None, rows).unwrap();
                happens(t, &event);
                let checked = t.check_push(&keys, &counts, &gradients, PushScale::default()).unwrap();
                let _ = checked.with_rows(rows).apply();
            }
            assert_equal(&both);
        }
    }
}

/// Rows of another table, of other keys or of fewer keys are not used.
#[test]
fn rows_that_are_not_those_of_the_push_are_not_used() {
    let config = TableConfig::single("t", DIM, Init::Zero, OPTIMIZERS[0]);
    let [t, other] = tables(&config);
    push(&t, &[1, 2, 3]);
    push(&other, &[3, 2, 1]);
    let mut rows = PulledRows::default();
    let mut out = [0.0; 3 * DIM];
    let check = |rows: &PulledRows, expected: f32| {
        let before = t.get(1).unwrap().frequency;
        let checked = t.check_push(&[1, 2, 3], &[1; 3], &[1.0; 3 * DIM], PushScale::default()).unwrap();
        checked.with_rows(rows).apply().unwrap();
        assert_eq!(t.get(1).unwrap().frequency, before + 1, "{expected}");
    };
    check(&rows, 1.0);
    other.pull_for_push(&[1, 2, 3], Absent::Zero, &mut out, None, &mut rows).unwrap();
    check(&rows, 2.0);
    // The first part of this table, the second of the other one.
    rows.clear();
    t.pull_for_push(&[1], Absent::Zero, &mut out[..DIM], None, &mut rows).unwrap();
    check(&rows, 3.0);
    other.pull_for_push(&[2, 3], Absent::Zero, &mut out[..2 * DIM], None, &mut rows).unwrap();
    check(&rows, 4.0);
    // A key without a row is left out.
    rows.clear();
    t.pull_for_push(&[1, 99, 2], Absent::Zero, &mut out, None, &mut rows).unwrap();
    rows.forget_missing();
    let checked = t.check_push(&[1, 2], &[1; 2], &[1.0; 2 * DIM], PushScale::default()).unwrap();
    checked.with_rows(&rows).apply().unwrap();
    assert_eq!([1, 2, 3].map(|key| t.get(key).unwrap().frequency), [6, 6, 5]);
    assert_eq!((t.get(99), t.len()), (None, 3));
}

/// Threads push with the rows of their pulls while rows are removed, evicted, reused and the index grows: every update
/// is in the row of its key, or gone with it.
#[test]
fn updates_are_in_the_rows_of_their_keys() {
    const KEYS: u64 = 30_000;
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    for eviction in [Eviction::Never, Eviction::Clock] {
        let budget_bytes = (eviction == Eviction::Clock).then_some(1 << 20);
        let config = TableConfig { eviction, budget_bytes, ..TableConfig::single("t", DIM, Init::Zero, sgd) };
        let (t, stop) = (Table::new(config).unwrap(), AtomicBool::new(false));
        let weights = |key: u64| [1.0, (key % 1000) as f32, key as f32];
        thread::scope(|scope| {
            for thread in 0..2 {
                let (t, stop) = (&t, &stop);
                scope.spawn(move || {
                    let (mut draw, mut rows) = (Draw(thread), PulledRows::default());
                    while !stop.load(Relaxed) {
                        let mut keys: Vec<u64> = (0..300).map(|_| draw.below(KEYS)).collect();
                        keys.sort_unstable();
                        keys.dedup();
                        let mut out = vec![0.0; keys.len() * DIM];
                        rows.clear();
                        t.pull_for_push(&keys, Absent::Zero, &mut out, None, &mut rows).unwrap();
                        let gradients: Vec<f32> =
                            keys.iter().flat_map(|&key| weights(key).map(|weight| -weight)).collect();
                        let counts = vec![1; keys.len()];
                        let checked = t.check_push(&keys, &counts, &gradients, PushScale::default()).unwrap();
                        checked.with_rows(&rows).apply().unwrap();
                    }
                });
            }
            let (_stop, start, mut draw) = (Stop(&stop), Instant::now(), Draw(33));
            while start.elapsed() < duration() {
                match draw.below(100) {
                    0 => t.clear(),
                    1..40 => _ = (0..50).filter(|_| t.remove(draw.below(KEYS))).count(),
                    40..45 => _ = t.maintain(1000),
                    45..50 => t.for_each_row(|row| {
                        let times = row.version as f32;
                        assert_eq!(row.weights, weights(row.key).map(|weight| weight * times), "{}", row.key);
                    }),
                    _ => thread::yield_now(),
                }
            }
        });
    }
}
