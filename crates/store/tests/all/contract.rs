//! Guarantees of the API beyond arithmetic: errors, budget, pooling, initialization, threads.

use proptest::prelude::*;
use sanderling_store::{
    Absent, Block, Eviction, Init, Optimizer, Pooling, PushScale, StoreError, Table, TableConfig,
};

const SGD: Optimizer = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
const FTRL: Optimizer = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.5, l2: 0.1 };

fn table(dim: usize, init: Init, optimizer: Optimizer) -> Table {
    Table::new(TableConfig::single("t", dim, init, optimizer)).unwrap()
}

#[test]
fn impossible_configurations_are_refused() {
    let check = |blocks: Vec<Block>, part: &str| {
        let config = TableConfig::new("lr", blocks);
        let error = Table::new(config).unwrap_err();
        assert!(matches!(error, StoreError::Config { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("\"lr\"") && text.contains(part), "{text}");
    };
    let block = |dims, init, optimizer| vec![Block { dims, init, optimizer }];
    check(vec![], "1 to 64 blocks");
    check(block(0, Init::Zero, SGD), "dim 0");
    check(block(1 << 20, Init::Zero, SGD), "above the limit");
    let endless = [usize::MAX; 2].map(|dims| Block { dims, init: Init::Zero, optimizer: SGD });
    assert_eq!(TableConfig::new("lr", endless.to_vec()).dim(), usize::MAX);
    check(endless.to_vec(), "above the limit");
    check(block(1, Init::Normal { std: f32::NAN }, SGD), "std");
    check(block(1, Init::Zero, Optimizer::Sgd { lr: 0.0, l2: 0.0 }), "lr = 0");
    check(
        block(1, Init::Zero, Optimizer::Adam { lr: 1.0, beta1: 1.0, beta2: 0.9, eps: 1.0, l2: 0.0 }),
        "beta1",
    );
    let flat = Optimizer::Ftrl { alpha: 1.0, beta: 0.0, l1: 0.0, l2: 0.0 };
    check(block(1, Init::Normal { std: 1.0 }, flat), "beta > 0 or l2 > 0");
    for (alpha, beta) in [(1e-39, 1.0), (1e-38, 10.0), (1e-20, 0.0)] {
        let steep = Optimizer::Ftrl { alpha, beta, l1: 0.0, l2: 0.0 };
        check(block(1, Init::Zero, steep), "a larger alpha is needed");
    }
    let mut config = TableConfig::single("", 1, Init::Zero, SGD);
    assert!(Table::new(config.clone()).is_err());
    config = TableConfig { name: "x".to_string(), budget_bytes: Some(10), ..config };
    assert!(Table::new(config.clone()).unwrap_err().to_string().contains("budget_bytes"));
    config.budget_bytes = None;
    for (pushes, is_possible) in
        [(0, false), (1, true), ((1 << 31) - 1, true), (1 << 31, false), (u32::MAX, false)]
    {
        let made = Table::new(TableConfig { eviction: Eviction::Age { pushes }, ..config.clone() });
        let error = made.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(!error.contains("1 to 2147483647"), is_possible, "{pushes}: {error}");
    }
}

/// The smallest settings never divide by 0, whatever the first gradient: zero, one whose square underflows, or a
/// usual one.
#[test]
fn weights_stay_finite_at_the_edges_of_settings() {
    const LEAST: [f32; 2] = [0.0, f32::from_bits(1)];
    let (lr, smallest) = (0.1, LEAST[1]);
    let mut optimizers = Vec::new();
    for a in LEAST {
        optimizers.push(Optimizer::Sgd { lr, l2: a });
        optimizers.push(Optimizer::Momentum { lr, momentum: a, l2: 0.0 });
        for b in LEAST {
            optimizers.push(Optimizer::Adagrad { lr, eps: a, initial: b, l2: 0.0 });
            optimizers.push(Optimizer::RowAdagrad { lr, eps: a, initial: b, l2: 0.0 });
            optimizers.push(Optimizer::Adam { lr, beta1: a, beta2: b, eps: smallest, l2: 0.0 });
            optimizers.push(Optimizer::AdamW { lr, beta1: a, beta2: b, eps: smallest, decay: 0.0 });
            optimizers.extend(LEAST.map(|l2| Optimizer::Ftrl { alpha: 0.1, beta: a, l1: b, l2 }));
        }
    }
    for optimizer in optimizers {
        for dim in [1, 5, 37] {
            for gradients in
                [[0.0, 1e-30, 1.0], [1e-30, 0.0, 1e-30], [1.0, 0.0, -1e-30], [-2e-23, 2e-23, 0.0]]
            {
                let t = table(dim, Init::Zero, optimizer);
                for gradient in gradients {
                    t.push(&[7], &vec![gradient; dim], PushScale::default()).unwrap();
                    let row = t.get(7).unwrap();
                    let finite = row.weights.iter().chain(&row.state).all(|value| value.is_finite());
                    assert!(finite, "{optimizer:?} after {gradient} of {gradients:?}: {row:?}");
                }
            }
        }
    }
}

/// With any gradient and `eps`, a step of Adam is at most its learning rate.
#[test]
fn adam_makes_no_large_step_of_a_gradient_whose_square_is_zero() {
    let (lr, beta1, beta2) = (0.1, 0.9, 0.999);
    for eps in [f32::from_bits(1), 1e-30, 1e-8] {
        for optimizer in [
            Optimizer::Adam { lr, beta1, beta2, eps, l2: 0.0 },
            Optimizer::AdamW { lr, beta1, beta2, eps, decay: 0.0 },
        ] {
            for gradient in [1e-30, 1e-24, 1e-22, 1e-21, 2e-21, 1e-20, 1e-10, 1.0] {
                let t = table(3, Init::Zero, optimizer);
                t.push(&[7], &[gradient; 3], PushScale::default()).unwrap();
                let weights = t.get(7).unwrap().weights;
                assert!(weights.iter().all(|w| w.abs() < 1.1 * lr), "{optimizer:?} {gradient}: {weights:?}");
            }
        }
    }
}

/// Sums of squares do not overflow where their mean does not, nor over many pushes.
#[test]
fn rows_stay_finite_under_the_largest_gradients() {
    let (lr, gradient) = (0.1, 0.99e18);
    for dim in [1, 37, 512, 5000] {
        for optimizer in [
            Optimizer::Adagrad { lr, eps: 0.0, initial: 0.0, l2: 0.0 },
            Optimizer::RowAdagrad { lr, eps: 0.0, initial: 0.0, l2: 0.0 },
            FTRL,
        ] {
            let t = table(dim, Init::Zero, optimizer);
            for push in 0..400 {
                t.push(&[7], &vec![gradient; dim], PushScale::default()).unwrap();
                let row = t.get(7).unwrap();
                let finite = row.weights.iter().chain(&row.state).all(|value| value.is_finite());
                assert!(finite, "{optimizer:?}, dim {dim}, push {push}");
                if push == 0 && optimizer != FTRL {
                    // The first step has the length of the learning rate for any gradient.
                    assert!(row.weights.iter().all(|w| (w + lr).abs() < 1e-5), "{optimizer:?}, dim {dim}");
                }
            }
        }
    }
}

/// A finite factor may make a learning rate, or its weight decay, infinite.
#[test]
fn a_learning_rate_that_overflows_is_refused() {
    let (lr, l2) = (10.0, 0.0);
    for (optimizer, factor) in [
        (Optimizer::Sgd { lr, l2 }, f32::MAX),
        (Optimizer::Momentum { lr, momentum: 0.9, l2 }, f32::MAX),
        (Optimizer::Adagrad { lr, eps: 0.0, initial: 0.0, l2 }, f32::MAX),
        (Optimizer::RowAdagrad { lr, eps: 0.0, initial: 0.0, l2 }, f32::MAX),
        (Optimizer::Adam { lr, beta1: 0.9, beta2: 0.9, eps: 1.0, l2 }, f32::MAX),
        (Optimizer::AdamW { lr, beta1: 0.9, beta2: 0.9, eps: 1.0, decay: 100.0 }, f32::MAX / 100.0),
    ] {
        let block = |optimizer| Block { dims: 1, init: Init::Zero, optimizer };
        let t = Table::new(TableConfig::new("t", vec![block(FTRL), block(optimizer)])).unwrap();
        let scale = PushScale { lr_scale: factor };
        for result in [t.push(&[7], &[0.0, 0.0], scale), t.writer(scale).map(drop)] {
            let error = result.unwrap_err();
            assert!(
                matches!(error, StoreError::BadScale { lr_scale, .. } if lr_scale == factor),
                "{optimizer:?}: {error}"
            );
        }
        assert!(t.is_empty());
        t.push(&[7], &[0.0, 0.0], PushScale { lr_scale: factor / 1e4 }).unwrap();
        // No rate is scaled here.
        table(1, Init::Zero, FTRL).push(&[7], &[1.0], scale).unwrap();
    }
}

/// In a full index that may not grow, keys are many buckets away from home. Present keys are found, absent ones are
/// not.
#[test]
fn a_full_index_is_searched_far() {
    let mut fullest = 0.0_f64;
    for budget_bytes in (150_000..400_000).step_by(6_000) {
        let config =
            TableConfig { budget_bytes: Some(budget_bytes), ..TableConfig::single("t", 1, Init::Zero, SGD) };
        let Ok(t) = Table::new(config) else { continue };
        let empty = t.stats().index_bytes;
        let mut keys = 0;
        while t.push(&[keys], &[-(keys as f32) - 1.0], PushScale::default()).is_ok() {
            keys += 1;
        }
        let slots = (t.stats().index_bytes - empty) as f64 / 64.0 * 5.0;
        fullest = fullest.max(keys as f64 / slots.max(1.0));
        // The present keys are half of those searched.
        let asked: Vec<u64> = (0..2 * keys).rev().collect();
        let (mut out, mut missing) = (vec![-1.0; asked.len()], Vec::new());
        let absent = t.pull(&asked, Absent::Zero, &mut out, Some(&mut missing)).unwrap();
        assert_eq!((absent as u64, missing), (keys, (0..keys as u32).collect()));
        let expected = asked.iter().map(|&key| if key < keys { key as f32 + 1.0 } else { 0.0 });
        assert_eq!(out, expected.collect::<Vec<f32>>(), "budget {budget_bytes}");
    }
    assert!(fullest > 0.8, "{fullest}");
}

#[test]
fn bad_requests_change_nothing() {
    let t = table(2, Init::Zero, SGD);
    t.push(&[1, 2], &[1.0; 4], PushScale::default()).unwrap();
    let before = (t.get(1), t.get(2), t.stats());
    let lr = PushScale::default();
    let check = |result: Result<(), StoreError>, part: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("\"t\"") && text.contains(part), "{text}");
        assert_eq!((t.get(1), t.get(2), t.stats()), before);
    };
    check(t.push(&[1, 2], &[1.0; 3], lr), "grads has length 3, expected 4");
    check(t.push_unique(&[1, 2], &[1], &[1.0; 4], lr), "counts has length 1, expected 2");
    check(t.push(&[1, 3], &[1.0, 1.0, 1.0, f32::NAN], lr), "key 3, coordinate 1 is NaN");
    check(t.push(&[1, 3], &[1.0, f32::INFINITY, 1.0, 1.0], lr), "key 1, coordinate 1 is inf");
    check(t.push(&[1, 1], &[9e17; 4], lr), "key 1, coordinate 0 is 1.8e18");
    check(t.push(&[1], &[1.0; 2], PushScale { lr_scale: -0.5 }), "learning rate factor -0.5");
    check(t.push(&[1], &[1.0; 2], PushScale { lr_scale: f32::NAN }), "learning rate factor NaN");
    check(t.pull(&[1], Absent::Zero, &mut [0.0; 3], None).map(drop), "out has length 3, expected 2");
    let pooled = |keys: &[u64], values: Option<&[f32]>, offsets: &[u32], out: usize| {
        t.pull_pooled(keys, values, offsets, Pooling::Sum, Absent::Zero, &mut vec![0.0; out], None).map(drop)
    };
    check(pooled(&[], None, &[], 0), "there are none");
    check(pooled(&[1], None, &[1, 1], 2), "the first is 1");
    check(pooled(&[1, 2], None, &[0, 2, 1], 4), "number 2 is 1, below the 2");
    check(pooled(&[1, 2], None, &[0, 1], 2), "the last is 1, not the number of keys, 2");
    check(pooled(&[1, 2], None, &[0, 2], 4), "out has length 4, expected 2");
    check(pooled(&[1, 2], Some(&[1.0]), &[0, 2], 2), "values has length 1, expected 2");
}

