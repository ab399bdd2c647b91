//! Stops a process after every instruction that changes a kept table, as if it had been killed there, and opens a copy
//! of the table: everything acknowledged must be there, every row as it once was, and the index whole.
//!
//! The process is this test's program again, run step by step (`ptrace`). Faults of the protocol are planted to show
//! that each would be found.
#![allow(unsafe_code)] // ptrace and signals
#![allow(clippy::unwrap_used)] // a panic is a failed test
#![allow(clippy::print_stdout)] // the numbers of a run

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::Index;
use crate::index::hash::{HashKey, part};
use crate::kept::fault::{ALL, Fault, PLANTED};
use crate::kept::head::COPY_BYTES;
use crate::kept::live::LIVE_WORDS;
use crate::memory::Region;
use crate::memory::file::PageFile;
use crate::table::kept::TEST_HASH_KEY;
use crate::{Block, Init, Optimizer, Packing, PushScale, RowColumns, Table, TableConfig, Writes};

const DIR: &str = "KEPT_STEPS_DIR";
const SCRIPT: &str = "KEPT_STEPS_SCRIPT";
const FAULT: &str = "KEPT_STEPS_FAULT";
/// The number of acknowledged acts.
const ACKNOWLEDGED: &str = "acknowledged";

/// An act of a script.
#[derive(Debug, Clone)]
enum Act {
    /// A push of these keys.
    Push(Vec<u64>),
    Remove(u64),
    /// Samples a key so often that it is hot, and promotes hot keys.
    Promote(u64),
    Import(u64),
    Clear,
    /// Opens the table.
    Open,
}

/// A table, acts before the process is watched, and acts that are watched.
struct Script {
    config: TableConfig,
    before: Vec<Act>,
    watched: Vec<Act>,
}

/// Rows by key: weights, header and state as bits.
type Rows = BTreeMap<u64, Vec<u32>>;

fn config(dims: usize, writes: Writes, packing: Packing) -> TableConfig {
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
        "open" => Script { config: in_place, before: vec![pushes(0..14)], watched: vec![Act::Open] },
        _ => panic!("no script {name}"),
    }
}

/// Keys of the same bucket of a new index.
fn crowded(keys: usize) -> Vec<u64> {
    let home = |key: &u64| part(HashKey::of_numbers(TEST_HASH_KEY).hash(*key), Index::NEW_BUCKETS as u32);
    (0..).filter(|key| home(key) == 1).take(keys).collect()
}

fn act(table: &mut Option<Table>, root: &Path, config: &TableConfig, number: usize, act: &Act) {
    if matches!(act, Act::Open) {
        drop(table.take());
        *table = Some(Table::kept(config.clone(), root, "").unwrap().0);
        return;
    }
    let table = table.as_ref().unwrap();
    match act {
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
        Act::Open => {}
    }
}

fn rows_of(table: &Table) -> Rows {
    let mut rows = Rows::new();
    table.for_each_row(|row| {
        let words = row.weights.iter().chain(row.state).map(|value| value.to_bits());
        let header = [row.frequency, row.last_use, row.version];
        assert!(rows.insert(row.key, words.chain(header).collect()).is_none(), "key {} twice", row.key);
    });
    rows
}

/// The rows before the watched acts, and after each.
fn expected(script: &Script) -> Vec<Rows> {
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
    let mut table = Some(Table::kept(script.config.clone(), root, "").unwrap().0);
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

/// Stops this thread until the parent lets it go on.
fn stop() {
    // SAFETY: a signal to this thread, whose parent waits for it.
    unsafe {
        libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), libc::SIGSTOP)
    };
}

