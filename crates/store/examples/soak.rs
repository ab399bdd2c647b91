//! Soak test of the store: `cargo run --release -p sanderling-store --example soak -- [--seconds 60] [--threads N]
//! [--seed S]`.
//!
//! Random pulls, pushes, removals, maintenance, walks, checkpoints, growth and clears, on tables that update in
//! place and by copy, with and without eviction.
//!
//! It checks that every row is consistent (its weights are multiples of numbers derived from its key) and belongs
//! to its key; that a key owned by one thread has exactly the updates of that thread; and that a walk sees no key
//! twice and misses no owned one. A violation ends the program with code 1 and prints the seed.

#![allow(clippy::print_stdout, clippy::print_stderr)] // a program

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::{
    Absent, Checkpoint, CheckpointWriter, Eviction, Init, Optimizer, Pooling, PushScale, StoreError, Table,
    TableConfig, Writes,
};

const DIM: usize = 21;
/// Keys from here on are each owned by one thread, which knows their weights.
const OWNED: u64 = 1 << 60;
/// Keys shared by all threads.
const SHARED_KEYS: u64 = 20_000;
const OWNED_KEYS: u64 = 3_000;
const BUDGET_BYTES: u64 = 2 << 20;

type Checked = Result<(), String>;

struct Options {
    seconds: u64,
    threads: u64,
    seed: u64,
}

struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A table and its invariants.
struct Subject {
    table: Table,
    /// No row is evicted or cleared: owned keys stay.
    keeps: bool,
    pushes: AtomicU64,
    others: AtomicU64,
}

/// A gradient that moves the key's weights by one step; small enough that thousands of steps are exact in f32.
fn gradient(key: u64, out: &mut Vec<f32>) {
    out.extend((0..DIM as u64).map(|at| -((((key ^ key >> 60) * 7 + at * 3) % 61 + 1) as f32)));
}

/// Number of steps of the weights; an error if they are inconsistent or of another key.
fn steps(key: u64, weights: &[f32]) -> Result<u32, String> {
    let mut step = Vec::with_capacity(DIM);
    gradient(key, &mut step);
    let count = weights[0] / -step[0];
    let whole = weights.iter().zip(&step).all(|(w, g)| *w == -g * count);
    if whole && count >= 0.0 && count.fract() == 0.0 {
        return Ok(count as u32);
    }
    Err(format!("key {key}: a torn or foreign row: {weights:?}"))
}

fn subjects() -> Vec<Subject> {
    let mut subjects = Vec::new();
    for writes in [Writes::InPlace, Writes::CopyOnWrite] {
        for (eviction, keeps) in [
            (Eviction::Never, true),
            (Eviction::Never, false),
            (Eviction::Clock, false),
            (Eviction::Age { pushes: 40 }, false),
        ] {
            let budget_bytes = (eviction != Eviction::Never).then_some(BUDGET_BYTES);
            let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
            let config = TableConfig::single("soak", DIM, Init::Zero, sgd);
            let table = Table::new(TableConfig { writes, eviction, budget_bytes, ..config });
            let table = table.unwrap_or_else(|error| panic!("the configuration is right: {error}"));
            subjects.push(Subject { table, keeps, pushes: AtomicU64::new(0), others: AtomicU64::new(0) });
        }
    }
    subjects
}

/// Operations of one thread; `owned` is its knowledge of its own keys, by subject.
struct Worker<'a> {
    subjects: &'a [Subject],
    number: u64,
    draw: Draw,
    owned: Vec<HashMap<u64, u32>>,
}

