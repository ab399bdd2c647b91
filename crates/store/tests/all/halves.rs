//! Tables of f16 or bf16 weights: updates arrive on average, depend only on the rows, and all ways to read a row
//! agree.

use sanderling_store::{Absent, Dtype, Init, Optimizer, Pooling, PushScale, StoreError, Table, TableConfig};

const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

fn table(dtype: Dtype, dims: usize, init: Init, optimizer: Optimizer) -> Table {
    Table::new(TableConfig { dtype, seed: 3, ..TableConfig::single("t", dims, init, optimizer) }).unwrap()
}

fn sgd(lr: f32) -> Optimizer {
    Optimizer::Sgd { lr, l2: 0.0 }
}

fn pull(table: &Table, keys: &[u64], absent: Absent) -> Vec<f32> {
    let mut out = vec![9.0; keys.len() * table.dim()];
    table.pull(keys, absent, &mut out, None).unwrap();
    out
}

fn nearest(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::F32 => value,
        Dtype::F16 => half::f16::from_f32(value).to_f32(),
        Dtype::Bf16 => half::bf16::from_f32(value).to_f32(),
    }
}

/// Steps of a fraction of the distance between halves: each row is at one of two neighbours, and their mean is
/// right.
#[test]
fn updates_arrive_on_average() {
    for (dtype, unit) in [(Dtype::F16, 2_f32.powi(-10)), (Dtype::Bf16, 2_f32.powi(-7))] {
        for part in [0.03_f32, 0.25, 0.5, 0.9] {
            let table = table(dtype, 4, Init::Zero, sgd(1.0));
            let keys: Vec<u64> = (0..5_000).collect();
            let all = |value: f32| vec![value; keys.len() * 4];
            table.push(&keys, &all(-1.0), PushScale::default()).unwrap();
            table.push(&keys, &all(-part * unit), PushScale::default()).unwrap();
            let weights = pull(&table, &keys, Absent::Zero);
            assert!(weights.iter().all(|&weight| weight == 1.0 || weight == 1.0 + unit));
            let mean = weights.iter().map(|&weight| f64::from((weight - 1.0) / unit)).sum::<f64>();
            let (mean, part) = (mean / weights.len() as f64, f64::from(part));
            let deviation = (part * (1.0 - part) / weights.len() as f64).sqrt();
            assert!((mean - part).abs() < 5.0 * deviation, "{dtype:?}: {mean} of a unit, not {part}");
        }
    }
}

#[test]
fn a_row_without_an_update_does_not_move() {
    for dtype in HALVES {
        let table = table(dtype, 37, Init::Normal { std: 0.1 }, sgd(0.1));
        let keys: Vec<u64> = (0..100).collect();
        let first = pull(&table, &keys, Absent::Init);
        assert!(first.iter().all(|&weight| weight == nearest(dtype, weight)));
        for _ in 0..20 {
            table.push(&keys, &vec![0.0; first.len()], PushScale::default()).unwrap();
        }
        assert_eq!(pull(&table, &keys, Absent::Zero), first);
        assert_eq!(table.get(0).unwrap().version, 20);
    }
}

/// One thread in large requests, or several threads in small ones: identical rows.
#[test]
fn rounding_depends_on_rows_alone() {
    for dtype in HALVES {
        let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 };
        let (one, many) = (table(dtype, 9, Init::Zero, adagrad), table(dtype, 9, Init::Zero, adagrad));
        let keys: Vec<u64> = (0..400).collect();
        let gradients: Vec<f32> = (0..keys.len() * 9).map(|at| (at as f32).sin()).collect();
        for _ in 0..5 {
            one.push(&keys, &gradients, PushScale::default()).unwrap();
        }
        std::thread::scope(|scope| {
            for (keys, gradients) in keys.chunks(100).zip(gradients.chunks(900)) {
                let many = &many;
                scope.spawn(move || {
                    for _ in 0..5 {
                        for (key, gradient) in keys.iter().zip(gradients.chunks(9)).rev() {
                            many.push(&[*key], gradient, PushScale::default()).unwrap();
                        }
                    }
                });
            }
        });
        for &key in &keys {
            let (one, many) = (one.get(key).unwrap(), many.get(key).unwrap());
            assert_eq!((one.weights, one.state), (many.weights, many.state));
        }
    }
}

