//! The set of acknowledged numbers: all below one, and some above. Knows no minibatch.

use std::collections::BTreeMap;

/// A set of numbers that grows from 0 with few gaps: each gap is a minibatch that is not acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AckSet {
    /// All numbers below this are in the set, and this one is not.
    prefix: u64,
    /// Ranges above the prefix, none touching another: first to end.
    above: BTreeMap<u64, u64>,
}

impl AckSet {
    /// All numbers below `prefix` and these ranges above it, first to end; `None` if the ranges are out of order or
    /// touch.
    pub(crate) fn of(prefix: u64, ranges: &[(u64, u64)]) -> Option<AckSet> {
        let mut end = prefix;
        for &(first, next) in ranges {
            if first <= end || next <= first {
                return None;
            }
            end = next;
        }
        Some(AckSet { prefix, above: ranges.iter().copied().collect() })
    }

    /// All numbers below this are in the set, and this one is not.
    pub(crate) fn prefix(&self) -> u64 {
        self.prefix
    }

    /// The ranges above the prefix, first to end.
    pub(crate) fn above(&self) -> impl Iterator<Item = (u64, u64)> {
        self.above.iter().map(|(&first, &end)| (first, end))
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        number < self.prefix || self.above.range(..=number).next_back().is_some_and(|(_, &end)| number < end)
    }

    /// Adds a number; `false` if the set had it.
    pub(crate) fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let (mut first, mut end) = (number, number + 1);
        if let Some(next) = self.above.remove(&end) {
            end = next;
        }
        if let Some((&before, _)) = self.above.range(..first).next_back().filter(|(_, end)| **end == first) {
            first = before;
        }
        if first == self.prefix {
            self.above.remove(&first);
            self.prefix = end;
        } else {
            self.above.insert(first, end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_set_whatever_the_order() {
        for seed in 0..50_u64 {
            let mut numbers: Vec<u64> = (0..60).collect();
            // Each seed gives another permutation: multiplication modulo a prime is one.
            numbers.sort_by_key(|number| (number + 1) * (seed + 2) % 61);
            let (mut acked, mut model) = (AckSet::default(), std::collections::BTreeSet::new());
            for &number in &numbers {
                assert_eq!(acked.insert(number), model.insert(number));
                assert!(!acked.insert(number));
                assert!((0..62).all(|other| acked.contains(other) == model.contains(&other)));
                let prefix = (0..).find(|number| !model.contains(number)).unwrap_or_default();
                assert_eq!(acked.prefix(), prefix);
                let ranges: Vec<_> = acked.above().collect();
                assert_eq!(AckSet::of(prefix, &ranges), Some(acked.clone()));
            }
            assert_eq!((acked.prefix(), acked.above().count()), (60, 0));
        }
    }

    #[test]
    fn ranges_that_touch_or_go_back_are_refused() {
        for ranges in [&[(5, 6)][..], &[(6, 6)], &[(7, 9), (9, 10)], &[(9, 10), (7, 8)]] {
            assert_eq!(AckSet::of(5, ranges), None, "{ranges:?}");
        }
    }
}