impl Worker<'_> {
    fn key(&mut self) -> u64 {
        if self.draw.below(3) == 0 {
            return OWNED + (self.number << 32) + self.draw.below(OWNED_KEYS);
        }
        // Some keys are hot.
        let n = if self.draw.below(2) == 0 { 300 } else { SHARED_KEYS };
        self.draw.below(n) << 20
    }

    fn keys(&mut self, n: u64) -> Vec<u64> {
        let n = 1 + self.draw.below(n);
        (0..n).map(|_| self.key()).collect()
    }

    fn is_own(&self, key: u64) -> bool {
        key >= OWNED && (key - OWNED) >> 32 == self.number
    }

    fn check_row(&self, subject: usize, key: u64, weights: &[f32]) -> Checked {
        let found = steps(key, weights)?;
        let expected = self.owned[subject].get(&key).copied().unwrap_or(0);
        if self.subjects[subject].keeps && self.is_own(key) && found != expected {
            return Err(format!("key {key}: {found} pushes instead of {expected}"));
        }
        Ok(())
    }

    fn push(&mut self, at: usize) -> Checked {
        let (subject, keys, mut gradients) = (&self.subjects[at], self.keys(700), Vec::new());
        keys.iter().for_each(|&key| gradient(key, &mut gradients));
        subject.pushes.fetch_add(1, Relaxed);
        match subject.table.push(&keys, &gradients, PushScale::default()) {
            Err(StoreError::TableFull { .. })
                if matches!(subject.table.config().eviction, Eviction::Age { .. }) => {}
            Err(error) => return Err(format!("a push failed: {error}")),
            Ok(()) => {}
        }
        for key in keys {
            if self.is_own(key) {
                *self.owned[at].entry(key).or_default() += 1;
            }
        }
        Ok(())
    }

    fn pull(&mut self, at: usize) -> Checked {
        let (table, keys) = (&self.subjects[at].table, self.keys(700));
        let mut out = vec![0.0; keys.len() * DIM];
        table.pull(&keys, Absent::Zero, &mut out, None).map_err(|error| error.to_string())?;
        for (&key, weights) in keys.iter().zip(out.chunks(DIM)) {
            self.check_row(at, key, weights)?;
        }
        // With one sample per key, pooling has no effect.
        let offsets: Vec<u32> = (0..=keys.len() as u32).collect();
        let pooled = table.pull_pooled(&keys, None, &offsets, Pooling::Sum, Absent::Zero, &mut out, None);
        pooled.map_err(|error| error.to_string())?;
        keys.iter().zip(out.chunks(DIM)).try_for_each(|(&key, weights)| self.check_row(at, key, weights))
    }

    fn remove(&mut self, at: usize) -> Checked {
        for key in self.keys(100) {
            let removed = self.subjects[at].table.remove(key);
            let known = self.is_own(key) && self.owned[at].remove(&key).is_some();
            if self.subjects[at].keeps && self.is_own(key) && removed != known {
                return Err(format!("key {key}: removed: {removed}, known: {known}"));
            }
        }
        Ok(())
    }

    fn walk(&mut self, at: usize) -> Checked {
        let (subject, mut seen, mut result) = (&self.subjects[at], HashSet::new(), Ok(()));
        subject.table.for_each_row(|row| {
            if result.is_ok() {
                result = self.check_row(at, row.key, row.weights);
                if !seen.insert(row.key) {
                    result = Err(format!("a walk saw key {} twice", row.key));
                }
            }
        });
        result?;
        match self.owned[at].keys().find(|&key| subject.keeps && !seen.contains(key)) {
            Some(key) => Err(format!("a walk missed key {key}")),
            None => Ok(()),
        }
    }

    fn save_and_load(&mut self, at: usize) -> Checked {
        let run = || -> Result<Table, StoreError> {
            let dir = tempfile::tempdir().unwrap_or_else(|error| panic!("no temporary directory: {error}"));
            let mut writer = CheckpointWriter::create(dir.path())?;
            writer.table(&self.subjects[at].table)?;
            writer.commit()?;
            Checkpoint::open(dir.path())?.load_table("soak")
        };
        let loaded = match run() {
            // Keys that were evicted and created again during the save may exceed the capacity.
            Err(StoreError::TableFull { .. }) if self.subjects[at].table.config().budget_bytes.is_some() => {
                return Ok(());
            }
            other => other.map_err(|error| error.to_string())?,
        };
        let mut result = Ok(());
        loaded.for_each_row(|row| {
            if result.is_ok() {
                result = self.check_row(at, row.key, row.weights);
            }
        });
        result?;
        match self.owned[at].keys().find(|&&key| self.subjects[at].keeps && loaded.get(key).is_none()) {
            Some(key) => Err(format!("a checkpoint missed key {key}")),
            None => Ok(()),
        }
    }

    fn update_alone(&mut self, at: usize) -> Checked {
        let (table, keys) = (&self.subjects[at].table, self.keys(50));
        let Ok(mut writer) = table.writer(PushScale::default()) else { return Ok(()) };
        let (mut handles, mut step) = (Vec::new(), Vec::new());
        if writer.resolve(&keys, &mut handles).is_err() {
            return Ok(());
        }
        for (&key, &handle) in keys.iter().zip(&handles) {
            step.clear();
            gradient(key, &mut step);
            writer.update(handle, &step);
            steps(key, writer.weights(handle))?;
            if self.is_own(key) {
                *self.owned[at].entry(key).or_default() += 1;
            }
        }
        Ok(())
    }

    fn turn(&mut self) -> Checked {
        let at = self.draw.below(self.subjects.len() as u64) as usize;
        let subject = &self.subjects[at];
        let operation = self.draw.below(1000);
        if operation >= 400 {
            subject.others.fetch_add(1, Relaxed);
        }
        match operation {
            0..400 => self.push(at),
            400..800 => self.pull(at),
            800..900 => self.remove(at),
            900..950 => self.update_alone(at),
            950..980 => {
                let _ = subject.table.maintain(10_000);
                Ok(())
            }
            980..985 => self.walk(at),
            985..990 => self.save_and_load(at),
            990..995 => {
                let _ = subject.table.reserve(self.draw.below(60_000));
                Ok(())
            }
            995..997 if !subject.keeps => {
                subject.table.clear();
                Ok(())
            }
            _ => {
                let stats = subject.table.stats();
                let bytes = subject.table.config().budget_bytes.unwrap_or(u64::MAX);
                if subject.table.bytes() > bytes {
                    Err(format!("above its budget: {stats:?}"))
                } else {
                    Ok(())
                }
            }
        }
    }
}