#[test]
fn a_full_table_says_what_it_left_out_and_goes_on() {
    let mut config = TableConfig::single("t", 1, Init::Zero, SGD);
    config.budget_bytes = Some(3 << 20);
    let t = Table::new(config).unwrap();
    let empty_bytes = t.bytes();
    let keys: Vec<u64> = (0..300_000).collect();
    let error = t.push(&keys, &vec![1.0; keys.len()], PushScale::default()).unwrap_err();
    let StoreError::TableFull { rows, budget_bytes, rejected, .. } = error else { panic!("{error:?}") };
    assert!(rows > 10_000 && t.bytes() <= budget_bytes, "{rows} rows, {} bytes", t.bytes());
    assert_eq!((rows + rejected, t.len() as u64), (300_000, rows));
    let stats = t.stats();
    assert_eq!((stats.admitted, stats.rejected_full, stats.evicted), (rows, rejected, 0));
    let (mut out, mut missing) = (vec![0.0; keys.len()], Vec::new());
    assert_eq!(t.pull(&keys, Absent::Zero, &mut out, Some(&mut missing)).unwrap() as u64, rejected);
    for (key, &w) in out.iter().enumerate() {
        assert_eq!(w, if missing.binary_search(&(key as u32)).is_ok() { 0.0 } else { -1.0 });
    }
    // Existing keys are still updated, and a removed row makes room.
    let old = keys.iter().copied().find(|&key| t.get(key).is_some()).unwrap();
    t.push(&[old], &[1.0], PushScale::default()).unwrap();
    assert_eq!(t.get(old).unwrap().weights, [-2.0]);
    let removed = keys.iter().filter(|&&key| t.remove(key)).count() as u64;
    assert_eq!((removed, t.len(), t.stats().free_rows), (rows, 0, rows));
    let bytes = t.bytes();
    t.push(&keys[..10_000], &[1.0; 10_000], PushScale::default()).unwrap();
    assert_eq!((t.len(), t.bytes()), (10_000, bytes), "rows are reused");
    t.clear();
    assert_eq!((t.len(), t.bytes()), (0, empty_bytes));
    t.push(&[1], &[1.0], PushScale::default()).unwrap();
}

