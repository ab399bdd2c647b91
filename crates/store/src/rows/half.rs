//! 16-bit weights: conversion to f32, and from f32 by rounding to nearest or stochastically. The instructions that
//! load them are in `simd/halves.rs`.
//!
//! Rounding to nearest would lose every update smaller than half a unit in the last place. With stochastic rounding
//! (up with the probability of the fraction cut off) they arrive on average (Gupta et al. 2015, "Deep Learning with
//! Limited Numerical Precision"). The random bits are a hash of the row, the update and the coordinate, so that
//! results depend neither on threads nor on the machine. All of it is integer arithmetic per lane, which compilers
//! vectorize.

use crate::Dtype;
use crate::index::hash::{GOLDEN, mix};

/// The bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
/// Infinity; the bits of NaNs are larger.
const INFINITY: u32 = 0x7F80_0000;
/// Fraction bits of an f32.
const FRACTION_BITS: u32 = 23;
/// Difference of the exponent biases of f32 and f16.
const F16_BIAS: u32 = 127 - 15;
/// The smallest positive f16, 2^-24.
const F16_LEAST: f32 = f32::from_bits((127 - 24) << FRACTION_BITS);
/// Fraction bits that an f16 lacks.
const F16_CUT: u32 = 13;
/// Bits that a bf16 lacks.
const BF16_CUT: u32 = 16;
/// The maximum number of bits compared with random ones.
const CUT_MAX: u32 = 31;

/// The 16-bit formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
}

/// The random bits of an update of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise(u32);

impl Noise {
    /// `version` is the row's number of updates, including this one.
    #[inline(always)]
    pub(crate) fn new(seed: u64, key: u64, version: u32) -> Noise {
        let row = mix(key ^ mix(seed));
        Noise((mix(row.wrapping_add(u64::from(version).wrapping_mul(GOLDEN))) >> 32) as u32)
    }

    /// 32 random bits for a coordinate: a Weyl sequence with the finalizer `lowbias32` (Wellons 2018).
    #[inline(always)]
    fn at(self, coordinate: u32) -> u32 {
        let mut bits = self.0.wrapping_add(coordinate.wrapping_mul(0x9E37_79B9));
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x21F0_AAAD);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0xD35A_2D97);
        bits ^ (bits >> 15)
    }
}

impl Half {
    /// The format of 16-bit rows; `None` for f32.
    pub(crate) fn of(dtype: Dtype) -> Option<Half> {
        match dtype {
            Dtype::F32 => None,
            Dtype::F16 => Some(Half::F16),
            Dtype::Bf16 => Some(Half::Bf16),
        }
    }

    /// The value of a half.
    #[inline(always)]
    pub(crate) fn widen(self, half: u16) -> f32 {
        match self {
            Half::Bf16 => f32::from_bits(u32::from(half) << BF16_CUT),
            Half::F16 => {
                let magnitude = u32::from(half & 0x7FFF) << F16_CUT;
                let sign = u32::from(half & 0x8000) << 16;
                // Infinities and NaNs, whose exponent bits are all ones; NaNs become quiet, as in hardware.
                let special = 0x1F << FRACTION_BITS;
                let quiet = u32::from(magnitude > special) << (FRACTION_BITS - 1);
                // Subnormal f16 do not become subnormal f32, which a thread may be configured to flush to 0.
                let subnormal = ((magnitude >> F16_CUT) as f32 * F16_LEAST).to_bits();
                let finite = if magnitude >> FRACTION_BITS == 0 {
                    subnormal
                } else {
                    magnitude + (F16_BIAS << FRACTION_BITS)
                };
                f32::from_bits(sign | if magnitude < special { finite } else { INFINITY | magnitude | quiet })
            }
        }
    }

    /// Rounds to nearest, ties to even; saturates at the largest finite half. NaN stays NaN.
    #[inline(always)]
    pub(crate) fn nearest(self, value: f32) -> u16 {
        self.round(value, |kept, cut| (1 << (cut - 1)) - 1 + (kept & 1))
    }

    /// Rounds up or down with the probabilities that preserve the mean; saturates at the largest finite half. Exact
    /// values are unchanged.
    #[inline(always)]
    fn stochastic(self, value: f32, random: u32) -> u16 {
        self.round(value, |_, cut| random >> (32 - cut))
    }

