//! Updates that are rejected per row, and locks that a thread cannot take twice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sanderling_store::{
    Absent, Block, CacheBuffers, Dtype, Init, Optimizer, PushScale, Row, RowColumns, StoreError, Table,
    TableConfig, Writes,
};

const FTRL: Optimizer = Optimizer::Ftrl { alpha: 1.0, beta: 1.0, l1: 0.0, l2: 0.0 };
const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
const OPTIMIZERS: [Optimizer; 7] = [
    SGD,
    Optimizer::Momentum { lr: 1.0, momentum: 0.5, l2: 0.0 },
    Optimizer::Adagrad { lr: 1.0, eps: 1e-8, initial: 0.0, l2: 0.0 },
    Optimizer::RowAdagrad { lr: 1.0, eps: 1e-8, initial: 0.0, l2: 0.0 },
    Optimizer::Adam { lr: 1.0, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 },
    Optimizer::AdamW { lr: 1.0, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.0 },
    FTRL,
];

/// Makes the last weight of a row so large that a step with a rate of 3e38, or one of FTRL, overflows.
fn bring_to_the_edge(table: &Table, key: u64, optimizer: Optimizer) {
    let Row { mut weights, mut state, .. } = table.get(key).unwrap();
    *weights.last_mut().unwrap() = -3e38;
    if matches!(optimizer, Optimizer::Ftrl { .. }) {
        // z precedes n in the block of the last weight.
        let z = state.len() / 2 - 1;
        state[z] = 3e38;
    }
    let mut columns = RowColumns::default();
    columns.push(Row { weights, state, ..table.get(key).unwrap() }.as_ref());
    table.import(columns.rows()).unwrap();
}

/// For every optimizer, shape and write mode, one row is rejected completely and the others are updated.
#[test]
fn an_update_that_is_not_finite_leaves_its_row_as_it_was() {
    for optimizer in OPTIMIZERS {
        for dims in [1, 4, 16, 17, 40] {
            for writes in [Writes::InPlace, Writes::CopyOnWrite] {
                let config = TableConfig::single("t", dims, Init::Zero, optimizer);
                let table = Table::new(TableConfig { writes, ..config }).unwrap();
                let all = |value: f32| vec![value; 3 * dims];
                table.push(&[1, 2, 3], &all(0.01), PushScale::default()).unwrap();
                bring_to_the_edge(&table, 2, optimizer);
                let before = [1, 2, 3].map(|key| table.get(key).unwrap());
                let scale = PushScale { lr_scale: 3e38 };
                let error = table.push(&[1, 2, 3], &all(1.0), scale).unwrap_err();
                let what = format!("{optimizer:?}, {dims}, {writes:?}: {error}");
                assert!(matches!(error, StoreError::NotFinite { key: 2, rows: 1, .. }), "{what}");
                assert!(error.to_string().len() < 200, "{what}");
                let after = [1, 2, 3].map(|key| table.get(key).unwrap());
                assert_eq!(after[1], before[1], "{what}");
                for at in [0, 2] {
                    assert_eq!((after[at].version, after[at].frequency), (2, 2), "{what}");
                    assert!(after[at].weights.iter().all(|w| w.is_finite() && *w != 0.0), "{what}");
                }
            }
        }
    }
}

/// A row of several blocks is rejected as a whole.
#[test]
fn a_row_of_several_blocks_is_refused_whole() {
    let block = |dims, optimizer| Block { dims, init: Init::Zero, optimizer };
    let config = TableConfig::new("t", vec![block(1, FTRL), block(3, OPTIMIZERS[3]), block(20, SGD)]);
    let table = Table::new(config).unwrap();
    table.push(&[1, 2], &[0.1; 48], PushScale::default()).unwrap();
    let before = table.get(2).unwrap();
    let mut gradients = [1e-30; 48];
    gradients[47] = 1e17;
    let error = table.push(&[1, 2], &gradients, PushScale { lr_scale: 3e38 }).unwrap_err();
    assert!(matches!(error, StoreError::NotFinite { key: 2, rows: 1, .. }), "{error}");
    assert_eq!((table.get(2).unwrap(), table.get(1).unwrap().version), (before, 2));
}

/// 16-bit weights saturate where an f32 would grow, but infinite results are rejected.
#[test]
fn halves_are_refused_too() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        for dims in [1, 5, 33] {
            let config = TableConfig { dtype, ..TableConfig::single("t", dims, Init::Zero, SGD) };
            let table = Table::new(config).unwrap();
            table.push(&[1, 2], &vec![1.0; 2 * dims], PushScale::default()).unwrap();
            let before = table.get(2).unwrap();
            let mut gradients = vec![1e-38; 2 * dims];
            *gradients.last_mut().unwrap() = -1e17;
            let error = table.push(&[1, 2], &gradients, PushScale { lr_scale: 3e38 }).unwrap_err();
            assert!(matches!(error, StoreError::NotFinite { key: 2, rows: 1, .. }), "{error}");
            assert_eq!((table.get(2).unwrap(), table.get(1).unwrap().version), (before, 2));
        }
    }
}

#[test]
fn a_new_row_whose_first_update_is_not_finite_begins_as_any_other() {
    for dims in [1, 30] {
        let table = Table::new(TableConfig::single("t", dims, Init::Normal { std: 0.1 }, SGD)).unwrap();
        let mut first = vec![0.0; dims];
        table.pull(&[7], Absent::Init, &mut first, None).unwrap();
        let error = table.push(&[7], &vec![1e17; dims], PushScale { lr_scale: 3e38 }).unwrap_err();
        assert!(matches!(error, StoreError::NotFinite { key: 7, rows: 1, .. }), "{error}");
        let row = table.get(7).unwrap();
        assert_eq!((row.weights, row.version, row.frequency), (first, 0, 0));
    }
}

