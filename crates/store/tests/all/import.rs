//! Imports of whole rows: compared with a `HashMap`, under readers and pushes, and rejected ones.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

use proptest::prelude::*;
use sanderling_store::{
    Absent, Admission, Block, Checkpoint, CheckpointWriter, Dtype, Eviction, Init, Optimizer, PushScale, Row,
    RowColumns, RowRef, StoreError, Table, TableConfig, Writes,
};

/// Two weights by SGD and one with momentum: integer gradients make every sum exact.
const DIM: usize = 3;
const RATE: f32 = 0.5;
const MOMENTUM: f32 = 0.5;

fn config(dtype: Dtype, writes: Writes) -> TableConfig {
    let sgd = Optimizer::Sgd { lr: RATE, l2: 0.0 };
    let momentum = Optimizer::Momentum { lr: RATE, momentum: MOMENTUM, l2: 0.0 };
    let blocks = vec![
        Block { dims: 2, init: Init::Zero, optimizer: sgd },
        Block { dims: 1, init: Init::Zero, optimizer: momentum },
    ];
    TableConfig { dtype, writes, ..TableConfig::new("t", blocks) }
}

fn columns<'a>(rows: impl IntoIterator<Item = &'a Row>) -> RowColumns {
    let mut columns = RowColumns::default();
    rows.into_iter().for_each(|row| columns.push(row.as_ref()));
    columns
}

fn import(table: &Table, rows: &[Row]) -> Result<(), StoreError> {
    table.import(columns(rows).rows())
}

fn rows_of(table: &Table) -> HashMap<u64, Row> {
    let mut rows = HashMap::new();
    table.for_each_row(|row| {
        let RowRef { key, frequency, last_use, version, weights, state } = row;
        let (weights, state) = (weights.to_vec(), state.to_vec());
        let row = Row { key, frequency, last_use, version, weights, state };
        assert!(rows.insert(key, row).is_none(), "key {key} twice");
    });
    rows
}

