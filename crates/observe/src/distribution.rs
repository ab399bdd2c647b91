//! Distributions in a fixed space: of numbers by magnitude, and of hashes by parts, which tell whether two sets of keys are
//! alike. Knows neither keys nor a clock.

/// Parts of the space of hashes.
pub const PARTS: usize = 32;
/// Below this number of hashes, chance decides how much two distributions differ.
const HASHES_MIN: u64 = 2000;

/// Counts of hashed numbers by parts of the space of hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Parts(pub [u64; PARTS]);

impl Parts {
    /// Counts a number by its hash.
    pub fn add(&mut self, number: u64) {
        // Fibonacci hashing: the upper bits depend on all bits of the number.
        let part = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PARTS.ilog2());
        self.0[part as usize] += 1;
    }

    /// Numbers that were counted.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds other counts.
    pub fn merge(&mut self, other: &Parts) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own += other);
    }

    /// Halves all counts.
    pub fn halve(&mut self) {
        self.0.iter_mut().for_each(|count| *count /= 2);
    }

    /// Population stability index of these numbers against others. `None`: there are too few.
    ///
    /// Below 0.1 they are alike, above 0.25 they are not.
    #[must_use]
    pub fn drift_from(&self, base: &Parts) -> Option<f64> {
        let sums = [self.total(), base.total()];
        if sums.iter().any(|sum| *sum < HASHES_MIN) {
            return None;
        }
        // Half a number more in each part, so that none is empty.
        let share = |count: u64, sum: u64| (count as f64 + 0.5) / (sum as f64 + 0.5 * PARTS as f64);
        let parts = self.0.iter().zip(base.0);
        let parts = parts.map(|(&own, base)| (share(own, sums[0]), share(base, sums[1])));
        Some(parts.map(|(own, base)| (own - base) * (own / base).ln()).sum())
    }
}

/// Buckets of magnitudes: four per power of two from 2^-24 to 2^12, and one below.
const BUCKETS: usize = 4 * 36 + 1;
/// The upper bits of 2^-24: exponent and the first two bits behind the point.
const BITS_MIN: u32 = (127 - 24) << 2;
/// Bits of a number in single precision below these.
const BITS_BELOW: u32 = 21;

/// Counts of non-negative numbers by magnitude, to within a quarter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Magnitudes {
    counts: Box<[u64; BUCKETS]>,
}

impl Default for Magnitudes {
    fn default() -> Magnitudes {
        Magnitudes { counts: Box::new([0; BUCKETS]) }
    }
}

impl Magnitudes {
    /// Counts a number. One that is not finite counts as a very large one.
    pub fn add(&mut self, number: f32) {
        let bits = (number.abs().to_bits() >> BITS_BELOW) as usize;
        let bucket = (bits + 1).saturating_sub(BITS_MIN as usize).min(BUCKETS - 1);
        self.counts[bucket] += 1;
    }

    /// Adds other counts.
    pub fn merge(&mut self, other: &Magnitudes) {
        self.counts.iter_mut().zip(&*other.counts).for_each(|(own, other)| *own += other);
    }

    /// The quantile, such as .99: the middle of its bucket, 0 below 2^-24. `None` without numbers.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Option<f64> {
        let total: u64 = self.counts.iter().sum();
        let rank = ((total as f64 * quantile).ceil() as u64).clamp(1, total.max(1));
        let mut sum = 0;
        let bucket = self.counts.iter().position(|count| {
            sum += count;
            sum >= rank
        })?;
        let edge = |bucket: usize| f64::from(f32::from_bits((BITS_MIN + bucket as u32) << BITS_BELOW));
        Some(if bucket == 0 { 0.0 } else { (edge(bucket - 1) + edge(bucket)) / 2.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_told_from_chance() {
        let draw = |seed: u64, numbers: u64, first: u64, among: u64| {
            let (mut random, mut parts) = (seed, Parts::default());
            for _ in 0..numbers {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                parts.add(first + (random >> 33) % among);
            }
            parts
        };
        for (numbers, first, among, expected) in [
            (100, 0, 1, None),
            (1999, 0, 1, None),
            (4000, 0, 1000, Some(0.0..0.1)),
            (4000, 1000, 10, Some(0.25..100.0)),
        ] {
            let drift = draw(2, numbers, first, among).drift_from(&draw(1, 4000, 0, 1000));
            assert_eq!(drift.is_some(), expected.is_some(), "{drift:?}");
            assert!(drift.is_none_or(|drift| expected.unwrap().contains(&drift)), "{drift:?} of {among}");
        }
    }

    #[test]
    fn quantiles_are_right_to_a_quarter() {
        let mut magnitudes = Magnitudes::default();
        assert_eq!(magnitudes.quantile(0.5), None);
        (1..=1000).for_each(|number| magnitudes.add(number as f32 / 100.0));
        let mut other = Magnitudes::default();
        magnitudes.merge(&other);
        for (quantile, expected) in [(0.0, 0.01), (0.5, 5.0), (0.99, 9.9), (1.0, 10.0)] {
            let found = magnitudes.quantile(quantile).unwrap();
            assert!((found / expected - 1.0).abs() < 0.2, "{found} for {expected}");
        }
        for (number, expected) in
            [(0.0, 0.0..1e-9), (1e-30, 0.0..1e-9), (f32::MAX, 3000.0..5000.0), (f32::NAN, 3000.0..5000.0)]
        {
            other = Magnitudes::default();
            other.add(number);
            let found = other.quantile(0.5).unwrap();
            assert!(expected.contains(&found), "{found} of {number}");
        }
    }
}
