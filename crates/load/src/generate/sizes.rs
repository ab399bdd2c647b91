//! How many keys are asked for at once: sizes of batches, and keys per sample of a ragged batch. Knows no key.

use sanderling_sample::random::Rng;

use super::{At, GenerateError, Purpose, Seeds, within};

/// Most keys of a batch, and of a sample.
pub const SIZE_MAX: usize = 1 << 20;

/// The law of a batch's size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sizes {
    /// Always the same.
    Fixed(usize),
    /// All alike, both ends included.
    Uniform {
        /// The smallest.
        min: usize,
        /// The largest.
        max: usize,
    },
    /// The nearest whole number to a lognormal one; below 1 it becomes 1, beyond the largest the largest.
    Lognormal {
        /// Half are smaller.
        median: f64,
        /// The standard deviation of the size's logarithm.
        sigma: f64,
        /// The largest.
        max: usize,
    },
}

impl Sizes {
    /// Are the numbers of this law possible?
    ///
    /// # Errors
    /// If they are not; [`draw`](Self::draw) then yields some size all the same.
    pub fn check(&self) -> Result<(), GenerateError> {
        match *self {
            Sizes::Fixed(size) => size_within("the size", size, 1),
            Sizes::Uniform { min, max } => {
                size_within("the smallest size", min, 1)?;
                size_within("the largest size", max, min)
            }
            Sizes::Lognormal { median, sigma, max } => {
                let (most, finite) = (SIZE_MAX as f64, |sigma: f64| (0.0..=10.0).contains(&sigma));
                within("the median size", median, "from 1 to 1048576", |m| (1.0..=most).contains(&m))?;
                within("sigma", sigma, "from 0 to 10", finite)?;
                size_within("the largest size", max, 1)
            }
        }
    }

    /// The size of the batch of a draw.
    #[must_use]
    pub fn draw(&self, seeds: &Seeds, at: &At) -> usize {
        let mut rng = at.rng(seeds.sizes, Purpose::Sizes);
        match *self {
            Sizes::Fixed(size) => size,
            Sizes::Uniform { min, max } => {
                let sizes = max.saturating_sub(min) as u128 + 1;
                min + ((u128::from(rng.next()) * sizes) >> 64) as usize
            }
            Sizes::Lognormal { median, sigma, max } => {
                ((median * (sigma * normal(&mut rng)).exp()).round() as usize).clamp(1, max.max(1))
            }
        }
    }
}

/// A standard normal number, after Box and Muller (1958).
fn normal(rng: &mut Rng) -> f64 {
    (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos()
}

/// The law of the number of keys per sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arity {
    /// Always the same.
    Fixed(usize),
    /// `k` with a probability proportional to `(1 - 1 / mean)^k`, from 1; beyond the largest it becomes the largest.
    Geometric {
        /// The mean, but for those that are cut.
        mean: f64,
        /// The largest.
        max: usize,
    },
}

impl Arity {
    /// Are the numbers of this law possible?
    ///
    /// # Errors
    /// If they are not; [`offsets`](Self::offsets) then yields some all the same.
    pub fn check(&self) -> Result<(), GenerateError> {
        match *self {
            Arity::Fixed(keys) => size_within("keys per sample", keys, 0),
            Arity::Geometric { mean, max } => {
                let most = SIZE_MAX as f64;
                within("the mean of keys per sample", mean, "from 1 to 1048576", |m| {
                    (1.0..=most).contains(&m)
                })?;
                size_within("the most keys per sample", max, 1)
            }
        }
    }

    /// Where each sample's keys start and the last one's end: `out` then holds `samples + 1` offsets, the first of them 0,
    /// and nothing else. Returns the last, which is the number of keys; it stays at 2^32 - 1 where there would be more.
    pub fn offsets(&self, seeds: &Seeds, at: &At, samples: usize, out: &mut Vec<u32>) -> usize {
        out.clear();
        out.reserve(samples + 1);
        let mut end = 0u32;
        out.push(end);
        match *self {
            Arity::Fixed(keys) => {
                let keys = u32::try_from(keys).unwrap_or(u32::MAX);
                out.extend((0..samples).map(|_| {
                    end = end.saturating_add(keys);
                    end
                }));
            }
            Arity::Geometric { mean, max } => {
                let mut rng = at.rng(seeds.sizes, Purpose::Arity);
                // The inverse of the distribution function. With a mean of 1 this is -0, and so is every product.
                let scale = (1.0 - 1.0 / mean).ln().recip();
                let max = u32::try_from(max).unwrap_or(u32::MAX).max(1);
                out.extend((0..samples).map(|_| {
                    let more = ((1.0 - rng.unit()).ln() * scale) as u32;
                    end = end.saturating_add(more.saturating_add(1).min(max));
                    end
                }));
            }
        }
        end as usize
    }
}

fn size_within(what: &'static str, size: usize, least: usize) -> Result<(), GenerateError> {
    let allowed = "from 1 to 1048576, and the largest no smaller than the smallest";
    within(what, size as f64, allowed, |_| (least..=SIZE_MAX).contains(&size)).map(|_| ())
}