#[derive(Clone, Debug)]
enum Operation {
    Import(Vec<Row>),
    Push(Vec<(u64, i8)>),
    Remove(u64),
    Maintain,
    Save,
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..40, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

fn row() -> impl Strategy<Value = Row> {
    let values = prop::collection::vec(-8_i8..8, DIM + 1);
    (key(), any::<u32>(), 0_u32..1000, any::<u32>(), values).prop_map(
        |(key, frequency, last_use, version, values)| {
            let values: Vec<f32> = values.into_iter().map(f32::from).collect();
            let (weights, state) = (values[..DIM].to_vec(), values[DIM..].to_vec());
            Row { key, frequency, last_use, version, weights, state }
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => prop::collection::vec(row(), 0..40).prop_map(|mut rows| {
            rows.sort_by_key(|row| row.key);
            rows.dedup_by_key(|row| row.key);
            Operation::Import(rows)
        }),
        4 => prop::collection::hash_map(key(), -3_i8..=3, 0..40).prop_map(|keys| Operation::Push(keys.into_iter().collect())),
        2 => key().prop_map(Operation::Remove),
        1 => Just(Operation::Maintain),
        1 => Just(Operation::Save),
    ]
}

/// A use clock, and its reading when it last followed imported rows.
#[derive(Default)]
struct Clock {
    now: u32,
    followed: Option<u32>,
}

/// The effect of an operation on the model.
fn apply(model: &mut HashMap<u64, Row>, clock: &mut Clock, operation: &Operation) {
    match operation {
        Operation::Import(rows) => {
            if model.is_empty() || clock.followed == Some(clock.now) {
                clock.now = rows.iter().map(|row| row.last_use).fold(clock.now, u32::max);
                clock.followed = Some(clock.now);
            }
            let row = |row: &Row| Row { last_use: row.last_use.min(clock.now), ..row.clone() };
            model.extend(rows.iter().map(|imported| (imported.key, row(imported))));
        }
        Operation::Push(gradients) => {
            clock.now += 1;
            for &(key, gradient) in gradients {
                let (weights, state) = (vec![0.0; DIM], vec![0.0]);
                let new = Row { key, frequency: 0, last_use: 0, version: 0, weights, state };
                let row = model.entry(key).or_insert(new);
                row.frequency = row.frequency.saturating_add(1);
                (row.last_use, row.version) = (clock.now, row.version.saturating_add(1));
                let gradient = f32::from(gradient);
                row.weights[..2].iter_mut().for_each(|weight| *weight -= RATE * gradient);
                row.state[0] = MOMENTUM * row.state[0] + gradient;
                row.weights[2] -= RATE * row.state[0];
            }
        }
        Operation::Remove(key) => _ = model.remove(key),
        Operation::Save => clock.followed = None,
        Operation::Maintain => {}
    }
}

fn carry_out(table: Table, operation: &Operation) -> Table {
    match operation {
        Operation::Import(rows) => import(&table, rows).unwrap(),
        Operation::Push(gradients) => {
            let (keys, gradients): (Vec<u64>, Vec<i8>) = gradients.iter().copied().unzip();
            let gradients: Vec<f32> = gradients.iter().flat_map(|&g| [f32::from(g); DIM]).collect();
            table.push(&keys, &gradients, PushScale::default()).unwrap();
        }
        Operation::Remove(key) => _ = table.remove(*key),
        Operation::Maintain => _ = table.maintain(100),
        // In two halves, and from rows that are borrowed one by one.
        Operation::Save => {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = CheckpointWriter::create(dir.path()).unwrap();
            let written = writer.rows::<StoreError>(table.config(), |each| {
                assert!(table.try_for_each_row(each).is_continue());
                Ok(table.stats().pushes)
            });
            written.and_then(|()| writer.commit()).unwrap();
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            let mut shown = HashMap::new();
            let show = |row: RowRef<'_>| {
                shown.insert(row.key, row.weights.to_vec());
                Ok::<(), StoreError>(())
            };
            checkpoint.for_each_row("t", show).unwrap();
            assert!(rows_of(&table).iter().all(|(key, row)| shown[key] == row.weights));
            assert_eq!(shown.len(), table.len());
            let mut loaded = Table::new(table.config().clone()).unwrap();
            let odd = checkpoint.load_rows("t", &mut loaded, |key| key % 2 == 1).unwrap();
            let even = checkpoint.load_rows("t", &mut loaded, |key| key % 2 == 0).unwrap();
            assert_eq!((odd + even) as usize, table.len());
            assert_eq!(loaded.stats().pushes, table.stats().pushes);
            return loaded;
        }
    }
    table
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn imports_among_other_changes(operations in prop::collection::vec(operation(), 1..16)) {
        for writes in [Writes::InPlace, Writes::CopyOnWrite] {
            let mut table = Table::new(config(Dtype::F32, writes)).unwrap();
            let (mut model, mut clock) = (HashMap::new(), Clock::default());
            for operation in &operations {
                apply(&mut model, &mut clock, operation);
                table = carry_out(table, operation);
                prop_assert_eq!(&rows_of(&table), &model);
                prop_assert_eq!((table.len(), table.stats().pushes), (model.len(), u64::from(clock.now)));
            }
        }
    }
}

fn some_row(key: u64) -> Row {
    let (weights, state) = (vec![key as f32, 1.5, -2.0], vec![0.25]);
    Row { key, frequency: 7, last_use: 3, version: 9, weights, state }
}

/// Many chunks and all formats: rows are transferred bit for bit.
#[test]
fn rows_go_from_table_to_table() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for writes in [Writes::InPlace, Writes::CopyOnWrite] {
            let (from, to) =
                (Table::new(config(dtype, writes)).unwrap(), Table::new(config(dtype, writes)).unwrap());
            let keys: Vec<u64> = (0..10_000).map(|key| key << 40 | key).collect();
            let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at as f32).sin()).collect();
            from.push(&keys, &grads, PushScale::default()).unwrap();
            to.push(&keys[..3000], &grads[..3000 * DIM], PushScale { lr_scale: 0.1 }).unwrap();
            let rows: Vec<Row> = rows_of(&from).into_values().collect();
            import(&to, &rows).unwrap();
            assert!(rows_of(&to) == rows_of(&from), "{dtype:?} {writes:?}");
        }
    }
}

/// A table imported in parts, in any order, brings its clock; a row from elsewhere does not age others.
#[test]
fn the_clock_follows_rows_until_somebody_pushes() {
    let old = Eviction::Age { pushes: 100 };
    let table = Table::new(TableConfig { eviction: old, ..config(Dtype::F32, Writes::InPlace) }).unwrap();
    let row = |key: u64, last_use: u32| Row { last_use, ..some_row(key) };
    let parts = [[row(1, 500), row(2, 450)], [row(3, 990), row(4, 1)], [row(5, 1000), row(6, 999)]];
    for part in &parts {
        import(&table, part).unwrap();
    }
    assert_eq!((rows_of(&table).len(), table.stats().pushes), (6, 1000));
    assert!(parts.iter().flatten().all(|row| table.get(row.key).as_ref() == Some(row)));
    table.push(&[5], &[0.0; DIM], PushScale::default()).unwrap();
    import(&table, &[row(7, 5_000_000), row(8, 990)]).unwrap();
    assert_eq!([7, 8].map(|key| table.get(key).unwrap().last_use), [1001, 990]);
    while table.maintain(1000).evicted > 0 {}
    let mut left: Vec<u64> = rows_of(&table).into_keys().collect();
    left.sort_unstable();
    assert_eq!((left, table.stats().pushes), (vec![3, 5, 6, 7, 8], 1001));
}