fn options() -> Result<Options, String> {
    let mut options = Options { seconds: 60, threads: 4, seed: 1 };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        let value: u64 = value.ok_or_else(|| format!("{name} needs a number"))?;
        match name.as_str() {
            "--seconds" => options.seconds = value,
            "--threads" => options.threads = value.max(1),
            "--seed" => options.seed = value,
            _ => return Err(format!("unknown option {name}; there are --seconds, --threads and --seed")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let (subjects, stop) = (subjects(), AtomicBool::new(false));
    let violation = Mutex::new(None::<String>);
    let report = |text: String| {
        violation.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        stop.store(true, Relaxed);
    };
    let (start, lasts) = (Instant::now(), Duration::from_secs(options.seconds));
    std::thread::scope(|scope| {
        for number in 0..options.threads {
            let (subjects, stop, report, seed) = (&subjects, &stop, &report, options.seed);
            scope.spawn(move || {
                let draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
                let owned = subjects.iter().map(|_| HashMap::new()).collect();
                let mut worker = Worker { subjects, number, draw, owned };
                let work = std::panic::AssertUnwindSafe(|| {
                    while !stop.load(Relaxed) {
                        if let Err(text) = worker.turn() {
                            return report(text);
                        }
                    }
                });
                if std::panic::catch_unwind(work).is_err() {
                    report("a panic".to_string());
                }
            });
        }
        let count = |f: &dyn Fn(&Subject) -> u64| subjects.iter().map(f).sum::<u64>();
        let mut before = 0;
        while !stop.load(Relaxed) && start.elapsed() < lasts {
            std::thread::sleep(Duration::from_secs(1));
            let now = count(&|subject| subject.pushes.load(Relaxed) + subject.others.load(Relaxed));
            let rows = count(&|subject| subject.table.len() as u64);
            println!("{:4} s  {} requests/s, {rows} rows", start.elapsed().as_secs(), now - before);
            if now == before {
                // Then no thread can be joined.
                eprintln!("violation: nothing goes on any more; seed {}", options.seed);
                std::process::exit(1);
            }
            before = now;
        }
        stop.store(true, Relaxed);
    });
    for subject in &subjects {
        let config = subject.table.config();
        println!(
            "{:?} {:?} keeps: {}: {:?}",
            config.writes,
            config.eviction,
            subject.keeps,
            subject.table.stats()
        );
    }
    let violation = violation.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = violation {
        eprintln!("violation: {text}; seed {}", options.seed);
        return ExitCode::FAILURE;
    }
    println!("no violation in {} s with {} threads, seed {}", options.seconds, options.threads, options.seed);
    ExitCode::SUCCESS
}
