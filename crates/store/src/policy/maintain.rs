//! What a table can do for itself beside requests: move hot keys to where searches for them begin, note which keys are
//! pulled, let go of rows that are too old or too small, and have rows in reserve for new keys. Knows nothing of requests.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::index::NO_ROW;
use crate::memory::budget::Budget;
use crate::policy::clock::age;
use crate::policy::sketch::Sketch;
use crate::sync::lanes::lane;
use crate::sync::lock;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Counters of how often keys were sampled.
const HOT_KEY_BYTES: usize = 1 << 16;
/// A key must have been sampled so often to be moved.
const HOT: u8 = 2;
/// What [`Maintenance`] does for a table in one round, at most.
const ROUND_BUDGET: usize = 4096;
/// Sampled look-ups that wait for the next round, at most, where pushes have to read the samples: no more than it can use.
const WAITING_MAX: usize = ROUND_BUDGET;
/// Pauses between its rounds: half as long as the one before if there was something to do, else twice as long, up to a bound for
/// tables that are in use and another for those that are not. In the shortest, a table that makes rows as fast as it can
/// uses up less than its reserve.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_IN_USE_MAX: Duration = Duration::from_millis(16);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What the last looks at a table found.
#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    /// Up to where the samples were read, per lane.
    read: Vec<usize>,
    /// What was sampled since the last round.
    hashes: Vec<u64>,
    /// Made when it is first needed, and never without budget.
    counts: Option<Sketch>,
}

impl HotKeys {
    /// A bounded table takes its counters at once, unless they are more than a 16th of its budget: later its rows may have
    /// taken everything.
    pub(crate) fn new(budget: &Budget) -> HotKeys {
        let mut hot_keys = HotKeys::default();
        let limit_bytes = budget.limit_bytes();
        if limit_bytes < u64::MAX && limit_bytes / 16 >= HOT_KEY_BYTES as u64 {
            hot_keys.make_counts(budget);
        }
        hot_keys
    }

    fn make_counts(&mut self, budget: &Budget) {
        if self.counts.is_none() && budget.take(HOT_KEY_BYTES) {
            self.counts = Sketch::new(HOT_KEY_BYTES);
            if self.counts.is_none() {
                budget.give_back(HOT_KEY_BYTES);
            }
        }
    }
}

/// What one round of [`Table::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Maintained {
    /// Look-ups that were sampled since the last round.
    pub sampled: usize,
    /// Keys that were moved to where a search for them begins.
    pub promoted: usize,
    /// Rows that were too old or too small to stay, or in the way of new keys.
    pub evicted: usize,
}

impl Table {
    /// Notes the sampled keys as used, moves up to `budget` of them home, looks at the next `budget` rows for such that
    /// [`crate::Eviction`] by age or norm lets go, and where it goes by capacity and the table is full, evicts up to `budget`
    /// rows for keys to come. Usually called by [`Maintenance`].
    ///
    /// # Panics
    /// If this thread has a [`TableWriter`](crate::TableWriter) of the table, which it would wait for.
    pub fn maintain(&self, budget: usize) -> Maintained {
        self.assert_not_writing();
        let lane = lane();
        let shared = self.write_gate.lock_shared(lane);
        let mut hot_keys = lock(&self.hot_keys);
        self.collect(&mut hot_keys, &shared);
        let promoted = self.promote(&mut hot_keys, budget);
        let sampled = hot_keys.hashes.len();
        hot_keys.hashes.clear();
        drop(hot_keys);
        let evicted = self.sweep(lane, budget) + self.refill(lane, budget, &shared);
        Maintained { sampled, promoted, evicted }
    }

    /// Notes sampled look-ups as uses of their rows, for eviction to see. The caller must have no key locked.
    pub(crate) fn note_use(&self, shared: &SharedGuard<'_>) {
        let hot_keys = &mut *lock(&self.hot_keys);
        self.collect(hot_keys, shared);
        hot_keys.hashes.truncate(WAITING_MAX);
    }

