//! Counting values in bounded memory: the number of distinct ones, and the most frequent. Knows bytes and their
//! hashes, no columns.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh3::xxh3_64;

/// Distinct values are counted exactly up to this many per column, then estimated.
pub const DISTINCT_EXACT_MAX: usize = 1 << 20;

/// Registers of the estimate: a power of two; the standard error is 1.04 / sqrt(registers), 0.8 percent.
const REGISTERS_LOG2: u32 = 14;

/// At most this many bytes of a value are kept for display.
pub const VALUE_BYTES_MAX: usize = 64;

/// A hasher for keys that are hashes already.
#[derive(Default)]
pub(super) struct Passed(u64);

impl Hasher for Passed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type HashBuilder = BuildHasherDefault<Passed>;

/// The number of distinct values: exact while they are few, then by HyperLogLog (Flajolet et al. 2007) with the
/// small-range correction.
pub(super) struct Distinct {
    exact: Option<HashSet<u64, HashBuilder>>,
    registers: Vec<u8>,
    exact_max: usize,
}

impl Distinct {
    /// Exact up to `exact_max` values.
    pub(super) fn new(exact_max: usize) -> Distinct {
        Distinct { exact: Some(HashSet::default()), registers: Vec::new(), exact_max }
    }

    /// A copy that counts on independently, exact up to `exact_max` values.
    pub(super) fn copy(&self, exact_max: usize) -> Distinct {
        let mut copy = Distinct { exact: None, registers: self.registers.clone(), exact_max };
        match &self.exact {
            Some(exact) if exact.len() <= exact_max => copy.exact = Some(exact.clone()),
            Some(exact) => {
                copy.registers = vec![0; 1 << REGISTERS_LOG2];
                exact.iter().for_each(|&hash| copy.register(hash));
            }
            None => {}
        }
        copy
    }

    /// Adds a value by its hash.
    pub(super) fn add(&mut self, hash: u64) {
        let Some(exact) = &mut self.exact else {
            self.register(hash);
            return;
        };
        exact.insert(hash);
        if exact.len() > self.exact_max {
            let exact = self.exact.take().unwrap_or_default();
            self.registers = vec![0; 1 << REGISTERS_LOG2];
            for hash in exact {
                self.register(hash);
            }
        }
    }

    fn register(&mut self, hash: u64) {
        let index = (hash >> (64 - REGISTERS_LOG2)) as usize;
        let rank = ((hash << REGISTERS_LOG2) | (1 << (REGISTERS_LOG2 - 1))).leading_zeros() as u8 + 1;
        self.registers[index] = self.registers[index].max(rank);
    }

    /// The count, and whether it is an estimate.
    pub(super) fn count(&self) -> (u64, bool) {
        if let Some(exact) = &self.exact {
            return (exact.len() as u64, false);
        }
        let registers = self.registers.len() as f64;
        let alpha = 0.7213 / (1.0 + 1.079 / registers);
        let sum: f64 = self.registers.iter().map(|&rank| (-f64::from(rank)).exp2()).sum();
        let estimate = alpha * registers * registers / sum;
        let empty = self.registers.iter().filter(|&&rank| rank == 0).count();
        let corrected = if estimate <= 2.5 * registers && empty > 0 {
            registers * (registers / empty as f64).ln()
        } else {
            estimate
        };
        (corrected.round() as u64, true)
    }
}

/// The most frequent values: exact while at most `2 * capacity` are distinct; then every count is a lower bound that
/// is off by at most [`Frequent::error`] (Misra and Gries 1982, decremented in bulk).
#[derive(Clone)]
pub(super) struct Frequent {
    counts: HashMap<u64, (u64, Box<[u8]>), HashBuilder>,
    capacity: usize,
    error: u64,
}

impl Frequent {
    pub(super) fn new(capacity: usize) -> Frequent {
        Frequent { counts: HashMap::default(), capacity, error: 0 }
    }

    pub(super) fn add(&mut self, hash: u64, value: &[u8]) {
        self.add_many(hash, value, 1);
    }

    /// Adds a value `times` times.
    pub(super) fn add_many(&mut self, hash: u64, value: &[u8], times: u64) {
        let first = &value[..value.len().min(VALUE_BYTES_MAX)];
        self.counts.entry(hash).or_insert_with(|| (0, first.into())).0 += times;
        if self.counts.len() > 2 * self.capacity {
            let mut counts: Vec<u64> = self.counts.values().map(|(count, _)| *count).collect();
            // Subtracts the count of the first value beyond the capacity from all.
            let (_, cut, _) = counts.select_nth_unstable_by(self.capacity, |a, b| b.cmp(a));
            let cut = *cut;
            self.counts.retain(|_, (count, _)| {
                *count = count.saturating_sub(cut);
                *count > 0
            });
            self.error += cut;
        }
    }

    /// The most by which a count may be too low.
    pub(super) fn error(&self) -> u64 {
        self.error
    }

    /// The most frequent values with their counts, ties in the order of their bytes.
    pub(super) fn top(&self, limit: usize) -> Vec<(u64, &[u8])> {
        let mut all: Vec<(u64, &[u8])> =
            self.counts.values().map(|(count, value)| (*count, &**value)).collect();
        all.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
        all.truncate(limit);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_counts_are_exact_and_then_close() {
        for (values, exact_max) in [(1000u64, 1000usize), (20_000, 100), (300_000, 100), (3_000_000, 1000)] {
            let mut distinct = Distinct::new(exact_max);
            (0..values).chain(0..values / 2).for_each(|value| distinct.add(xxh3_64(&value.to_le_bytes())));
            let (count, estimated) = distinct.count();
            assert_eq!(estimated, values > exact_max as u64);
            let off = (count as f64 - values as f64).abs() / values as f64;
            assert!(off <= if estimated { 0.03 } else { 0.0 }, "{values}: {count}");
        }
    }

    #[test]
    fn frequent_values_survive_a_flood_of_rare_ones() {
        let mut frequent = Frequent::new(50);
        for index in 0..100_000u64 {
            let text = if index % 10 == 0 { format!("hot{}", index % 30) } else { format!("rare{index}") };
            frequent.add(xxh3_64(text.as_bytes()), text.as_bytes());
        }
        let top = frequent.top(3);
        let mut names: Vec<&[u8]> = top.iter().map(|(_, value)| *value).collect();
        names.sort_unstable();
        assert_eq!(names, [b"hot0".as_slice(), b"hot10", b"hot20"]);
        for (count, _) in top {
            assert!(count <= 3334 && count + frequent.error() >= 3333, "{count} {}", frequent.error());
        }
    }
}
