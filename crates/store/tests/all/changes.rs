//! The change stream: an export of an epoch with the changes since gives the table, bit for bit.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Instant;

use crate::support::{Draw, Stop, duration};
use proptest::prelude::*;
use sanderling_store::{
    ChangeFrame, Dtype, Eviction, Init, Optimizer, Packing, PushScale, RowColumns, StoreError, Table,
    TableConfig, WholeRows, Writes,
};

pub(crate) const DIM: usize = 3;
/// State values of the optimizer in `config`.
pub(crate) const STATE: usize = 2 * DIM;

/// Frequency, last use, version; weights and state by their bits.
pub(crate) type Bits = ([u32; 3], Vec<u32>);

pub(crate) fn bits<'a>(header: [u32; 3], values: impl Iterator<Item = &'a f32>) -> Bits {
    (header, values.map(|value| value.to_bits()).collect())
}

/// All rows of a table.
pub(crate) fn export(t: &Table) -> BTreeMap<u64, Bits> {
    let mut rows = BTreeMap::new();
    t.for_each_row(|row| {
        let header = [row.frequency, row.last_use, row.version];
        rows.insert(row.key, bits(header, row.weights.iter().chain(row.state)));
    });
    rows
}

/// A model of a replica: a map.
fn apply(copy: &mut BTreeMap<u64, Bits>, frame: &ChangeFrame) {
    let columns: WholeRows<'_> = frame.rows.rows();
    for at in 0..columns.keys.len() {
        let row = columns.row(at, DIM, STATE);
        let header = [row.frequency, row.last_use, row.version];
        copy.insert(row.key, bits(header, row.weights.iter().chain(row.state)));
    }
    frame.removed.iter().for_each(|key| _ = copy.remove(key));
}

pub(crate) fn config(writes: Writes, eviction: Eviction, dtype: Dtype, packing: Packing) -> TableConfig {
    let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 };
    let config = TableConfig::single("t", DIM, Init::Normal { std: 0.1 }, adam);
    TableConfig { seed: 3, writes, eviction, dtype, packing, budget_bytes: Some(1 << 18), ..config }
}

/// A subscriber: the rows it has, and the epoch that they are of.
pub(crate) struct Replica {
    rows: BTreeMap<u64, Bits>,
    epoch: u64,
}

impl Replica {
    fn new(t: &Table, keys_max: usize) -> Replica {
        let epoch = t.subscribe_changes(keys_max).unwrap();
        Replica { rows: export(t), epoch }
    }

