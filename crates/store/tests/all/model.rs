//! Tables compared with a `HashMap` and f64 optimizers under random operations.

use std::collections::HashMap;

use proptest::prelude::*;
use sanderling_store::{
    Absent, Block, Checkpoint, CheckpointWriter, Dtype, Init, Optimizer, Packing, PushScale, Table,
    TableConfig, Writes,
};

/// Tolerance relative to the larger of 1 and the value: up to 60 updates of a few f32 roundings each.
const TOLERANCE: f64 = 2e-4;

fn sgd() -> Optimizer {
    Optimizer::Sgd { lr: 0.1, l2: 0.01 }
}
fn adagrad() -> Optimizer {
    Optimizer::Adagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 }
}
fn adam() -> Optimizer {
    Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 }
}
fn momentum() -> Optimizer {
    Optimizer::Momentum { lr: 0.05, momentum: 0.8, l2: 0.01 }
}
fn row_adagrad() -> Optimizer {
    Optimizer::RowAdagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.01 }
}
fn adamw() -> Optimizer {
    Optimizer::AdamW { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, decay: 0.1 }
}
fn ftrl() -> Optimizer {
    Optimizer::Ftrl { alpha: 0.2, beta: 1.0, l1: 0.05, l2: 0.1 }
}

#[derive(Clone, Debug, Default)]
struct ModelRow {
    frequency: u32,
    version: u32,
    last_use: u32,
    /// Per coordinate: weight, then up to two state values.
    coordinates: Vec<[f64; 3]>,
}

fn model_row(config: &TableConfig, first: &[f32]) -> ModelRow {
    let mut row = ModelRow::default();
    for block in &config.blocks {
        for _ in 0..block.dims {
            let w = f64::from(first[row.coordinates.len()]);
            row.coordinates.push(match block.optimizer {
                Optimizer::Adagrad { initial, .. } | Optimizer::RowAdagrad { initial, .. } => {
                    [w, f64::from(initial), 0.0]
                }
                Optimizer::Ftrl { alpha, beta, l1, l2 } if w != 0.0 => {
                    let slope = f64::from(beta) / f64::from(alpha) + f64::from(l2);
                    [w, -w * slope - w.signum() * f64::from(l1), 0.0]
                }
                _ => [w, 0.0, 0.0],
            });
        }
    }
    row
}

fn model_update(config: &TableConfig, row: &mut ModelRow, count: u32, clock: u32, g: &[f64], scale: f64) {
    row.frequency += count;
    row.version += 1;
    row.last_use = clock;
    let mut first = 0;
    // Mean squares of the blocks' gradients, for row-wise Adagrad.
    let mut squares = Vec::new();
    for block in &config.blocks {
        let l2 = if let Optimizer::RowAdagrad { l2, .. } = block.optimizer { f64::from(l2) } else { 0.0 };
        let range = first..first + block.dims;
        let sum: f64 = range.clone().map(|at| (g[at] + l2 * row.coordinates[at][0]).powi(2)).sum();
        squares.extend(vec![sum / block.dims as f64; block.dims]);
        first = range.end;
    }
    let optimizers = config.blocks.iter().flat_map(|block| vec![block.optimizer; block.dims]);
    for (((optimizer, square), [w, a, b]), &g) in optimizers.zip(squares).zip(&mut row.coordinates).zip(g) {
        match optimizer {
            Optimizer::Momentum { lr, momentum, l2 } => {
                *a = f64::from(momentum) * *a + g + f64::from(l2) * *w;
                *w -= f64::from(lr) * scale * *a;
            }
            Optimizer::RowAdagrad { lr, eps, l2, .. } => {
                // Every coordinate of the model has a copy.
                *a += square;
                *w -= f64::from(lr) * scale * (g + f64::from(l2) * *w) / (a.sqrt() + f64::from(eps));
            }
            Optimizer::AdamW { lr, beta1, beta2, eps, decay } => {
                let (beta1, beta2, lr) = (f64::from(beta1), f64::from(beta2), f64::from(lr) * scale);
                *a = beta1 * *a + (1.0 - beta1) * g;
                *b = beta2 * *b + (1.0 - beta2) * g * g;
                let m = *a / (1.0 - beta1.powi(row.version as i32));
                let v = *b / (1.0 - beta2.powi(row.version as i32));
                *w -= lr * (f64::from(decay) * *w + m / (v.sqrt() + f64::from(eps)));
            }
            Optimizer::Sgd { lr, l2 } => *w -= f64::from(lr) * scale * (g + f64::from(l2) * *w),
            Optimizer::Adagrad { lr, eps, l2, .. } => {
                let g = g + f64::from(l2) * *w;
                *a += g * g;
                *w -= f64::from(lr) * scale * g / (a.sqrt() + f64::from(eps));
            }
            Optimizer::Adam { lr, beta1, beta2, eps, l2 } => {
                let (beta1, beta2, g) = (f64::from(beta1), f64::from(beta2), g + f64::from(l2) * *w);
                *a = beta1 * *a + (1.0 - beta1) * g;
                *b = beta2 * *b + (1.0 - beta2) * g * g;
                let m = *a / (1.0 - beta1.powi(row.version as i32));
                let v = *b / (1.0 - beta2.powi(row.version as i32));
                *w -= f64::from(lr) * scale * m / (v.sqrt() + f64::from(eps));
            }
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                let (alpha, l1) = (f64::from(alpha), f64::from(l1));
                let sigma = ((*b + g * g).sqrt() - b.sqrt()) / alpha;
                *a += g - sigma * *w;
                *b += g * g;
                let slope = (f64::from(beta) + b.sqrt()) / alpha + f64::from(l2);
                *w = if a.abs() <= l1 { 0.0 } else { -(*a - a.signum() * l1) / slope };
            }
        }
    }
}

