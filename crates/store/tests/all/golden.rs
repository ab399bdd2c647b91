//! Every optimizer compared with rows computed by float64 numpy (`golden/make.py`).

use std::collections::HashMap;

use sanderling_store::{Dtype, Init, Optimizer, PushScale, Table, TableConfig};

/// Tolerance relative to the larger of 1 and the value: f32 has 6e-8, and 40 updates of a few roundings each add
/// up.
const TOLERANCE: f64 = 1e-5;
const DIM: usize = 5;
/// The largest gradient.
const GRADIENT_MAX: f64 = 12.0;

fn optimizer(words: &mut std::str::SplitWhitespace<'_>) -> Optimizer {
    let kind = words.next().unwrap();
    let settings: HashMap<&str, f32> = words
        .map(|word| word.split_once('=').map(|(name, value)| (name, value.parse().unwrap())).unwrap())
        .collect();
    let get = |name: &str| settings[name];
    match kind {
        "sgd" => Optimizer::Sgd { lr: get("lr"), l2: get("l2") },
        "adagrad" => {
            Optimizer::Adagrad { lr: get("lr"), eps: get("eps"), initial: get("initial"), l2: get("l2") }
        }
        "adam" => Optimizer::Adam {
            lr: get("lr"),
            beta1: get("beta1"),
            beta2: get("beta2"),
            eps: get("eps"),
            l2: get("l2"),
        },
        "momentum" => Optimizer::Momentum { lr: get("lr"), momentum: get("momentum"), l2: get("l2") },
        "row_adagrad" => {
            Optimizer::RowAdagrad { lr: get("lr"), eps: get("eps"), initial: get("initial"), l2: get("l2") }
        }
        "adamw" => Optimizer::AdamW {
            lr: get("lr"),
            beta1: get("beta1"),
            beta2: get("beta2"),
            eps: get("eps"),
            decay: get("decay"),
        },
        "ftrl" => Optimizer::Ftrl { alpha: get("alpha"), beta: get("beta"), l1: get("l1"), l2: get("l2") },
        other => panic!("unknown optimizer {other}"),
    }
}

/// The bound on rounding of weights and of state `slot` after `pushes` pushes: one unit in the last place per push,
/// and for state its dependence on weights.
fn rounding_bound(table: &Table, slot: usize, pushes: usize, largest: f64, row: &[f64]) -> f64 {
    let unit = match table.config().dtype {
        Dtype::F32 => return 0.0,
        Dtype::F16 => 2_f64.powi(-10),
        Dtype::Bf16 => 2_f64.powi(-7),
    };
    let weights = pushes as f64 * unit * largest;
    match (slot, table.config().blocks[0].optimizer) {
        (0, _) => weights,
        // z accumulates the weight times the sum of all sigma; n does not depend on it.
        (1, Optimizer::Ftrl { alpha, .. }) => {
            weights * row[2 * DIM..].iter().copied().fold(0.0, f64::max).sqrt() / f64::from(alpha)
        }
        (_, Optimizer::Ftrl { .. }) => 0.0,
        (
            _,
            Optimizer::Adagrad { l2, .. }
            | Optimizer::RowAdagrad { l2, .. }
            | Optimizer::Adam { l2, .. }
            | Optimizer::Momentum { l2, .. },
        ) => f64::from(l2) * pushes as f64 * GRADIENT_MAX * 2.0 * weights,
        _ => 0.0,
    }
}

/// Runs a case with rows of `dim` coordinates, to test both the wide kernel and the one for a single coordinate.
fn check(dim: usize, dtype: Dtype) {
    let mut tables: Vec<Table> = Vec::new();
    let (mut pushes, mut largest, mut worst) = (0, 0.0_f64, 0.0_f64);
    let (mut scale, mut rows, mut zeros, mut skipped) = (1.0, 0, 0, false);
    for line in include_str!("golden/optimizers.txt").lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap();
        if what == "case" {
            let optimizer = optimizer(&mut words);
            // Row-wise Adagrad of a single coordinate is a different row.
            skipped = dim < DIM && matches!(optimizer, Optimizer::RowAdagrad { .. });
            let config = TableConfig { dtype, ..TableConfig::single("t", dim, Init::Zero, optimizer) };
            tables = (0..DIM / dim).map(|_| Table::new(config.clone()).unwrap()).collect();
            (pushes, largest) = (0, 0.0);
            continue;
        }
        if skipped {
            continue;
        }
        let values: Vec<f64> = words.map(|word| word.parse().unwrap()).collect();
        if what == "push" {
            scale = values[0] as f32;
            let g: Vec<f32> = values[1..].iter().map(|&g| g as f32).collect();
            for (table, g) in tables.iter().zip(g.chunks(dim)) {
                assert!(g.iter().all(|&g| f64::from(g).abs() < GRADIENT_MAX));
                table.push(&[7], g, PushScale { lr_scale: scale }).unwrap();
                let weights = table.get(7).unwrap().weights;
                largest = weights.iter().fold(largest, |largest, &w| largest.max(f64::from(w).abs()));
            }
            pushes += 1;
            continue;
        }
        for (part, table) in tables.iter().enumerate() {
            let row = table.get(7).unwrap();
            for (slot, found) in row.weights.chunks(dim).chain(row.state.chunks(dim)).enumerate() {
                for (at, &found) in found.iter().enumerate() {
                    let expected = values[slot * DIM + part * dim + at];
                    let bound = rounding_bound(table, slot, pushes, largest, &values);
                    let error = (f64::from(found) - expected).abs();
                    let most = bound + TOLERANCE * expected.abs().max(1.0);
                    assert!(error < most, "{:?} slot {slot}: {found}, not {expected}", table.config());
                    worst = worst.max(if slot == 0 { error } else { 0.0 });
                    zeros += usize::from(slot == 0 && found == 0.0);
                    let exact_zero = expected != 0.0 || found == 0.0 || dtype != Dtype::F32;
                    assert!(slot > 0 || exact_zero, "L1 zeros are exact");
                }
            }
        }
        rows += 1;
    }
    assert_eq!(rows, if dim == DIM { 15 * 10 } else { 13 * 10 });
    assert!(zeros > 3 && scale < 1.0, "the cases cover L1 and schedules");
    assert!(dtype == Dtype::F32 || worst > TOLERANCE, "halves were rounded");
}

#[test]
fn rows_of_five_coordinates() {
    check(5, Dtype::F32);
}

#[test]
fn rows_of_one_coordinate() {
    check(1, Dtype::F32);
}

#[test]
fn rows_of_halves() {
    for dtype in [Dtype::F16, Dtype::Bf16] {
        check(5, dtype);
        check(1, dtype);
    }
}
