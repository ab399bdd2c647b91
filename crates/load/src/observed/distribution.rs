//! A distribution of durations: an HDR histogram, with count, sum, least and most exactly. Knows nothing of
//! their origin.

use hdrhistogram::Histogram;

/// Significant decimal digits: a percentile is off by at most .1 %.
pub const DIGITS: u8 = 3;
/// Resolution as a part of a percentile: two percentiles that are closer are equal.
pub const PRECISION: f64 = 0.001;
/// Ten minutes. A longer duration counts as this one in the percentiles, not in mean and maximum.
pub const NS_MAX: u64 = 600_000_000_000;
/// A percentile is told only when at least so many samples lie beyond it: below that it is a matter of single
/// samples.
pub const SAMPLES_BEYOND_MIN: f64 = 10.0;

/// Durations in nanoseconds. About 240 KiB, of which only what is used becomes memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    pub(crate) histogram: Histogram<u64>,
    pub(crate) sum_ns: u128,
    pub(crate) min_ns: u64,
    pub(crate) max_ns: u64,
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution::new()
    }
}

impl Distribution {
    /// An empty one.
    #[must_use]
    pub fn new() -> Distribution {
        let histogram = Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("these bounds are possible");
        Distribution { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }

    /// Notes a duration.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns.min(NS_MAX));
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Notes a duration several times.
    pub fn record_many(&mut self, ns: u64, times: u64) {
        if times > 0 {
            self.histogram.saturating_record_n(ns.min(NS_MAX), times);
            self.sum_ns += u128::from(ns) * u128::from(times);
            self.min_ns = self.min_ns.min(ns);
            self.max_ns = self.max_ns.max(ns);
        }
    }

    /// Adds another's durations.
    pub fn merge(&mut self, other: &Distribution) {
        if other.count() > 0 {
            self.histogram.add(&other.histogram).expect("all have the same bounds");
            self.sum_ns += other.sum_ns;
            self.min_ns = self.min_ns.min(other.min_ns);
            self.max_ns = self.max_ns.max(other.max_ns);
        }
    }

    /// How many were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Whether none was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.histogram.is_empty()
    }

    /// Their mean, exactly.
    #[must_use]
    pub fn mean_ns(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.sum_ns as f64 / self.count() as f64)
    }

    /// The longest, exactly.
    #[must_use]
    pub fn max_ns(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.max_ns)
    }

    /// The shortest, exactly.
    #[must_use]
    pub fn min_ns(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.min_ns)
    }

    /// The duration that a share of `quantile` does not exceed, if at least [`SAMPLES_BEYOND_MIN`] samples
    /// lie beyond it.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> Option<u64> {
        let beyond = (1.0 - quantile) * self.count() as f64;
        // Of 1000 samples 10 lie beyond .99, although (1 - .99) * 1000 is a little less.
        (beyond >= SAMPLES_BEYOND_MIN * (1.0 - 1e-9)).then(|| self.quantile_of_any_ns(quantile))
    }

    /// Percentile from any number of samples, 0 from none: for drawing the shape of the distribution.
    #[must_use]
    pub fn quantile_of_any_ns(&self, quantile: f64) -> u64 {
        if self.is_empty() {
            return 0;
        }
        // A bucket's end may lie outside of what was really noted.
        self.histogram.value_at_quantile(quantile).clamp(self.min_ns, self.max_ns)
    }

    /// The histogram, for other tools.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}