    /// Adds less than one unit in the last place, then truncates.
    #[inline(always)]
    fn round(self, value: f32, below_one: impl Fn(u32, u32) -> u32) -> u16 {
        let magnitude = value.to_bits() & MAGNITUDE;
        let sign = (value.to_bits() >> 16) & 0x8000;
        let (places, cut, largest) = match self {
            Half::Bf16 => (magnitude, BF16_CUT, 0x7F7F),
            Half::F16 => {
                let exponent = magnitude >> FRACTION_BITS;
                let is_normal = exponent > F16_BIAS;
                // Subnormal halves have a constant unit, so that more bits are cut off, sometimes more than there
                // are random bits; the excess is dropped first.
                let fraction = (magnitude & ((1 << FRACTION_BITS) - 1)) | (1 << FRACTION_BITS);
                let cut = (F16_BIAS + F16_CUT + 1).wrapping_sub(exponent);
                let dropped = cut.saturating_sub(CUT_MAX).min(CUT_MAX);
                let places = magnitude.wrapping_sub(F16_BIAS << FRACTION_BITS);
                if is_normal {
                    (places, F16_CUT, 0x7BFF)
                } else {
                    (fraction >> dropped, cut.min(CUT_MAX), 0x7BFF)
                }
            }
        };
        let rounded = ((places + below_one(places >> cut, cut)) >> cut).min(largest);
        (sign | if magnitude > INFINITY { 0x7FFF } else { rounded }) as u16
    }

    /// Rounds the weights from coordinate `first` of a row on stochastically.
    #[inline(always)]
    pub(crate) fn round_row<const N: usize>(self, noise: Noise, first: usize, values: &[f32; N]) -> [u16; N] {
        let mut halves = [0; N];
        // Separate loops per format have no branch.
        match self {
            Half::F16 => {
                for (lane, (half, &value)) in halves.iter_mut().zip(values).enumerate() {
                    *half = Half::F16.stochastic(value, noise.at((first + lane) as u32));
                }
            }
            Half::Bf16 => {
                for (lane, (half, &value)) in halves.iter_mut().zip(values).enumerate() {
                    *half = Half::Bf16.stochastic(value, noise.at((first + lane) as u32));
                }
            }
        }
        halves
    }

    /// Packs weights, rounded to nearest, into the last words of the slice: two halves per word, the first in the
    /// lower bits. Returns the position of the first word.
    pub(crate) fn pack(self, weights: &mut [f32]) -> usize {
        let dim = weights.len();
        let first = dim - dim.div_ceil(2);
        // Backward, so that no word is stored before its values were read.
        for word in (0..dim.div_ceil(2)).rev() {
            let half = |at: usize| weights.get(at).map_or(0, |&weight| u32::from(self.nearest(weight)));
            let bits = half(2 * word) | half(2 * word + 1) << 16;
            weights[first + word] = f32::from_bits(bits);
        }
        first
    }

