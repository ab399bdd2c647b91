//! The counts of one feature in sampled minibatches. Knows no thread.

use sanderling_observe::{Magnitudes, Parts};

use super::KEYS_MAX;
use super::stats::{FeatureSnapshot, FeatureStats};
use crate::lookup::Lookup;

/// Keys that are kept, drawn from all that were looked at.
const KEPT_MAX: usize = 64;
/// The keys of late are half as many when there are so many.
const RECENT_MAX: u64 = 16_384;

/// See the top of this file.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Occurrences in sampled minibatches, and how many of them found their key there already.
    occurrences: u64,
    repeated: u64,
    /// Occurrences that were looked at, and how many have no row.
    looked: u64,
    unseen: u64,
    norms: Magnitudes,
    gradients: Magnitudes,
    all: Parts,
    recent: Parts,
    kept: Vec<u64>,
}

/// The occurrences that are looked at, evenly over all.
fn chosen(count: usize, first: usize) -> impl Iterator<Item = usize> {
    let step = count.div_ceil(KEYS_MAX).max(1);
    (first % step..count).step_by(step)
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>().sqrt()
}

impl Tally {
    /// Counts the keys and rows of a feature after a pull.
    pub(super) fn note_pull(&mut self, lookup: &Lookup, feature: usize, first: usize) {
        if lookup.is_fed(lookup.table_number(feature)) {
            return;
        }
        let (indices, table) = (lookup.indices(feature), lookup.table(feature));
        self.occurrences += indices.len() as u64;
        self.repeated += indices.len().saturating_sub(lookup.new_keys(feature)) as u64;
        for at in chosen(indices.len(), first) {
            let index = indices[at];
            self.note_key(table.dedup.unique[index as usize], first.wrapping_add(at));
            match table.missing.binary_search(&index) {
                Ok(_) => self.unseen += 1,
                Err(_) => self.norms.add(norm(&table.rows[index as usize * table.dim..][..table.dim])),
            }
        }
    }

    fn note_key(&mut self, key: u64, random: usize) {
        self.looked += 1;
        self.all.add(key);
        self.recent.add(key);
        if self.looked.is_multiple_of(RECENT_MAX / 2) && self.recent.total() >= RECENT_MAX {
            self.recent.halve();
        }
        if self.kept.len() < KEPT_MAX {
            self.kept.push(key);
            return;
        }
        // Each occurrence so far is kept with the same probability.
        let place = random.wrapping_mul(0x9E37_79B9_7F4A_7C15) as u64 % self.looked;
        if let Some(kept) = self.kept.get_mut(place as usize) {
            *kept = key;
        }
    }

    /// Counts the gradients of a feature before a push.
    pub(super) fn note_push(&mut self, lookup: &mut Lookup, feature: usize, first: usize) {
        if lookup.is_fed(lookup.table_number(feature)) {
            return;
        }
        let (indices, dim, gradients) = lookup.gradients_of(feature);
        for at in chosen(indices.len(), first) {
            // After keys were dropped from the push there are fewer rows.
            let Some(gradient) = gradients.get(indices[at] as usize * dim..).and_then(|rest| rest.get(..dim))
            else {
                return;
            };
            self.gradients.add(norm(gradient));
        }
    }

    pub(super) fn merge(&mut self, other: &Tally) {
        let Tally { occurrences, repeated, looked, unseen, norms, gradients, all, recent, kept } = other;
        self.occurrences += occurrences;
        self.repeated += repeated;
        self.looked += looked;
        self.unseen += unseen;
        self.norms.merge(norms);
        self.gradients.merge(gradients);
        self.all.merge(all);
        self.recent.merge(recent);
        let room = KEPT_MAX.saturating_sub(self.kept.len());
        self.kept.extend(kept.iter().take(room));
    }

    /// Whether keys were looked at, in this session or one before.
    pub(super) fn has_keys(&self) -> bool {
        self.all.total() > 0
    }

    /// Keys that were drawn from all that were looked at.
    pub(super) fn keys(&self) -> &[u64] {
        &self.kept
    }

    pub(super) fn snapshot(&self, name: &str) -> FeatureSnapshot {
        FeatureSnapshot { name: name.to_owned(), parts: self.all.0.to_vec() }
    }

    pub(super) fn resume(&mut self, snapshot: &FeatureSnapshot) {
        self.all.merge(&snapshot.keys());
    }

    pub(super) fn stats(&self, name: &str, table: &str, trained: Option<&FeatureSnapshot>) -> FeatureStats {
        let share = |part: u64, of: u64| (of > 0).then(|| part as f64 / of as f64);
        FeatureStats {
            name: name.to_owned(),
            table: table.to_owned(),
            keys: self.looked,
            unseen_share: share(self.unseen, self.looked),
            hit_share: share(self.repeated, self.occurrences),
            norm_p50: self.norms.quantile(0.5),
            norm_p90: self.norms.quantile(0.9),
            norm_p99: self.norms.quantile(0.99),
            norm_max: self.norms.quantile(1.0),
            gradient_p50: self.gradients.quantile(0.5),
            gradient_p99: self.gradients.quantile(0.99),
            drift: self.recent.drift_from(&self.all),
            drift_trained: trained.and_then(|trained| self.recent.drift_from(&trained.keys())),
            ..FeatureStats::default()
        }
    }
}
