//! Stops a process after every instruction that changes a kept table, as if it had been killed there, and opens a copy
//! of the table: everything acknowledged must be there, every row as it once was, and the index whole.
//!
//! The process is this test's program again, run step by step (`ptrace`). Faults of the protocol are planted to show
//! that each would be found.
#![allow(clippy::unwrap_used)] // a panic is a failed test
#![allow(clippy::print_stdout)] // the numbers of a run

mod traced;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) use traced::{Files, copied};
use traced::{Traced, Watch, be_watched, files, stop};

use crate::index::Index;
use crate::index::hash::{HashKey, part};
use crate::kept::fault::{ALL, Fault, PLANTED};
use crate::memory::persist::trace::elsewhere;
use crate::sync::lanes::lane;
use crate::table::kept::TEST_HASH_KEY;
use crate::{Block, Init, Optimizer, Packing, PushScale, RowColumns, Table, TableConfig, Writes};

const DIR: &str = "KEPT_STEPS_DIR";
const SCRIPT: &str = "KEPT_STEPS_SCRIPT";
const FAULT: &str = "KEPT_STEPS_FAULT";
/// The start of the name of a script that opens a table which another script has left.
const OPEN: &str = "open ";
/// Images of a script that are opened.
const OPENED: usize = 4;
/// The number of acknowledged acts.
const ACKNOWLEDGED: &str = "acknowledged";

/// An act of a script.
#[derive(Debug, Clone)]
pub(super) enum Act {
    /// A push of these keys.
    Push(Vec<u64>),
    Remove(u64),
    /// Samples a key so often that it is hot, and promotes hot keys.
    Promote(u64),
    Import(u64),
    Clear,
    /// Opens the table.
    Open,
    /// Another thread does it.
    Elsewhere(Box<Act>),
    /// Another thread does the second one in the middle of the first one.
    Meanwhile(Box<Act>, Box<Act>),
    /// Begins to grow the index.
    Grow,
    /// Moves so many shares of an index that grows.
    Move(usize),
    /// Takes all rows that the budget allows, and gives them back.
    TakeAll,
}

/// A table, acts before the process is watched, and acts that are watched.
pub(super) struct Script {
    pub(super) config: TableConfig,
    pub(super) before: Vec<Act>,
    pub(super) watched: Vec<Act>,
}

/// Rows by key: weights, header and state as bits.
pub(super) type Rows = BTreeMap<u64, Vec<u32>>;

pub(super) fn config(dims: usize, writes: Writes, packing: Packing) -> TableConfig {
    let optimizer = Optimizer::Adagrad { lr: 0.1, eps: 1e-8, initial: 0.1, l2: 0.0 };
    let blocks = vec![Block { dims, init: Init::Normal { std: 0.1 }, optimizer }];
    TableConfig {
        writes,
        packing,
        budget_bytes: Some(300_000),
        seed: 3,
        ..TableConfig::new("a table", blocks)
    }
}

fn script(name: &str) -> Script {
    let in_place = config(3, Writes::InPlace, Packing::Fast);
    let pushes = |keys: std::ops::Range<u64>| Act::Push(keys.collect());
    match name {
        "update" => Script {
            config: config(17, Writes::InPlace, Packing::Compact),
            before: vec![pushes(0..4)],
            watched: vec![Act::Push(vec![1, 3]), Act::Push(vec![3]), Act::Import(2)],
        },
        "copy_on_write" => Script {
            config: config(3, Writes::CopyOnWrite, Packing::Fast),
            before: vec![pushes(0..4)],
            watched: vec![Act::Push(vec![1, 3]), Act::Push(vec![1, 9])],
        },
        // 12 of the 20 slots of a new index, so that buckets overflow.
        "keys" => Script {
            config: in_place,
            before: vec![pushes(0..10)],
            watched: vec![
                pushes(10..13),
                Act::Remove(2),
                Act::Remove(11),
                Act::Push(vec![2]),
                Act::Remove(77),
            ],
        },
        "growth" => Script {
            config: in_place,
            before: vec![pushes(0..13)],
            watched: vec![
                pushes(13..16),
                Act::Push(vec![1, 40]),
                Act::Remove(1),
                pushes(50..75),
                Act::Remove(60),
            ],
        },
        // Eight keys of the same bucket of five slots: two that trade places, and one for a free slot.
        "promotion" => {
            let keys = crowded(8);
            Script {
                config: in_place,
                before: vec![Act::Push(keys.clone())],
                watched: vec![
                    Act::Promote(keys[5]),
                    Act::Promote(keys[6]),
                    Act::Remove(keys[6]),
                    Act::Promote(keys[7]),
                    Act::Push(keys),
                ],
            }
        }
        "clear" => {
            Script { config: in_place, before: vec![pushes(0..20)], watched: vec![Act::Clear, pushes(5..8)] }
        }
        // Opens an image of another script.
        _ => {
            let of = name.strip_prefix(OPEN).unwrap_or_else(|| panic!("no script {name}"));
            Script { before: Vec::new(), watched: vec![Act::Open], ..script(of) }
        }
    }
}