#[test]
fn first_weights_depend_on_seed_and_key_only() {
    for optimizer in [SGD, FTRL] {
        let (a, b) =
            (table(6, Init::Normal { std: 0.3 }, optimizer), table(6, Init::Normal { std: 0.3 }, optimizer));
        let keys: Vec<u64> = (0..500).map(|i| i * i).collect();
        let mut initial = vec![0.0; keys.len() * 6];
        assert_eq!(a.pull(&keys, Absent::Init, &mut initial, None).unwrap(), keys.len());
        assert!(a.is_empty(), "a pull creates no rows");
        // A push of zeros creates the rows; FTRL then recomputes its weights from z.
        a.push(&keys, &vec![0.0; keys.len() * 6], PushScale::default()).unwrap();
        let reversed: Vec<u64> = keys.iter().rev().copied().collect();
        for keys in reversed.chunks(7) {
            b.push(keys, &vec![0.0; keys.len() * 6], PushScale::default()).unwrap();
        }
        for (&key, first) in keys.iter().zip(initial.chunks(6)) {
            let (a, b) = (a.get(key).unwrap(), b.get(key).unwrap());
            assert_eq!((&a.weights, &a.state), (&b.weights, &b.state));
            for (w, first) in a.weights.iter().zip(first) {
                assert!((w - first).abs() < 1e-6, "{w} {first}");
            }
        }
    }
}