#[test]
fn what_does_not_fit_is_refused_whole() {
    let table = Table::new(config(Dtype::F32, Writes::InPlace)).unwrap();
    import(&table, &[some_row(1), some_row(2)]).unwrap();
    let before = rows_of(&table);
    let bad = |weight: f32, state: f32| {
        let (weights, state) = (vec![0.0, weight, 0.0], vec![state]);
        Row { weights, state, ..some_row(5) }
    };
    let check = |rows: &[Row], expected: &str| {
        let mut all = vec![some_row(3)];
        all.extend_from_slice(rows);
        let error = import(&table, &all).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} is not about {expected}");
        assert_eq!(rows_of(&table), before, "{expected}");
        assert_eq!(table.stats().pushes, 3, "{expected}");
    };
    check(&[bad(f32::NAN, 0.0)], "row of key 5: weight 1 is NaN");
    check(&[bad(f32::INFINITY, 0.0)], "row of key 5: weight 1 is inf");
    check(&[bad(0.0, f32::NEG_INFINITY)], "row of key 5: state value 0 is -inf");
    check(&[some_row(4), some_row(3)], "row of key 3: the key occurs twice");
    let future = Row { last_use: 1000, ..bad(f32::NAN, 0.0) };
    check(&[future], "NaN");
    let (short, rows) = (Row { weights: vec![0.0; 2], ..some_row(4) }, [some_row(3)]);
    check(&[short], "weights has length 5, expected 6");
    let columns = columns(&rows);
    for (rows, what) in [
        (sanderling_store::WholeRows { frequencies: &[], ..columns.rows() }, "frequencies"),
        (sanderling_store::WholeRows { last_uses: &[1, 2], ..columns.rows() }, "last_uses"),
        (sanderling_store::WholeRows { versions: &[], ..columns.rows() }, "versions"),
        (sanderling_store::WholeRows { states: &[0.0; 3], ..columns.rows() }, "states"),
    ] {
        assert!(table.import(rows).unwrap_err().to_string().contains(what), "{what}");
    }
    import(&table, &[]).unwrap();
    assert_eq!(rows_of(&table), before);
}

/// Rejects a state from which the next push would produce NaN, and no others.
#[test]
fn sums_of_squares_are_not_below_zero() {
    const DIMS: usize = 2;
    let (lr, beta1, beta2, eps, l2) = (0.1, 0.9, 0.99, 1e-8, 0.0);
    for (optimizer, squares) in [
        (Optimizer::Momentum { lr, momentum: 0.9, l2 }, 0..0),
        (Optimizer::Adagrad { lr, eps, initial: 0.0, l2 }, 0..2),
        (Optimizer::RowAdagrad { lr, eps, initial: 0.0, l2 }, 0..1),
        (Optimizer::Adam { lr, beta1, beta2, eps, l2 }, 2..4),
        (Optimizer::AdamW { lr, beta1, beta2, eps, decay: 0.0 }, 2..4),
        (Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2 }, 2..4),
    ] {
        // Behind another block, so that positions in the block and in the row differ.
        let of = |dims, optimizer| Block { dims, init: Init::Zero, optimizer };
        let blocks = vec![of(1, Optimizer::Momentum { lr, momentum: 0.9, l2 }), of(DIMS, optimizer)];
        let table = Table::new(TableConfig::new("t", blocks)).unwrap();
        for at in 0..optimizer.state_len(DIMS) {
            let mut state = vec![0.5; 1 + optimizer.state_len(DIMS)];
            (state[0], state[1 + at]) = (-1.0, -1.0);
            let imported = import(&table, &[Row { weights: vec![0.0; 1 + DIMS], state, ..some_row(1) }]);
            if squares.contains(&at) {
                let error = imported.unwrap_err().to_string();
                let what = format!("row of key 1: state value {} is -1", 1 + at);
                assert!(error.contains(&what), "{optimizer:?}: {error}");
            } else {
                imported.unwrap();
                table.push(&[1], &[0.25; 1 + DIMS], PushScale::default()).unwrap();
                let row = table.get(1).unwrap();
                assert!(row.weights.iter().chain(&row.state).all(|value| value.is_finite()), "{optimizer:?}");
            }
        }
    }
}

