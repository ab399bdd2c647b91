//! Workers that train in step, and the rows that must come of it. The tests of `sanderling-client` have them meet in one
//! process, those of `sanderling-cli` at servers. The model draws rows to the values of samples.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sanderling_client::{
    ClientError, Cluster, Fixed, Meeting, Reduce, RemoteTable, StepGradients, SyncGroup, SyncOptions,
};
use sanderling_store::{Absent, Init, Optimizer, PushScale, Table, TableConfig};

/// Weights of a row.
pub const DIM: usize = 3;
/// Samples of a step, of all workers together.
const BATCH: usize = 64;
const STEPS: u64 = 6;
const KEYS: u64 = 40;
/// The scale of the learning rate of all pushes.
pub const SCALE: PushScale = PushScale { lr_scale: 0.5 };

/// After so long a worker gives up; everything that goes well takes far less.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a worker waits where it is meant to give up.
pub const PATIENCE: Duration = Duration::from_millis(300);

/// A table of the given optimizer with random initial weights.
pub fn config(name: &str, optimizer: Optimizer) -> TableConfig {
    TableConfig::single(name, DIM, Init::Uniform { bound: 0.5 }, optimizer)
}

/// An optimizer of each kind.
pub fn optimizers() -> [Optimizer; 3] {
    [
        Optimizer::Sgd { lr: 0.1, l2: 0.0 },
        Optimizer::Adagrad { lr: 0.1, eps: 1e-10, initial: 0.0, l2: 0.0 },
        Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.1, l2: 0.01 },
    ]
}

/// Where a table is, and its workers meet.
pub enum Place {
    /// A table and a meeting point of this process.
    Here(Arc<Meeting>, Arc<Table>),
    /// A table on servers, and the number of the group.
    Servers(Arc<Cluster>, RemoteTable, u64),
}

impl Place {
    /// A new table of this process, and a meeting point for so many workers.
    pub fn here(config: TableConfig, workers: u32) -> Place {
        let table = Arc::new(Table::new(config).unwrap());
        Place::Here(Meeting::new(vec![Arc::clone(&table)], workers).unwrap(), table)
    }

    /// Joins the group as a worker.
    pub fn join(&self, worker: u32, workers: u32, options: SyncOptions) -> SyncGroup {
        match self {
            Place::Here(meeting, _) => SyncGroup::join_here(meeting, worker, options).unwrap(),
            Place::Servers(cluster, table, group) => {
                let tables = std::slice::from_ref(table);
                SyncGroup::join(cluster, tables, *group, worker, workers, options).unwrap()
            }
        }
    }

    /// The rows of keys, with initial weights where there is no row.
    pub fn pull(&self, keys: &[u64]) -> Vec<f32> {
        let mut rows = vec![0.0; keys.len() * DIM];
        match self {
            Place::Here(_, table) => drop(table.pull(keys, Absent::Init, &mut rows, None).unwrap()),
            Place::Servers(_, table, _) => drop(table.pull(keys, Absent::Init, &mut rows, None).unwrap()),
        }
        rows
    }

    fn all_rows(&self) -> Vec<f32> {
        self.pull(&(0..KEYS).collect::<Vec<u64>>())
    }
}

/// Options of a worker that waits for the others this long.
pub fn options(timeout: Duration) -> SyncOptions {
    SyncOptions { timeout, ..SyncOptions::default() }
}