    /// Unpacks the words at the end of the slice to the whole slice.
    pub(crate) fn unpack(self, weights: &mut [f32]) {
        let dim = weights.len();
        let first = dim - dim.div_ceil(2);
        for word in 0..dim.div_ceil(2) {
            let bits = weights[first + word].to_bits();
            weights[2 * word] = self.widen(bits as u16);
            if let Some(weight) = weights.get_mut(2 * word + 1) {
                *weight = self.widen((bits >> 16) as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Half; 2] = [Half::F16, Half::Bf16];
    /// Miri is slow and tests a sample.
    const STEP: usize = if cfg!(miri) { 997 } else { 1 };

    fn reference(half: Half, bits: u16) -> f32 {
        match half {
            Half::F16 => half::f16::from_bits(bits).to_f32(),
            Half::Bf16 => half::bf16::from_bits(bits).to_f32(),
        }
    }

    fn largest(half: Half) -> u16 {
        if half == Half::F16 { 0x7BFF } else { 0x7F7F }
    }

    #[test]
    fn every_half_widens_and_rounds_back() {
        for half in BOTH {
            for bits in (0..=u16::MAX).step_by(STEP) {
                let value = half.widen(bits);
                let expected = reference(half, bits);
                assert!(value.to_bits() == expected.to_bits() || (value.is_nan() && expected.is_nan()));
                if value.is_nan() {
                    assert!(half.widen(half.nearest(value)).is_nan());
                    continue;
                }
                let back = (bits & 0x7FFF).min(largest(half)) | bits & 0x8000;
                assert_eq!(half.nearest(value), back, "{half:?} {bits:04x}");
                for random in [0, 1, 0x8000_0000, u32::MAX] {
                    assert_eq!(half.stochastic(value, random), back, "{half:?} {bits:04x}");
                }
            }
        }
    }

    #[test]
    fn nearest_is_that_of_the_half_crate() {
        let mut bits = 12_345_u32;
        let near = (0..=u16::MAX).step_by(STEP).flat_map(|half| {
            // Ties, and values next to them.
            [0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001].map(|low| u32::from(half) << 16 | low)
        });
        let random = (0..400_000 / STEP).map(|_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bits.rotate_left(13)
        });
        for value in near.chain(random).map(f32::from_bits).filter(|value| !value.is_nan()) {
            for half in BOTH {
                let expected = match half {
                    Half::F16 => half::f16::from_f32(value).to_bits(),
                    Half::Bf16 => half::bf16::from_f32(value).to_bits(),
                };
                let expected = (expected & 0x7FFF).min(largest(half)) | expected & 0x8000;
                assert_eq!(half.nearest(value), expected, "{half:?} {value}");
            }
        }
    }

    /// The mean of many roundings is the value, to a few standard errors, and only its two neighbours occur.
    #[test]
    fn rounding_is_unbiased() {
        let rounds: u32 = if cfg!(miri) { 100 } else { 40_000 };
        // Small values are subnormal as f16; the last ones are below its smallest number, by different factors.
        let values = [1.000_3, -0.1, 3.3, 1e-3, -5.1e-5, 3.3e-6, 7e-8, 1.1e-8, 3e-10, 2e-12, 1234.567];
        for half in BOTH {
            for (number, value) in values.into_iter().enumerate() {
                let (mut sum, mut below, mut above) = (0.0, f64::INFINITY, f64::NEG_INFINITY);
                for version in 0..rounds {
                    let noise = Noise::new(1, 77, version).at(number as u32);
                    let rounded = f64::from(half.widen(half.stochastic(value, noise)));
                    sum += rounded;
                    (below, above) = (below.min(rounded), above.max(rounded));
                }
                let value = f64::from(value);
                // The distance between the neighbours bounds the deviation.
                let precision = if half == Half::F16 { 10 } else { 7 };
                let smallest = if half == Half::F16 { -24 } else { -133 };
                // Powers of two from bits, because those of Miri are inexact.
                let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
                let unit = f64::from_bits((((exponent - precision).max(smallest) + 1023) as u64) << 52);
                assert!(above - below <= unit, "{half:?} {value}: {below} {above}");
                let chance = (value / unit).rem_euclid(1.0);
                let deviation = unit * (chance * (1.0 - chance) / f64::from(rounds)).sqrt();
                let error = (sum / f64::from(rounds) - value).abs();
                assert!(
                    error <= 5.0 * deviation + 1e-9 * unit,
                    "{half:?} {value}: off by {} units",
                    error / unit
                );
            }
        }
    }

    #[test]
    fn nothing_finite_becomes_infinite() {
        for half in BOTH {
            let top = half.widen(largest(half));
            for value in [top, top * 1.001, 1e30_f32.max(top), f32::MAX, f32::INFINITY] {
                for random in [0, u32::MAX] {
                    assert_eq!(half.widen(half.stochastic(value, random)), top, "{half:?} {value}");
                    assert_eq!(half.widen(half.stochastic(-value, random)), -top);
                }
                assert_eq!(half.widen(half.nearest(value)), top);
            }
            assert!(half.widen(half.stochastic(f32::NAN, 7)).is_nan());
        }
    }

    #[test]
    fn noise_depends_on_everything_it_is_made_of() {
        let bits = Noise::new(1, 2, 3).at(4);
        let others = [
            Noise::new(0, 2, 3).at(4),
            Noise::new(1, 0, 3).at(4),
            Noise::new(1, 2, 0).at(4),
            Noise::new(1, 2, 3).at(0),
        ];
        assert!(others.iter().all(|&other| other != bits));
        // Stable across machines and versions, because training continues from checkpoints.
        assert_eq!(bits, 836_886_789);
    }

    #[test]
    fn rows_pack_in_place() {
        for half in BOTH {
            for dim in 1..40 {
                let weights: Vec<f32> = (0..dim).map(|at| (at as f32 - 7.0) * 0.25).collect();
                let mut row = weights.clone();
                let first = half.pack(&mut row);
                assert_eq!(dim - first, dim.div_ceil(2));
                half.unpack(&mut row);
                assert_eq!(row, weights, "{half:?} {dim}");
            }
        }
    }
}
