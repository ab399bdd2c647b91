//! Replicas: reported versions, updates in any order, removals with numbers, and exports beside pushes.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Barrier, Mutex};

use sanderling_store::{
    Admission, Block, Dtype, Eviction, Init, Optimizer, PushClock, PushScale, RowColumns, RowVersions,
    StoreError, Table, TableConfig, Writes,
};

use crate::support::Draw;

/// A push as a primary sends it.
#[derive(Clone)]
struct Sent {
    keys: Vec<u64>,
    counts: Vec<u32>,
    grads: Vec<f32>,
    scale: PushScale,
    clock: u32,
    rows: RowVersions,
}

fn config(writes: Writes, dtype: Dtype, admission: Admission) -> TableConfig {
    let adam = Optimizer::Adam { lr: 0.05, beta1: 0.9, beta2: 0.99, eps: 1e-6, l2: 0.01 };
    let row_adagrad = Optimizer::RowAdagrad { lr: 0.1, eps: 1e-6, initial: 0.1, l2: 0.0 };
    let blocks = vec![
        Block { dims: 3, init: Init::Normal { std: 0.1 }, optimizer: adam },
        Block { dims: 2, init: Init::Zero, optimizer: row_adagrad },
    ];
    TableConfig { writes, dtype, admission, seed: 3, ..TableConfig::new("t", blocks) }
}

fn primary(config: &TableConfig) -> Table {
    let table = Table::new(config.clone()).unwrap();
    table.lead(0, 1 << 20);
    table
}

/// Pushes `keys` to the primary.
fn push(table: &Table, keys: Vec<u64>, draw: &mut Draw) -> Sent {
    let counts: Vec<u32> = keys.iter().map(|_| 1 + draw.below(3) as u32).collect();
    let grads = (0..keys.len() * table.dim()).map(|_| draw.unit() as f32 - 0.5).collect();
    let scale = PushScale { lr_scale: 0.5 + draw.unit() as f32 };
    let mut sent = Sent { keys, counts, grads, scale, clock: 0, rows: RowVersions::default() };
    let clock = table.count_push();
    sent.clock = clock.reading();
    let checked = table.check_push(&sent.keys, &sent.counts, &sent.grads, scale).unwrap();
    match checked.apply_and_report(clock, &mut sent.rows) {
        Ok(()) | Err(StoreError::TableFull { .. }) => sent,
        Err(error) => panic!("{error}"),
    }
}

/// A follower as simple as it can be: tries everything again until nothing changes.
struct Follower {
    table: Table,
    /// Number of the last removal of each key.
    removed: HashMap<u64, u64>,
    waiting: Vec<Sent>,
}

impl Follower {
    fn new(config: &TableConfig) -> Follower {
        let table = Table::new(config.clone()).unwrap();
        table.follow();
        Follower { table, removed: HashMap::new(), waiting: Vec::new() }
    }

    fn remove(&mut self, key: u64, number: u64) {
        self.table.remove(key);
        self.removed.insert(key, number);
    }

    fn receive(&mut self, sent: Sent) {
        self.waiting.push(sent);
        loop {
            let before = self.waiting.len();
            let waiting = std::mem::take(&mut self.waiting);
            self.waiting = waiting.into_iter().filter_map(|sent| self.apply(sent)).collect();
            if self.waiting.len() == before {
                return;
            }
        }
    }

    /// Applies a push; returns the part that waits.
    fn apply(&self, mut sent: Sent) -> Option<Sent> {
        for (key, (version, removals)) in
            sent.keys.iter().zip(sent.rows.versions.iter_mut().zip(&sent.rows.removals))
        {
            if self.removed.get(key).is_some_and(|number| number > removals) {
                *version = 0;
            }
        }
        let mut later = Vec::new();
        let table = &self.table;
        let checked = table.check_push(&sent.keys, &sent.counts, &sent.grads, sent.scale).unwrap();
        checked.apply_in_order(&sent.rows.versions, PushClock::of_reading(sent.clock), &mut later).unwrap();
        if later.is_empty() {
            return None;
        }
        let mut is_later = vec![false; sent.keys.len()];
        later.iter().for_each(|&at| is_later[at as usize] = true);
        sent.rows.versions.iter_mut().zip(is_later).filter(|(_, later)| !later).for_each(|(v, _)| *v = 0);
        Some(sent)
    }
}

type Bits = (u32, u32, u32, Vec<u32>, Vec<u32>);

fn bits(table: &Table) -> HashMap<u64, Bits> {
    let mut rows = HashMap::new();
    let words = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    table.for_each_row(|row| {
        let bits = (row.version, row.frequency, row.last_use, words(row.weights), words(row.state));
        rows.insert(row.key, bits);
    });
    rows
}

