//! Cached rows end up as pushes one by one would leave them, alone and with other writers.

use super::ftrl;
use crate::simd::Width;
use crate::{
    Absent, Block, CacheBuffers, Init, Optimizer, PushScale, RowColumns, RowHandle, Table, TableConfig,
};

fn ftrl(l1: f32) -> Optimizer {
    Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1, l2: 0.1 }
}

fn table(factors: usize) -> Table {
    let mut blocks = vec![Block { dims: 1, init: Init::Zero, optimizer: ftrl(0.01) }];
    if factors > 0 {
        blocks.push(Block { dims: factors, init: Init::Normal { std: 0.1 }, optimizer: ftrl(0.0) });
    }
    Table::new(TableConfig { seed: 7, ..TableConfig::new("t", blocks) }).expect("a table")
}

/// Some keys repeat within a sample, most between samples.
fn keys(sample: u64) -> Vec<u64> {
    let repeated = if sample.is_multiple_of(5) { 1 } else { 1000 };
    (0..13).map(|i| (sample * 7919 + i * 31) % 101 * 1000 + i % repeated).collect()
}

/// Also where frequent keys are exchanged within the run.
#[test]
fn a_run_equals_pushes_one_by_one() {
    for (factors, parts) in [(0, 1), (3, 1), (8, 1), (21, 1), (0, 5), (8, 3)] {
        let (by_push, by_run) = (table(factors), table(factors));
        let dim = factors + 1;
        let mut near = CacheBuffers::default();
        for run in 0..if cfg!(miri) { 2 } else { 20 } {
            let mut rows = by_run.local_cache(PushScale::default(), &mut near).unwrap();
            let mut handles = Vec::new();
            let samples: Vec<Vec<u64>> = (run * 30..run * 30 + 30).map(keys).collect();
            samples.iter().for_each(|keys| rows.resolve(keys, &mut handles));
            for (number, (keys, handles)) in samples.iter().zip(handles.chunks(13)).enumerate() {
                let slope = |at: usize| ((at + 17 * number) as f32).sin();
                let gradients: Vec<f32> = (0..13 * dim).map(slope).collect();
                rows.update_all(handles, &gradients);
                for (key, gradient) in keys.iter().zip(gradients.chunks(dim)) {
                    by_push.push(&[*key], gradient, PushScale::default()).unwrap();
                }
                for (key, handle) in keys.iter().zip(handles) {
                    let mut pulled = vec![0.0; dim];
                    by_push.pull(&[*key], Absent::Zero, &mut pulled, None).unwrap();
                    assert_eq!(rows.weights(*handle), pulled);
                }
                if (number + 1) % (30 / parts) == 0 {
                    rows.exchange(6, parts as u32).unwrap();
                }
            }
            rows.flush().unwrap();
        }
        assert_eq!(by_push.len(), by_run.len());
        by_push.for_each_row(|row| {
            let twin = by_run.get(row.key).unwrap();
            assert_eq!((row.weights, row.state), (&twin.weights[..], &twin.state[..]));
            assert_eq!((row.frequency, row.version), (twin.frequency, twin.version));
        });
    }
}

