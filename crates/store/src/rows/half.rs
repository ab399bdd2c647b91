//! 16-bit weights: what they mean as f32, and how an f32 becomes one, to the nearest or stochastically. Knows numbers
//! only; which instructions load them is in `simd/halves.rs`.
//!
//! An update that is smaller than half the distance between two halves would be lost by rounding to the nearest, every
//! time. Rounding stochastically (up with the probability of what would be cut off) it arrives on average (Gupta et al.
//! 2015, "Deep Learning with Limited Numerical Precision"). The random bits are a hash of where and when they are used:
//! results depend neither on threads nor on the machine. All of it is integer arithmetic, lane by lane, so that the
//! compiler makes vectors of it.

use crate::Dtype;
use crate::index::hash::{GOLDEN, mix};

/// Bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7FFF_FFFF;
/// Infinity; NaNs are above.
const INFINITY: u32 = 0x7F80_0000;
/// Bits of an f32's fraction.
const FRACTION_BITS: u32 = 23;
/// The difference of the exponents' biases of f32 and f16.
const F16_BIAS: u32 = 127 - 15;
/// The least f16 above 0, 2^-24.
const F16_LEAST: f32 = f32::from_bits((127 - 24) << FRACTION_BITS);
/// Bits that an f16's fraction is shorter by.
const F16_CUT: u32 = 13;
/// Bits that a bf16 is shorter by.
const BF16_CUT: u32 = 16;
/// Most bits that are compared with random ones.
const CUT_MAX: u32 = 31;

/// The formats of 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of an f32.
    Bf16,
}

/// The random bits of one update of one row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Noise(u32);

impl Noise {
    /// `version` is the row's number of updates, this one included.
    #[inline(always)]
    pub(crate) fn new(seed: u64, key: u64, version: u32) -> Noise {
        let row = mix(key ^ mix(seed));
        Noise((mix(row.wrapping_add(u64::from(version).wrapping_mul(GOLDEN))) >> 32) as u32)
    }

    /// 32 bits for a coordinate of the row: a Weyl sequence through the finaliser `lowbias32` (Wellons 2018).
    #[inline(always)]
    fn at(self, coordinate: u32) -> u32 {
        let mut bits = self.0.wrapping_add(coordinate.wrapping_mul(0x9E37_79B9));
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x21F0_AAAD);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0xD35A_2D97);
        bits ^ (bits >> 15)
    }
}

impl Half {
    /// `None` for rows of f32.
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
                // Where an f16's exponent is all ones; NaNs become quiet, as the machine makes them.
                let special = 0x1F << FRACTION_BITS;
                let quiet = u32::from(magnitude > special) << (FRACTION_BITS - 1);
                // Subnormal f16 are no subnormal f32 on the way, which a thread may have been told to take for 0.
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

    /// The nearest half, of two the even one; beyond the largest finite half, that. NaN stays NaN.
    #[inline(always)]
    pub(crate) fn nearest(self, value: f32) -> u16 {
        self.round(value, |kept, cut| (1 << (cut - 1)) - 1 + (kept & 1))
    }

    /// The half above or below, each with the probability that makes the value the mean; beyond the largest finite half,
    /// that. A value that is a half stays what it is.
    #[inline(always)]
    fn stochastic(self, value: f32, random: u32) -> u16 {
        self.round(value, |_, cut| random >> (32 - cut))
    }

    /// Adds something below one unit of the half's last place, and then cuts off the places that it does not have.
    #[inline(always)]
    fn round(self, value: f32, below_one: impl Fn(u32, u32) -> u32) -> u16 {
        let magnitude = value.to_bits() & MAGNITUDE;
        let sign = (value.to_bits() >> 16) & 0x8000;
        let (places, cut, largest) = match self {
            Half::Bf16 => (magnitude, BF16_CUT, 0x7F7F),
            Half::F16 => {
                let exponent = magnitude >> FRACTION_BITS;
                let is_normal = exponent > F16_BIAS;
                // Below, halves are multiples of one number, and the places to cut off become more. So many that random
                // bits run out: what is beyond is dropped first.
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
        // Written out per format, so that the loops have no branch.
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

    /// Packs `dim` weights, which are halves or are rounded to the nearest, into the last of the `dim` places: words of
    /// two halves, the first in the lower bits. The first of these words.
    pub(crate) fn pack(self, weights: &mut [f32]) -> usize {
        let dim = weights.len();
        let first = dim - dim.div_ceil(2);
        // Backwards, a word is never stored before what was there has been read.
        for word in (0..dim.div_ceil(2)).rev() {
            let half = |at: usize| weights.get(at).map_or(0, |&weight| u32::from(self.nearest(weight)));
            let bits = half(2 * word) | half(2 * word + 1) << 16;
            weights[first + word] = f32::from_bits(bits);
        }
        first
    }

    /// The reverse: from the packed words at the end of `weights` to all of them.
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
    /// Miri is slow: it sees every so-manieth half.
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
            // Ties, and what is just beside them.
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

    /// Over many roundings the mean is the value, to a few standard errors; and only the two neighbours occur.
    #[test]
    fn rounding_is_unbiased() {
        let rounds: u32 = if cfg!(miri) { 100 } else { 40_000 };
        // Tiny ones are subnormal as f16; the last are below its smallest number, by different amounts.
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
                // The distance of the halves around the value bounds the deviation.
                let precision = if half == Half::F16 { 10 } else { 7 };
                let smallest = if half == Half::F16 { -24 } else { -133 };
                // Powers of two are made of bits: Miri's are not exact.
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
        // The same on every machine, for ever: rows of a checkpoint are trained on elsewhere.
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