/// The keys of a push, without repeats.
fn keys(draw: &mut Draw, of: u64, most: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..=draw.below(most)).map(|_| draw.below(of)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn shuffle<T>(items: &mut [T], draw: &mut Draw) {
    for at in (1..items.len()).rev() {
        items.swap(at, draw.below(at as u64 + 1) as usize);
    }
}

#[test]
fn pushes_in_any_order_give_the_same_bits() {
    let mut draw = Draw(1);
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            for admission in [Admission::Always, Admission::Probability { probability: 0.5 }] {
                let config = config(writes, dtype, admission);
                let (primary, mut follower) = (primary(&config), Follower::new(&config));
                let mut sent: Vec<Sent> = Vec::new();
                for _ in 0..80 {
                    let keys = keys(&mut draw, 40, 20);
                    sent.push(push(&primary, keys, &mut draw));
                }
                // Each push may come twice.
                sent.extend(sent.clone());
                shuffle(&mut sent, &mut draw);
                sent.into_iter().for_each(|sent| follower.receive(sent));
                assert!(follower.waiting.is_empty());
                assert_eq!(bits(&primary), bits(&follower.table), "{writes:?} {dtype:?} {admission:?}");
            }
        }
    }
}

/// Pushes of several workers, each in its order, and removals that go before the pushes that saw them.
#[test]
fn removed_and_new_rows_of_a_key_are_told_apart() {
    for seed in 0..60 {
        let mut draw = Draw(seed);
        let config = config(Writes::InPlace, Dtype::F32, Admission::Always);
        let (primary, mut follower) = (primary(&config), Follower::new(&config));
        let mut streams: Vec<Vec<Sent>> = vec![Vec::new(); 3];
        for _ in 0..150 {
            if draw.below(4) == 0 {
                primary.remove(draw.below(10));
            } else {
                let keys = keys(&mut draw, 10, 6);
                streams[draw.below(3) as usize].push(push(&primary, keys, &mut draw));
            }
        }
        let mut removals = 0;
        streams.iter_mut().for_each(|stream| stream.reverse());
        while streams.iter().any(|stream| !stream.is_empty()) {
            let Some(sent) = streams[draw.below(3) as usize].pop() else { continue };
            let seen = sent.rows.removals.iter().max().copied().unwrap_or(0);
            for key in primary.removals_after(removals, seen.saturating_sub(removals) as usize).unwrap() {
                removals += 1;
                follower.remove(key, removals);
            }
            follower.receive(sent);
        }
        for (key, number) in
            primary.removals_after(removals, usize::MAX).unwrap().into_iter().zip(removals + 1..)
        {
            follower.remove(key, number);
        }
        // A push of a removed row waits for one that came after the removal.
        follower.waiting.clear();
        assert_eq!(bits(&primary), bits(&follower.table), "{seed}");
    }
}

/// Threads push and evict; the reported versions, put into order afterwards, give the rows of the primary.
#[test]
fn threads_that_evict_report_an_order_of_every_row() {
    let config = TableConfig {
        budget_bytes: Some(Table::least_bytes(Writes::InPlace) as u64 + (1 << 17)),
        eviction: Eviction::Clock,
        ..config(Writes::InPlace, Dtype::F32, Admission::Always)
    };
    let primary = primary(&config);
    let sent = Mutex::new(Vec::new());
    let (start, pushes) = (Barrier::new(3), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (primary, sent, start, pushes) = (&primary, &sent, &start, &pushes);
            scope.spawn(move || {
                let mut draw = Draw(thread);
                start.wait();
                while pushes.fetch_add(1, Relaxed) < 600 {
                    let range = if draw.below(2) == 0 { 50 } else { 20_000 };
                    let keys = keys(&mut draw, range, 300);
                    let push = push(primary, keys, &mut draw);
                    sent.lock().unwrap().push(push);
                    primary.maintain(64);
                }
            });
        }
    });
    let removed = primary.removals_after(0, usize::MAX).unwrap();
    assert!(removed.len() > 1000, "{}", removed.len());
    // Per key, what happened to its row, in the order of removals and versions.
    let mut histories: HashMap<u64, Vec<(u64, u32, usize, usize)>> = HashMap::new();
    let sent = sent.into_inner().unwrap();
    let mut numbers: HashMap<u64, Vec<u64>> = HashMap::new();
    removed.iter().zip(1..).for_each(|(&key, number)| numbers.entry(key).or_default().push(number));
    for (at, push) in sent.iter().enumerate() {
        for (place, key) in push.keys.iter().enumerate() {
            let (version, removals) = (push.rows.versions[place], push.rows.removals[place]);
            let row = numbers.get(key).map_or(0, |numbers| numbers.partition_point(|&n| n <= removals));
            if version > 0 {
                histories.entry(*key).or_default().push((row as u64, version, at, place));
            }
        }
    }
    let replay_config = TableConfig { budget_bytes: None, eviction: Eviction::Never, ..config };
    let replay = Table::new(replay_config).unwrap();
    let dim = replay.dim();
    for (key, mut updates) in histories {
        updates.sort_unstable();
        let last = numbers.get(&key).map_or(0, Vec::len) as u64;
        let mut expected = (0, 0);
        for (row, version, at, place) in updates {
            expected = if row == expected.0 { (row, expected.1 + 1) } else { (row, 1) };
            assert_eq!((row, version), expected, "key {key}");
            if row == last {
                let Sent { counts, grads, scale, clock, .. } = &sent[at];
                let (counts, grads) = (&counts[place..=place], &grads[place * dim..][..dim]);
                let checked = replay.check_push(std::slice::from_ref(&key), counts, grads, *scale).unwrap();
                checked.apply_part(0..1, PushClock::of_reading(*clock)).unwrap();
            }
        }
    }
    let without_use = |table: &Table| -> HashMap<u64, Bits> {
        bits(table).into_iter().map(|(key, row)| (key, (row.0, row.1, 0, row.3, row.4))).collect()
    };
    // Look-ups count as use on the primary alone.
    assert_eq!(without_use(&primary), without_use(&replay));
}

