//! Sums that do not depend on how their terms were grouped: metrics of a run that was stopped and resumed, or scored by
//! several threads, equal those of a run in one piece. Knows no metric.

/// A sum as the value of two floats, the second holding what the first cannot (Knuth's TwoSum, as Neumaier 1974 uses
/// it): about 100 bits, so that the rounded value is the same in whatever order the terms came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sum {
    high: f64,
    low: f64,
}

impl Sum {
    /// From its two parts.
    pub(crate) fn of_parts(high: f64, low: f64) -> Self {
        Sum { high, low }
    }

    /// Its two parts.
    pub(crate) fn parts(self) -> [f64; 2] {
        [self.high, self.low]
    }

    /// Adds a term.
    #[inline]
    pub(crate) fn add(&mut self, term: f64) {
        let high = self.high + term;
        let term_seen = high - self.high;
        self.low += (self.high - (high - term_seen)) + (term - term_seen);
        self.high = high;
    }

    /// Adds another sum.
    pub(crate) fn merge(&mut self, other: Sum) {
        self.add(other.high);
        self.low += other.low;
    }

    /// The sum, rounded once.
    pub(crate) fn value(self) -> f64 {
        // An infinite sum has no remainder.
        if self.high.is_finite() { self.high + self.low } else { self.high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouping_does_not_matter() {
        let terms: Vec<f64> = (1..10_000).map(|i| (f64::from(i) * 0.7).sin().abs() / f64::from(i)).collect();
        let sum = |terms: &[f64]| {
            let mut sum = Sum::default();
            terms.iter().for_each(|term| sum.add(*term));
            sum
        };
        let whole = sum(&terms);
        let reversed: Vec<f64> = terms.iter().rev().copied().collect();
        assert_eq!(sum(&reversed).value(), whole.value());
        for size in [1, 3, 64, 1000, 9_000] {
            let mut merged = Sum::default();
            terms.chunks(size).for_each(|chunk| merged.merge(sum(chunk)));
            assert_eq!(merged.value(), whole.value(), "chunks of {size}");
        }
        assert_eq!(sum(&[1e16, 1.0, -1e16]).value(), 1.0);
        assert_eq!(sum(&[f64::INFINITY, 1.0]).value(), f64::INFINITY);
    }
}