    /// Drains; returns false and starts anew if it is too late.
    pub(crate) fn drain(&mut self, t: &Table, keys_max: usize) -> bool {
        let drained = t.drain_changes(self.epoch, |frame| {
            apply(&mut self.rows, frame);
            ControlFlow::Continue(())
        });
        match drained {
            Ok(epoch) => {
                self.epoch = epoch.expect("it did not break");
                true
            }
            Err(StoreError::StreamTooLate { oldest, .. }) => {
                assert!(oldest > self.epoch);
                *self = Replica::new(t, keys_max);
                false
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Push { first: u64, keys: u64 },
    Remove { first: u64, keys: u64 },
    Import { key: u64 },
    ByHandle { key: u64 },
    Reserve { rows: u64 },
    Maintain,
    Clear,
    Subscribe,
    Drain { replica: usize },
    BreakOff { replica: usize },
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_000_u64, 1..200_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        1 => (0..3_000_u64, 1..3_000_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        3 => (0..3_000_u64, 1..100_u64).prop_map(|(first, keys)| Step::Remove { first, keys }),
        1 => (0..3_000_u64).prop_map(|key| Step::Import { key }),
        1 => (0..3_000_u64).prop_map(|key| Step::ByHandle { key }),
        1 => (1..4_000_u64).prop_map(|rows| Step::Reserve { rows }),
        2 => Just(Step::Maintain),
        1 => Just(Step::Clear),
        2 => Just(Step::Subscribe),
        5 => (0..8_usize).prop_map(|replica| Step::Drain { replica }),
        1 => (0..8_usize).prop_map(|replica| Step::BreakOff { replica }),
    ]
}

pub(crate) fn run(t: &Table, step: &Step, replicas: &mut Vec<Replica>, keys_max: usize) {
    let pick =
        |replicas: &[Replica], replica: usize| (!replicas.is_empty()).then(|| replica % replicas.len());
    match *step {
        Step::Push { first, keys } => {
            let keys: Vec<u64> = (first..first + keys).map(|key| key * key % 3_001).collect();
            let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at as f32 + first as f32).sin()).collect();
            match t.push(&keys, &grads, PushScale::default()) {
                Err(StoreError::TableFull { .. }) => {}
                other => other.unwrap(),
            }
        }
        Step::Remove { first, keys } => (first..first + keys).for_each(|key| _ = t.remove(key)),
        Step::Import { key } => {
            let mut columns = RowColumns::default();
            if let Some(mut row) = t.get(key) {
                row.frequency += 1;
                row.weights[0] = 1.5;
                columns.push(row.as_ref());
            }
            t.import(columns.rows()).unwrap();
        }
        Step::ByHandle { key } => {
            if let Ok(mut writer) = t.writer(PushScale::default()) {
                let mut handles = Vec::new();
                if writer.resolve(&[key], &mut handles).is_ok() {
                    writer.update(handles[0], &[0.5; DIM]);
                    writer.update_all(&handles, &[0.25; DIM]);
                }
                writer.finish().unwrap();
            }
        }
        Step::Reserve { rows } => _ = t.reserve(rows),
        Step::Maintain => _ = t.maintain(100),
        Step::Clear => t.clear(),
        Step::Subscribe => replicas.push(Replica::new(t, keys_max)),
        Step::Drain { replica } => {
            if let Some(at) = pick(replicas, replica) {
                replicas[at].drain(t, keys_max);
                assert_eq!(replicas[at].rows, export(t));
            }
        }
        Step::BreakOff { replica } => {
            if let Some(at) = pick(replicas, replica) {
                // The subscriber stays at its epoch, whatever it has taken.
                match t.drain_changes(replicas[at].epoch, |_| ControlFlow::Break(())) {
                    Ok(None | Some(_)) | Err(StoreError::StreamTooLate { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 48 }, ..ProptestConfig::default() })]

    /// Several subscribers of any age, with room for few or many keys of past epochs.
    #[test]
    fn a_copy_that_follows_the_stream_is_the_table(
        steps in prop::collection::vec(step(), 1..80),
        copy_on_write in any::<bool>(),
        half in any::<bool>(),
        compact in any::<bool>(),
        eviction in 0..3_usize,
        keys_max in prop_oneof![Just(0), Just(300), Just(1 << 20)],
    ) {
        let eviction = [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 5 }][eviction];
        let writes = if copy_on_write { Writes::CopyOnWrite } else { Writes::InPlace };
        let dtype = if half { Dtype::Bf16 } else { Dtype::F32 };
        let packing = if compact { Packing::Compact } else { Packing::Fast };
        let t = Table::new(config(writes, eviction, dtype, packing)).unwrap();
        let mut replicas = Vec::new();
        steps.iter().for_each(|step| run(&t, step, &mut replicas, keys_max));
        for replica in &mut replicas {
            replica.drain(&t, keys_max);
            prop_assert_eq!(&replica.rows, &export(&t));
        }
    }
}

/// Subscribes, and copies the table to an empty replica; returns the epoch.
fn follow_anew(t: &Table, replica: &mut Table) -> u64 {
    *replica = Table::new(replica.config().clone()).unwrap();
    let epoch = t.subscribe_changes(Table::CHANGE_KEYS).unwrap();
    let mut columns = RowColumns::default();
    t.for_each_row(|row| columns.push(row));
    replica.import(columns.rows()).unwrap();
    epoch
}

/// Drains into a replica; returns the epoch unless it is too late.
fn drain_into(t: &Table, epoch: u64, replica: &Table) -> Option<u64> {
    let drained = t.drain_changes(epoch, |frame| {
        assert!(!frame.is_empty() && frame.len() <= 1024 && frame.epoch > epoch);
        let columns = frame.rows.rows();
        for at in 0..frame.rows.len() {
            let row = columns.row(at, DIM, DIM);
            // Every update adds 1 per occurrence to each weight, so that weights and frequency are of one moment.
            let whole = row.weights.iter().all(|&weight| weight == row.frequency as f32);
            assert!(whole && row.version <= row.frequency, "{row:?}");
        }
        replica.apply_changes(frame).unwrap();
        ControlFlow::Continue(())
    });
    match drained {
        Ok(epoch) => epoch,
        Err(StoreError::StreamTooLate { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Threads push, remove and evict beside drains of a replica that is a table.
#[test]
fn a_replica_follows_concurrent_writers() {
    for (writes, eviction) in [
        (Writes::InPlace, Eviction::Never),
        (Writes::InPlace, Eviction::Clock),
        (Writes::CopyOnWrite, Eviction::Age { pushes: 50 }),
    ] {
        let sgd = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
        let base = TableConfig::single("t", DIM, Init::Zero, sgd);
        let t = Table::new(TableConfig { writes, eviction, budget_bytes: Some(1 << 19), ..base.clone() })
            .unwrap();
        let (stop, subscribed) = (AtomicBool::new(false), Barrier::new(3));
        let mut replica = Table::new(base).unwrap();
        let (mut restarts, mut epoch) = (0, 0);
        thread::scope(|scope| {
            for number in 0..2_u64 {
                let (t, stop, subscribed) = (&t, &stop, &subscribed);
                scope.spawn(move || {
                    let mut draw = Draw(number + 1);
                    for round in 0_u64.. {
                        if round == 20 {
                            subscribed.wait();
                        }
                        if round > 20 && stop.load(Relaxed) {
                            return;
                        }
                        let keys: Vec<u64> = (0..100).map(|_| draw.below(6_000)).collect();
                        match t.push(&keys, &vec![-1.0; keys.len() * DIM], PushScale::default()) {
                            Err(StoreError::TableFull { .. }) => {}
                            other => other.unwrap(),
                        }
                        (0..5).for_each(|_| _ = t.remove(draw.below(6_000)));
                        t.maintain(50);
                    }
                });
            }
            let _stop = Stop(&stop);
            subscribed.wait();
            let begun = Instant::now();
            epoch = follow_anew(&t, &mut replica);
            while begun.elapsed() < duration() {
                match drain_into(&t, epoch, &replica) {
                    Some(next) => epoch = next,
                    None => {
                        restarts += 1;
                        epoch = follow_anew(&t, &mut replica);
                    }
                }
            }
            stop.store(true, Relaxed);
        });
        // The writers have ended: this drain has everything.
        if drain_into(&t, epoch, &replica).is_none() {
            follow_anew(&t, &mut replica);
        }
        assert_eq!(export(&replica), export(&t), "{writes:?} {eviction:?}");
        assert!(restarts < 5, "{restarts} restarts");
    }
}

/// A row that changed often is passed once; a table without subscribers, and epochs that are not kept, are refused.
#[test]
fn epochs_and_their_limits() {
    let t = Table::new(config(Writes::InPlace, Eviction::Never, Dtype::F32, Packing::Fast)).unwrap();
    let push = |keys: &[u64]| t.push(keys, &vec![0.5; keys.len() * DIM], PushScale::default()).unwrap();
    let drain = |since: u64| {
        let mut keys = Vec::new();
        let epoch = t.drain_changes(since, |frame| {
            keys.extend(frame.rows.rows().keys);
            keys.extend(frame.removed.iter().map(|key| key + 1_000_000));
            ControlFlow::Continue(())
        });
        keys.sort_unstable();
        epoch.map(|epoch| (epoch.unwrap(), keys))
    };
    let too_late = |since: u64, oldest_is: Option<u64>| match drain(since) {
        Err(StoreError::StreamTooLate { epoch, oldest, .. }) => {
            assert_eq!(epoch, since);
            oldest_is.is_none_or(|expected| expected == oldest)
        }
        _ => false,
    };
    push(&[1, 2, 3]);
    assert!(too_late(0, Some(0)), "nobody has subscribed");
    let first = t.subscribe_changes(4).unwrap();
    assert!(too_late(first + 1, Some(first)) && too_late(first - 1, Some(first)));
    assert_eq!(drain(first).unwrap(), (first + 1, vec![]));
    (0..1000).for_each(|_| push(&[2, 3]));
    t.remove(3);
    assert_eq!(drain(first + 1).unwrap(), (first + 2, vec![2, 1_000_003]));
    // The keys of two past epochs have room, and a late subscriber gets each once.
    push(&[1, 2]);
    assert_eq!(drain(first + 1).unwrap(), (first + 3, vec![1, 2, 1_000_003]));
    push(&[7]);
    assert_eq!(drain(first + 3).unwrap(), (first + 4, vec![7]));
    assert!(too_late(first + 1, Some(first + 2)));
    // More changes than have room: for this subscriber only.
    push(&(10..60).collect::<Vec<_>>());
    assert_eq!(drain(first + 4).unwrap(), (first + 5, (10..60).collect()));
    assert!(too_late(first + 4, Some(first + 5)));
    // All rows are gone: not key by key.
    t.clear();
    assert!(too_late(first + 5, Some(first + 6)));
    let again = t.subscribe_changes(0).unwrap();
    push(&[5]);
    assert_eq!(drain(again).unwrap(), (again + 1, vec![5]));
    // More removals than have room.
    push(&(100..1_300).collect::<Vec<_>>());
    (100..1_300).for_each(|key| assert!(t.remove(key)));
    assert!(too_late(again + 1, None));
}
