//! Initial weights of a row from (seed, key, coordinate).
//!
//! Normal ones are computed eight at a time, with polynomials instead of the system's logarithm and cosine: faster,
//! and identical on all machines.

use std::f64::consts::{LN_2, SQRT_2, TAU};

use crate::Init;
use crate::index::hash::{GOLDEN, mix};
use crate::simd::{self, Vector, Width, Work};

/// Normal weights computed together.
const LANES: usize = 8;
const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;

/// 64 random bits of a coordinate.
#[inline(always)]
fn bits(seed: u64, key: u64, coordinate: u64) -> u64 {
    mix(mix(key ^ mix(seed)).wrapping_add(coordinate.wrapping_mul(GOLDEN)))
}

/// Uniform in `[0, 1)` from the upper 53 bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Fills `weights`, which begin at coordinate `first` of the row.
pub(crate) fn fill(init: Init, seed: u64, key: u64, first: usize, weights: &mut [f32]) {
    match init {
        Init::Zero => weights.fill(0.0),
        Init::Uniform { bound } => {
            for (at, weight) in weights.iter_mut().enumerate() {
                *weight =
                    ((2.0 * unit(bits(seed, key, (first + at) as u64)) - 1.0) * f64::from(bound)) as f32;
            }
        }
        Init::Normal { std } => {
            simd::run(Width::detect(), Normals { std: f64::from(std), seed, key, first, weights });
        }
    }
}

/// Fills normal weights as a unit of vectorized work.
struct Normals<'a> {
    std: f64,
    seed: u64,
    key: u64,
    first: usize,
    weights: &'a mut [f32],
}

impl Work for Normals<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, _: impl Vector) {
        let Normals { std, seed, key, first, weights } = self;
        for (number, weights) in weights.chunks_mut(LANES).enumerate() {
            let mut random = [0; LANES];
            for (at, random) in random.iter_mut().enumerate() {
                *random = bits(seed, key, (first + number * LANES + at) as u64);
            }
            for (weight, normal) in weights.iter_mut().zip(normals(random)) {
                *weight = (normal * std) as f32;
            }
        }
    }
}

/// Standard normal numbers by the Box-Muller transform of the two halves of each word.
#[inline(always)]
fn normals(random: [u64; LANES]) -> [f64; LANES] {
    const VALUES: f64 = (1_u64 << 32) as f64;
    // 1 - u keeps the logarithm finite.
    let radius = each(random, |bits| 1.0 - f64::from((bits >> 32) as u32) / VALUES);
    let angle = each(random, |bits| f64::from(bits as u32) / VALUES);
    let mut normals = ln(radius);
    let cosine = cos_of_turns(angle);
    for (normal, cosine) in normals.iter_mut().zip(cosine) {
        *normal = (-2.0 * *normal).sqrt() * cosine;
    }
    normals
}

/// Maps each value. A loop, because a library function with a closure may not be inlined, and then is compiled for
/// any machine.
#[inline(always)]
fn each<T: Copy>(x: [T; LANES], f: impl Fn(T) -> f64) -> [f64; LANES] {
    let mut all = [0.0; LANES];
    for (one, x) in all.iter_mut().zip(x) {
        *one = f(x);
    }
    all
}

/// Natural logarithms of positive normal numbers: the exponent's, plus `2 artanh((m - 1) / (m + 1))` of the
/// mantissa between the roots of 1/2 and 2.
#[inline(always)]
fn ln(x: [f64; LANES]) -> [f64; LANES] {
    // Adding the exponent as low bits to this constant converts it without a 64-bit integer conversion.
    const SHIFTED: f64 = (1_u64 << FRACTION_BITS) as f64;
    const BIAS: f64 = 1023.0;
    each(x, |x| {
        let bits = x.to_bits();
        let exponent = f64::from_bits((bits >> FRACTION_BITS) | SHIFTED.to_bits()) - SHIFTED - BIAS;
        let fraction = f64::from_bits((bits & ((1 << FRACTION_BITS) - 1)) | 1.0_f64.to_bits());
        let is_above = fraction > SQRT_2;
        let m = if is_above { fraction * 0.5 } else { fraction };
        let exponent = if is_above { exponent + 1.0 } else { exponent };
        let s = (m - 1.0) / (m + 1.0);
        let square = s * s;
        // The coefficients 1 / (2k + 1) of the series, from k = 9 down.
        let series = [17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0];
        let sum = series.iter().fold(1.0 / 19.0, |sum, odd| sum * square + 1.0 / odd);
        exponent * LN_2 + 2.0 * s * sum
    })
}