/// Two workers' changes of z and n add up in any order of flushes, and the weight follows from the sums.
#[test]
fn runs_at_the_same_time_add_up() {
    for factors in [0, 8] {
        let (both, first, second) = (table(factors), table(factors), table(factors));
        let dim = factors + 1;
        let samples: Vec<Vec<u64>> = (0..40).map(keys).collect();
        let learn = |table: &Table, sign: f32, then: &dyn Fn()| {
            let mut near = CacheBuffers::default();
            let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
            let mut handles = Vec::new();
            samples.iter().for_each(|keys| rows.resolve(keys, &mut handles));
            let gradients: Vec<f32> = (0..handles.len() * dim).map(|at| sign * (at as f32).cos()).collect();
            rows.update_all(&handles, &gradients);
            then();
        };
        // The outer run has fetched before the inner one flushes.
        learn(&both, 1.0, &|| learn(&both, -0.5, &|| {}));
        learn(&first, 1.0, &|| {});
        learn(&second, -0.5, &|| {});
        let state_of = |table: &Table, key: u64| table.get(key).unwrap().state;
        assert_eq!(both.len(), first.len());
        let start = |key: u64| {
            let fresh = table(factors);
            fresh.push(&[key], &vec![0.0; dim], PushScale::default()).unwrap();
            state_of(&fresh, key)
        };
        both.for_each_row(|row| {
            let (one, other, start) = (state_of(&first, row.key), state_of(&second, row.key), start(row.key));
            for ((sum, one), (other, start)) in row.state.iter().zip(one).zip(other.into_iter().zip(start)) {
                assert!((sum - (one + other - start)).abs() < 1e-4, "{sum} {one} {other} {start}");
            }
            assert_eq!(u64::from(row.version), u64::from(first.get(row.key).unwrap().version) * 2);
            // The linear weight, in double precision.
            let (z, n) = (f64::from(row.state[0]), f64::from(row.state[1]));
            let shrunk = (z.abs() - 0.01).max(0.0).copysign(z);
            let expected = -shrunk / ((1.0 + n.sqrt()) / 0.1 + 0.1);
            assert!((f64::from(row.weights[0]) - expected).abs() < 1e-5, "{} {expected}", row.weights[0]);
        });
    }
}

/// Every vector width gives the same bits, also with repeated rows.
#[test]
fn all_widths_give_the_same_bits() {
    let value = |at: usize| ((at * 37 % 101) as f32 - 50.0) / 17.0;
    for width in Width::all() {
        for dim in [1, 2, 7, 8, 9, 16, 17, 24, 33] {
            let table = match dim {
                1 => table(0),
                dim => table(dim - 1),
            };
            let mut near = CacheBuffers::default();
            let run = table.local_cache(PushScale::default(), &mut near).unwrap();
            let (blocks, constants) = (run.blocks.as_slice(), run.constants.as_slice());
            // With few rows, handles repeat within a vector; with many, they do not.
            let counts = [0, 1, 2, 3, 8, 11, 29];
            for (rows, count) in (1..=8).chain([23]).flat_map(|rows| counts.map(|count| (rows, count))) {
                let handles: Vec<RowHandle> = (0..count).map(|at| RowHandle(at * 5 % rows)).collect();
                let gradients: Vec<f32> = (0..count as usize * dim).map(value).collect();
                // The parts w, z, n and the root of n of each row.
                let mut expected: Vec<f32> = (0..(23 + ftrl::LANES) * 4 * dim).map(value).collect();
                for row in expected.chunks_mut(4 * dim) {
                    for at in 0..dim {
                        row[2 * dim + at] = row[2 * dim + at].abs();
                        row[3 * dim + at] = row[2 * dim + at].sqrt();
                    }
                }
                let mut found = expected.clone();
                for (handle, gradient) in handles.iter().zip(gradients.chunks(dim)) {
                    let row = &mut expected[handle.0 as usize * 4 * dim..][..4 * dim];
                    for block in blocks {
                        for at in block.first..block.first + block.dims {
                            let (z, n, root) = (dim + at, 2 * dim + at, 3 * dim + at);
                            (row[at], row[z], row[n], row[root]) =
                                block.step.update_rooted(row[at], row[z], row[n], row[root], gradient[at]);
                        }
                    }
                }
                if dim == 1 {
                    let rows = found.as_chunks_mut().0;
                    ftrl::update_ones(width, blocks[0].step, rows, &handles, &gradients);
                } else {
                    ftrl::update_rows(width, (blocks, constants), dim, &mut found, &handles, &gradients);
                }
                let bits = |values: &[f32]| -> Vec<u32> {
                    values[..23 * 4 * dim].iter().map(|value| value.to_bits()).collect()
                };
                assert_eq!(bits(&found), bits(&expected), "{width:?}, dim {dim}, {count} of {rows} rows");
            }
        }
    }
}

