//! Samples of the rows of each table, taken when an operator asks and kept for some seconds. Knows no page.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_store::{RowSample, RowSampler};

use crate::limit::{SAMPLED_TABLES_MAX, SAMPLES_PER_LOOK_MAX};
use crate::tables::Entry;

/// Age from which on a sample is taken anew.
const AGE_MAX: Duration = Duration::from_secs(5);

/// The samples of all tables, by number.
#[derive(Debug, Default)]
pub(crate) struct RowSamples(Mutex<HashMap<u32, Sampled>>);

#[derive(Debug)]
struct Sampled {
    sampler: RowSampler,
    sample: RowSample,
    at: Instant,
}

impl RowSamples {
    /// Samples of these tables, by number. At most so many are taken anew in one call, those that are oldest; tables
    /// beyond the limit have none.
    pub(crate) fn look(&self, entries: &[Arc<Entry>]) -> HashMap<u32, RowSample> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let age = |known: &HashMap<u32, Sampled>, entry: &Arc<Entry>| {
            known.get(&entry.number).map_or(Duration::MAX, |sampled| now - sampled.at)
        };
        let mut old: Vec<&Arc<Entry>> =
            entries.iter().take(SAMPLED_TABLES_MAX).filter(|entry| age(&known, entry) > AGE_MAX).collect();
        old.sort_by_key(|entry| std::cmp::Reverse(age(&known, entry)));
        for entry in old.into_iter().take(SAMPLES_PER_LOOK_MAX) {
            let mut sampler = known.remove(&entry.number).map(|sampled| sampled.sampler).unwrap_or_default();
            let sample = sampler.look(&entry.table);
            known.insert(entry.number, Sampled { sampler, sample, at: now });
        }
        let found = entries.iter().filter_map(|entry| Some((entry.number, known.get(&entry.number)?.sample)));
        found.collect()
    }

    /// Forgets tables that are gone.
    pub(crate) fn retain(&self, entries: &[Arc<Entry>]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| entries.iter().any(|entry| entry.number == *number));
    }
}
