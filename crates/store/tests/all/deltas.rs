//! Delta checkpoints: a full checkpoint and its deltas give the table, bit for bit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::thread;

use crate::support::{Draw, Stop, duration};
use proptest::prelude::*;
use sanderling_store::{
    Checkpoint, CheckpointWriter, DeltaWriter, Dtype, Eviction, Init, Optimizer, Packing, PushScale,
    RowColumns, RowRef, StoreError, Table, TableConfig, Writes,
};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

const DIM: usize = 3;

/// Frequency, last use, version; weights and state by their bits.
type Bits = ([u32; 3], Vec<u32>);
/// The rows and pushes of a table.
type Rows = (BTreeMap<u64, Bits>, u64);

fn rows(t: &Table) -> Rows {
    let mut rows = BTreeMap::new();
    t.for_each_row(|row| {
        let values = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
        rows.insert(row.key, ([row.frequency, row.last_use, row.version], values));
    });
    (rows, t.stats().pushes)
}

fn config(name: &str) -> TableConfig {
    let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.99, eps: 1e-4, l2: 0.01 };
    TableConfig::single(name, DIM, Init::Normal { std: 0.1 }, adam)
}

fn push(t: &Table, keys: impl IntoIterator<Item = u64>) {
    let keys: Vec<u64> = keys.into_iter().collect();
    let grads: Vec<f32> = (0..keys.len() * DIM).map(|at| (at as f32).sin()).collect();
    match t.push(&keys, &grads, PushScale::default()) {
        Err(StoreError::TableFull { .. }) => {}
        other => other.unwrap(),
    }
}

fn save_full(dir: &Path, tables: &[&Table], keys_max: usize) {
    let mut writer = CheckpointWriter::create(dir).unwrap();
    writer.begin_chain(keys_max);
    tables.iter().for_each(|table| writer.table(table).unwrap());
    writer.blob("number", b"0").unwrap();
    writer.commit().unwrap();
}

fn save_delta(dir: &Path, tables: &[&Table], blob: &str) -> Result<u64, StoreError> {
    let mut writer = DeltaWriter::create(dir)?;
    for table in tables {
        assert_eq!(writer.changes(table)?, None);
    }
    writer.blob("number", blob.as_bytes())?;
    writer.commit()
}

/// The rows that a checkpoint loads, also by rows; and its blob.
fn loaded(checkpoint: &Checkpoint, name: &str) -> (Rows, String) {
    let table = checkpoint.load_table(name).unwrap();
    let mut read = BTreeMap::new();
    checkpoint
        .for_each_row::<StoreError>(name, |row| {
            let values = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
            assert!(read.insert(row.key, ([row.frequency, row.last_use, row.version], values)).is_none());
            Ok(())
        })
        .unwrap();
    assert_eq!(read, rows(&table).0);
    checkpoint.verify().unwrap();
    (rows(&table), String::from_utf8(checkpoint.blob("number").unwrap()).unwrap())
}