/// With the largest gradients, sums of squares would overflow. States must stay finite, or no import would take
/// them.
#[test]
fn sums_of_squares_stay_finite() {
    let gradient = crate::GRADIENT_ABS_MAX * 0.999;
    let is_finite = |table: &Table| {
        table.for_each_row(|row| {
            assert!(row.weights.iter().chain(row.state).all(|value| value.is_finite()), "{row:?}");
        });
    };
    for factors in [0, 8] {
        let (by_push, by_run, by_two) = (table(factors), table(factors), table(factors));
        let gradients = vec![gradient; 3 * (factors + 1)];
        let learn = |table: &Table, pushes: usize, then: &dyn Fn()| {
            let (mut near, mut handles) = (CacheBuffers::default(), Vec::new());
            let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
            rows.resolve(&[1, 2, 3], &mut handles);
            (0..pushes).for_each(|_| rows.update_all(&handles, &gradients));
            then();
        };
        learn(&by_run, 400, &|| {});
        for _ in 0..400 {
            by_push.push(&[1, 2, 3], &gradients, PushScale::default()).unwrap();
        }
        by_push.for_each_row(|row| {
            let twin = by_run.get(row.key).unwrap();
            assert_eq!((row.weights, row.state), (&twin.weights[..], &twin.state[..]));
        });
        is_finite(&by_run);
        // The sum of both exceeds the maximum.
        learn(&by_two, 250, &|| learn(&by_two, 250, &|| {}));
        is_finite(&by_two);
    }
}

#[test]
fn tables_of_other_optimizers_lend_nothing() {
    let sgd = Optimizer::Sgd { lr: 0.1, l2: 0.0 };
    let table = Table::new(TableConfig::single("t", 2, Init::Zero, sgd)).unwrap();
    let error = table.local_cache(PushScale::default(), &mut CacheBuffers::default()).unwrap_err();
    assert!(!table.supports_local_cache() && error.to_string().contains("FTRL"), "{error}");
}

/// A row that was recreated or replaced meanwhile and has the same number of updates is not mistaken for the
/// fetched one: the changes are added to it.
#[test]
fn other_rows_of_as_many_updates_are_added_to() {
    let push = |table: &Table, gradient: f32| {
        table.push(&[2], &vec![gradient; table.dim()], PushScale::default()).unwrap();
    };
    /// Imports the row into another table, with this number of updates.
    fn import(from: &Table, version: u32, table: &Table) {
        let (row, mut columns) = (from.get(2).unwrap(), RowColumns::default());
        columns.push(crate::Row { version, ..row }.as_ref());
        table.import(columns.rows()).unwrap();
    }
    let check = |factors: usize, version: u32, meanwhile: &dyn Fn(&Table), expected: f32| {
        let (table, mut near) = (table(factors), CacheBuffers::default());
        push(&table, 0.5);
        import(&table, version, &table);
        let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
        let mut handles = Vec::new();
        rows.resolve(&[2], &mut handles);
        rows.update(handles[0], &vec![1.0; table.dim()]);
        meanwhile(&table);
        let version = table.get(2).map_or(0, |row| row.version);
        rows.flush().unwrap();
        let row = table.get(2).unwrap();
        let n: Vec<f32> = [&row.state[1..2], &row.state[2 + factors..]].concat();
        assert_eq!((n, row.version), (vec![expected; table.dim()], version + 1));
    };
    for factors in [0, 8] {
        for version in [0, 1] {
            let check = |meanwhile: &dyn Fn(&Table), expected| check(factors, version, meanwhile, expected);
            check(&|_| {}, 1.25);
            check(&|table| assert!(table.remove(2)), 1.0);
            let anew = |table: &Table| {
                assert!(table.remove(2));
                push(table, 0.25);
            };
            check(&anew, 1.0625);
            let replaced = |table: &Table| {
                let other = self::table(factors);
                push(&other, 0.25);
                import(&other, version, table);
            };
            check(&replaced, 1.0625);
        }
    }
}