/// The bucket of a key in a new index.
fn home(key: u64) -> u32 {
    part(HashKey::of_numbers(TEST_HASH_KEY).hash(key), Index::NEW_BUCKETS as u32)
}

/// Keys of the same bucket of a new index.
pub(super) fn crowded(keys: usize) -> Vec<u64> {
    (0..).filter(|&key| home(key) == 1).take(keys).collect()
}

/// Keys from 20 on, none of which is in the bucket of `key`.
pub(super) fn apart(key: u64, keys: usize) -> Vec<u64> {
    (20..).filter(|&other| home(other) != home(key)).take(keys).collect()
}

pub(super) fn act(table: &mut Option<Table>, root: &Path, config: &TableConfig, number: usize, act: &Act) {
    match act {
        Act::Open => *table = Some(Table::kept(config.clone(), root, "").unwrap().0),
        act => act_on(table.as_ref().unwrap(), number, act),
    }
}

pub(super) fn act_on(table: &Table, number: usize, act: &Act) {
    match act {
        Act::Elsewhere(other) => {
            let fault = PLANTED.get();
            elsewhere(|| {
                PLANTED.set(fault);
                act_on(table, number, other);
            });
        }
        Act::Meanwhile(first, second) => {
            // As a whole, the one in the middle comes first.
            elsewhere(|| act_on(table, number, second));
            act_on(table, number, first);
        }
        Act::Push(keys) => {
            let gradients: Vec<f32> =
                (0..keys.len() * table.dim()).map(|at| (at + number) as f32 + 0.5).collect();
            table.push(keys, &gradients, PushScale::default()).unwrap();
        }
        Act::Remove(key) => _ = table.remove(*key),
        Act::Promote(key) => {
            for _ in 0..3 {
                table.key_sampler.note(0, &[table.hash_key.hash(*key)]);
            }
            // The buckets of a private table are others.
            let promoted = table.maintain(100).promoted;
            assert!(promoted > 0 || table.kept.is_none(), "key {key} is not promoted");
        }
        Act::Import(key) => {
            let mut columns = RowColumns::default();
            let (weights, state) = (vec![number as f32; table.dim()], vec![2.0; table.state_len()]);
            let (frequency, last_use, version) = (7, 1, 9);
            let row = crate::Row { key: *key, frequency, last_use, version, weights, state };
            columns.push(row.as_ref());
            table.import(columns.rows()).unwrap();
        }
        Act::Clear => table.clear(),
        Act::Move(shares) => _ = table.directory.move_shares(lane(), *shares),
        Act::TakeAll => {
            let (lane, mut rows) = (lane(), Vec::new());
            table.row_allocator.take(lane, 1 << 20, &table.slab, &table.budget, &table.directory, &mut rows);
            table.row_allocator.give_back(lane, &table.slab, &mut rows);
        }
        Act::Grow => assert!(table.grow(|index| 2 * index.bytes())),
        Act::Open => {}
    }
}

pub(super) fn rows_of(table: &Table) -> Rows {
    let mut rows = Rows::new();
    table.for_each_row(|row| {
        let words = row.weights.iter().chain(row.state).map(|value| value.to_bits());
        let header = [row.frequency, row.last_use, row.version];
        assert!(rows.insert(row.key, words.chain(header).collect()).is_none(), "key {} twice", row.key);
    });
    rows
}

/// The rows before the watched acts, and after each.
pub(super) fn expected(script: &Script) -> Vec<Rows> {
    let mut table = Some(Table::new(script.config.clone()).unwrap());
    let mut run = |number: usize, this: &Act| {
        if !matches!(this, Act::Open) {
            act(&mut table, Path::new(""), &script.config, number, this);
        }
        rows_of(table.as_ref().unwrap())
    };
    let before = script.before.iter().enumerate().map(|(number, act)| run(number, act)).last();
    let mut states = vec![before.unwrap_or_default()];
    states.extend(script.watched.iter().enumerate().map(|(number, act)| run(100 + number, act)));
    states
}