    /// Reads the samples, counts them, and notes them as uses where eviction goes by that.
    fn collect(&self, hot_keys: &mut HotKeys, shared: &SharedGuard<'_>) {
        let before = hot_keys.hashes.len();
        self.key_sampler.collect(&mut hot_keys.read, &mut hot_keys.hashes);
        hot_keys.make_counts(&self.budget);
        let hashes = &hot_keys.hashes[before..];
        if let Some(counts) = &hot_keys.counts {
            hashes.iter().for_each(|&hash| _ = counts.add(hash));
            counts.age(hashes.len());
        }
        if self.evicts_by_use() {
            let view = self.directory.pin(lane());
            let (now, last_use) = (self.clock.now(), self.layout.header_at() + 3);
            for &hash in hashes {
                let row = view.index().find(hash);
                if row != NO_ROW && age(now, self.slab.word(row, last_use)) > 0 {
                    self.slab.write(row, shared).row.set(last_use, now);
                }
            }
        }
    }

    fn promote(&self, hot_keys: &mut HotKeys, budget: usize) -> usize {
        let Some(counts) = &hot_keys.counts else { return 0 };
        let mut moved = 0;
        for &hash in hot_keys.hashes.iter().filter(|&&hash| counts.count(hash) >= HOT).take(budget) {
            let locked = self.directory.lock(hash);
            let hotness = |hash: u64| u32::from(counts.count(hash));
            moved += usize::from(locked.index().promote(hash, hotness, |victim| locked.try_another(victim)));
        }
        self.counters.get(lane()).promoted.fetch_add(moved as u64, Relaxed);
        moved
    }

    /// Index lines that one search touches, on average over `keys`: 1 is the least.
    #[must_use]
    pub fn lines_per_search(&self, keys: &[u64]) -> f64 {
        let view = self.directory.pin(lane());
        let lines: usize =
            keys.iter().map(|&key| view.index().lines(crate::index::hash::index_hash(key))).sum();
        lines as f64 / keys.len().max(1) as f64
    }
}

/// A thread that maintains tables until it is dropped.
#[derive(Debug)]
pub struct Maintenance {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Stop {
    asked: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    // A flag is whole even if somebody panicked meanwhile.
    fn asked(&self) -> MutexGuard<'_, bool> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long; is the thread to end?
    fn wait(&self, pause: Duration) -> bool {
        let asked = self.asked();
        *self.wake.wait_timeout_while(asked, pause, |asked| !*asked).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Maintenance {
    /// Calls [`Table::maintain`] again and again for every table that `tables` hands to what it is given, with pauses of a
    /// millisecond where there is much to do, and of up to a second where nobody uses them.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(tables: impl Fn(&mut dyn FnMut(&Table)) + Send + 'static) -> std::io::Result<Maintenance> {
        let stop = Arc::new(Stop::default());
        let stopped = Arc::clone(&stop);
        let run = move || {
            let mut pause = PAUSE_MIN;
            while !stopped.wait(pause) {
                let (mut done, mut in_use) = (0, false);
                tables(&mut |table| {
                    let Maintained { sampled, promoted, evicted } = table.maintain(ROUND_BUDGET);
                    done += promoted + evicted;
                    in_use |= sampled > 0;
                });
                let most = if in_use { PAUSE_IN_USE_MAX } else { PAUSE_MAX };
                pause = if done > 0 { pause / 2 } else { pause * 2 }.clamp(PAUSE_MIN, most);
            }
        };
        let thread = std::thread::Builder::new().name("maintenance".to_string()).spawn(run)?;
        Ok(Maintenance { stop, thread: Some(thread) })
    }
}

impl Drop for Maintenance {
    fn drop(&mut self) {
        *self.stop.asked() = true;
        self.stop.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its panic was its own report.
            drop(thread.join());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Absent, Init, Optimizer, TableConfig};

    /// Pushes that evict read the samples, too: the next round has them all the same, as far as it has use for them.
    #[test]
    fn what_pushes_read_of_the_samples_is_left_for_the_next_round() {
        let config = TableConfig::single("t", 1, Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
        let t = Table::new(config).expect("a table");
        for (pulls, expected) in [(3, 3..=3), (0, 0..=0), (2 * WAITING_MAX, WAITING_MAX..=WAITING_MAX)] {
            for _ in 0..pulls {
                t.pull(&[1], Absent::Zero, &mut [0.0], None).expect("a pull");
                t.note_use(&t.write_gate.lock_shared(lane()));
            }
            let sampled = t.maintain(10).sampled;
            assert!(expected.contains(&sampled), "{sampled} of {pulls}");
        }
    }
}
