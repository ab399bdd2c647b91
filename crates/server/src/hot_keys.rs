//! The keys that occur most, by the algorithm of Misra and Gries (1982) with counters pruned in batches. Knows neither
//! where keys are from nor a clock.
//!
//! A key in more than 1 of [`HOT_KEYS_MAX`] additions is always among the counters. A count is at most
//! [`HotKeys::error`] too small. Counts are halved at times, so that they tell of recent traffic.

use std::collections::HashMap;

use crate::limit::HOT_KEYS_MAX;

/// Counters of the keys of all tables.
#[derive(Debug, Clone, Default)]
pub(crate) struct HotKeys {
    counts: HashMap<(u32, u64), u64>,
    error: u64,
    total: u64,
}

impl HotKeys {
    /// Adds a key of a table.
    pub(crate) fn add(&mut self, table: u32, key: u64) {
        self.total += 1;
        *self.counts.entry((table, key)).or_default() += 1;
        if self.counts.len() >= 2 * HOT_KEYS_MAX {
            self.prune();
        }
    }

    /// Adds the counts of another one.
    pub(crate) fn merge(&mut self, other: &HotKeys) {
        for (&key, &count) in &other.counts {
            *self.counts.entry(key).or_default() += count;
        }
        (self.error, self.total) = (self.error + other.error, self.total + other.total);
        if self.counts.len() > HOT_KEYS_MAX {
            self.prune();
        }
    }

    /// Takes as much from all counters as leaves at most [`HOT_KEYS_MAX`].
    fn prune(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let (_, &mut taken, _) = counts.select_nth_unstable_by(HOT_KEYS_MAX, |a, b| b.cmp(a));
        self.counts.retain(|_, count| {
            *count = count.saturating_sub(taken);
            *count > 0
        });
        self.error += taken;
    }

    /// Halves all counts.
    pub(crate) fn halve(&mut self) {
        self.counts.retain(|_, count| {
            *count /= 2;
            *count > 0
        });
        (self.error, self.total) = (self.error.div_ceil(2), self.total / 2);
    }

    /// The most that a count may be too small.
    pub(crate) fn error(&self) -> u64 {
        self.error
    }

    /// Keys that were added.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Table, key and count, the highest count first.
    pub(crate) fn sorted(&self) -> Vec<(u32, u64, u64)> {
        let mut sorted: Vec<_> =
            self.counts.iter().map(|(&(table, key), &count)| (table, key, count)).collect();
        sorted.sort_unstable_by(|a, b| b.2.cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        sorted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds keys of which every third is hot, and one in each `1 << 20` of others is drawn.
    fn skewed(seed: u64) -> (HotKeys, HashMap<u64, u64>) {
        let (mut hot, mut exact, mut random) = (HotKeys::default(), HashMap::new(), seed);
        for at in 0..200_000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = if at % 3 == 0 { random >> 62 } else { random >> 44 };
            hot.add(1, key);
            *exact.entry(key).or_default() += 1;
        }
        (hot, exact)
    }

    #[test]
    fn keys_that_occur_often_are_found_with_their_counts() {
        let ((one, exact), (other, exact_other)) = (skewed(1), skewed(2));
        let mut both = one.clone();
        both.merge(&other);
        for (hot, exact) in [(&one, vec![&exact]), (&both, vec![&exact, &exact_other])] {
            let count = |key| exact.iter().filter_map(|exact| exact.get(&key)).sum::<u64>();
            let sorted = hot.sorted();
            assert!(sorted.len() <= 2 * HOT_KEYS_MAX && hot.error() <= hot.total() / HOT_KEYS_MAX as u64);
            for &(_, key, found) in &sorted {
                assert!(found <= count(key) && count(key) <= found + hot.error(), "{key}");
            }
            let mut first: Vec<u64> = sorted.iter().take(4).map(|&(_, key, _)| key).collect();
            first.sort_unstable();
            assert_eq!(first, [0, 1, 2, 3]);
        }
    }

    #[test]
    fn counts_are_forgotten() {
        let mut hot = HotKeys::default();
        (0..5).for_each(|_| hot.add(7, 1));
        hot.add(7, 2);
        hot.halve();
        assert_eq!((hot.sorted(), hot.total()), (vec![(7, 1, 2)], 3));
        (0..2).for_each(|_| hot.halve());
        assert!(hot.sorted().is_empty());
    }
}