/// The watched process: see [`child`].
fn watched(root: &Path, script: &Script) {
    let mut table =
        (!script.before.is_empty()).then(|| Table::kept(script.config.clone(), root, "").unwrap().0);
    for (number, this) in script.before.iter().enumerate() {
        act(&mut table, root, &script.config, number, this);
    }
    let acknowledged = File::options().write(true).open(root.with_extension(ACKNOWLEDGED)).unwrap();
    stop();
    for (number, this) in script.watched.iter().enumerate() {
        act(&mut table, root, &script.config, 100 + number, this);
        acknowledged.write_all_at(&(number as u64 + 1).to_le_bytes(), 0).unwrap();
    }
    stop();
    // The parent has killed this process.
    std::process::exit(3);
}

/// Not a test: the process that the tests watch.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let (Ok(dir), Ok(name)) = (std::env::var(DIR), std::env::var(SCRIPT)) else { return };
    let fault: usize = std::env::var(FAULT).unwrap().parse().unwrap();
    PLANTED.set(fault);
    let root = PathBuf::from(dir);
    be_watched(&root);
    watched(&root, &script(&name));
}

/// Opens a table and checks everything.
pub(super) fn check(root: &Path, script: &Script, may_be: &[Rows]) -> Result<usize, String> {
    let (table, attached) =
        Table::kept(script.config.clone(), root, "").map_err(|error| error.to_string())?;
    let rows = rows_of(&table);
    for key in may_be.iter().flat_map(Rows::keys).chain(rows.keys()) {
        let found = rows.get(key);
        if may_be.iter().all(|state| state.get(key) != found) {
            return Err(format!("row of key {key} is {found:?}, not {:?}", may_be[0].get(key)));
        }
    }
    let (keys, charged) = (table.len() as u64, table.row_allocator.charged());
    if keys != rows.len() as u64 || attached.rows != keys {
        return Err(format!(
            "{keys} keys are counted, {} at first, and there are {}",
            attached.rows,
            rows.len()
        ));
    }
    // Free rows and rows with keys are apart, and all there are.
    let (mut used, mut free) = (Vec::new(), Vec::new());
    table.directory.lock_share(0, 32).for_each(|_, row| used.push(row));
    for share in 1..32 {
        table.directory.lock_share(share, 32).for_each(|_, row| used.push(row));
    }
    let taken = table.row_allocator.free_rows();
    table.row_allocator.take(0, taken, &table.slab, &table.budget, &table.directory, &mut free);
    let mut all: Vec<u32> = used.iter().chain(&free).copied().collect();
    all.sort_unstable();
    if all != (0..charged as u32).collect::<Vec<_>>() {
        return Err(format!("of {charged} rows, {} have keys and {} are free", used.len(), free.len()));
    }
    // It can be used, and opened again.
    table.row_allocator.give_back(0, &table.slab, &mut free);
    table
        .push(&[1 << 40], &vec![1.0; table.dim()], PushScale::default())
        .map_err(|error| error.to_string())?;
    table.remove(1 << 40);
    drop(table);
    let (table, again) = Table::kept(script.config.clone(), root, "").map_err(|error| error.to_string())?;
    if rows_of(&table) != rows || again.repaired != 0 {
        return Err("the second recovery changes something".to_owned());
    }
    Ok(attached.repaired)
}

/// Watches a script, and passes each image of the table and the number of acknowledged acts to `see`, until that fails.
/// Returns the number of images.
fn watch(
    name: &str,
    fault: usize,
    start: Option<&Files>,
    mut see: impl FnMut(Files, usize) -> Result<(), String>,
) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let root = dir.path().join("root");
    let folder = root.join(crate::kept::folder_name(&script(name).config.name));
    std::fs::create_dir_all(&folder).unwrap();
    copied(start.unwrap_or(&Files::new()), &folder);
    let traced = Traced::start(&root, name, fault);
    let (mut images, mut steps, mut watch) = (0, 0, Watch::default());
    let mut goes_on = true;
    while goes_on {
        goes_on = traced.step();
        steps += 1;
        if watch.has_changed(&root, &folder) {
            let acknowledged = std::fs::read(root.with_extension(ACKNOWLEDGED)).unwrap();
            let acknowledged = u64::from_le_bytes(acknowledged[..8].try_into().unwrap()) as usize;
            see(files(&folder), acknowledged)
                .map_err(|error| format!("image {images} of {name}: {error}"))?;
            images += 1;
        }
    }
    println!("{name}: {steps} instructions, {images} images");
    Ok(images)
}

