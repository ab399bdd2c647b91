//! Counts the cache lines that requests touch per key, by the addresses of rows in a table's memory. Unlike a rate, the
//! count is the same on every machine and at every load, so that a layout that touches more lines fails.

use std::collections::BTreeSet;

use crate::{Init, Optimizer, Packing, PushScale, Table, TableConfig};

const LINE_BYTES: usize = 64;
const ROWS: u64 = 1600;

/// Averages per row: bytes of a row in the slab, lines that a pull reads, and lines that a push, or the creation of a
/// row, writes.
fn touched(table: &Table) -> (usize, f64, f64) {
    let (mut pull, mut push) = (0, 0);
    for row in 0..ROWS as u32 {
        let (weights, whole) = table.slab.parts(row);
        let lines = |parts: &[(usize, usize)]| {
            let all = parts
                .iter()
                .flat_map(|&(first, bytes)| first / LINE_BYTES..=(first + bytes - 1) / LINE_BYTES);
            all.collect::<BTreeSet<usize>>().len()
        };
        pull += lines(&[weights]);
        push += lines(&[weights, whole]);
    }
    (table.slab.row_bytes(), f64::from(pull as u32) / ROWS as f64, f64::from(push as u32) / ROWS as f64)
}

fn table(dim: usize, optimizer: Optimizer, packing: Packing) -> Table {
    let config = TableConfig::single("t", dim, Init::Zero, optimizer);
    let table = Table::new(TableConfig { packing, ..config }).expect("a table");
    let keys: Vec<u64> = (0..ROWS).collect();
    table.push(&keys, &vec![0.5; keys.len() * dim], PushScale::default()).expect("room");
    table
}

/// The expected numbers come from a separate program (`docs/design/0033-rows-in-two-parts.md`).
#[test]
fn rows_touch_as_many_lines_as_they_should() {
    let sgd = Optimizer::Sgd { lr: 0.1, l2: 0.0 };
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };
    let row_adagrad = Optimizer::RowAdagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 };
    let adam = Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
    let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.0, l2: 0.0 };
    for (name, dim, optimizer, fast, compact) in [
        ("sgd", 32, sgd, (192, 2.0, 3.0), (148, 2.0, 3.25)),
        ("adagrad", 8, adagrad, (96, 1.0, 2.0), (84, 1.4375, 2.25)),
        ("adagrad", 16, adagrad, (192, 1.0, 3.0), (148, 1.0, 3.25)),
        ("adagrad", 32, adagrad, (320, 2.0, 5.0), (276, 2.0, 5.25)),
        ("adagrad", 64, adagrad, (576, 4.0, 9.0), (532, 4.0, 9.25)),
        ("row_adagrad", 8, row_adagrad, (64, 1.0, 1.0), (56, 1.375, 1.75)),
        ("row_adagrad", 16, row_adagrad, (128, 1.0, 2.0), (88, 1.0, 2.25)),
        ("row_adagrad", 64, row_adagrad, (320, 4.0, 5.0), (280, 4.0, 5.25)),
        ("adam", 16, adam, (256, 1.0, 4.0), (212, 1.0, 4.25)),
        ("ftrl", 1, ftrl, (32, 1.0, 1.0), (32, 1.0, 1.0)),
        ("ftrl", 9, ftrl, (128, 1.0, 2.0), (128, 1.0, 2.0)),
    ] {
        for (packing, expected) in [(Packing::Fast, fast), (Packing::Compact, compact)] {
            assert_eq!(touched(&table(dim, optimizer, packing)), expected, "{name} {dim} {packing:?}");
        }
    }
}

/// Searches touch at most these averages where the index is as full as growth leaves it: those of a simulation of linear
/// probing in buckets of five (1.13 and 1.48 lines at 70 %, 1.55 and 5.3 at 87 %), and some chance.
#[test]
fn searches_touch_few_lines() {
    let sgd = Optimizer::Sgd { lr: 0.1, l2: 0.0 };
    for (packing, percent, present_max, absent_max) in
        [(Packing::Fast, 70, 1.16, 1.6), (Packing::Compact, 87, 1.65, 6.5)]
    {
        let config = TableConfig::single("t", 1, Init::Zero, sgd);
        let table = Table::new(TableConfig { packing, ..config }).expect("a table");
        // As many keys as fill the reserved index to the threshold of its growth.
        let (reserved, lanes) = (100_000_u64, 5);
        assert!(table.reserve(reserved));
        let slots = table.directory.pin(0).view().index.len() * lanes;
        let keys: Vec<u64> = (0..(slots * percent / 100) as u64).collect();
        table.push(&keys, &vec![0.5; keys.len()], PushScale::default()).expect("room");
        assert_eq!(table.directory.pin(0).view().latest().len() * lanes, slots, "it has grown");
        let absent: Vec<u64> = (1 << 40..(1 << 40) + 20_000).collect();
        let (present, absent) = (table.lines_per_search(&keys), table.lines_per_search(&absent));
        assert!(present <= present_max && absent <= absent_max, "{packing:?}: {present} {absent}");
    }
}
