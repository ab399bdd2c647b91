//! Numbers of each feature, from sampled minibatches of a training: how its keys are distributed, how many have no row yet,
//! how large rows and gradients are. Knows no model.
//!
//! Each lookup counts into a memory of its own; a reader adds them up. One minibatch in [`EVERY`] is sampled, and of each
//! feature up to [`KEYS_MAX`] of its keys are looked at; all others cost one comparison.

mod stats;
mod tally;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sanderling_random::SplitMix64;
use sanderling_store::Table;

use crate::lookup::Lookup;
pub use stats::{FeatureReader, FeatureSnapshot, FeatureSnapshots, FeatureStats};
use tally::Tally;

/// Keys of a feature that are looked at in a sampled minibatch.
pub(crate) const KEYS_MAX: usize = 64;
/// One minibatch in so many is sampled.
const EVERY: u32 = 128;
/// The first minibatches are all sampled, so that short runs tell something, too.
const FIRST: u64 = 64;

/// See the top of this file.
#[derive(Debug)]
pub struct FeatureWatch {
    /// Name and table of each feature.
    features: Vec<(String, usize)>,
    tables: Vec<String>,
    minibatches: AtomicU64,
    samplers: AtomicU64,
    lookups: Mutex<Vec<Arc<Mutex<Vec<Tally>>>>>,
    /// Of lookups that have ended, and of the sessions before.
    past: Mutex<Vec<Tally>>,
    /// The keys that an earlier model was trained with, by feature.
    trained: Mutex<BTreeMap<String, FeatureSnapshot>>,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FeatureWatch {
    /// Watches features, each with the number of its table.
    #[must_use]
    pub fn new(features: Vec<(String, usize)>, tables: Vec<String>) -> Arc<FeatureWatch> {
        let past = Mutex::new(vec![Tally::default(); features.len()]);
        Arc::new(FeatureWatch {
            features,
            tables,
            minibatches: AtomicU64::new(0),
            samplers: AtomicU64::new(0),
            lookups: Mutex::default(),
            past,
            trained: Mutex::default(),
        })
    }

    /// Draws the minibatches of one lookup.
    pub(crate) fn sampler(self: &Arc<FeatureWatch>) -> FeatureSampler {
        // One lookup after the other begins elsewhere, and a run with one thread samples the same each time.
        let random = SplitMix64::new(self.samplers.fetch_add(1, Ordering::Relaxed)).next().max(1);
        FeatureSampler { watch: Arc::clone(self), tallies: None, gap: 0, random, is_sampled: false }
    }

    /// The sum of all lookups.
    fn sum(&self) -> Vec<Tally> {
        // A lookup that ends moves its counts, under the lock of the list.
        let lookups = lock(&self.lookups);
        let mut sum = lock(&self.past).clone();
        for tallies in lookups.iter() {
            sum.iter_mut().zip(&*lock(tallies)).for_each(|(sum, tally)| sum.merge(tally));
        }
        sum
    }

    /// The numbers of each feature, with those of its rows in these tables of this process, by the names of features.
    pub fn stats(&self, reader: &mut FeatureReader, tables: &[Arc<Table>]) -> Vec<FeatureStats> {
        let trained = lock(&self.trained);
        let sum = self.sum();
        let features = self.features.iter().zip(&sum).enumerate();
        let stats = features.map(|(at, ((name, number), tally))| {
            let mut stats = tally.stats(name, &self.tables[*number], trained.get(name));
            stats.readers = self.features.iter().filter(|(_, other)| other == number).count();
            if let Some(table) = tables.iter().find(|table| table.name() == self.tables[*number]) {
                stats.add_rows(reader.look(at, table, tally.keys()));
                stats.add_fates(&table.quick_stats());
            }
            stats
        });
        stats.collect()
    }

    /// The distribution of each feature's keys so far, for later runs and for servers of predictions.
    #[must_use]
    pub fn snapshots(&self) -> FeatureSnapshots {
        let sum = self.sum();
        let of = self.features.iter().zip(&sum).filter(|(_, tally)| tally.has_keys());
        let features = of.map(|((name, _), tally)| tally.snapshot(name)).collect();
        let before = lock(&self.trained).values().cloned().collect();
        FeatureSnapshots { features, before }
    }

    /// Goes on from the snapshots of the same run.
    pub fn resume(&self, snapshots: &FeatureSnapshots) {
        let mut past = lock(&self.past);
        for ((name, _), tally) in self.features.iter().zip(past.iter_mut()) {
            let known = snapshots.features.iter().find(|snapshot| snapshot.name == *name);
            known.into_iter().for_each(|snapshot| tally.resume(snapshot));
        }
        drop(past);
        self.compare_with(&snapshots.before);
    }

    /// From now on the keys are compared with those that an earlier model was trained with.
    pub fn compare_with(&self, trained: &[FeatureSnapshot]) {
        let named = trained.iter().map(|snapshot| (snapshot.name.clone(), snapshot.clone()));
        *lock(&self.trained) = named.collect();
    }
}

/// Draws the minibatches of one lookup that are sampled, and counts them.
#[derive(Debug)]
pub(crate) struct FeatureSampler {
    watch: Arc<FeatureWatch>,
    /// None before the first sampled minibatch.
    tallies: Option<Arc<Mutex<Vec<Tally>>>>,
    gap: u32,
    random: u64,
    /// Whether the minibatch under way is sampled.
    is_sampled: bool,
}

impl FeatureSampler {
    /// Whether the next minibatch is sampled.
    pub(crate) fn draw(&mut self) -> bool {
        if self.gap > 0 {
            self.gap -= 1;
            self.is_sampled = false;
            return false;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.watch.minibatches.fetch_add(1, Ordering::Relaxed) >= FIRST {
            self.gap = (self.random % u64::from(2 * EVERY - 1)) as u32;
        }
        self.is_sampled = true;
        true
    }

    /// The minibatch under way is not counted: its pull failed, or is none of a training.
    pub(crate) fn pass_over(&mut self) {
        self.is_sampled = false;
    }

    /// Counts the keys and rows of a sampled minibatch that was pulled.
    pub(crate) fn note_pull(&mut self, lookup: &Lookup) {
        if !self.is_sampled {
            return;
        }
        let watch = &self.watch;
        let tallies = self.tallies.get_or_insert_with(|| {
            let tallies = Arc::new(Mutex::new(vec![Tally::default(); watch.features.len()]));
            lock(&watch.lookups).push(Arc::clone(&tallies));
            tallies
        });
        let first = self.random as usize;
        for (feature, tally) in lock(tallies).iter_mut().enumerate() {
            tally.note_pull(lookup, feature, first);
        }
    }

    /// Counts the gradients of a sampled minibatch that is about to be pushed.
    pub(crate) fn note_push(&mut self, lookup: &mut Lookup) {
        if !std::mem::take(&mut self.is_sampled) {
            return;
        }
        let Some(tallies) = &self.tallies else { return };
        let first = self.random as usize;
        for (feature, tally) in lock(tallies).iter_mut().enumerate() {
            tally.note_push(lookup, feature, first);
        }
    }
}

impl Drop for FeatureSampler {
    fn drop(&mut self) {
        let Some(tallies) = self.tallies.take() else { return };
        // A reader sees the counts in one of both places: the list is locked first by both.
        let mut lookups = lock(&self.watch.lookups);
        lookups.retain(|other| !Arc::ptr_eq(other, &tallies));
        let mut past = lock(&self.watch.past);
        past.iter_mut().zip(&*lock(&tallies)).for_each(|(past, tally)| past.merge(tally));
    }
}
