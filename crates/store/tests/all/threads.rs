//! Small multi-threaded cases of all operations, small enough for an interpreter that detects undefined behaviour
//! and simulates weak memory (`make proof`).

use std::thread;

use sanderling_store::{
    Absent, Eviction, Init, Optimizer, PushScale, StoreError, Table, TableConfig, Writes,
};

const DIM: usize = 3;
const ROUNDS: u64 = if cfg!(miri) { 4 } else { 300 };

fn is_whole(row: &[f32]) -> bool {
    row.iter().all(|&w| w == row[0])
}

fn check(config: TableConfig) {
    let t = Table::new(config).unwrap();
    thread::scope(|scope| {
        for number in 0..2_u64 {
            let t = &t;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let keys: Vec<u64> = (0..12).map(|i| (i * (number + 1) + round) % 20).collect();
                    match t.push(&keys, &vec![-1.0; keys.len() * DIM], PushScale::default()) {
                        Err(StoreError::TableFull { .. }) => {}
                        other => other.unwrap(),
                    }
                    t.remove((round * 7 + number) % 20);
                }
            });
        }
        scope.spawn(|| {
            let keys: Vec<u64> = (0..20).collect();
            let mut out = [0.0; 20 * DIM];
            for _ in 0..ROUNDS {
                t.pull(&keys, Absent::Zero, &mut out, None).unwrap();
                assert!(out.chunks(DIM).all(is_whole), "{out:?}");
            }
        });
        for round in 0..ROUNDS {
            t.maintain(10);
            t.for_each_row(|row| assert!(is_whole(row.weights)));
            match round % 3 {
                0 => _ = t.reserve(20 + 10 * round),
                1 => t.clear(),
                _ => {
                    if let Ok(mut writer) = t.writer(PushScale::default()) {
                        let mut handles = Vec::new();
                        writer.resolve(&[round % 20], &mut handles).unwrap();
                        writer.update(handles[0], &[-1.0; DIM]);
                        assert!(is_whole(writer.weights(handles[0])));
                    }
                }
            }
        }
    });
    let (stats, mut rows) = (t.stats(), 0);
    t.for_each_row(|_| rows += 1);
    assert_eq!(rows, stats.rows);
}

#[test]
fn in_place() {
    check(TableConfig::single("t", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 }));
}

#[test]
fn copy_on_write() {
    let config = TableConfig::single("t", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    check(TableConfig { writes: Writes::CopyOnWrite, ..config });
}

#[test]
fn with_eviction() {
    let config = TableConfig::single("t", DIM, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    check(TableConfig { eviction: Eviction::Age { pushes: 1 }, ..config });
}