#[test]
fn updates_by_handle_are_refused_at_their_row() {
    for dims in [1, 3, 20] {
        let table = Table::new(TableConfig::single("t", dims, Init::Zero, SGD)).unwrap();
        let mut writer = table.writer(PushScale { lr_scale: 3e38 }).unwrap();
        let mut handles = Vec::new();
        writer.resolve(&[1, 2], &mut handles).unwrap();
        writer.update(handles[1], &vec![1e17; dims]);
        writer.update_all(&handles, &vec![1e-38; 2 * dims]);
        assert!(writer.weights(handles[1]).iter().all(|w| w.is_finite()));
        let error = writer.finish().unwrap_err();
        assert!(matches!(error, StoreError::NotFinite { key: 2, rows: 1, .. }), "{error}");
        assert_eq!([1, 2].map(|key| table.get(key).unwrap().version), [1, 1]);
        // Errors that are not asked for are reported too.
        let dropped = catch_unwind(AssertUnwindSafe(|| {
            let mut writer = table.writer(PushScale { lr_scale: 3e38 }).unwrap();
            writer.update(handles[0], &vec![1e17; dims]);
        }));
        assert!(dropped.is_err());
        table.push(&[1], &vec![0.0; dims], PushScale::default()).unwrap();
    }
}

#[test]
fn copies_that_are_not_finite_are_refused_at_their_row() {
    for dims in [1, 3] {
        for others in [false, true] {
            let table = Table::new(TableConfig::single("t", dims, Init::Zero, FTRL)).unwrap();
            table.push(&[1, 2], &vec![0.1; 2 * dims], PushScale::default()).unwrap();
            bring_to_the_edge(&table, 2, FTRL);
            let before = table.get(2).unwrap();
            let (mut near, mut handles) = (CacheBuffers::default(), Vec::new());
            let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
            rows.resolve(&[1, 2, 9], &mut handles);
            rows.update_all(&handles, &vec![10.0; 3 * dims]);
            if others {
                // Then the changes of the copy are added to the row.
                table.push(&[1], &vec![0.1; dims], PushScale::default()).unwrap();
            }
            let error = rows.flush().unwrap_err();
            assert!(matches!(error, StoreError::NotFinite { key: 2, rows: 1, .. }), "{error}");
            assert_eq!(table.get(2).unwrap(), before);
            let versions = [1, 9].map(|key| table.get(key).unwrap().version);
            assert_eq!(versions, [2 + u32::from(others), 1]);
            assert!([1, 9].iter().all(|&key| table.get(key).unwrap().weights.iter().all(|w| w.is_finite())));
        }
    }
}

/// An early return before `flush` loses no update silently.
#[test]
fn copies_that_are_dropped_are_settled_or_the_drop_panics() {
    let config = TableConfig::single("t", 1, Init::Zero, FTRL);
    let update = |table: &Table, keys: &[u64], discard: bool| {
        let (mut near, mut handles) = (CacheBuffers::default(), Vec::new());
        let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
        rows.resolve(keys, &mut handles);
        rows.update_all(&handles, &vec![1.0; keys.len()]);
        if discard {
            rows.discard();
        }
    };
    let table = Table::new(config.clone()).unwrap();
    update(&table, &[1, 2], false);
    update(&table, &[1, 3], true);
    assert_eq!([1, 2, 3].map(|key| table.get(key).map(|row| row.version)), [Some(1), Some(1), None]);
    let full = Table::new(TableConfig { budget_bytes: Some(1 << 18), ..config }).unwrap();
    let keys: Vec<u64> = (0..50_000).collect();
    let error = catch_unwind(AssertUnwindSafe(|| update(&full, &keys, false))).unwrap_err();
    let error = error.downcast_ref::<String>().unwrap();
    assert!(error.contains("without flush()") && error.contains("is full"), "{error}");
    assert!(!full.is_empty() && full.len() < keys.len());
}

/// The thread would deadlock.
#[test]
fn a_thread_with_a_writer_cannot_change_the_table_otherwise() {
    let table = Table::new(TableConfig::single("t", 1, Init::Zero, FTRL)).unwrap();
    table.push(&[1], &[1.0], PushScale::default()).unwrap();
    let (mut near, mut handles) = (CacheBuffers::default(), Vec::new());
    let mut rows = table.local_cache(PushScale::default(), &mut near).unwrap();
    rows.resolve(&[1], &mut handles);
    let writer = table.writer(PushScale::default()).unwrap();
    let mut columns = RowColumns::default();
    columns.push(table.get(1).unwrap().as_ref());
    let scale = PushScale::default();
    for result in [
        table.push(&[1], &[1.0], scale),
        table.push_unique(&[1], &[1], &[1.0], scale),
        table.push_part(&[1], &[1], &[1.0], scale, table.count_push()),
        table.import(columns.rows()),
        table.writer(scale).map(drop),
        rows.flush(),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, StoreError::Writing { .. }), "{error}");
        assert!(error.to_string().contains("drop the writer first"), "{error}");
    }
    let changes: [fn(&Table); 3] = [|t| _ = t.remove(1), |t| t.clear(), |t| _ = t.maintain(10)];
    for change in changes {
        assert!(catch_unwind(AssertUnwindSafe(|| change(&table))).is_err());
    }
    // Other threads wait, and readers do not.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| table.push(&[2], &[1.0], scale));
        assert_eq!(table.pull(&[1], Absent::Zero, &mut [0.0], None).unwrap(), 0);
        drop(writer);
        other.join().unwrap().unwrap();
    });
    table.push(&[1], &[1.0], scale).unwrap();
    assert_eq!((table.len(), table.get(1).unwrap().version), (2, 2));
}
