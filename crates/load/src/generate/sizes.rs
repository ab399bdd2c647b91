//! How many keys are asked for at once: sizes of batches, and keys per sample of a ragged batch. Knows no
//! key.

use sanderling_random::Rng;

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
    /// `k` with a probability proportional to `(1 - 1 / mean)^k`, from 1; beyond the largest it becomes the
    /// largest.
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

    /// Where each sample's keys start and the last one's end: `out` then holds `samples + 1` offsets, the
    /// first of them 0, and nothing else. Returns the last, which is the number of keys; it stays at 2^32 -
    /// 1 where there would be more.
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
                // The inverse of the distribution function. With a mean of 1 this is -0, and so is every
                // product.
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

#[cfg(test)]
mod tests {
    use super::super::chi_square;
    use super::*;

    const DRAWS: u64 = 100_000;

    /// The distribution function of the standard normal law, by Simpson's rule.
    fn below(z: f64) -> f64 {
        let density = |x: f64| (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let (from, steps) = (-10.0, 2000);
        let step = (z.clamp(-10.0, 10.0) - from) / f64::from(steps);
        let sum: f64 = (0..=steps)
            .map(|i| {
                let weight = if i == 0 || i == steps { 1.0 } else { f64::from(2 + 2 * (i % 2)) };
                weight * density(from + step * f64::from(i))
            })
            .sum();
        sum * step / 3.0
    }

    #[test]
    fn sizes_follow_their_laws() {
        /// `weight` of every size up to the largest.
        fn check(sizes: Sizes, max: usize, weight: impl Fn(usize) -> f64) {
            sizes.check().unwrap();
            let (seeds, mut seen) = (Seeds::new(3), vec![0; max + 1]);
            for cycle in 0..DRAWS {
                seen[sizes.draw(&seeds, &At { cycle, ..At::default() })] += 1;
            }
            let weights: Vec<f64> = (0..=max).map(weight).collect();
            chi_square::check(&format!("{sizes:?}"), &seen, &weights);
        }
        let only = |size| move |k| f64::from(u8::from(k == size));
        check(Sizes::Fixed(512), 512, only(512));
        check(Sizes::Uniform { min: 3, max: 20 }, 20, |k| f64::from(u8::from(k >= 3)));
        check(Sizes::Uniform { min: 7, max: 7 }, 7, only(7));
        for (median, sigma, max) in [(20.0, 0.5, 100), (2.0, 1.5, 50), (1.0, 0.1, 4), (512.0, 0.25, 700)] {
            check(Sizes::Lognormal { median, sigma, max }, max, |k| {
                let at = |size: f64| below((size / median).ln() / sigma);
                match k {
                    0 => 0.0,
                    1 => at(1.5),
                    k if k == max => 1.0 - at(k as f64 - 0.5),
                    k => at(k as f64 + 0.5) - at(k as f64 - 0.5),
                }
            });
        }
        check(Sizes::Lognormal { median: 30.4, sigma: 0.0, max: 64 }, 64, only(30));
    }

    #[test]
    fn arities_follow_their_laws() {
        fn check(arity: Arity, max: usize, weight: impl Fn(usize) -> f64) {
            arity.check().unwrap();
            let (seeds, mut seen, mut offsets) = (Seeds::new(3), vec![0; max + 1], vec![9, 9]);
            for cycle in 0..DRAWS / 100 {
                let at = At { cycle, ..At::default() };
                let keys = arity.offsets(&seeds, &at, 100, &mut offsets);
                assert_eq!((offsets.len(), offsets[0], offsets[100] as usize), (101, 0, keys), "{arity:?}");
                offsets.windows(2).for_each(|bag| seen[(bag[1] - bag[0]) as usize] += 1);
            }
            let weights: Vec<f64> = (0..=max).map(weight).collect();
            chi_square::check(&format!("{arity:?}"), &seen, &weights);
        }
        check(Arity::Fixed(0), 0, |_| 1.0);
        check(Arity::Fixed(3), 3, |k| f64::from(u8::from(k == 3)));
        check(Arity::Geometric { mean: 1.0, max: 9 }, 9, |k| f64::from(u8::from(k == 1)));
        for (mean, max) in [(1.5, 10), (4.0, 1000), (30.0, 40), (100.0, 1)] {
            check(Arity::Geometric { mean, max }, max, |k| {
                let stay: f64 = 1.0 - 1.0 / mean;
                match k {
                    0 => 0.0,
                    k if k == max => stay.powi(k as i32 - 1),
                    k => stay.powi(k as i32 - 1) / mean,
                }
            });
        }
        let (at, mut none) = (At::default(), Vec::new());
        assert_eq!((Arity::Fixed(4).offsets(&Seeds::new(1), &at, 0, &mut none), &none[..]), (0, &[0][..]));
        assert_eq!(
            Arity::Fixed(usize::MAX).offsets(&Seeds::new(1), &at, 3, &mut none),
            u32::MAX as usize,
            "no offset overflows"
        );
    }

    #[test]
    fn impossible_laws_are_refused() {
        for sizes in [
            Sizes::Fixed(0),
            Sizes::Fixed(SIZE_MAX + 1),
            Sizes::Uniform { min: 3, max: 2 },
            Sizes::Uniform { min: 0, max: 2 },
            Sizes::Lognormal { median: f64::NAN, sigma: 1.0, max: 9 },
            Sizes::Lognormal { median: 5.0, sigma: -1.0, max: 9 },
            Sizes::Lognormal { median: 5.0, sigma: 1.0, max: 0 },
        ] {
            assert!(sizes.check().is_err(), "{sizes:?}");
            let _ = sizes.draw(&Seeds::new(1), &At::default());
        }
        for arity in [
            Arity::Fixed(SIZE_MAX + 1),
            Arity::Geometric { mean: 0.9, max: 9 },
            Arity::Geometric { mean: f64::INFINITY, max: 9 },
            Arity::Geometric { mean: 2.0, max: 0 },
        ] {
            assert!(arity.check().is_err(), "{arity:?}");
            arity.offsets(&Seeds::new(1), &At::default(), 3, &mut Vec::new());
        }
    }

    #[test]
    fn sizes_depend_on_their_seed_and_cycle_alone() {
        let seeds = Seeds::new(8);
        let draws = |seeds: Seeds| -> Vec<(usize, Vec<u32>)> {
            let (sizes, arity) =
                (Sizes::Uniform { min: 1, max: 1 << 20 }, Arity::Geometric { mean: 1e3, max: 1 << 20 });
            let draw = |cycle, draw| {
                let (at, mut offsets) = (At { cycle, draw, ..At::default() }, Vec::new());
                arity.offsets(&seeds, &at, 4, &mut offsets);
                (sizes.draw(&seeds, &at), offsets)
            };
            (0..20).map(|i| draw(i / 2, (i % 2) as u32)).collect()
        };
        let all = draws(seeds);
        assert_eq!(all, draws(Seeds { keys: 1, arrivals: 1, ..seeds }));
        let others = draws(Seeds { sizes: 1, ..seeds });
        assert!(all.iter().zip(&others).all(|(a, b)| a.0 != b.0 && a.1 != b.1));
        assert!(all.windows(2).all(|pair| pair[0].0 != pair[1].0 && pair[0].1 != pair[1].1));
    }
}
