//! Background maintenance of tables: promotes hot keys to their home buckets, records pulls as use, evicts expired
//! rows, and refills the reserve of free rows.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::index::NO_ROW;
use crate::policy::clock::age;
use crate::policy::hot_keys::HotKeys;
use crate::rows::layout::LAST_USE;
use crate::sync::lanes::lane;
use crate::sync::lock;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Samples that make a key hot.
const HOT: u8 = 2;
/// The maximum work for a table per round of [`Maintenance`].
const ROUND_BUDGET: usize = 4096;
/// Shares of the hash space that a round moves if the index grows: for about a millisecond.
const ROUND_SHARES: usize = 64;
/// The maximum number of samples that wait for the next round after a push has collected them.
const WAITING_MAX: usize = ROUND_BUDGET;
/// Pause between rounds. It halves after a round with work and doubles after one without, up to a bound that
/// depends on whether the tables are in use. In the shortest pause, a table that adds rows at full speed uses less
/// than its reserve.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_IN_USE_MAX: Duration = Duration::from_millis(16);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Result of a round of [`Table::maintain`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Maintained {
    /// Look-ups sampled since the last round.
    pub sampled: usize,
    /// Keys moved to their home buckets.
    pub promoted: usize,
    /// Evicted rows.
    pub evicted: usize,
    /// Shares of a growing index that were moved, and shares of a kept one that were searched for free rows.
    pub moved: usize,
}

impl Table {
    /// Performs one round of maintenance, usually called by [`Maintenance`].
    ///
    /// It records sampled keys as used, promotes up to `budget` hot keys, scans the next `budget` rows for expired
    /// ones, and evicts up to `budget` rows from a full table with eviction by capacity. If the index grows, it moves
    /// some of it.
    ///
    /// # Panics
    ///
    /// If this thread holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub fn maintain(&self, budget: usize) -> Maintained {
        self.assert_not_writing();
        let lane = lane();
        // Without the write gate, so that pulls need not check versions meanwhile.
        let moved = self.directory.move_shares(lane, ROUND_SHARES) + self.search_free_rows(ROUND_SHARES);
        let shared = self.write_gate.lock_shared(lane);
        let mut hot_keys = lock(&self.hot_keys);
        self.collect(&mut hot_keys, &shared);
        let promoted = self.promote(&mut hot_keys, budget);
        let sampled = hot_keys.hashes.len();
        hot_keys.hashes.clear();
        drop(hot_keys);
        let evicted = self.sweep(lane, budget, &shared) + self.refill(lane, budget, &shared);
        Maintained { sampled, promoted, evicted, moved }
    }

    /// Records sampled look-ups as uses of their rows, before an eviction. The caller must hold no key lock.
    pub(crate) fn note_use(&self, shared: &SharedGuard<'_>) {
        let hot_keys = &mut *lock(&self.hot_keys);
        self.collect(hot_keys, shared);
        hot_keys.hashes.truncate(WAITING_MAX);
    }

    /// Collects and counts the samples, and records them as uses if eviction depends on use.
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
            let now = self.clock.now();
            for &hash in hashes {
                let row = view.find(hash);
                if row != NO_ROW && age(now, self.slab.header_word(row, LAST_USE)) > 0 {
                    self.write_row(row, shared, self.notes()).row.set(LAST_USE, now);
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
            moved += usize::from(locked.promote(hotness));
        }
        self.counters.get(lane()).promoted.fetch_add(moved as u64, Relaxed);
        moved
    }

    /// Index cache lines per search, averaged over `keys`; at least 1.
    #[must_use]
    pub fn lines_per_search(&self, keys: &[u64]) -> f64 {
        let view = self.directory.pin(lane());
        let hashes = keys.iter().map(|&key| self.hash_key.hash(key));
        let lines: usize = hashes.map(|hash| view.view().of(hash).lines(hash)).sum();
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
    // A flag is consistent even after a panic.
    fn asked(&self) -> MutexGuard<'_, bool> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `pause`; returns whether the thread should stop.
    fn wait(&self, pause: Duration) -> bool {
        let asked = self.asked();
        *self.wake.wait_timeout_while(asked, pause, |asked| !*asked).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Maintenance {
    /// Starts a thread that maintains every table that `tables` passes to its argument.
    ///
    /// Rounds are a millisecond apart under load, and up to a second apart while the tables are idle.
    ///
    /// # Errors
    ///
    /// The system could not start a thread.
    pub fn start(tables: impl Fn(&mut dyn FnMut(&Table)) + Send + 'static) -> std::io::Result<Maintenance> {
        let stop = Arc::new(Stop::default());
        let stopped = Arc::clone(&stop);
        let run = move || {
            let mut pause = PAUSE_MIN;
            while !stopped.wait(pause) {
                let (mut done, mut in_use) = (0, false);
                tables(&mut |table| {
                    let Maintained { sampled, promoted, evicted, moved } = table.maintain(ROUND_BUDGET);
                    done += promoted + evicted + moved;
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
