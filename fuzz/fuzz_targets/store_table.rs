//! Random operations on a table, compared with a `HashMap` while no row is evicted. A table with eviction must keep to its
//! budget and its counters.
#![no_main]

use std::collections::{HashMap, HashSet};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sanderling_store::{
    Absent, Eviction, Init, Optimizer, PushScale, StoreError, Table, TableConfig, Writes,
};

#[derive(Arbitrary, Debug)]
struct Input {
    dim: u8,
    copy_on_write: bool,
    evicts: bool,
    budget_kib: u8,
    operations: Vec<Operation>,
}

#[derive(Arbitrary, Debug)]
enum Operation {
    Push { keys: Vec<u16>, shift: u8 },
    PushRange { first: u16, keys: u16 },
    Remove { key: u16, shift: u8 },
    Pull { keys: Vec<u16>, shift: u8 },
    Update { key: u16 },
    Maintain,
    Reserve { rows: u16 },
    Clear,
}

/// Keys that differ in low or high bits only.
fn key(key: u16, shift: u8) -> u64 {
    u64::from(key) << (shift % 49)
}

fuzz_target!(|input: Input| {
    let dim = usize::from(input.dim % 40) + 1;
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let writes = if input.copy_on_write { Writes::CopyOnWrite } else { Writes::InPlace };
    let (eviction, budget_bytes) = if input.evicts {
        (Eviction::Clock, Some((200 + u64::from(input.budget_kib)) << 10))
    } else {
        (Eviction::Never, None)
    };
    let config =
        TableConfig { writes, eviction, budget_bytes, ..TableConfig::single("t", dim, Init::Zero, sgd) };
    let table = Table::new(config).unwrap();
    let mut model: HashMap<u64, f32> = HashMap::new();
    let mut removed = 0;
    let push = |model: &mut HashMap<u64, f32>, keys: Vec<u64>| {
        // One step per occurrence, different in every coordinate.
        let gradients: Vec<f32> = keys.iter().flat_map(|_| (1..=dim).map(|at| -(at as f32))).collect();
        table.push(&keys, &gradients, PushScale::default()).unwrap();
        keys.into_iter().for_each(|key| *model.entry(key).or_default() += 1.0);
    };
    let check = |model: &HashMap<u64, f32>, key: u64, weights: &[f32]| {
        let expected = model.get(&key).copied().unwrap_or_default();
        let steps = weights[0];
        assert!(weights.iter().enumerate().all(|(at, &w)| w == steps * (at + 1) as f32), "{weights:?}");
        assert!(if input.evicts { steps <= expected } else { steps == expected }, "{steps} of {expected}");
    };
    for operation in input.operations.into_iter().take(64) {
        match operation {
            Operation::Push { keys, shift } => {
                push(&mut model, keys.iter().map(|&k| key(k, shift)).collect())
            }
            Operation::PushRange { first, keys } => {
                push(&mut model, (0..u64::from(keys % 5000)).map(|k| k + u64::from(first)).collect());
            }
            Operation::Remove { key: k, shift } => {
                let (was, known) = (table.remove(key(k, shift)), model.remove(&key(k, shift)).is_some());
                removed += u64::from(was);
                assert!(was == known || input.evicts && known);
            }
            Operation::Pull { keys, shift } => {
                let keys: Vec<u64> = keys.iter().map(|&k| key(k, shift)).collect();
                let mut out = vec![9.0; keys.len() * dim];
                table.pull(&keys, Absent::Zero, &mut out, None).unwrap();
                keys.iter().zip(out.chunks(dim)).for_each(|(&key, weights)| check(&model, key, weights));
            }
            Operation::Update { key } => {
                let Ok(mut writer) = table.writer(PushScale::default()) else { continue };
                let mut handles = Vec::new();
                match writer.resolve(&[u64::from(key)], &mut handles) {
                    Err(StoreError::TableFull { .. }) if input.evicts => continue,
                    other => other.unwrap(),
                }
                let gradient: Vec<f32> = (1..=dim).map(|at| -(at as f32)).collect();
                writer.update(handles[0], &gradient);
                *model.entry(u64::from(key)).or_default() += 1.0;
            }
            Operation::Maintain => _ = table.maintain(1000),
            Operation::Reserve { rows } => _ = table.reserve(rows.into()),
            Operation::Clear => {
                removed += table.len() as u64;
                table.clear();
                model.clear();
            }
        }
    }
    let mut seen = HashSet::new();
    table.for_each_row(|row| {
        assert!(seen.insert(row.key) && model.contains_key(&row.key));
        check(&model, row.key, row.weights);
    });
    let stats = table.stats();
    assert_eq!((seen.len() as u64, stats.admitted - stats.evicted - removed), (stats.rows, stats.rows));
    assert!(input.evicts || seen.len() == model.len());
    assert!(budget_bytes.is_none_or(|bytes| table.bytes() <= bytes));
});
