//! Counts of keys that got a row, were rejected or evicted, as a saved model keeps them. Knows no policy.

use std::collections::BTreeMap;

use sanderling_client::{Client, FeatureStats};
use sanderling_store::TableStats;
use serde::{Deserialize, Serialize};

/// Fates of keys in a table, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableCounters {
    /// New keys that got a row.
    pub admitted: u64,
    /// Pushes of new keys that the admission rejected.
    pub rejected: u64,
    /// Evicted rows.
    pub evicted: u64,
    /// Pushes of new keys that a full table rejected.
    pub rejected_full: u64,
}

impl TableCounters {
    /// The counts of a table since it was opened.
    #[must_use]
    pub fn of(stats: &TableStats) -> Self {
        TableCounters::default().plus(stats)
    }

    /// With those of a table since it was opened.
    pub(crate) fn plus(self, stats: &TableStats) -> Self {
        TableCounters {
            admitted: self.admitted + stats.admitted,
            rejected: self.rejected + stats.rejected,
            evicted: self.evicted + stats.evicted,
            rejected_full: self.rejected_full + stats.rejected_full,
        }
    }
}

impl TableCounters {
    /// Sets the fates of keys of a feature's table.
    pub(crate) fn set(self, feature: &mut FeatureStats) {
        feature.admitted = Some(self.admitted);
        feature.rejected = Some(self.rejected);
        feature.evicted = Some(self.evicted);
        feature.rejected_full = Some(self.rejected_full);
    }

    /// Adds the fates of keys before this session to those of a feature's table.
    pub(crate) fn add_to(self, feature: &mut FeatureStats) {
        let add = |count: &mut Option<u64>, before: u64| count.iter_mut().for_each(|count| *count += before);
        add(&mut feature.admitted, self.admitted);
        add(&mut feature.rejected, self.rejected);
        add(&mut feature.evicted, self.evicted);
        add(&mut feature.rejected_full, self.rejected_full);
    }
}

/// The counters of tables in this process, by name, after those of earlier sessions of its run.
pub(crate) fn counters_now(
    client: &Client,
    before: &BTreeMap<String, TableCounters>,
) -> BTreeMap<String, TableCounters> {
    let tables = client.tables().iter();
    let now = tables.map(|table| {
        let before = before.get(table.name()).copied().unwrap_or_default();
        (table.name().to_owned(), before.plus(&table.stats()))
    });
    now.collect()
}
