//! Takes the power away from a kept table: after each step of a script, opens the images that cache lines may have left.
//!
//! Everything acknowledged must be there, every row as it once was, the index whole, and recovery repeatable, also one
//! that loses its power as well. Each flush and each fence of the protocol is left out once, which must be found.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a panic is a failed test; the numbers of a run

mod device;
mod killed;
mod marks;

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sanderling_random::SplitMix64;

use self::device::{DEVICE, places};
use self::marks::{MARKED, check_marks};
use super::steps::{Act, Rows, Script, act_on, check, config, crowded, rows_of};
use crate::index::growth::PARTS;
use crate::index::hash::{HashKey, part};
use crate::kept::fault::{Fault, PLANTED};
use crate::kept::steps::{Files, copied};
use crate::memory::persist::Step;
use crate::memory::persist::trace::{
    Content, Observer, Part, Recorder, Recording, elsewhere, leave_out, set_boot,
};
use crate::table::kept::TEST_HASH_KEY;
use crate::{Durability, Packing, Table, TableConfig, Writes};

/// Images of a state beside those that are always opened, of scripts with few and with many states, and for a fault,
/// after which a run ends.
const IMAGES: [usize; 3] = [16, 4, 64];
/// Images of a script whose recovery is interrupted.
const REOPENED: usize = 4;
/// Keys that are removed after an interrupted recovery.
const REMOVED: usize = 4;

fn script(name: &str) -> Script {
    let config = |dims, packing| config(dims, Writes::CopyOnWrite, packing);
    let small = config(3, Packing::Fast);
    let pushes = |keys: std::ops::Range<u64>| Act::Push(keys.collect());
    let elsewhere = |act| Act::Elsewhere(Box::new(act));
    let meanwhile = |first, second| Act::Meanwhile(Box::new(first), Box::new(second));
    let (config, before, watched) = match name.strip_prefix(DEVICE).map_or(name, str::trim_start) {
        "update" => (
            config(17, Packing::Compact),
            vec![pushes(0..4)],
            vec![Act::Push(vec![1, 3]), Act::Push(vec![3]), Act::Import(2), Act::Push(vec![1, 9, 1])],
        ),
        "split" => (
            config(16, Packing::Compact),
            vec![pushes(0..4)],
            vec![Act::Push(vec![1, 3]), Act::Import(2), Act::Push(vec![1, 9, 1])],
        ),
        "keys" => (
            small,
            vec![pushes(0..10)],
            vec![pushes(10..13), Act::Remove(2), Act::Remove(11), Act::Push(vec![2]), Act::Remove(77)],
        ),
        "meanwhile" => (
            small,
            vec![pushes(0..5)],
            vec![
                meanwhile(Act::Push(vec![1, 3]), Act::Remove(3)),
                meanwhile(Act::Push(vec![1, 2]), Act::Push(vec![2])),
            ],
        ),
        "charge" => (small, vec![Act::Remove(77)], vec![pushes(0..3)]),
        // Another thread has charged the rows that a push gets.
        "take" => (
            TableConfig { budget_bytes: Some(120_000), ..small },
            vec![Act::Remove(77)],
            vec![elsewhere(Act::TakeAll), pushes(0..3)],
        ),
        "promotion" => {
            let keys = crowded(8);
            let promote = |at: usize| elsewhere(Act::Promote(keys[at]));
            let watched = vec![
                promote(5),
                Act::Push(keys.clone()),
                promote(6),
                Act::Remove(keys[6]),
                promote(7),
                Act::Remove(keys[7]),
                Act::Push(keys.clone()),
            ];
            (small, vec![Act::Push(keys.clone())], watched)
        }
        "growth" => {
            // One of the share that another thread moves last.
            let hash_part = |key: &u64| part(HashKey::of_numbers(TEST_HASH_KEY).hash(*key), PARTS);
            let keys: Vec<u64> = (0..9).chain((100..).filter(|key| hash_part(key) == 23).take(1)).collect();
            let watched = vec![
                Act::Grow,
                elsewhere(Act::Move(24)),
                Act::Push(keys.clone()),
                Act::Remove(keys[9]),
                Act::Move(64),
                Act::Grow,
                Act::Move(64),
                Act::Grow,
                pushes(20..22),
                Act::Move(64),
                Act::Push(keys.clone()),
            ];
            (small, vec![Act::Push(keys)], watched)
        }
        "clear" => (small, vec![pushes(0..12)], vec![Act::Clear, pushes(5..8)]),
        // The second index gets the space of the first one.
        "clear twice" => (
            small,
            vec![pushes(0..12)],
            vec![Act::Clear, pushes(5..8), Act::Clear, pushes(3..5), Act::Remove(3)],
        ),
        // Eight rows, all in use but the former one of key 1.
        "killed push" => (config(1000, Packing::Fast), vec![pushes(0..7)], vec![Act::Push(vec![1])]),
        "killed import" => (config(1000, Packing::Fast), vec![pushes(0..7)], vec![Act::Import(1)]),
        "killed removal" => (config(1000, Packing::Fast), vec![pushes(0..7)], vec![Act::Remove(1)]),
        "marks" => (small, vec![Act::Push(vec![MARKED])], vec![Act::Push(vec![MARKED]); 3]),
        _ => panic!("no script {name}"),
    };
    Script { config, before, watched }
}