/// Not a test: the process that the tests watch.
#[test]
#[ignore = "run by other tests"]
fn child() {
    let (Ok(dir), Ok(name)) = (std::env::var(DIR), std::env::var(SCRIPT)) else { return };
    let fault: usize = std::env::var(FAULT).unwrap().parse().unwrap();
    PLANTED.store(fault, Relaxed);
    let root = PathBuf::from(dir);
    // The thread's number, then the trace, which begins at the first stop.
    // SAFETY: asks the parent to watch this thread.
    let (thread, traced) =
        unsafe { (libc::syscall(libc::SYS_gettid), libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0)) };
    assert_eq!(traced, 0, "{}", std::io::Error::last_os_error());
    std::fs::write(root.with_extension("thread.new"), thread.to_string()).unwrap();
    std::fs::rename(root.with_extension("thread.new"), root.with_extension("thread")).unwrap();
    watched(&root, &script(&name));
}

/// A process that runs step by step.
struct Traced {
    child: Child,
    thread: i32,
}

impl Traced {
    fn start(root: &Path, name: &str, fault: usize) -> Traced {
        std::fs::write(root.with_extension(ACKNOWLEDGED), 0_u64.to_le_bytes()).unwrap();
        let _ = std::fs::remove_file(root.with_extension("thread"));
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kept::steps::child", "--ignored", "--test-threads=1", "-q"])
            .env(DIR, root)
            .env(SCRIPT, name)
            .env(FAULT, fault.to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let thread = loop {
            if let Ok(thread) = std::fs::read_to_string(root.with_extension("thread")) {
                break thread.parse().unwrap();
            }
            assert!(child.try_wait().unwrap().is_none(), "the child ended");
            std::thread::yield_now();
        };
        let traced = Traced { child, thread };
        assert_eq!(traced.wait(), Some(libc::SIGSTOP), "the child did not get to the watched acts");
        traced
    }

    /// Waits until the thread stops; returns the signal, or `None` if it ended.
    fn wait(&self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: writes the status and nothing else.
        let found = unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL) };
        assert_eq!(found, self.thread, "{}", std::io::Error::last_os_error());
        libc::WIFSTOPPED(status).then(|| libc::WSTOPSIG(status))
    }

    /// Executes an instruction; returns whether there is another one to watch.
    fn step(&self) -> bool {
        // SAFETY: the thread is stopped, and watched by this one.
        let done = unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        match self.wait() {
            Some(libc::SIGTRAP) => true,
            Some(libc::SIGSTOP) => false,
            other => panic!("the child ended, or was stopped by signal {other:?}"),
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // A watched thread that is dead stays until the watcher has seen it.
        // SAFETY: writes no status.
        unsafe { libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL) };
        let _ = self.child.wait();
    }
}

/// The files of a table that can change, as they are now.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name != "lock");
    names.filter_map(|name| Some((name.clone(), std::fs::read(folder.join(&name)).ok()?))).collect()
}

/// The parts of a table's files that its acts change, mapped, to see quickly whether an instruction has changed one.
#[derive(Default)]
struct Watch {
    /// Each file's words from a position on, and their values when they were last looked at.
    parts: Vec<(Region<AtomicU64>, usize, Vec<u64>)>,
}

impl Watch {
    /// Parts of the head: of the bytes of a copy only its generation and its checksum.
    const HEADS: usize = 2;
    const HEAD_WORDS: usize = 4;
    /// Words of other files: more than the records of locks and the rows of the scripts.
    const WORDS: usize = LIVE_WORDS;

    fn has_changed(&mut self, root: &Path, folder: &Path) -> bool {
        let (mut changed, mut is_new_head) = (false, self.parts.is_empty());
        for (at, (words, first, last)) in self.parts.iter_mut().enumerate() {
            for (word, last) in words[*first..].iter().zip(last) {
                let now = word.load(Relaxed);
                if now != *last {
                    (changed, is_new_head) = (true, is_new_head || at < Watch::HEADS);
                    *last = now;
                }
            }
        }
        if is_new_head {
            let head = folder.join("head");
            self.parts = [0, 1].map(|copy| words_of(&head, copy * COPY_BYTES / 8, Watch::HEAD_WORDS)).into();
            let names = files(folder).into_keys().filter(|name| !name.starts_with("head"));
            self.parts.extend(names.map(|name| words_of(&folder.join(name), 0, Watch::WORDS)));
            self.parts.push(words_of(&root.with_extension(ACKNOWLEDGED), 0, 1));
        }
        changed || is_new_head
    }
}