#[test]
fn threads_neither_lose_nor_invent_updates() {
    const THREADS: u64 = 4;
    const PUSHES: u64 = 200;
    for dim in [1, 3] {
        let t = table(dim, Init::Zero, SGD);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let t = &t;
                scope.spawn(move || {
                    let mut out = Vec::new();
                    for push in 0..PUSHES {
                        // 100 keys of a common range, each three times; 1 per occurrence.
                        let keys: Vec<u64> =
                            (0..300).map(|i| (push * 31 + thread * 17 + i % 100) % 1000).collect();
                        t.push(&keys, &vec![1.0; keys.len() * dim], PushScale::default()).unwrap();
                        out.resize(keys.len() * dim, 0.0);
                        t.pull(&keys, Absent::Zero, &mut out, None).unwrap();
                        for row in out.chunks(dim) {
                            assert!(row.iter().all(|w| *w == row[0] && *w <= -3.0), "a torn row: {row:?}");
                        }
                    }
                });
            }
        });
        let (mut sum, mut frequency, mut updates) = (0.0, 0, 0);
        t.for_each_row(|row| {
            sum += f64::from(row.weights[0]);
            frequency += u64::from(row.frequency);
            updates += u64::from(row.version);
            assert_eq!(f64::from(row.frequency), -f64::from(row.weights[0]));
        });
        let expected = THREADS * PUSHES * 300;
        assert_eq!((sum, frequency, updates), (-(expected as f64), expected, expected / 3));
        assert_eq!(t.stats().pushes, THREADS * PUSHES);
    }
}

