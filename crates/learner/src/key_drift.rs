//! The keys of a served model's requests against those that it was trained with, by feature. Knows no request.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sanderling_client::{FeatureSnapshot, FeatureSnapshots};
use sanderling_observe::Parts;
use sanderling_sample::Rows;

use crate::error::LearnError;
use crate::saved_rows::SavedRows;

/// One group of rows that are scored together in so many is looked at.
const EVERY: u32 = 16;
/// Keys of a feature that are looked at.
const KEYS_MAX: usize = 64;
/// The keys of late are half as many when there are so many.
const RECENT_MAX: u64 = 16_384;

/// See the top of this file. Threads share it.
#[derive(Debug, Default)]
pub struct KeyDrift {
    /// Name of each feature, and the keys that it was trained with.
    trained: Vec<(String, Parts)>,
    recent: Mutex<Vec<Parts>>,
    groups: AtomicU32,
}

impl KeyDrift {
    /// Begins without keys. `features` names the columns of rows.
    pub(crate) fn new<'a>(features: impl Iterator<Item = &'a str>, trained: &FeatureSnapshots) -> KeyDrift {
        let known = |name: &str| trained.features.iter().find(|snapshot| snapshot.name == name);
        let trained = features.map(|name| {
            let keys = known(name).map_or_else(Parts::default, FeatureSnapshot::keys);
            (name.to_owned(), keys)
        });
        let trained: Vec<(String, Parts)> = trained.collect();
        let recent = Mutex::new(vec![Parts::default(); trained.len()]);
        KeyDrift { trained, recent, groups: AtomicU32::new(0) }
    }

    /// Begins with the keys of a saved model's training. `features` names the columns of rows.
    ///
    /// # Errors
    /// The keys are damaged.
    pub fn of_saved<'a>(
        saved: &SavedRows,
        features: impl Iterator<Item = &'a str>,
    ) -> Result<KeyDrift, LearnError> {
        Ok(KeyDrift::new(features, &saved.feature_snapshots()?))
    }

    fn recent(&self) -> MutexGuard<'_, Vec<Parts>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at some keys of rows that are scored together, if it is their turn.
    pub fn note(&self, rows: &Rows<'_>) {
        if !self.groups.fetch_add(1, Ordering::Relaxed).is_multiple_of(EVERY) {
            return;
        }
        for (column, recent) in self.recent().iter_mut().enumerate().take(rows.columns()) {
            let keys = rows.keys(column);
            keys.iter().step_by(keys.len().div_ceil(KEYS_MAX).max(1)).for_each(|key| recent.add(*key));
            if recent.total() >= RECENT_MAX {
                recent.halve();
            }
        }
    }

    /// Per feature the population stability index of the keys of late against those of the training; `None`: there are too
    /// few.
    #[must_use]
    pub fn by_feature(&self) -> Vec<(&str, Option<f64>)> {
        let recent = self.recent();
        let of = self.trained.iter().zip(&*recent);
        of.map(|((name, trained), recent)| (&**name, recent.drift_from(trained))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_keys_are_told_by_feature() {
        let mut trained = Parts::default();
        (0..4000).for_each(|key| trained.add(key % 100));
        let snapshot = |name: &str| FeatureSnapshot { name: name.to_owned(), parts: trained.0.to_vec() };
        let snapshots =
            FeatureSnapshots { features: vec![snapshot("same"), snapshot("other")], before: Vec::new() };
        let drift = KeyDrift::new(["same", "other", "new"].into_iter(), &snapshots);
        assert!(drift.by_feature().iter().all(|(_, drift)| drift.is_none()));
        {
            let mut recent = drift.recent();
            (0..4000).for_each(|key| recent[0].add((key * 7) % 100));
            (0..4000).for_each(|_| recent[1].add(5));
            (0..4000).for_each(|_| recent[2].add(5));
        }
        let found = drift.by_feature();
        assert!(found[0].1.is_some_and(|drift| drift < 0.1), "{found:?}");
        assert!(found[1].1.is_some_and(|drift| drift > 1.0), "{found:?}");
        assert_eq!(found[2], ("new", None));
    }
}