#[test]
fn a_full_table_replaces_rows_and_says_how_many_found_no_room() {
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        let config = TableConfig { budget_bytes: Some(256 << 10), ..config(Dtype::F32, writes) };
        let table = Table::new(config.clone()).unwrap();
        let rows: Vec<Row> = (0..50_000).map(some_row).collect();
        let Err(StoreError::TableFull { rows: found, rejected, budget_bytes, .. }) = import(&table, &rows)
        else {
            panic!("256 KiB are enough for 50,000 rows")
        };
        assert_eq!((found + rejected, budget_bytes), (50_000, 256 << 10));
        let there = rows_of(&table);
        assert_eq!(there.len() as u64, found);
        assert!(there.values().all(|row| *row == some_row(row.key)));
        let others: Vec<Row> = there.keys().map(|&key| Row { version: 1, ..some_row(key) }).collect();
        import(&table, &others).unwrap();
        assert!(rows_of(&table).values().all(|row| row.version == 1), "{writes:?}");
        assert!(table.bytes() <= 256 << 10);

        // With eviction all rows are imported, and the last ones stay.
        let table = Table::new(TableConfig { eviction: Eviction::Clock, ..config }).unwrap();
        import(&table, &rows).unwrap();
        assert!(table.stats().evicted > 0 && table.get(49_999) == Some(some_row(49_999)), "{writes:?}");
    }
}

#[test]
fn imported_rows_need_no_admission() {
    let admission = Admission::Sightings { sightings: 3, filter_bytes: 1 << 12 };
    let table = Table::new(TableConfig { admission, ..config(Dtype::F32, Writes::InPlace) }).unwrap();
    table.push(&[1], &[1.0; DIM], PushScale::default()).unwrap();
    import(&table, &[some_row(2)]).unwrap();
    assert_eq!((table.get(1), table.get(2)), (None, Some(some_row(2))));
}

/// Weights are small integers and the last one is their sum, after imports and pushes; the state likewise.
#[test]
fn rows_are_seen_whole_while_they_are_replaced() {
    const KEYS: u64 = 300;
    let momentum = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
    for (writes, budget_bytes, eviction) in [
        (Writes::InPlace, None, Eviction::Never),
        (Writes::CopyOnWrite, None, Eviction::Never),
        (Writes::CopyOnWrite, Some(96 << 10), Eviction::Clock),
    ] {
        let single = TableConfig::single("t", 21, Init::Zero, momentum);
        let table = Table::new(TableConfig { writes, budget_bytes, eviction, ..single }).unwrap();
        let values = |seed: u64| {
            let mut values: Vec<f32> = (0..21).map(|at| ((seed >> at) % 7) as f32).collect();
            values[20] = values[..20].iter().sum();
            values
        };
        let is_whole = |values: &[f32]| values[20] == values[..20].iter().sum::<f32>();
        let done = AtomicBool::new(false);
        let keys_of = |round: u64| (0..20).map(move |at| (round * 31 + at * 7) % KEYS).collect::<Vec<u64>>();
        thread::scope(|scope| {
            let changers = [0_u64, 1, 2].map(|thread| {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..2000_u64 {
                        let (keys, seed) =
                            (keys_of(round + 77 * thread), round.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                        if thread == 0 {
                            let gradients: Vec<f32> =
                                keys.iter().flat_map(|key| values(seed ^ key)).collect();
                            table.push(&keys, &gradients, PushScale::default()).unwrap();
                        } else {
                            let row = |&key: &u64| {
                                let weights = values(seed ^ key);
                                let state = weights.iter().map(|weight| weight * 2.0).collect();
                                Row { key, frequency: 1, last_use: 1, version: 1, weights, state }
                            };
                            import(table, &keys.iter().map(row).collect::<Vec<_>>()).unwrap();
                            if round % 8 == 0 {
                                table.remove(keys[0]);
                            }
                        }
                    }
                })
            });
            for thread in 0..2 {
                let (table, done) = (&table, &done);
                scope.spawn(move || {
                    let (mut out, mut round) = (vec![0.0; 20 * 21], thread);
                    while !done.load(Relaxed) {
                        round += 1;
                        table.pull(&keys_of(round), Absent::Zero, &mut out, None).unwrap();
                        assert!(out.chunks(21).all(is_whole));
                        let mut seen = HashMap::new();
                        table.for_each_row(|row| {
                            assert!(is_whole(row.weights) && is_whole(row.state) && row.key < KEYS);
                            assert_eq!(seen.insert(row.key, ()), None);
                        });
                    }
                });
            }
            let results = changers.map(thread::ScopedJoinHandle::join);
            done.store(true, Relaxed);
            for result in results {
                result.unwrap();
            }
        });
        assert_eq!(rows_of(&table).len(), table.len());
    }
}