/// Opens a copy of an image and checks everything; returns the number of repairs.
fn check_image(image: &Files, script: &Script, may_be: &[Rows]) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    copied(image, &dir.path().join(crate::kept::folder_name(&script.config.name)));
    let checked = std::panic::catch_unwind(|| check(dir.path(), script, may_be));
    checked.unwrap_or_else(|_| Err("opening the copy panics".to_owned()))
}

/// Checks each image of a script; returns the numbers of images and of those with repairs.
fn watch_and_check(name: &str, fault: usize) -> Result<(usize, usize), String> {
    let (script, mut repaired) = (script(name), 0);
    let states = expected(&script);
    let images = watch(name, fault, None, |image, acknowledged| {
        let may_be = &states[acknowledged..(acknowledged + 2).min(states.len())];
        repaired += usize::from(check_image(&image, &script, may_be)? > 0);
        Ok(())
    })?;
    Ok((images, repaired))
}

fn check_script(name: &str) {
    let (images, repaired) = watch_and_check(name, 0).unwrap();
    println!("{name}: {repaired} of {images} images repaired");
    assert!(images > 20 && repaired > 0, "{images} images and {repaired} repairs show little");
}

/// Checks that the recovery of images of a script may be interrupted everywhere.
fn check_opening(name: &str) {
    let (script, mut interrupted) = (script(name), Vec::new());
    let states = expected(&script);
    watch(name, 0, None, |image, acknowledged| {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        copied(&image, &dir.path().join(crate::kept::folder_name(&script.config.name)));
        if crate::kept_tables(dir.path()).unwrap()[0].interrupted > 0 {
            interrupted.push((image, acknowledged));
        }
        Ok(())
    })
    .unwrap();
    let mut repaired = 0;
    for opened in 1..=OPENED {
        let (image, acknowledged) = &interrupted[interrupted.len() * opened / (OPENED + 1)];
        let may_be = &states[*acknowledged..(acknowledged + 2).min(states.len())];
        watch(&format!("{OPEN}{name}"), 0, Some(image), |image, _| {
            repaired += check_image(&image, &script, may_be)?;
            Ok(())
        })
        .unwrap();
    }
    assert!(repaired > 0, "nothing was in hand");
}

fn check_fault(fault: Fault, name: &str) {
    let found = watch_and_check(name, ALL.iter().position(|&this| this == fault).unwrap() + 1);
    println!("{fault:?}: {}", found.expect_err("the planted fault is not found"));
}

/// Tests of their own, which run side by side.
macro_rules! tests {
    ($check:ident: $($(#[$attribute:meta])? $name:ident($($argument:expr),+);)+) => {
        $(#[test]
        $(#[$attribute])?
        fn $name() {
            $check($($argument),+);
        })+
    };
}

tests! { check_script:
    a_table_is_whole_after_each_instruction_of_updates("update");
    a_table_is_whole_after_each_instruction_of_copy_on_write("copy_on_write");
    a_table_is_whole_after_each_instruction_of_inserts_and_removals("keys");
    a_table_is_whole_after_each_instruction_of_promotions("promotion");
    #[ignore = "two minutes; in tests/proof.sh kept"]
    a_table_is_whole_after_each_instruction_of_a_growth("growth");
    #[ignore = "half a minute; in tests/proof.sh kept"]
    a_table_is_whole_after_each_instruction_of_clearing("clear");
}

tests! { check_opening:
    #[ignore = "a minute; in tests/proof.sh kept"]
    a_recovery_of_updates_may_be_interrupted("update");
    #[ignore = "a minute; in tests/proof.sh kept"]
    a_recovery_of_inserts_and_removals_may_be_interrupted("keys");
    #[ignore = "a minute; in tests/proof.sh kept"]
    a_recovery_of_promotions_may_be_interrupted("promotion");
    #[ignore = "two minutes; in tests/proof.sh kept"]
    a_recovery_of_a_growth_may_be_interrupted("growth");
}

tests! { check_fault:
    rows_without_undo_are_found(Fault::NoUndo, "update");
    undo_that_ends_early_is_found(Fault::UndoEndsEarly, "update");
    a_row_before_its_hash_is_found(Fault::RowBeforeHash, "keys");
    a_record_that_ends_early_is_found(Fault::RecordEndsEarly, "keys");
    an_exchange_without_redo_is_found(Fault::NoRedo, "promotion");
    a_share_that_counts_early_is_found(Fault::MovedEarly, "growth");
    rows_that_are_charged_late_are_found(Fault::NoCharge, "growth");
}