struct Pair {
    table: Table,
    model: HashMap<u64, ModelRow>,
    clock: u32,
}

impl Pair {
    fn new(blocks: Vec<Block>, dtype: Dtype, writes: Writes, packing: Packing) -> Pair {
        let config = TableConfig { seed: 3, dtype, writes, packing, ..TableConfig::new("t", blocks) };
        Pair { table: Table::new(config).unwrap(), model: HashMap::new(), clock: 0 }
    }

    fn first_weights(&self, key: u64) -> Vec<f32> {
        let fresh = Table::new(self.table.config().clone()).unwrap();
        let mut out = vec![0.0; fresh.dim()];
        fresh.pull(&[key], Absent::Init, &mut out, None).unwrap();
        out
    }

    fn push(&mut self, keys: &[u64], grads: &[f32], lr_scale: f32) {
        self.table.push(keys, grads, PushScale { lr_scale }).unwrap();
        self.clock += 1;
        let dim = self.table.dim();
        let mut sums: HashMap<u64, (u32, Vec<f64>)> = HashMap::new();
        for (&key, g) in keys.iter().zip(grads.chunks(dim)) {
            let (count, sum) = sums.entry(key).or_insert_with(|| (0, vec![0.0; dim]));
            *count += 1;
            sum.iter_mut().zip(g).for_each(|(sum, &g)| *sum += f64::from(g));
        }
        for (key, (count, sum)) in sums {
            let first = self.first_weights(key);
            let row = self.model.entry(key).or_insert_with(|| model_row(self.table.config(), &first));
            model_update(self.table.config(), row, count, self.clock, &sum, f64::from(lr_scale));
            // Halves are at a neighbour of the exact weight; the model continues from there.
            if self.table.config().dtype != Dtype::F32 {
                let weights = self.table.get(key).unwrap().weights;
                for ([exact, ..], &found) in row.coordinates.iter_mut().zip(&weights) {
                    let most = unit(self.table.config().dtype, *exact) + TOLERANCE / 10.0;
                    assert!((f64::from(found) - *exact).abs() <= most, "{found} is not next to {exact}");
                    *exact = f64::from(found);
                }
            }
        }
    }

