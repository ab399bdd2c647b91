//! The distribution of the keys of sampled requests to each table, of late and since the start, and how many of the pulled
//! ones have no row. Knows neither a request nor a clock.

use std::collections::HashMap;

use sanderling_observe::Parts;

use crate::limit::SAMPLED_TABLES_MAX;

/// Sampled keys of one table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyShares {
    /// Pulled keys of late that were looked at.
    pub pulled: u64,
    /// Number of them without a row.
    pub unseen: u64,
    recent: Parts,
    all: Parts,
}

impl KeyShares {
    fn add(&mut self, key: u64) {
        self.recent.add(key);
        self.all.add(key);
    }

    fn merge(&mut self, other: &KeyShares) {
        (self.pulled, self.unseen) = (self.pulled + other.pulled, self.unseen + other.unseen);
        self.recent.merge(&other.recent);
        self.all.merge(&other.all);
    }

    /// Share of pulled keys that have no row. `None`: none was looked at.
    #[must_use]
    pub fn unseen_share(&self) -> Option<f64> {
        (self.pulled > 0).then(|| self.unseen as f64 / self.pulled as f64)
    }

    /// The keys since the start.
    pub(crate) fn all(&self) -> &Parts {
        &self.all
    }

    /// Population stability index of the keys of late against others. `None`: there are too few.
    #[must_use]
    pub fn drift_from(&self, others: &Parts) -> Option<f64> {
        self.recent.drift_from(others)
    }

    /// Population stability index of the keys of late against those since the start. `None`: there are too few.
    ///
    /// Below 0.1 they are alike, above 0.25 they are not.
    #[must_use]
    pub fn drift(&self) -> Option<f64> {
        self.recent.drift_from(&self.all)
    }
}

/// Sampled keys of all tables, of one worker or of all.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeySharesByTable(HashMap<u32, KeyShares>);

impl KeySharesByTable {
    /// The counts of a table; those of further tables beyond the limit are not kept.
    fn of(&mut self, table: u32) -> Option<&mut KeyShares> {
        let has_room = self.0.len() < SAMPLED_TABLES_MAX || self.0.contains_key(&table);
        has_room.then(|| self.0.entry(table).or_default())
    }

    /// Adds keys of a request.
    pub(crate) fn add(&mut self, table: u32, keys: impl Iterator<Item = u64>) {
        if let Some(shares) = self.of(table) {
            keys.for_each(|key| shares.add(key));
        }
    }

    /// Adds pulled keys, of which so many have no row.
    pub(crate) fn add_pulled(&mut self, table: u32, pulled: u64, unseen: u64) {
        if let Some(shares) = self.of(table) {
            (shares.pulled, shares.unseen) = (shares.pulled + pulled, shares.unseen + unseen);
        }
    }

    /// Halves the counts of late.
    pub(crate) fn halve(&mut self) {
        for shares in self.0.values_mut() {
            (shares.pulled, shares.unseen) = (shares.pulled / 2, shares.unseen / 2);
            shares.recent.halve();
        }
    }

    /// Adds the counts of another worker.
    pub(crate) fn merge(&mut self, other: &KeySharesByTable) {
        for (&table, shares) in &other.0 {
            if let Some(own) = self.of(table) {
                own.merge(shares);
            }
        }
    }

    /// The counts by table.
    pub(crate) fn into_map(self) -> HashMap<u32, KeyShares> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_told_from_chance() {
        let draw = |seed: u64, keys: u64, among: u64| {
            let mut random = seed;
            (0..keys).map(move |_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % among
            })
        };
        for (keys, other, expected) in [
            (100, 0..1, None),
            (1999, 0..1, None),
            (4000, 0..1000, Some(0.0..0.1)),
            (4000, 1000..1010, Some(0.25..100.0)),
        ] {
            let mut both = KeySharesByTable::default();
            both.add(7, draw(1, keys, 1000));
            // The first keys are forgotten, and others come.
            (0..20).for_each(|_| both.halve());
            let among = other.end - other.start;
            both.add(7, draw(2, keys, among).map(|key| other.start + key));
            let mut sum = KeySharesByTable::default();
            sum.merge(&both);
            let drift = sum.into_map()[&7].drift();
            assert_eq!(drift.is_some(), expected.is_some(), "{drift:?}");
            assert!(drift.is_none_or(|drift| expected.unwrap().contains(&drift)), "{drift:?} of {other:?}");
        }
    }

    #[test]
    fn keys_without_a_row_have_a_share() {
        let mut shares = KeySharesByTable::default();
        shares.add_pulled(1, 30, 10);
        shares.add_pulled(1, 10, 0);
        (0..SAMPLED_TABLES_MAX as u32 + 5).for_each(|table| shares.add(table, [1].into_iter()));
        let found = shares.clone().into_map();
        assert_eq!((found[&1].unseen_share(), found[&0].unseen_share()), (Some(0.25), None));
        assert_eq!(found.len(), SAMPLED_TABLES_MAX);
        shares.halve();
        assert_eq!((shares.into_map()[&1].pulled), 20);
    }
}
