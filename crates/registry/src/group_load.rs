//! The measured load of a group, as its primary tells it in the registry. Knows no server and no clock.
//!
//! A slot has a hash's share of the keys, so most slots of a group are alike. The record names those with far more work
//! than the others, and has the sum of all. So it stays small.

use std::collections::{BTreeMap, VecDeque};

use sanderling_replica::{Placement, SlotWork};
use serde::{Deserialize, Serialize};

use crate::cluster_view::numbered;
use crate::plan::Weights;
use crate::registry::{Listing, RegistryError};

/// Beginning of the names of all loads, each a [`GroupLoad`].
pub const LOADS: &str = "load/";
/// Slots that a record names, at most.
const HEAVY_MAX: usize = 64;
/// A slot is heavy if it has this many times the mean of the others,
const HEAVY_TIMES: f64 = 2.0;
/// and so many standard deviations of a count more than that.
const HEAVY_DEVIATIONS: f64 = 4.0;
/// Looks of a window. The first and the last one give the rates.
const LOOKS: usize = 7;
/// Sampled requests of a window without which its load is not known.
const SAMPLED_MIN: u64 = 16;
/// Keys per second of a cluster below which the load does not count.
const KEYS_PER_S_MIN: f64 = 1000.0;
/// Rows of a cluster below which they do not count.
const ROWS_MIN: u64 = 1_000_000;
/// Measures are not exact: groups that cost up to this multiple of an equal share are alike.
const ALIKE: f64 = 1.02;

/// Name of a group's load.
#[must_use]
pub fn load_name(group: u32) -> String {
    format!("{LOADS}{group}")
}

/// The load of a group over the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupLoad {
    /// Keys of requests per second. A pushed key counts as three that are pulled.
    pub keys_per_s: f64,
    /// Slots with far more than the others, and their keys per second.
    #[serde(default)]
    pub heavy: Vec<(u32, f64)>,
    /// Rows of tables that are shared out by slots.
    pub rows: u64,
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// Bytes that they may take; 0: as many as there are.
    #[serde(default)]
    pub table_budget_bytes: u64,
    /// When it was measured, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl GroupLoad {
    /// The share of its memory that the group's tables take.
    #[must_use]
    pub fn memory_share(&self) -> f64 {
        match self.table_budget_bytes {
            0 => 0.0,
            budget => self.table_bytes as f64 / budget as f64,
        }
    }
}

/// The counts of a server at some moments of the last minute.
#[derive(Debug, Default)]
pub struct LoadWindow {
    looks: VecDeque<(u64, SlotWork)>,
}

impl LoadWindow {
    /// Adds the counts as of a moment in milliseconds; returns the keys per second, and the heavy slots with theirs.
    /// `None`: too little was sampled.
    pub fn add(&mut self, now_ms: u64, work: SlotWork) -> Option<(f64, Vec<(u32, f64)>)> {
        if self.looks.back().is_some_and(|(_, last)| last.requests > work.requests) {
            self.looks.clear();
        }
        self.looks.push_back((now_ms, work));
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let (Some((from_ms, first)), Some((to_ms, last))) = (self.looks.front(), self.looks.back()) else {
            return None;
        };
        let sampled = last.sampled - first.sampled;
        if sampled < SAMPLED_MIN || to_ms <= from_ms {
            return None;
        }
        let seconds = (to_ms - from_ms) as f64 / 1e3;
        let each = (last.requests - first.requests) as f64 / sampled as f64 / seconds;
        let before = |slot: usize| first.keys.get(slot).copied().unwrap_or_default();
        let counts: Vec<u64> = (0..).zip(&last.keys).map(|(slot, keys)| keys - before(slot)).collect();
        let sum: u64 = counts.iter().sum();
        let used = counts.iter().filter(|count| **count > 0).count().max(1);
        // The median tells what a slot has that is not heavy.
        let mut sorted: Vec<u64> = counts.iter().copied().filter(|count| *count > 0).collect();
        sorted.sort_unstable();
        let usual = sorted.get(used / 2).copied().unwrap_or_default() as f64;
        let least = (usual * HEAVY_TIMES).max(usual + HEAVY_DEVIATIONS * usual.sqrt());
        let mut heavy: Vec<(u32, u64)> =
            (0..).zip(counts).filter(|(_, count)| *count as f64 > least.max(1.0)).collect();
        heavy.sort_unstable_by_key(|&(slot, count)| (std::cmp::Reverse(count), slot));
        heavy.truncate(HEAVY_MAX);
        let rate = |count: u64| count as f64 * each;
        Some((rate(sum), heavy.into_iter().map(|(slot, count)| (slot, rate(count))).collect()))
    }
}

/// The loads of all groups among these records.
///
/// # Errors
/// [`RegistryError::Damaged`] names the record that is not what it should be.
pub fn loads(url: &str, listing: &Listing) -> Result<BTreeMap<u32, GroupLoad>, RegistryError> {
    numbered(url, listing, LOADS)
}