fn mix(seed: u64) -> u64 {
    let bits = (seed ^ (seed >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (bits ^ (bits >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 11
}

/// A key, and what its row should be.
fn sample(step: u64, at: usize) -> (u64, f32) {
    let bits = mix(step << 20 | at as u64);
    (bits % KEYS, (bits % 977) as f32 / 100.0 - 4.0)
}

/// Gradients of a run of samples at these rows, one row per sample.
fn gradients(place: &Place, step: u64, samples: std::ops::Range<usize>) -> Vec<(u64, [f32; DIM])> {
    let samples: Vec<(u64, f32)> = samples.map(|at| sample(step, at)).collect();
    let keys: Vec<u64> = samples.iter().map(|(key, _)| *key).collect();
    let rows = place.pull(&keys);
    let of = |(at, &(key, target)): (usize, &(u64, f32))| {
        let gradient = std::array::from_fn(|c| (rows[at * DIM + c] - target) * (0.1 + c as f32));
        (key, gradient)
    };
    samples.iter().enumerate().map(of).collect()
}

fn work(place: &Place, worker: u32, workers: u32, fixed: Option<Fixed>) {
    let mut group = place.join(worker, workers, options(LONG));
    let share = BATCH / workers as usize;
    for step in 1..=STEPS {
        let first = worker as usize * share;
        let mut sums: BTreeMap<u64, (u32, [f32; DIM], [i64; DIM])> = BTreeMap::new();
        for (key, gradient) in gradients(place, step, first..first + share) {
            let (count, single, exact) = sums.entry(key).or_default();
            *count += 1;
            single.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += g);
            fixed.unwrap_or_default().add(exact, &gradient).unwrap();
        }
        let keys: Vec<u64> = sums.keys().copied().collect();
        let counts: Vec<u32> = sums.values().map(|(count, ..)| *count).collect();
        let single: Vec<f32> = sums.values().flat_map(|(_, single, _)| *single).collect();
        let exact: Vec<i64> = sums.values().flat_map(|(.., exact)| *exact).collect();
        let of = |from: usize, to: usize| match fixed {
            Some(fixed) => {
                StepGradients::Fixed { unit_log2: fixed.unit_log2(), sums: &exact[from * DIM..to * DIM] }
            }
            None => StepGradients::Single(&single[from * DIM..to * DIM]),
        };
        // In two parts, as of two minibatches.
        let half = keys.len() / 2;
        for (from, to) in [(0, half), (half, keys.len())] {
            group.push_step(step, 0, &keys[from..to], &counts[from..to], of(from, to), SCALE).unwrap();
        }
        // At once, after a while, or with something else between.
        if step % 3 > 0 {
            group.hand_over(step);
        }
        if step % 3 > 1 {
            let all = group.all_gather("between", &[worker as u8]).unwrap();
            assert_eq!(all, (0..workers as u8).map(|worker| vec![worker]).collect::<Vec<_>>());
        }
        group.wait_applied(step).unwrap();
    }
}

fn train(place: &Place, workers: u32, fixed: Option<Fixed>) -> Vec<f32> {
    std::thread::scope(|scope| {
        for worker in 0..workers {
            scope.spawn(move || work(place, worker, workers, fixed));
        }
    });
    place.all_rows()
}

/// The rows by one thread without a group: gradients are summed in 64 bits, and each row is updated once per step.
fn reference(optimizer: Optimizer) -> Vec<f32> {
    let place = Place::here(config("t", optimizer), 1);
    for step in 1..=STEPS {
        let mut sums: BTreeMap<u64, (u32, [f64; DIM])> = BTreeMap::new();
        for (key, gradient) in gradients(&place, step, 0..BATCH) {
            let (count, sum) = sums.entry(key).or_default();
            *count += 1;
            sum.iter_mut().zip(gradient).for_each(|(sum, g)| *sum += f64::from(g));
        }
        let keys: Vec<u64> = sums.keys().copied().collect();
        let counts: Vec<u32> = sums.values().map(|(count, _)| *count).collect();
        let sums: Vec<f32> = sums.values().flat_map(|(_, sum)| sum.map(|sum| sum as f32)).collect();
        let Place::Here(_, table) = &place else { unreachable!() };
        table.push_unique(&keys, &counts, &sums, SCALE).unwrap();
    }
    place.all_rows()
}

/// One, two and four workers with the same batch, at places that `place` makes for a table and so many workers.
pub fn workers_do_not_matter(mut place: impl FnMut(TableConfig, u32) -> Place) {
    for (at, optimizer) in optimizers().into_iter().enumerate() {
        let expected = reference(optimizer);
        let mut exact: Option<Vec<u32>> = None;
        for workers in [1, 2, 4] {
            for fixed in [None, Some(Fixed::default())] {
                let name = format!("t{at}_{workers}_{}", fixed.is_some());
                let rows = train(&place(config(&name, optimizer), workers), workers, fixed);
                let largest = rows.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(largest < 1e-5, "{optimizer:?}, {workers} workers, {fixed:?}: {largest}");
                if fixed.is_some() {
                    let bits: Vec<u32> = rows.iter().map(|row| row.to_bits()).collect();
                    assert_eq!(exact.get_or_insert_with(|| bits.clone()), &bits, "{workers} workers");
                }
            }
        }
    }
}

/// Hands in a gradient of 1 times `times` for one key.
pub fn hand_in(group: &mut SyncGroup, step: u64, key: u64, times: f32) {
    let gradients = [times; DIM];
    group.push_step(step, 0, &[key], &[1], StepGradients::Single(&gradients), PushScale::default()).unwrap();
}

/// Checks that a wait has ended with an error that names the missing workers and the step.
pub fn expect_awaited(result: Result<(), ClientError>, expected: &[u32], of: &str) {
    match result {
        Err(ClientError::Awaited { workers, what, .. }) => {
            assert!(workers == expected && what.contains(of), "{what}: {workers:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// A worker does not come, and then another comes in its place. The table is one of [`Optimizer::Sgd`] at rate 1 for two
/// workers.
pub fn a_worker_that_does_not_come_is_named_and_can_be_replaced(place: &Place) {
    let key = 5;
    let before = place.pull(&[key])[0];
    let moved = |times: f32| assert!((before - place.pull(&[key])[0] - times).abs() < 1e-4, "{times}");
    let mut one = place.join(0, 2, options(PATIENCE));
    let mut other = place.join(1, 2, options(PATIENCE));
    expect_awaited(one.barrier("start"), &[1], "start");
    hand_in(&mut one, 1, key, 1.0);
    expect_awaited(one.wait_applied(1), &[1], "step 1");
    // It has handed in all but not said so, and is gone.
    hand_in(&mut other, 1, key, 100.0);
    expect_awaited(one.wait_applied(1), &[1], "step 1");
    moved(0.0);
    let attempt = |attempt| SyncOptions { attempt, timeout: LONG };
    let mut second = place.join(1, 2, attempt(1));
    assert_eq!(second.applied(), 0);
    hand_in(&mut second, 1, key, 2.0);
    second.wait_applied(1).unwrap();
    one.wait_applied(1).unwrap();
    moved(3.0);
    // From here on it is meant to go well.
    let mut one = place.join(0, 2, options(LONG));
    // The one that was thought to be gone is not let in again.
    let error = other.wait_applied(1).unwrap_err().to_string();
    assert!(error.contains("attempt 1 has taken its place"), "{error}");
    // The others go on while it does; it has said that its part is whole, and is gone.
    hand_in(&mut second, 2, key, 4.0);
    std::thread::scope(|scope| {
        scope.spawn(|| second.wait_applied(2).unwrap());
        hand_in(&mut one, 2, key, 8.0);
        one.wait_applied(2).unwrap();
    });
    let mut third = place.join(1, 2, attempt(2));
    assert_eq!(third.applied(), 2);
    hand_in(&mut third, 2, key, 1000.0);
    third.wait_applied(2).unwrap();
    moved(15.0);
    let progress = place.join(0, 2, options(PATIENCE)).progress(3, 1);
    expect_awaited(progress.map(|_| ()), &[1], "step 3");
    assert_eq!(third.progress(2, 0).unwrap(), 0);
    assert_eq!(one.progress(3, 1).unwrap(), 1);
}

/// Everything that three workers can do together. The table is not used.
pub fn what_is_gathered_is_the_same_for_all(place: &Place) {
    let long =
        |worker: u32| (0..50_000).map(|at| f64::from(worker + 1) * f64::from(at)).collect::<Vec<f64>>();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            scope.spawn(move || {
                let mut group = place.join(worker, 3, options(LONG));
                for round in 0..20_u32 {
                    group.barrier("round").unwrap();
                    let mine = [worker as u8, round as u8];
                    let all = group.all_gather("bytes", &mine[..worker as usize % 3]).unwrap();
                    assert_eq!(all, [&[][..], &[1], &[2, round as u8]]);
                    assert_eq!(group.broadcast("of one", 1, &mine).unwrap(), [1, round as u8]);
                }
                let mut values = long(worker);
                group.all_reduce("sum", &mut values, Reduce::Sum).unwrap();
                assert!((0..).zip(&values).all(|(at, &value)| value == 6.0 * f64::from(at)));
                let mut values = [f64::from(worker), -f64::from(worker), f64::NAN];
                group.all_reduce("mean", &mut values[..2], Reduce::Mean).unwrap();
                assert_eq!(values[..2], [1.0, -1.0]);
                group.all_reduce("largest", &mut values, Reduce::Max).unwrap();
                assert!(values[..2] == [1.0, -1.0] && values[2].is_nan());
                group.all_reduce("nothing", &mut [], Reduce::Sum).unwrap();
                let mut counts = [u64::from(worker), u64::MAX];
                group.all_reduce_counts("counts", &mut counts, Reduce::Sum).unwrap();
                assert_eq!(counts, [3, u64::MAX]);
                let lengths = group.all_reduce("lengths", &mut vec![0.0; worker as usize], Reduce::Sum);
                assert!(lengths.unwrap_err().to_string().contains("another length"));
                // Two of them stay within two steps of the slowest.
                for step in 1..=20 {
                    assert!(group.progress(step, u64::from(worker)).unwrap() <= u64::from(worker));
                }
            });
        }
    });
}