/// The rows that an act may leave in the middle, and those after it.
struct State {
    during: Vec<Rows>,
    after: Vec<Rows>,
}

/// The state before the watched acts, and that of each act.
fn states(script: &Script) -> Vec<State> {
    let table = Table::new(script.config.clone()).unwrap();
    script.before.iter().enumerate().for_each(|(number, act)| act_on(&table, number, act));
    let mut states = vec![State { during: Vec::new(), after: vec![rows_of(&table)] }];
    for (number, act) in script.watched.iter().enumerate() {
        let run = |act: &Act| {
            act_on(&table, 100 + number, act);
            rows_of(&table)
        };
        states.push(match act {
            Act::Meanwhile(first, second) => {
                // The clock of another thread is another one.
                let (during, after) = (elsewhere(|| run(second)), run(first));
                State { during: clocks(&during), after: clocks(&after) }
            }
            act => State { during: Vec::new(), after: vec![run(act)] },
        });
    }
    states
}

/// The rows with other readings of the use clock, the original ones first.
fn clocks(rows: &Rows) -> Vec<Rows> {
    let with = |reading: u32| {
        let row = |(&key, row): (&u64, &Vec<u32>)| {
            let (mut row, at) = (row.clone(), row.len() - 2);
            row[at] = reading;
            (key, row)
        };
        rows.iter().map(row).collect()
    };
    std::iter::once(rows.clone()).chain((0..6).map(with)).collect()
}

/// The knowledge and the findings of a run.
struct Checks {
    script: Script,
    folder: PathBuf,
    /// Each row must be that of one of these.
    may_be: Vec<Rows>,
    /// Pushes that were acknowledged.
    pushes: u64,
    fault: usize,
    most: usize,
    images: usize,
    seen: HashSet<u64>,
    /// Images with something to repair, and what may be in them.
    repaired: Vec<(Files, Vec<Rows>, u64)>,
    error: Option<String>,
    random: SplitMix64,
}

type Shared = Arc<Mutex<Checks>>;

impl Checks {
    fn new(name: &str, folder: &Path, fault: usize) -> Shared {
        Arc::new(Mutex::new(Checks {
            script: script(name),
            folder: folder.to_owned(),
            may_be: Vec::new(),
            pushes: 0,
            fault,
            most: IMAGES[if fault != 0 { 2 } else { usize::from(name == "growth") }],
            images: 0,
            seen: HashSet::new(),
            repaired: Vec::new(),
            error: None,
            random: SplitMix64::new(7),
        }))
    }

    fn files(&self, image: &[Content]) -> Files {
        let entries = std::fs::read_dir(&self.folder).unwrap().flatten();
        let names = entries.map(|entry| (entry.metadata().unwrap().ino(), entry.file_name()));
        let content = |inode| image.iter().find(|(of, _)| *of == inode).map(|(_, bytes)| bytes.clone());
        // A file that is not mapped yet is as the process found it.
        let found = |name: &OsString| std::fs::read(self.folder.join(name)).unwrap();
        names
            .map(|(inode, name)| {
                let content = content(inode).unwrap_or_else(|| found(&name));
                (name.into_string().unwrap(), content)
            })
            .collect()
    }

    /// Opens the images of a state that were not opened before.
    fn see(&mut self, recorder: &Recorder) {
        for image in recorder.images(self.most, &mut self.random) {
            if self.error.is_some() {
                return;
            }
            let files = self.files(&image);
            let mut hasher = DefaultHasher::new();
            (&files, self.pushes, self.may_be.len(), self.may_be.last()).hash(&mut hasher);
            if !self.seen.insert(hasher.finish()) {
                continue;
            }
            self.images += 1;
            let run = || {
                // Of the faults, those of recovery.
                PLANTED.set(self.fault);
                std::panic::catch_unwind(|| open(&files, &self.script, &self.may_be, self.pushes))
                    .unwrap_or_else(|_| Err("opening the image panics".to_owned()))
            };
            match std::thread::scope(|scope| scope.spawn(run).join()).unwrap() {
                Ok(0) => {}
                Ok(_) => self.repaired.push((files, self.may_be.clone(), self.pushes)),
                Err(error) => self.error = Some(format!("image {}: {error}", self.images)),
            }
        }
    }