proptest! {
    /// Pooled pulls equal sums over single pulls in f64.
    #[test]
    fn pooling(
        samples in prop::collection::vec(prop::collection::vec((0_u64..50, -2.0_f32..2.0), 0..9), 0..40),
        dim in 1_usize..5, mean: bool, weighted: bool, init: bool,
    ) {
        let t = table(dim, Init::Uniform { bound: 1.0 }, SGD);
        t.push(&(0..25).collect::<Vec<u64>>(), &vec![0.25; 25 * dim], PushScale::default()).unwrap();
        let absent = if init { Absent::Init } else { Absent::Zero };
        let pooling = if mean { Pooling::Mean } else { Pooling::Sum };
        let (keys, values): (Vec<u64>, Vec<f32>) = samples.iter().flatten().copied().unzip();
        let mut offsets = vec![0];
        for sample in &samples {
            offsets.push(offsets[offsets.len() - 1] + sample.len() as u32);
        }
        let (mut out, mut missing, mut expected_missing) = (vec![5.0; samples.len() * dim], vec![1], Vec::new());
        let found = t
            .pull_pooled(&keys, weighted.then_some(&values[..]), &offsets, pooling, absent, &mut out, Some(&mut missing))
            .unwrap();
        let mut rows = vec![0.0; keys.len() * dim];
        prop_assert_eq!(t.pull(&keys, absent, &mut rows, Some(&mut expected_missing)).unwrap(), found);
        prop_assert_eq!(missing, expected_missing);
        for (sample, (found, range)) in out.chunks(dim).zip(offsets.windows(2)).enumerate() {
            for coordinate in 0..dim {
                let mut sum = 0.0;
                for at in range[0] as usize..range[1] as usize {
                    let value = if weighted { f64::from(values[at]) } else { 1.0 };
                    sum += value * f64::from(rows[at * dim + coordinate]);
                }
                if mean && range[1] > range[0] {
                    sum /= f64::from(range[1] - range[0]);
                }
                prop_assert!((sum - f64::from(found[coordinate])).abs() < 1e-5, "sample {}", sample);
            }
        }
    }
}

/// A request longer than the chunks of a pooled pull.
#[test]
fn pooling_over_chunks() {
    let t = table(8, Init::Zero, SGD);
    let keys: Vec<u64> = (0..30_000).collect();
    t.push(&keys, &vec![-1.0; keys.len() * 8], PushScale::default()).unwrap();
    let mut out = vec![0.0; 24];
    let (mut missing, offsets) = (Vec::new(), [0, 20_000, 20_000, 30_001]);
    let keys: Vec<u64> = (0..30_001).collect();
    let absent = t
        .pull_pooled(&keys, None, &offsets, Pooling::Sum, Absent::Init, &mut out, Some(&mut missing))
        .unwrap();
    assert_eq!((absent, missing), (1, vec![30_000]));
    for (sums, expected) in out.chunks(8).zip([20_000.0, 0.0, 10_000.0]) {
        assert_eq!(sums, [expected; 8]);
    }
}