/// A follower that begins late: rows are exported beside pushes, in any order with them.
#[test]
fn an_export_beside_pushes_catches_up() {
    for seed in 0..40 {
        let mut draw = Draw(seed);
        let config = config(Writes::InPlace, Dtype::F16, Admission::Always);
        let (primary, mut follower) = (primary(&config), Follower::new(&config));
        for _ in 0..50 {
            let keys = keys(&mut draw, 30, 10);
            push(&primary, keys, &mut draw);
        }
        let mut sent = Vec::new();
        for key in 0..30 {
            let keys = keys(&mut draw, 30, 10);
            sent.push(push(&primary, keys, &mut draw));
            if draw.below(3) == 0
                && let Some(push) = sent.pop()
            {
                follower.receive(push);
            }
            let mut columns = RowColumns::default();
            if let Some(row) = primary.get(key) {
                columns.push(row.as_ref());
                follower.table.import_newer(columns.rows(), primary.pushes()).unwrap();
            }
        }
        shuffle(&mut sent, &mut draw);
        sent.into_iter().for_each(|sent| follower.receive(sent));
        assert!(follower.waiting.is_empty());
        assert_eq!(bits(&primary), bits(&follower.table), "{seed}");
    }
}

#[test]
fn a_follower_evicts_nothing_and_is_full_instead() {
    let config = TableConfig {
        budget_bytes: Some(Table::least_bytes(Writes::InPlace) as u64 + (1 << 16)),
        eviction: Eviction::Clock,
        ..config(Writes::InPlace, Dtype::F32, Admission::Always)
    };
    let (primary, follower) = (primary(&config), Table::new(config).unwrap());
    follower.follow();
    let (mut draw, mut full) = (Draw(5), false);
    for first in (0..20_000).step_by(100) {
        let sent = push(&primary, (first..first + 100).collect(), &mut draw);
        let checked = follower.check_push(&sent.keys, &sent.counts, &sent.grads, sent.scale).unwrap();
        let clock = PushClock::of_reading(sent.clock);
        full |= checked.apply_in_order(&sent.rows.versions, clock, &mut Vec::new()).is_err();
        follower.maintain(1000);
    }
    assert!(full && primary.removals() > 0);
    assert_eq!((follower.stats().evicted, primary.stats().evicted), (0, primary.removals()));
    // As a primary it goes on.
    follower.lead(primary.removals(), 1 << 20);
    push(&follower, (50_000..50_100).collect(), &mut draw);
    assert!(follower.stats().evicted > 0 && follower.removals() > primary.removals());
}

#[test]
fn removals_are_kept_up_to_a_number() {
    let table = primary(&config(Writes::InPlace, Dtype::F32, Admission::Always));
    push(&table, (0..10).collect(), &mut Draw(1));
    table.lead(100, 4);
    assert_eq!(table.removals_after(100, 9), Some(vec![]));
    (0..6).for_each(|key| assert!(table.remove(key)));
    assert!(!table.remove(0));
    assert_eq!(table.removals(), 106);
    assert_eq!(table.removals_after(101, 9), None);
    assert_eq!(table.removals_after(102, 9), Some(vec![2, 3, 4, 5]));
    assert_eq!(table.removals_after(103, 2), Some(vec![3, 4]));
    table.forget_removals(104);
    assert_eq!((table.removals_after(103, 9), table.removals_after(104, 9)), (None, Some(vec![4, 5])));
    table.follow();
    table.remove(7);
    assert_eq!(table.removals(), 106);
}