    fn observer(shared: &Shared) -> Observer {
        let shared = Arc::clone(shared);
        Box::new(move |recorder| shared.lock().unwrap().see(recorder))
    }

    fn result(shared: &Shared) -> Result<(), String> {
        shared.lock().unwrap().error.clone().map_or(Ok(()), Err)
    }
}

/// Opens an image and checks everything; returns the number of repairs.
fn open(files: &Files, script: &Script, may_be: &[Rows], pushes: u64) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (folder, root) = places(dir.path(), script, files.contains_key(DEVICE));
    copied(files, &folder);
    set_boot("after the loss of power");
    let repaired = check(&root, script, may_be)?;
    let opened = || Table::kept(script.config.clone(), &root, "").map_err(|error| error.to_string());
    let (table, _) = opened()?;
    let (rows, found) = (rows_of(&table), table.stats().pushes);
    // The check has pushed once.
    if found < pushes + 1 {
        return Err(format!("{found} pushes are counted, not {}", pushes + 1));
    }
    check_marks(files, &rows, pushes)?;
    drop(table);
    set_boot("after another one");
    let (table, again) = opened()?;
    if rows_of(&table) != rows || again.repaired != 0 {
        return Err("a second recovery changes something".to_owned());
    }
    Ok(repaired)
}

/// Runs a script, with a part of the protocol left out or a fault planted, and opens the images of each state.
fn simulate(name: &str, part: Option<Part>, fault: usize) -> Result<Shared, String> {
    leave_out(None);
    PLANTED.set(0);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = script(name);
    let (folder, root) = places(dir.path(), &script, name.starts_with(DEVICE));
    let checks = Checks::new(name, &folder, fault);
    let states = states(&script);
    let recording = Recording::start();
    set_boot("first");
    let kept = Table::kept_for(script.config.clone(), &root, "", Durability::Emulate);
    // The work of another thread in the middle of an act must not borrow it.
    let table: &'static Table = Box::leak(Box::new(kept.unwrap().0));
    script.before.iter().enumerate().for_each(|(number, act)| act_on(table, number, act));
    leave_out(part);
    PLANTED.set(fault);
    checks.lock().unwrap().may_be.clone_from(&states[0].after);
    recording.observe(Checks::observer(&checks));
    for (number, act) in script.watched.iter().enumerate() {
        let (before, State { during, after }) = (&states[number].after, &states[number + 1]);
        checks.lock().unwrap().may_be = [&before[..], during, after].concat();
        match act.clone() {
            Act::Meanwhile(first, second) => {
                recording.meanwhile(Box::new(move || act_on(table, 100 + number, &second)));
                act_on(table, 100 + number, &first);
            }
            act => act_on(table, 100 + number, &act),
        }
        {
            let checks = &mut *checks.lock().unwrap();
            checks.may_be.clone_from(after);
            checks.pushes += u64::from(matches!(act, Act::Push(_) | Act::Meanwhile(..)));
        }
        recording.show();
        Checks::result(&checks)?;
    }
    leave_out(None);
    PLANTED.set(0);
    Ok(checks)
}

/// Opens an image while its power may be lost again, and then removes keys.
fn reopen(
    name: &str,
    image: &(Files, Vec<Rows>, u64),
    part: Option<Part>,
    fault: usize,
) -> Result<usize, String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = script(name);
    let (folder, root) = places(dir.path(), &script, name.starts_with(DEVICE));
    let (files, may_be, _) = image;
    copied(files, &folder);
    let checks = Checks::new(name, &folder, fault);
    checks.lock().unwrap().may_be.clone_from(may_be);
    let recording = Recording::start();
    set_boot("second");
    leave_out(part);
    PLANTED.set(fault);
    recording.observe(Checks::observer(&checks));
    remove_some(&recording, &checks, &Table::kept(script.config, &root, "").unwrap().0)
}

/// Removes keys of a table that was just opened.
fn remove_some(recording: &Recording, checks: &Shared, table: &Table) -> Result<usize, String> {
    let mut rows = rows_of(table);
    checks.lock().unwrap().may_be = vec![rows.clone()];
    recording.show();
    for _ in 0..REMOVED.min(rows.len()) {
        let Some((key, row)) = rows.pop_last() else { break };
        let mut before = rows.clone();
        before.insert(key, row);
        checks.lock().unwrap().may_be = vec![before, rows.clone()];
        table.remove(key);
        checks.lock().unwrap().may_be = vec![rows.clone()];
        recording.show();
        Checks::result(checks)?;
    }
    leave_out(None);
    PLANTED.set(0);
    Ok(checks.lock().unwrap().images)
}