/// Rows that were removed or reused between fetch and flush are not mistaken for the fetched ones. Keys without a
/// row get one, and no other row changes.
#[test]
fn rows_that_left_meanwhile_are_made_anew() {
    for factors in [0, 8] {
        let (table, dim) = (table(factors), factors + 1);
        let push = |keys: &[u64]| {
            table.push(keys, &vec![0.5; keys.len() * dim], PushScale::default()).unwrap();
        };
        push(&[1, 2, 3, 4]);
        let mut near = CacheBuffers::default();
        let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
        let mut handles = Vec::new();
        rows.resolve(&[1, 2, 3, 4, 5], &mut handles);
        rows.update_all(&handles, &vec![1.0; 5 * dim]);
        // Their rows go to other keys.
        assert!([1, 2, 3].into_iter().all(|key| table.remove(key)));
        let others: Vec<u64> = (100..1500).collect();
        push(&others);
        push(&[2]);
        let state_before: Vec<_> = others.iter().map(|&key| table.get(key).unwrap()).collect();
        rows.flush().unwrap();
        for before in state_before {
            let after = table.get(before.key).unwrap();
            assert_eq!(
                (after.weights, after.state, after.version),
                (before.weights, before.state, before.version)
            );
        }
        let version = |key: u64| table.get(key).unwrap().version;
        assert_eq!([1, 2, 3, 4, 5].map(version), [1, 2, 1, 2, 1]);
    }
}

/// An exchange brings the updates of others, adds the own ones to them, and leaves rare keys alone.
#[test]
fn workers_see_frequent_keys_within_a_run() {
    const FREQUENT: u64 = 5;
    const RARE: u64 = 6;
    for factors in [0, 8] {
        let (table, dim) = (table(factors), factors + 1);
        let (mut first, mut second) = (CacheBuffers::default(), CacheBuffers::default());
        let mut caches = [
            table.local_cache(PushScale::default(), &mut first).unwrap(),
            table.local_cache(PushScale::default(), &mut second).unwrap(),
        ];
        let mut handles: [Vec<RowHandle>; 2] = [Vec::new(), Vec::new()];
        for (cache, handles) in caches.iter_mut().zip(&mut handles) {
            cache.resolve(&[FREQUENT; 4], handles);
            cache.resolve(&[RARE], handles);
        }
        for (cache, handles) in caches.iter_mut().zip(&handles) {
            for handle in [handles[0], handles[1], handles[4]] {
                cache.update(handle, &vec![0.5; dim]);
            }
            cache.exchange(3, 2).unwrap();
        }
        // The second exchange found the updates of the first; the first has not looked since.
        let [first, second] = &caches;
        let n = |row: &crate::Row| row.state[1];
        let row = table.get(FREQUENT).unwrap();
        assert_eq!((row.version, row.frequency), (4, 4));
        assert_eq!(second.weights(handles[1][0]), row.weights);
        assert_ne!(first.weights(handles[0][0]), row.weights);
        if factors == 0 {
            assert_eq!(n(&row), 4.0 * 0.25);
        }
        assert!(table.get(RARE).is_none());
        for (cache, handles) in caches.iter_mut().zip(&handles) {
            for handle in [handles[2], handles[3]] {
                cache.update(handle, &vec![0.5; dim]);
            }
            // No more exchange is due.
            cache.exchange(3, 2).unwrap();
        }
        for cache in caches {
            cache.flush().unwrap();
        }
        let (frequent, rare) = (table.get(FREQUENT).unwrap(), table.get(RARE).unwrap());
        assert_eq!((frequent.version, frequent.frequency), (8, 8));
        assert_eq!((rare.version, rare.frequency), (2, 2));
        if factors == 0 {
            assert_eq!((n(&frequent), n(&rare)), (8.0 * 0.25, 2.0 * 0.25));
        }
    }
}
