//! Distributions of durations, exact in count, sum, least and most, and to 1 % in between. Knows nothing of what took
//! the time.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Two significant digits: the error of a percentile is at most 1 %.
const DIGITS: u8 = 2;
/// A longer duration counts as this one in the percentiles, not in average and maximum.
const NS_MAX: u64 = 600_000_000_000;

/// Durations as one thread notes them; about 32 KiB. Those of several threads can be added up.
#[derive(Debug, Clone)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

/// The numbers that matter of a distribution, in nanoseconds; all 0 when nothing was noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // numbers as they are called everywhere
pub struct LatencySummary {
    pub count: u64,
    /// At most what fits, 584 years.
    pub sum_ns: u64,
    pub average_ns: u64,
    pub min_ns: u64,
    pub max_ns: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency::new()
    }
}

impl Latency {
    /// An empty one.
    #[must_use]
    pub fn new() -> Latency {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("these bounds are possible");
        Latency { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }

    /// Notes a duration. Allocates nothing.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.histogram.saturating_record(ns.clamp(1, NS_MAX));
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds what another has noted.
    pub fn merge(&mut self, other: &Latency) {
        self.histogram.add(&other.histogram).expect("all have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The numbers.
    #[must_use]
    pub fn summary(&self) -> LatencySummary {
        let count = self.histogram.len();
        if count == 0 {
            return LatencySummary::default();
        }
        // A bucket's representative may lie outside of what was really noted.
        let at = |quantile| self.histogram.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns);
        LatencySummary {
            count,
            sum_ns: u64::try_from(self.sum_ns).unwrap_or(u64::MAX),
            average_ns: (self.sum_ns / u128::from(count)) as u64,
            min_ns: self.min_ns,
            max_ns: self.max_ns,
            p50_ns: at(0.5),
            p95_ns: at(0.95),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_near_those_of_the_sorted_durations(
            mut ns in prop::collection::vec(prop_oneof![0_u64..100, 0_u64..1 << 40, Just(u64::MAX)], 1..200),
            cut in 0_usize..200,
        ) {
            let (mut one, mut other) = (Latency::new(), Latency::new());
            let cut = cut.min(ns.len());
            ns[..cut].iter().for_each(|&ns| one.record(Duration::from_nanos(ns)));
            ns[cut..].iter().for_each(|&ns| other.record(Duration::from_nanos(ns)));
            one.merge(&other);
            let found = one.summary();
            ns.sort_unstable();
            let last = ns[ns.len() - 1];
            prop_assert_eq!((found.count, found.min_ns, found.max_ns), (ns.len() as u64, ns[0], last));
            let sum: u128 = ns.iter().map(|&ns| u128::from(ns)).sum();
            prop_assert_eq!(u128::from(found.sum_ns), sum.min(u128::from(u64::MAX)));
            prop_assert_eq!(u128::from(found.average_ns), sum / ns.len() as u128);
            for (quantile, found) in [(0.5, found.p50_ns), (0.95, found.p95_ns), (0.999, found.p999_ns)] {
                let rank = ((quantile * ns.len() as f64).ceil() as usize).max(1);
                let exact = ns[rank - 1].min(NS_MAX) as f64;
                prop_assert!((found as f64 - exact).abs() <= exact * 0.011 + 1.0 || exact == NS_MAX as f64,
                    "{}: {} is not {}", quantile, found, exact);
            }
        }
    }

    #[test]
    fn nothing_noted_is_all_zero() {
        assert_eq!(Latency::new().summary(), LatencySummary::default());
    }
}