fn check_script(name: &str) {
    let checks = simulate(name, None, 0).unwrap();
    let checks = checks.lock().unwrap();
    println!("{name}: {} images, {} repaired", checks.images, checks.repaired.len());
    assert!(checks.images > 10, "{} images show little", checks.images);
}

/// Images of a script in which something is to be repaired.
fn to_repair(name: &str) -> Vec<(Files, Vec<Rows>, u64)> {
    let checks = simulate(name, None, 0).unwrap();
    let repaired = std::mem::take(&mut checks.lock().unwrap().repaired);
    assert!(repaired.len() >= REOPENED, "{} images with repairs", repaired.len());
    let step = repaired.len() / REOPENED;
    repaired.into_iter().step_by(step).collect()
}

#[test]
fn a_recovery_may_lose_its_power_too() {
    for image in to_repair("promotion") {
        println!("{} images of a recovery", reopen("promotion", &image, None, 0).unwrap());
    }
}

fn parts(steps: &[Step]) -> impl Iterator<Item = Part> {
    steps.iter().flat_map(|&step| [Part::Flush(step), Part::Fence(step)])
}

/// Leaves flush and fence of steps out, one at a time, each of which a script must find.
fn check_steps(name: &str, steps: &[Step]) {
    for part in parts(steps) {
        let found = simulate(name, Some(part), 0).map(|checks| checks.lock().unwrap().images);
        println!("{part:?}: {}", found.expect_err(&format!("{part:?} is not found")));
    }
}

/// Leaves a part of recovery out, or plants a fault there.
fn check_recovery(part: Option<Part>, fault: usize) {
    let found = to_repair("promotion").iter().find_map(|image| reopen("promotion", image, part, fault).err());
    println!("{part:?} {fault}: {}", found.expect("it is not found"));
}

/// Tests of their own, which run side by side.
macro_rules! tests {
    ($check:ident: $($name:ident($($argument:expr),+);)+) => {
        $(#[test]
        fn $name() {
            $check($($argument),+);
        })+
    };
}

tests! { check_script:
    updates_survive_the_loss_of_power("update");
    updates_of_rows_in_two_parts_survive_the_loss_of_power("split");
    inserts_and_removals_survive_the_loss_of_power("keys");
    the_first_rows_survive_the_loss_of_power("charge");
    rows_that_another_thread_has_charged_survive_the_loss_of_power("take");
    promotions_survive_the_loss_of_power("promotion");
    clearing_survives_the_loss_of_power("clear");
}

tests! { check_steps:
    updates_need_each_flush_and_fence("update", &[Step::Rows, Step::Slots]);
    removals_need_each_flush_and_fence("keys", &[Step::Removal]);
    charges_need_each_flush_and_fence("take", &[Step::Charge]);
    promotions_need_each_flush_and_fence(
        "promotion",
        &[Step::Promotion, Step::Exchange, Step::Exchanged, Step::ExchangeEnd]
    );
}

#[test]
#[ignore = "beside other tests, its threads may wait for each other; in tests/proof.sh kept"]
fn changes_in_the_middle_of_a_push_survive_the_loss_of_power() {
    check_script("meanwhile");
}

#[test]
#[ignore = "two minutes; in tests/proof.sh kept"]
fn growths_survive_the_loss_of_power_and_need_each_flush_and_fence() {
    check_script("growth");
    check_steps("growth", &[Step::Copies, Step::Moved, Step::NoMoves, Step::Head]);
}

#[test]
fn the_use_clock_and_the_second_part_of_rows_need_their_flush() {
    for (name, step) in [("update", Step::Clock), ("split", Step::Rests)] {
        let found = simulate(name, Some(Part::Flush(step)), 0).map(|_| ());
        println!("{step:?}: {}", found.expect_err(&format!("{step:?} is not found")));
    }
}

#[test]
fn recovery_needs_each_flush_and_fence() {
    for part in [Part::Flush(Step::Mended), Part::Fence(Step::Mended), Part::Flush(Step::RecordsEnd)] {
        check_recovery(Some(part), 0);
    }
}

#[test]
fn a_recovery_that_cannot_be_repeated_is_found() {
    check_recovery(None, Fault::RecordsEndFirst as usize + 1);
}

#[test]
fn faults_of_the_order_of_stores_and_leaked_rows_are_found() {
    for (fault, name) in
        [(Fault::RowBeforeHash, "keys"), (Fault::NoRedo, "promotion"), (Fault::LeakedRow, "update")]
    {
        let found = simulate(name, None, fault as usize + 1).map(|_| ());
        println!("{fault:?}: {}", found.expect_err(&format!("{fault:?} is not found")));
    }
}
