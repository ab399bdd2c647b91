//! Iteration over keys and copies of rows agree with iteration over rows and single look-ups, for all kinds of
//! tables and under concurrent pushes.
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::support::Stop;
use proptest::prelude::*;
use sanderling_store::{
    Dtype, Init, Optimizer, Packing, PushScale, Row, RowColumns, Table, TableConfig, WholeRows, Writes,
};

const ADAGRAD: Optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };

fn table(dim: usize, dtype: Dtype, writes: Writes) -> Table {
    let init = Init::Normal { std: 0.1 };
    let packing = if dim.is_multiple_of(2) { Packing::Compact } else { Packing::Fast };
    Table::new(TableConfig { dtype, writes, packing, ..TableConfig::single("t", dim, init, ADAGRAD) })
        .unwrap()
}

fn push(t: &Table, keys: &[u64], gradient: f32) {
    t.push(keys, &vec![gradient; keys.len() * t.dim()], PushScale::default()).unwrap();
}

fn copied(t: &Table, keys: &[u64]) -> Vec<Row> {
    let mut columns = RowColumns::default();
    t.copy_rows(keys, &mut columns);
    let (dim, state) = (t.dim(), t.config().state());
    let rows: WholeRows<'_> = columns.rows();
    let row = |at| {
        let row = rows.row(at, dim, state);
        Row {
            key: row.key,
            frequency: row.frequency,
            last_use: row.last_use,
            version: row.version,
            weights: row.weights.to_vec(),
            state: row.state.to_vec(),
        }
    };
    (0..columns.len()).map(row).collect()
}

fn keys_in(t: &Table, range: &RangeInclusive<u64>) -> Vec<u64> {
    let mut keys = Vec::new();
    t.for_each_key(|key| range.contains(&key), |key| keys.push(key));
    keys.sort_unstable();
    keys
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn they_are_those_of_single_look_ups_and_of_whole_walks(
        dim in 1_usize..40,
        kind in 0_usize..6,
        pushes in prop::collection::vec((0_u64..3000, 1_u64..2500, -1.0_f32..1.0), 1..6),
        removed in prop::collection::vec(0_u64..6000, 0..500),
        wanted in prop::collection::vec(0_u64..7000, 0..5000),
        range in (0_u64..6000, 0_u64..6000),
    ) {
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][kind % 3];
        let t = table(dim, dtype, [Writes::InPlace, Writes::CopyOnWrite][kind / 3]);
        for (first, count, gradient) in pushes {
            push(&t, &(first..first + count).collect::<Vec<_>>(), gradient);
        }
        removed.iter().for_each(|&key| _ = t.remove(key));
        // In the order of the keys, also for repeated ones.
        let expected: Vec<Row> = wanted.iter().filter_map(|&key| t.get(key)).collect();
        prop_assert_eq!(copied(&t, &wanted), expected);

        let range = range.0.min(range.1)..=range.0.max(range.1);
        let mut walked = Vec::new();
        t.for_each_row(|row| walked.push(row.key));
        walked.sort_unstable();
        prop_assert_eq!(keys_in(&t, &(0..=u64::MAX)), walked.clone());
        walked.retain(|key| range.contains(key));
        prop_assert_eq!(keys_in(&t, &range), walked);
    }
}

#[test]
fn rows_are_whole_and_no_key_is_missing_or_seen_twice_while_others_push() {
    const KEYS: u64 = 20_000;
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let init = Init::Zero;
        let t = Table::new(TableConfig { writes, ..TableConfig::single("t", 24, init, ADAGRAD) }).unwrap();
        let all: Vec<u64> = (0..KEYS).collect();
        push(&t, &all, 1.0);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for first in (0..KEYS - 500).step_by(311).cycle().take_while(|_| !is_over.load(Relaxed)) {
                    push(&t, &(first..first + 500).collect::<Vec<_>>(), 1.0);
                    // Rows of removed keys are reused.
                    push(&t, &[KEYS + first], 1.0);
                    assert!(t.remove(KEYS + first));
                }
            });
            let _stop = Stop(&is_over);
            for _ in 0..30 {
                let seen = keys_in(&t, &(100..=KEYS - 1));
                assert_eq!(seen.iter().collect::<HashSet<_>>().len(), seen.len(), "a key twice");
                assert_eq!(seen.len() as u64, KEYS - 100, "a key is missing");
                let rows = copied(&t, &all);
                assert_eq!(rows.iter().map(|row| row.key).collect::<Vec<_>>(), all);
                for row in rows {
                    // All coordinates of a row had the same gradients, and the state matches the weights.
                    assert!(row.weights.iter().all(|weight| *weight == row.weights[0]), "{row:?}");
                    assert!(row.state.iter().all(|state| *state == row.version as f32), "{row:?}");
                }
            }
        });
    }
}

/// A checkpoint walks over rows for as long as the disk needs.
#[test]
fn keys_wait_for_no_walk_over_rows() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let t = table(4, Dtype::F32, writes);
        let all: Vec<u64> = (0..10_000).collect();
        push(&t, &all, 1.0);
        let mut rows = 0;
        t.for_each_row(|_| {
            rows += 1;
            if rows % 1000 == 0 {
                assert!(keys_in(&t, &(0..=u64::MAX)) == all, "{rows}");
                push(&t, &all, 1.0);
            }
        });
        assert_eq!(rows, all.len());
        // The index grows meanwhile.
        let (mut next, mut seen) = (10_000, Vec::new());
        t.for_each_key(
            |key| key < 10_000,
            |key| {
                seen.push(key);
                push(&t, &(next..next + 10).collect::<Vec<_>>(), 1.0);
                next += 10;
            },
        );
        seen.sort_unstable();
        assert!(seen == all, "{} keys", seen.len());
    }
}