/// Maps words of a file, up to its end.
fn words_of(path: &Path, first: usize, words: usize) -> (Region<AtomicU64>, usize, Vec<u64>) {
    let file = PageFile::open(path).unwrap();
    let words = (first + words).min(file.bytes().unwrap() as usize / 8);
    let region = Region::of_file(file, words).unwrap();
    let last = region[first..].iter().map(|word: &AtomicU64| word.load(Relaxed)).collect();
    (region, first, last)
}

/// Copies a table to a new root.
fn copied(files: &BTreeMap<String, Vec<u8>>, root: &Path, folder: &str) {
    let _ = std::fs::remove_dir_all(root);
    std::fs::create_dir_all(root.join(folder)).unwrap();
    for (name, content) in files {
        // Without the pages of zeros at the end, which are most of a file.
        let used = content.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        let file = File::create(root.join(folder).join(name)).unwrap();
        file.write_all_at(&content[..used], 0).unwrap();
        file.set_len(content.len() as u64).unwrap();
    }
}

/// Opens a copy and checks everything.
fn check(root: &Path, script: &Script, states: &[Rows], acknowledged: usize) -> Result<usize, String> {
    let (table, attached) =
        Table::kept(script.config.clone(), root, "").map_err(|error| error.to_string())?;
    let rows = rows_of(&table);
    let may_be = &states[acknowledged..(acknowledged + 2).min(states.len())];
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

/// Watches a script; returns the numbers of images and of repairs, or the first failure.
fn watch(name: &str, fault: usize) -> Result<(usize, usize), String> {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (root, copy) = (dir.path().join("root"), dir.path().join("copy"));
    let script = script(name);
    let folder = crate::kept::folder_name(&script.config.name);
    std::fs::create_dir_all(root.join(&folder)).unwrap();
    let states = expected(&script);
    let traced = Traced::start(&root, name, fault);
    let (mut images, mut repaired, mut steps, mut watch) = (0, 0, 0, Watch::default());
    let mut goes_on = true;
    while goes_on {
        goes_on = traced.step();
        steps += 1;
        if !watch.has_changed(&root, &root.join(&folder)) {
            continue;
        }
        let now = files(&root.join(&folder));
        let acknowledged = std::fs::read(root.with_extension(ACKNOWLEDGED)).unwrap();
        let acknowledged = u64::from_le_bytes(acknowledged[..8].try_into().unwrap()) as usize;
        copied(&now, &copy, &folder);
        let checked = std::panic::catch_unwind(|| check(&copy, &script, &states, acknowledged));
        let result = checked.unwrap_or_else(|_| Err("opening the copy panics".to_owned()));
        repaired += usize::from(result.map_err(|error| format!("image {images} of {name}: {error}"))? > 0);
        images += 1;
    }
    println!("{name}: {steps} instructions, {images} images, {repaired} repaired");
    Ok((images, repaired))
}

fn check_script(name: &str) {
    let (images, repaired) = watch(name, 0).unwrap();
    assert!(images > 20 || name == "open", "{name}: {images} images show nothing");
    assert!(repaired > 0 || ["clear", "open"].contains(&name), "{name}: nothing was ever in hand");
}

fn check_fault(fault: Fault, name: &str) {
    let found = watch(name, ALL.iter().position(|&this| this == fault).unwrap() + 1);
    println!("{fault:?}: {}", found.expect_err("the planted fault is not found"));
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
    a_table_is_whole_after_each_instruction_of_updates("update");
    a_table_is_whole_after_each_instruction_of_copy_on_write("copy_on_write");
    a_table_is_whole_after_each_instruction_of_inserts_and_removals("keys");
    a_table_is_whole_after_each_instruction_of_a_growth("growth");
    a_table_is_whole_after_each_instruction_of_promotions("promotion");
    a_table_is_whole_after_each_instruction_of_clearing("clear");
    a_table_is_whole_after_each_instruction_of_opening("open");
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