    fn check(&self, keys: &[u64]) {
        let dim = self.table.dim();
        assert_eq!(self.table.len(), self.model.len());
        let mut seen = 0;
        self.table.for_each_row(|row| {
            seen += 1;
            let model = &self.model[&row.key];
            let header = (row.frequency, row.version, row.last_use);
            assert_eq!(header, (model.frequency, model.version, model.last_use));
            let (mut coordinate, mut state_at) = (0, 0);
            for block in &self.table.config().blocks {
                let slots = match block.optimizer {
                    Optimizer::Sgd { .. } | Optimizer::RowAdagrad { .. } => 0,
                    Optimizer::Adagrad { .. } | Optimizer::Momentum { .. } => 1,
                    Optimizer::Adam { .. } | Optimizer::AdamW { .. } | Optimizer::Ftrl { .. } => 2,
                };
                if let Optimizer::RowAdagrad { .. } = block.optimizer {
                    close(row.state[state_at], model.coordinates[coordinate][1]);
                    state_at += 1;
                }
                for i in 0..block.dims {
                    let expected = model.coordinates[coordinate + i];
                    close(row.weights[coordinate + i], expected[0]);
                    for slot in 0..slots {
                        close(row.state[state_at + slot * block.dims + i], expected[slot + 1]);
                    }
                }
                coordinate += block.dims;
                state_at += slots * block.dims;
            }
            assert_eq!(state_at, row.state.len());
        });
        assert_eq!(seen, self.model.len());
        for absent in [Absent::Zero, Absent::Init] {
            let (mut out, mut missing) = (vec![9.0; keys.len() * dim], vec![77]);
            let absent_keys = self.table.pull(keys, absent, &mut out, Some(&mut missing)).unwrap();
            let expected: Vec<u32> =
                (0..keys.len() as u32).filter(|&at| !self.model.contains_key(&keys[at as usize])).collect();
            assert_eq!((absent_keys, &missing), (expected.len(), &expected));
            for (&key, weights) in keys.iter().zip(out.chunks(dim)) {
                match self.table.get(key) {
                    Some(row) => assert_eq!(row.weights, weights),
                    None if absent == Absent::Zero => assert_eq!(weights, vec![0.0; dim]),
                    None => assert_eq!(weights, self.first_weights(key)),
                }
            }
        }
    }
}

/// Distance between halves around a value.
fn unit(dtype: Dtype, value: f64) -> f64 {
    let (precision, smallest) = if dtype == Dtype::F16 { (10, -24) } else { (7, -133) };
    2_f64.powi((value.abs().max(1e-30).log2().floor() as i32 - precision).max(smallest))
}

fn close(found: f32, expected: f64) {
    let error = (f64::from(found) - expected).abs() / expected.abs().max(1.0);
    assert!(error <= TOLERANCE, "{found} is not {expected}");
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0_u64..30, 2 => (0_u64..1000).prop_map(|k| k << 50), 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

#[derive(Clone, Debug)]
enum Operation {
    Push(Vec<u64>, f32, u64),
    Remove(u64),
    SaveAndLoad,
    Clear,
    Maintain,
    Reserve(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (prop::collection::vec(key(), 0..60), prop_oneof![Just(1.0_f32), 0.1_f32..2.0], any::<u64>())
            .prop_map(|(keys, lr, seed)| Operation::Push(keys, lr, seed)),
        4 => key().prop_map(Operation::Remove),
        1 => Just(Operation::SaveAndLoad),
        1 => Just(Operation::Clear),
        2 => Just(Operation::Maintain),
        1 => (0_u64..3000).prop_map(Operation::Reserve),
    ]
}

/// Gradients in [-2, 2), some zero, from a linear congruential generator.
fn gradients(n: usize, mut seed: u64) -> Vec<f32> {
    (0..n)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let g = (seed >> 40) as f32 / (1 << 22) as f32 - 2.0;
            if seed >> 61 == 0 { 0.0 } else { g }
        })
        .collect()
}

fn run(blocks: &[Block], operations: &[Operation]) {
    let (in_place, copied) = (Writes::InPlace, Writes::CopyOnWrite);
    let (fast, compact) = (Packing::Fast, Packing::Compact);
    for (dtype, writes, packing) in [
        (Dtype::F32, in_place, fast),
        (Dtype::F32, in_place, compact),
        (Dtype::F32, copied, compact),
        (Dtype::F16, in_place, compact),
        (Dtype::Bf16, copied, fast),
    ] {
        run_with(Pair::new(blocks.to_vec(), dtype, writes, packing), operations.to_vec());
    }
}