/// A linear regression whose steps soon fall below half the distance of two bf16: rounding to nearest stalls far
/// from the solution, the table does not.
#[test]
fn regression_converges_where_nearest_stalls() {
    const DIM: usize = 8;
    const LR: f32 = 0.002;
    let target: [f32; DIM] = [1.3, -0.7, 2.1, 0.4, -1.9, 0.9, -0.3, 1.1];
    let check = |dtype: Dtype, stochastic: bool| {
        let table = table(dtype, DIM, Init::Zero, sgd(LR));
        let (mut plain, mut state) = ([0.0_f32; DIM], 7_u64);
        let (mut loss, steps) = (0.0, 20_000);
        for step in 0..steps {
            let x: [f32; DIM] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            });
            let weights = if stochastic { pull(&table, &[5], Absent::Zero) } else { plain.to_vec() };
            let error: f32 = (0..DIM).map(|at| x[at] * (weights[at] - target[at])).sum();
            let gradient = x.map(|x| x * error);
            if stochastic {
                table.push(&[5], &gradient, PushScale::default()).unwrap();
            } else {
                for (weight, g) in plain.iter_mut().zip(gradient) {
                    *weight = nearest(dtype, *weight - LR * g);
                }
            }
            if step >= steps / 2 {
                loss += f64::from(error * error) / f64::from(steps / 2);
            }
        }
        loss
    };
    let (stalled, arrived, exact) =
        (check(Dtype::Bf16, false), check(Dtype::Bf16, true), check(Dtype::F32, true));
    assert!(arrived < stalled / 20.0, "nearest {stalled}, stochastic {arrived}, f32 {exact}");
    assert!(check(Dtype::F16, true) < stalled / 100.0);
}

/// Copied, pooled, single, iterated and from a checkpoint: the same weights, all of them halves.
#[test]
fn all_ways_to_read_agree() {
    for (dtype, dims) in HALVES.into_iter().flat_map(|dtype| [1, 2, 5, 16, 37, 64].map(|dims| (dtype, dims)))
    {
        let table = table(dtype, dims, Init::Normal { std: 0.2 }, sgd(0.1));
        let keys: Vec<u64> = (0..300).map(|key| key << 20).collect();
        let gradients: Vec<f32> = (0..keys.len() * dims).map(|at| (at as f32).cos()).collect();
        table.push(&keys[..200], &gradients[..200 * dims], PushScale::default()).unwrap();
        let pulled = pull(&table, &keys, Absent::Init);
        assert!(pulled.iter().all(|&weight| weight == nearest(dtype, weight)));
        let offsets: Vec<u32> = (0..=100).map(|sample| sample * 3).collect();
        let mut sums = vec![9.0; 100 * dims];
        table.pull_pooled(&keys, None, &offsets, Pooling::Sum, Absent::Init, &mut sums, None).unwrap();
        for (sum, rows) in sums.chunks(dims).zip(pulled.chunks(3 * dims)) {
            let expected: Vec<f32> =
                (0..dims).map(|at| rows[at] + rows[dims + at] + rows[2 * dims + at]).collect();
            assert_eq!(sum, expected, "{dtype:?} {dims}");
        }
        let mut rows = 0;
        table.for_each_row(|row| {
            let at = (row.key >> 20) as usize * dims;
            assert_eq!(row.weights, &pulled[at..at + dims]);
            assert_eq!(table.get(row.key).unwrap().weights, row.weights);
            rows += 1;
        });
        assert_eq!(rows, 200);
    }
}

#[test]
fn weights_saturate_and_state_goes_on() {
    let table = table(Dtype::F16, 2, Init::Zero, Optimizer::Momentum { lr: 1.0, momentum: 0.5, l2: 0.0 });
    for _ in 0..3 {
        table.push(&[1], &[-60_000.0, 60_000.0], PushScale::default()).unwrap();
    }
    let row = table.get(1).unwrap();
    assert_eq!((row.weights, row.state), (vec![65_504.0, -65_504.0], vec![-105_000.0, 105_000.0]));
}

#[test]
fn writers_are_for_f32() {
    for dtype in HALVES {
        let table = table(dtype, 1, Init::Zero, sgd(0.1));
        let error = table.writer(PushScale::default()).unwrap_err();
        assert!(matches!(&error, StoreError::Config { .. }) && error.to_string().contains("f32"), "{error}");
    }
}
