//! The checks: counters between acknowledged and begun pushes, and replicas that are equal to the bit.

use std::collections::{BTreeMap, HashMap};

use sanderling_store::Table;

use crate::group::Member;

/// The table whose weights count the pushes of a key.
pub(super) const COUNTERS: u32 = 0;
/// Added to keys of the other table of counters.
const OTHER_TABLE: u64 = 1 << 32;

/// The name of a counter: a key of one of the tables of counters.
pub(super) fn counter(table: u32, key: u64) -> u64 {
    if table == COUNTERS { key } else { key + OTHER_TABLE }
}

/// The clients' knowledge of the counters, and the acknowledging member of each epoch.
#[derive(Debug, Default)]
pub(super) struct Check {
    begun: HashMap<u64, u64>,
    acknowledged: HashMap<u64, u64>,
    acknowledging: HashMap<u64, Member>,
}

/// The rows of a table, to the bit.
pub(super) type Bits = BTreeMap<u64, (u32, u32, Vec<u32>)>;

/// Reads all rows. Rows without an update are as good as none.
pub(super) fn bits(table: &Table) -> Bits {
    let mut rows = Bits::new();
    table.for_each_row(|row| {
        if row.version > 0 {
            let values = row.weights.iter().chain(row.state).map(|value| value.to_bits()).collect();
            rows.insert(row.key, (row.version, row.frequency, values));
        }
    });
    rows
}

impl Check {
    pub(super) fn begin(&mut self, keys: &[u64]) {
        keys.iter().for_each(|&key| *self.begun.entry(key).or_default() += 1);
    }

    pub(super) fn acknowledge(&mut self, keys: &[u64]) {
        keys.iter().for_each(|&key| *self.acknowledged.entry(key).or_default() += 1);
    }

    pub(super) fn acknowledged(&self, key: u64) -> u64 {
        self.acknowledged.get(&key).copied().unwrap_or(0)
    }

    /// One primary acknowledges per epoch.
    pub(super) fn acknowledged_by(&mut self, member: Member, epoch: u64) -> Result<(), String> {
        let known = *self.acknowledging.entry(epoch).or_insert(member);
        if known == member {
            Ok(())
        } else {
            Err(format!("{known:?} and {member:?} acknowledge in epoch {epoch}"))
        }
    }

    /// Checks a counter that was read, after at least `least` pushes had been acknowledged.
    pub(super) fn read(&self, key: u64, value: f32, least: u64) -> Result<(), String> {
        let begun = self.begun.get(&key).copied().unwrap_or(0);
        if value < least as f32 || value > begun as f32 {
            return Err(format!("a pull of key {key} gave {value}, not {least} to {begun}"));
        }
        Ok(())
    }

    /// Checks the counters of a replica when every client is done.
    pub(super) fn counters(&self, rows: &Bits) -> Result<(), String> {
        for (&key, &begun) in &self.begun {
            let acknowledged = self.acknowledged(key);
            let (version, value) =
                rows.get(&key).map_or((0, 0.0), |(version, _, values)| (*version, f32::from_bits(values[0])));
            let count = u64::from(version);
            if count < acknowledged || count > begun || value != version as f32 {
                return Err(format!(
                    "key {key}: version {version}, weight {value}, {acknowledged} acknowledged of {begun}"
                ));
            }
        }
        Ok(())
    }
}