/// The rows after each link of a chain, for a follower that reads the links one by one.
fn followed(dir: &Path) -> Vec<BTreeMap<u64, Bits>> {
    let chain = Checkpoint::of_manifest(dir, &fs::read(dir.join("manifest.json")).unwrap()).unwrap();
    let (mut rows, mut states) = (BTreeMap::new(), Vec::new());
    for (link, found) in chain.links().iter().enumerate() {
        let state = chain.through(link).unwrap();
        assert_eq!(state.links().last(), Some(found));
        chain.verify_link("t", link).unwrap();
        let mut each = |key: u64, row: Option<RowRef<'_>>| {
            match row {
                Some(row) => {
                    let values = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
                    rows.insert(key, ([row.frequency, row.last_use, row.version], values));
                }
                None => _ = rows.remove(&key),
            }
            Ok::<(), StoreError>(())
        };
        match link {
            0 => state.for_each_row("t", |row| each(row.key, Some(row))).unwrap(),
            delta => chain.for_each_change("t", delta, each).unwrap(),
        }
        states.push(rows.clone());
    }
    states
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        first: u64,
        keys: u64,
    },
    Remove {
        first: u64,
        keys: u64,
    },
    Import {
        key: u64,
    },
    Reserve {
        rows: u64,
    },
    Maintain,
    Clear,
    Full,
    Delta,
    /// A delta that is not committed.
    Lost,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_000_u64, 1..200_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        1 => (0..3_000_u64, 1..2_500_u64).prop_map(|(first, keys)| Step::Push { first, keys }),
        3 => (0..3_000_u64, 1..100_u64).prop_map(|(first, keys)| Step::Remove { first, keys }),
        1 => (0..3_000_u64).prop_map(|key| Step::Import { key }),
        1 => (1..4_000_u64).prop_map(|rows| Step::Reserve { rows }),
        2 => Just(Step::Maintain),
        1 => Just(Step::Clear),
        1 => Just(Step::Full),
        6 => Just(Step::Delta),
        1 => Just(Step::Lost),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 20 }, ..ProptestConfig::default() })]

    /// Every state of the chain loads as it was saved; where no delta is possible, the error asks for a full save.
    #[test]
    fn a_chain_is_the_table_at_each_of_its_saves(
        steps in prop::collection::vec(step(), 1..40),
        copy_on_write in any::<bool>(),
        half in any::<bool>(),
        compact in any::<bool>(),
        eviction in 0..3_usize,
        keys_max in prop_oneof![Just(300), Just(1 << 20)],
    ) {
        let t = Table::new(TableConfig {
            writes: if copy_on_write { Writes::CopyOnWrite } else { Writes::InPlace },
            eviction: [Eviction::Never, Eviction::Clock, Eviction::Age { pushes: 5 }][eviction],
            dtype: if half { Dtype::Bf16 } else { Dtype::F32 },
            packing: if compact { Packing::Compact } else { Packing::Fast },
            budget_bytes: Some(1 << 18),
            ..config("t")
        }).unwrap();
        let other = Table::new(config("other")).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // The states of the chain, the full one first.
        let mut saved: Vec<Rows> = Vec::new();
        for step in &steps {
            match *step {
                Step::Push { first, keys } => push(&t, (first..first + keys).map(|key| key * key % 3_001)),
                Step::Remove { first, keys } => (first..first + keys).for_each(|key| _ = t.remove(key)),
                Step::Import { key } => {
                    let mut columns = RowColumns::default();
                    if let Some(mut row) = t.get(key) {
                        row.weights[0] = 1.5;
                        columns.push(row.as_ref());
                    }
                    t.import(columns.rows()).unwrap();
                }
                Step::Reserve { rows } => _ = t.reserve(rows),
                Step::Maintain => _ = t.maintain(100),
                Step::Clear => t.clear(),
                Step::Full => {
                    save_full(dir.path(), &[&t, &other], keys_max);
                    saved = vec![rows(&t)];
                }
                Step::Delta => match save_delta(dir.path(), &[&t, &other], &saved.len().to_string()) {
                    Ok(_) => saved.push(rows(&t)),
                    Err(StoreError::NoDelta { .. } | StoreError::StreamTooLate { .. }) => {
                        save_full(dir.path(), &[&t, &other], keys_max);
                        saved = vec![rows(&t)];
                    }
                    Err(error) => panic!("{error}"),
                },
                Step::Lost => {
                    if let Ok(mut writer) = DeltaWriter::create(dir.path()) {
                        match writer.changes(&t) {
                            Ok(_) | Err(StoreError::NoDelta { .. } | StoreError::StreamTooLate { .. }) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            }
        }
        for (deltas, expected) in saved.iter().enumerate() {
            let checkpoint = Checkpoint::open_through(dir.path(), deltas).unwrap();
            let (found, blob) = loaded(&checkpoint, "t");
            prop_assert_eq!(&found, expected, "after {} of {} deltas", deltas, saved.len() - 1);
            prop_assert_eq!(blob, deltas.to_string());
            prop_assert_eq!(checkpoint.tables()[0].rows, expected.0.len() as u64);
            prop_assert_eq!(checkpoint.deltas().len(), deltas);
        }
        if !saved.is_empty() {
            let states: Vec<_> = saved.iter().map(|(rows, _)| rows.clone()).collect();
            prop_assert_eq!(followed(dir.path()), states);
            let deltas = saved.len() - 1;
            prop_assert_eq!(Checkpoint::whole_deltas(dir.path()).unwrap(), (deltas, deltas));
            let checkpoint = Checkpoint::open(dir.path()).unwrap();
            prop_assert_eq!(loaded(&checkpoint, "t").0, saved.pop().unwrap());
        }
    }
}

/// Threads push, remove and evict beside saves; after the last delta, which is alone, the chain is the table.
#[test]
fn deltas_are_saved_beside_pushes() {
    for (writes, eviction) in
        [(Writes::InPlace, Eviction::Clock), (Writes::CopyOnWrite, Eviction::Age { pushes: 50 })]
    {
        let sgd = Optimizer::Momentum { lr: 1.0, momentum: 0.0, l2: 0.0 };
        let base = TableConfig::single("t", DIM, Init::Zero, sgd);
        let t = Table::new(TableConfig { writes, eviction, budget_bytes: Some(1 << 19), ..base }).unwrap();
        let (dir, stop) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let mut deltas = 0;
        thread::scope(|scope| {
            for number in 0..2_u64 {
                let (t, stop) = (&t, &stop);
                scope.spawn(move || {
                    let mut draw = Draw(number + 1);
                    while !stop.load(Relaxed) {
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
            save_full(dir.path(), &[&t], Table::CHANGE_KEYS);
            let begun = Instant::now();
            while begun.elapsed() < duration() {
                save_delta(dir.path(), &[&t], "0").unwrap();
                deltas += 1;
                if deltas == 200 {
                    (deltas, _) = (0, save_full(dir.path(), &[&t], Table::CHANGE_KEYS));
                }
                let checkpoint = Checkpoint::open(dir.path()).unwrap();
                checkpoint
                    .for_each_row::<StoreError>("t", |row| {
                        // Weights and frequency are of one moment.
                        assert!(row.weights.iter().all(|&weight| weight == row.frequency as f32), "{row:?}");
                        Ok(())
                    })
                    .unwrap();
            }
        });
        save_delta(dir.path(), &[&t], "0").unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(loaded(&checkpoint, "t").0.0, rows(&t).0, "{writes:?} {eviction:?}");
    }
}

/// A table and its chain of three deltas.
fn chain(dir: &Path) -> Table {
    let t = Table::new(config("t")).unwrap();
    push(&t, 0..500);
    save_full(dir, &[&t], Table::CHANGE_KEYS);
    for delta in 1..4 {
        push(&t, delta * 10..delta * 10 + 20);
        t.remove(delta);
        save_delta(dir, &[&t], "0").unwrap();
    }
    t
}

#[test]
fn a_damaged_link_is_named_with_the_state_before_it() {
    let names = ["g1-0.table", "g1-1.blob", "g2-0.delta", "g2-1.blob", "g3-0.delta", "g3-1.blob"];
    let names = names.iter().chain(&["g4-0.delta", "g4-1.blob"]);
    for (name, at) in names.zip([0, 0, 1, 1, 2, 2, 3, 3]) {
        for damage in ["missing", "short", "flipped"] {
            let dir = tempfile::tempdir().unwrap();
            chain(dir.path());
            let path = dir.path().join(name);
            let mut bytes = fs::read(&path).unwrap();
            match damage {
                "missing" => fs::remove_file(&path).unwrap(),
                "short" => fs::write(&path, &bytes[..bytes.len() - 1]).unwrap(),
                _ => {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    fs::write(&path, bytes).unwrap();
                }
            }
            let opened = Checkpoint::open(dir.path());
            let error = opened.and_then(|checkpoint| checkpoint.verify()).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
            assert!(error.len() < 200 + dir.path().as_os_str().len(), "{error}");
            let whole = Checkpoint::whole_deltas(dir.path());
            if at == 0 {
                whole.unwrap_err();
                continue;
            }
            if name.ends_with("delta") {
                let manifest = fs::read(dir.path().join("manifest.json")).unwrap();
                let link = Checkpoint::of_manifest(dir.path(), &manifest).unwrap().verify_link("t", at);
                let error = link.unwrap_err().to_string();
                assert!(error.contains(&format!("delta {at} of 3: ")) && error.contains(name), "{error}");
            }
            let expected = format!("delta {at} of 3: ");
            let before = format!("; the first {} remain", at - 1);
            assert!(error.contains(&expected) && error.ends_with(&before), "{error}");
            assert_eq!(whole.unwrap(), (at - 1, 3), "{name} {damage}");
            loaded(&Checkpoint::open_through(dir.path(), at - 1).unwrap(), "t");
        }
    }
}

#[test]
fn a_delta_of_another_place_is_noticed() {
    for (from, to) in
        [("g2-0.delta", "g3-0.delta"), ("g1-0.table", "g2-0.delta"), ("g2-0.delta", "g1-0.table")]
    {
        let dir = tempfile::tempdir().unwrap();
        chain(dir.path());
        fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
        let opened = Checkpoint::open(dir.path());
        let read = opened.and_then(|checkpoint| checkpoint.load_table("t").map(drop));
        assert!(matches!(read, Err(StoreError::Damaged { .. })), "{from} as {to}: {read:?}");
    }
}

/// Each obstacle says why, and leaves the checkpoint as it is.
#[test]
fn where_no_delta_is_possible_a_full_save_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let no_delta = |tables: &[&Table], expected: &str| {
        let error = save_delta(dir.path(), tables, "").unwrap_err();
        assert!(matches!(error, StoreError::NoDelta { .. } | StoreError::StreamTooLate { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
    };
    let t = Table::new(config("t")).unwrap();
    push(&t, 0..100);
    no_delta(&[&t], "no full checkpoint");
    let mut writer = CheckpointWriter::create(dir.path()).unwrap();
    writer.table(&t).and_then(|()| writer.commit()).unwrap();
    no_delta(&[&t], "without the changes");
    save_full(dir.path(), &[&t], Table::CHANGE_KEYS);
    let (other, same) = (Table::new(config("other")).unwrap(), Table::new(config("t")).unwrap());
    no_delta(&[&t, &other], "no table \"other\"");
    no_delta(&[], "\"t\" is gone");
    no_delta(&[&same], "are not kept");
    same.subscribe_changes(Table::CHANGE_KEYS).unwrap();
    no_delta(&[&same], "are not kept");
    let changed = Table::new(TableConfig { seed: 7, ..config("t") }).unwrap();
    no_delta(&[&changed], "another configuration");
    t.clear();
    no_delta(&[&t], "are not kept");
    save_full(dir.path(), &[&t], Table::CHANGE_KEYS);
    push(&t, 0..10);
    save_delta(dir.path(), &[&t], "").unwrap();
    let generation = Checkpoint::open(dir.path()).unwrap().generation();
    fs::remove_file(dir.path().join(format!("g{generation}-0.delta"))).unwrap();
    no_delta(&[&t], "delta 1 of 1: it is missing");
    let few = Table::new(config("t")).unwrap();
    save_full(dir.path(), &[&few], 10);
    push(&few, 0..5_000);
    no_delta(&[&few], "too many rows");
    assert_eq!(loaded(&Checkpoint::open(dir.path()).unwrap(), "t").0.0.len(), 0);
    let Err(StoreError::NotFound { kind: "delta", .. }) = Checkpoint::open_through(dir.path(), 1) else {
        panic!("there is no delta");
    };
}

/// A full save replaces the chain, and the files of an interrupted delta.
#[test]
fn a_full_save_removes_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    let t = chain(dir.path());
    fs::write(dir.path().join("g9-0.delta"), "left by an interrupted save").unwrap();
    loaded(&Checkpoint::open(dir.path()).unwrap(), "t");
    save_full(dir.path(), &[&t], Table::CHANGE_KEYS);
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["g10-0.table", "g10-1.blob", "manifest.json"]);
    // Nothing changed: a delta without rows, and no file for them.
    save_delta(dir.path(), &[&t], "1").unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(
        (checkpoint.generation(), checkpoint.deltas()[0].rows, checkpoint.deltas()[0].bytes),
        (11, 0, 1)
    );
    assert_eq!(loaded(&checkpoint, "t").0, rows(&t));
}

/// Chains are also added to tables, in part; and more rows than several threads read.
#[test]
fn a_large_chain_is_added_to_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let t = Table::new(config("t")).unwrap();
    (0..100).for_each(|part| push(&t, part * 1_000..part * 1_000 + 1_000));
    save_full(dir.path(), &[&t], Table::CHANGE_KEYS);
    for delta in 0..3 {
        push(&t, (0..60_000).map(|key| key * 2 + delta));
        (delta * 100..delta * 100 + 500).for_each(|key| _ = t.remove(key));
        save_delta(dir.path(), &[&t], "0").unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_eq!(loaded(&checkpoint, "t").0, rows(&t));
    let mut part = Table::new(config("t")).unwrap();
    push(&part, 1_000_000..1_000_010);
    let added = checkpoint.load_rows("t", &mut part, |key| key % 3 == 0).unwrap();
    let expected = rows(&t).0.keys().filter(|&key| key % 3 == 0).count();
    assert_eq!((added as usize, part.len()), (expected, expected + 10));
}

/// A chain that another program wrote by the documented format (`golden/make_chain.py`), at each of its states.
#[test]
fn a_golden_chain_is_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/golden/chain");
    let row = |header: [u32; 3], values: [f32; 2]| (header, values.map(f32::to_bits).to_vec());
    let one = [(1, row([3, 2, 2], [0.5, 0.25])), (1, row([4, 5, 3], [1.5, 0.5]))];
    let two = [(2, row([1, 1, 1], [-1.0, 0.0])), (2, row([1, 7, 1], [7.0, 0.0]))];
    let (three, four) = ((3, row([9, 4, 5], [8.0, 1.0])), (4, row([1, 6, 1], [4.0, -2.0])));
    let states = [
        (vec![one[0].clone(), two[0].clone(), three.clone()], 4, "full"),
        (vec![one[1].clone(), three.clone(), four], 6, "delta 1"),
        (vec![one[1].clone(), two[1].clone(), three], 7, "delta 2"),
    ];
    for (deltas, (rows, pushes, note)) in states.into_iter().enumerate() {
        let checkpoint = Checkpoint::open_through(&dir, deltas).unwrap();
        checkpoint.verify().unwrap();
        let table = checkpoint.load_table("t").unwrap();
        assert_eq!(self::rows(&table), (rows.into_iter().collect(), pushes));
        assert_eq!(checkpoint.blob("note").unwrap(), note.as_bytes());
    }
    assert_eq!(Checkpoint::whole_deltas(&dir).unwrap(), (2, 2));
}

/// Changes the manifest of a chain and fixes its checksum.
fn rewrite_manifest(dir: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let file = dir.join("manifest.json");
    let mut whole: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut whole["manifest"]);
    let body = whole["manifest"].to_string();
    let crc = crc_fast::crc32_iscsi(body.as_bytes());
    fs::write(&file, format!("{{\"manifest_crc32c\":\"{crc:08x}\",\n\"manifest\":{body}}}\n")).unwrap();
}

/// Another program may have written the manifest: a right checksum does not make a chain whole.
#[test]
fn a_chain_in_a_manifest_is_checked() {
    let check = |change: &dyn Fn(&mut serde_json::Value), expected: &str| {
        let dir = tempfile::tempdir().unwrap();
        chain(dir.path());
        rewrite_manifest(dir.path(), |manifest| change(manifest));
        let error = Checkpoint::open(dir.path()).and_then(|checkpoint| checkpoint.load_table("t").map(drop));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, not {expected}");
    };
    let set = |at: &'static str, value: serde_json::Value| {
        move |m: &mut serde_json::Value| *m.pointer_mut(at).unwrap() = value.clone()
    };
    check(&set("/version", 1.into()), "which version 1 has not");
    check(&set("/version", 3.into()), "format version 3 is not supported");
    check(&set("/base", serde_json::Value::Null), "but no base");
    check(&set("/generation", 5.into()), "its generation is 5");
    check(&set("/deltas/1/generation", 2.into()), "delta 2: its generation is 2");
    check(&set("/deltas/1/tables/0/name", "u".into()), "delta 2: its tables are not those");
    check(&set("/deltas/1/tables/0/since", 7.into()), "delta 2: table \"t\": its changes are of epochs 7");
    check(
        &set("/deltas/2/tables/0/file", serde_json::Value::Null),
        "delta 3: table \"t\": it has changes, but",
    );
    check(&set("/deltas/2/tables/0/rows", 5.into()), "delta 3 of 3: it holds 20 rows");
    check(&set("/deltas/2/tables/0/removed", 5.into()), "delta 3 of 3: it holds 1 removed keys");
    check(&set("/deltas/2/blobs/0/file/name", "g3-1.blob".into()), "delta 3: it names \"g3-1.blob\"");
    check(&|m| _ = m["deltas"].as_array_mut().unwrap().remove(1), "delta 2: table \"t\"");
}