fn run_with(mut pair: Pair, operations: Vec<Operation>) {
    let mut seen = vec![1, 2, 3, u64::MAX];
    for operation in operations {
        match operation {
            Operation::Push(keys, lr, seed) => {
                pair.push(&keys, &gradients(keys.len() * pair.table.dim(), seed), lr);
                seen.extend(keys);
            }
            Operation::Remove(key) => assert_eq!(pair.table.remove(key), pair.model.remove(&key).is_some()),
            Operation::Clear => {
                pair.table.clear();
                pair.model.clear();
            }
            Operation::Maintain => assert_eq!(pair.table.maintain(100).evicted, 0),
            Operation::Reserve(rows) => assert!(pair.table.reserve(rows)),
            Operation::SaveAndLoad => {
                let dir = tempfile::tempdir().unwrap();
                let mut writer = CheckpointWriter::create(dir.path()).unwrap();
                writer.table(&pair.table).unwrap();
                writer.commit().unwrap();
                let loaded = Checkpoint::open(dir.path()).unwrap().load_table("t").unwrap();
                assert_eq!(loaded.config(), pair.table.config());
                pair.table.for_each_row(|row| {
                    let loaded = loaded.get(row.key).unwrap();
                    assert_eq!((&loaded.weights[..], &loaded.state[..]), (row.weights, row.state));
                });
                pair.table = loaded;
            }
        }
        pair.check(&seen);
        let stats = pair.table.stats();
        assert_eq!(stats.index_bytes + stats.slab_bytes, pair.table.bytes());
    }
}

const NORMAL: Init = Init::Normal { std: 0.1 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn sgd_dim_1(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 1, init: Init::Zero, optimizer: sgd() }], &operations);
    }

    #[test]
    fn adagrad_dim_4(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 4, init: Init::Uniform { bound: 0.5 }, optimizer: adagrad() }], &operations);
    }

    #[test]
    fn adam_dim_3(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 3, init: NORMAL, optimizer: adam() }], &operations);
    }

    #[test]
    fn ftrl_dim_1(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 1, init: Init::Zero, optimizer: ftrl() }], &operations);
    }

    #[test]
    fn ftrl_dim_9_from_normal(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 9, init: NORMAL, optimizer: ftrl() }], &operations);
    }

    #[test]
    fn adagrad_dim_37(operations in prop::collection::vec(operation(), 1..16)) {
        run(&[Block { dims: 37, init: NORMAL, optimizer: adagrad() }], &operations);
    }

    /// Rows in two parts.
    #[test]
    fn adagrad_dim_16(operations in prop::collection::vec(operation(), 1..24)) {
        run(&[Block { dims: 16, init: NORMAL, optimizer: adagrad() }], &operations);
    }

    #[test]
    fn ftrl_dim_32(operations in prop::collection::vec(operation(), 1..16)) {
        run(&[Block { dims: 32, init: NORMAL, optimizer: ftrl() }], &operations);
    }

    #[test]
    fn blocks_of_every_kind(operations in prop::collection::vec(operation(), 1..24)) {
        run(
            &[
                Block { dims: 1, init: Init::Zero, optimizer: ftrl() },
                Block { dims: 5, init: NORMAL, optimizer: adagrad() },
                Block { dims: 2, init: NORMAL, optimizer: sgd() },
                Block { dims: 3, init: NORMAL, optimizer: adam() },
                Block { dims: 18, init: NORMAL, optimizer: row_adagrad() },
                Block { dims: 2, init: NORMAL, optimizer: momentum() },
                Block { dims: 17, init: NORMAL, optimizer: adamw() },
            ],
            &operations,
        );
    }
}

/// Many more keys than a chunk, through several growths of the index and several pieces of the slab.
#[test]
fn growth_over_many_chunks() {
    for packing in [Packing::Fast, Packing::Compact] {
        let blocks = vec![Block { dims: 2, init: NORMAL, optimizer: adagrad() }];
        let mut pair = Pair::new(blocks, Dtype::F16, Writes::InPlace, packing);
        let keys: Vec<u64> = (0..100_000_u64).map(|i| (i % 70_000) << 20).collect();
        pair.push(&keys, &gradients(keys.len() * 2, 5), 1.0);
        pair.check(&keys);
        assert_eq!(pair.table.len(), 70_000);
    }
}