/// Cosines of angles in turns, 0 to 1, as sines of the distance to a quarter turn.
#[inline(always)]
fn cos_of_turns(turns: [f64; LANES]) -> [f64; LANES] {
    each(turns, |turns| {
        let x = TAU * ((turns - 0.5).abs() - 0.25);
        let square = x * x;
        // The series of the sine by Horner's rule; each step divides by two factors of the factorial, from 19!
        // down.
        let pairs = [272.0, 210.0, 156.0, 110.0, 72.0, 42.0, 20.0, 6.0];
        let sum =
            pairs.iter().fold(1.0 - square * (1.0 / 342.0), |sum, pair| 1.0 - sum * square * (1.0 / pair));
        x * sum
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(init: Init, seed: u64) -> Vec<f32> {
        let mut weights = vec![0.0; 8];
        (0..20_000_u64)
            .flat_map(|key| {
                fill(init, seed, key, 0, &mut weights);
                weights.clone()
            })
            .collect()
    }

    #[test]
    fn normal_has_its_moments() {
        let weights = sample(Init::Normal { std: 0.5 }, 7);
        let n = weights.len() as f64;
        let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / n;
        let variance = weights.iter().map(|&w| f64::from(w).powi(2)).sum::<f64>() / n;
        let kurtosis = weights.iter().map(|&w| f64::from(w).powi(4)).sum::<f64>() / n / variance.powi(2);
        assert!(mean.abs() < 0.006 && (variance - 0.25).abs() < 0.005, "{mean} {variance}");
        assert!((kurtosis - 3.0).abs() < 0.1, "{kurtosis}");
    }

    /// Compared with the system's logarithm and cosine, also at the ends of both ranges.
    #[test]
    fn normals_are_those_of_box_and_muller() {
        let ends = [0, 1, u64::MAX, u64::MAX << 32, u64::from(u32::MAX), 1 << 31, 1 << 63, 3 << 30];
        let some = (0..if cfg!(miri) { 10 } else { 50_000 })
            .map(|at| std::array::from_fn(|lane| bits(1, at, lane as u64)));
        for random in some.chain([ends]) {
            for (random, normal) in random.into_iter().zip(normals(random)) {
                let radius = 1.0 - (random >> 32) as f64 / 2_f64.powi(32);
                let angle = f64::from(random as u32) / 2_f64.powi(32);
                let expected = (-2.0 * radius.ln()).sqrt() * (TAU * angle).cos();
                assert!(
                    (normal - expected).abs() <= 1e-13 * (1.0 + expected.abs()),
                    "{random:x}: {normal} {expected}"
                );
            }
        }
    }

    /// The largest valid standard deviation with the most extreme random numbers.
    #[test]
    fn every_first_weight_is_finite() {
        let largest = normals([u64::MAX << 32; LANES])[0];
        for (std, is_taken) in
            [(3e38, false), (f32::INFINITY, false), (f32::NAN, false), (5e37, true), (0.0, true)]
        {
            assert_eq!(Init::Normal { std }.check().is_ok(), is_taken, "{std}");
            assert!(!is_taken || ((largest * f64::from(std)) as f32).is_finite(), "{std}");
        }
        assert!(Init::Uniform { bound: f32::MAX }.check().is_ok());
        let ftrl = crate::Optimizer::Ftrl { alpha: 1e-3, beta: 1.0, l1: 0.0, l2: 0.0 };
        for (std, is_taken) in [(1e37, false), (1e34, true)] {
            assert_eq!(ftrl.check(Init::Normal { std }).is_ok(), is_taken, "{std}");
        }
    }

    #[test]
    fn uniform_stays_in_bounds_and_seeds_differ() {
        let weights = sample(Init::Uniform { bound: 0.25 }, 7);
        assert!(weights.iter().all(|w| (-0.25..=0.25).contains(w)));
        let mean = weights.iter().map(|&w| f64::from(w)).sum::<f64>() / weights.len() as f64;
        assert!(mean.abs() < 0.003, "{mean}");
        assert_ne!(weights[..8], sample(Init::Uniform { bound: 0.25 }, 8)[..8]);
    }

    #[test]
    fn a_coordinate_does_not_depend_on_its_neighbours() {
        let (mut whole, mut part) = (vec![0.0; 8], vec![0.0; 3]);
        fill(Init::Normal { std: 1.0 }, 1, 42, 0, &mut whole);
        fill(Init::Normal { std: 1.0 }, 1, 42, 5, &mut part);
        assert_eq!(whole[5..], part);
    }
}