/// The weights of the slots. Slots of a group that are not heavy are alike. `None`: the load of a group with
/// slots is not known, or there is neither enough load nor enough rows to tell.
#[must_use]
pub fn weights(placement: &Placement, loads: &BTreeMap<u32, GroupLoad>) -> Option<Weights> {
    let groups = placement.groups();
    let counts = |load: &GroupLoad| (load.keys_per_s, load.rows);
    let sums = loads.values().map(counts).fold((0.0, 0), |sums, one| (sums.0 + one.0, sums.1 + one.1));
    let (has_load, has_rows) = (sums.0 >= KEYS_PER_S_MIN, sums.1 >= ROWS_MIN);
    if groups.iter().any(|group| !loads.contains_key(group)) || !(has_load || has_rows) {
        return None;
    }
    let slots = groups.len();
    let mut weights = Weights { load: vec![0.0; slots], rows: vec![0.0; slots], alike: ALIKE };
    for (&group, load) in loads {
        let own: Vec<usize> = (0..slots).filter(|&slot| groups[slot] == group).collect();
        let is_own = |slot: u32| groups.get(slot as usize) == Some(&group);
        let heavy: Vec<(u32, f64)> = load.heavy.iter().copied().filter(|(slot, _)| is_own(*slot)).collect();
        let rest = (load.keys_per_s - heavy.iter().map(|(_, rate)| rate).sum::<f64>()).max(0.0);
        let usual = rest / own.len().saturating_sub(heavy.len()).max(1) as f64;
        for &slot in &own {
            weights.load[slot] = usual;
            weights.rows[slot] = load.rows as f64 / own.len() as f64;
        }
        heavy.into_iter().for_each(|(slot, rate)| weights.load[slot as usize] = rate);
    }
    for (shares, counts) in [(&mut weights.load, has_load), (&mut weights.rows, has_rows)] {
        let sum: f64 = shares.iter().sum();
        shares.iter_mut().for_each(|share| *share = if counts && sum > 0.0 { *share / sum } else { 0.0 });
    }
    Some(weights)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of a server after so many requests, one of ten of which was sampled, with 10 keys each: half of them of
    /// slot 3.
    fn work(requests: u64) -> SlotWork {
        let keys = (0..101).map(|slot| if slot == 3 { requests / 2 } else { requests / 200 }).collect();
        SlotWork { requests, sampled: requests / 10, keys }
    }

    #[test]
    fn a_window_has_the_rate_and_the_heavy_slots_of_the_last_looks() {
        let mut window = LoadWindow::default();
        assert_eq!(window.add(0, work(0)), None);
        assert_eq!(window.add(10_000, work(100)), None, "10 samples are too few");
        let (rate, heavy) = window.add(20_000, work(20_000)).expect("enough is sampled");
        // 1,000 requests a second of 10 keys.
        assert!((rate - 10_000.0).abs() < 1.0, "{rate}");
        assert_eq!(heavy.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [3]);
        assert!((heavy[0].1 - 5_000.0).abs() < 1.0, "{heavy:?}");
        // Only the last looks count.
        for look in 3..20 {
            window.add(look * 10_000, work(20_000 + look));
        }
        assert_eq!(window.add(200_000, work(20_020)), None);
        // A server that began anew has lower counts.
        assert_eq!(window.add(210_000, work(10)), None);
    }

    #[test]
    fn weights_are_shares_of_load_and_rows() {
        let placement = Placement::even(8, 2);
        let load = |keys_per_s, heavy: &[(u32, f64)], rows| GroupLoad {
            keys_per_s,
            heavy: heavy.to_vec(),
            rows,
            ..GroupLoad::default()
        };
        // Slot 7 is not of group 0, so what the record says of it is old.
        let busy = load(7000.0, &[(1, 4000.0), (7, 900.0)], 3_000_000);
        let idle = load(7.0, &[(1, 4.0), (7, 1.0)], 300);
        let by_load = vec![0.1, 0.4, 0.1, 0.1, 0.075, 0.075, 0.075, 0.075];
        let by_rows = vec![0.1875, 0.1875, 0.1875, 0.1875, 0.0625, 0.0625, 0.0625, 0.0625];
        let none = vec![0.0; 8];
        for (one, other, expected) in [
            (busy.clone(), Some(load(3000.0, &[], 1_000_000)), Some((&by_load, &by_rows))),
            (GroupLoad { rows: 300, ..busy.clone() }, Some(load(3000.0, &[], 100)), Some((&by_load, &none))),
            (load(7.0, &[], 3_000_000), Some(load(3.0, &[], 1_000_000)), Some((&none, &by_rows))),
            (idle, Some(load(3.0, &[], 100)), None),
            (busy, None, None),
        ] {
            let loads =
                [(0, Some(one)), (1, other)].into_iter().filter_map(|(group, load)| Some((group, load?)));
            let found = weights(&placement, &loads.collect());
            let found = found.map(|weights| (weights.load, weights.rows));
            assert_eq!(found.as_ref().map(|(load, rows)| (load, rows)), expected);
        }
    }

    #[test]
    fn a_record_is_small() {
        let heavy = (0..HEAVY_MAX as u32).map(|slot| (slot + 4000, 123_456.789_012)).collect();
        let load = GroupLoad { keys_per_s: 1e7 / 3.0, heavy, rows: u64::MAX, ..GroupLoad::default() };
        let text = serde_json::to_string(&load).expect("it is JSON");
        assert!(text.len() < 4096, "{}", text.len());
        assert_eq!(serde_json::from_str::<GroupLoad>(&text).expect("it is a load"), load);
    }
}
