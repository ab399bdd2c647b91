//! First weights of a row from (seed, key, coordinate). Knows nothing of rows or optimizers.

use std::f64::consts::TAU;

use crate::Init;
use crate::hash::{GOLDEN, mix};

/// 64 random bits of a coordinate.
fn bits(seed: u64, key: u64, coordinate: u64) -> u64 {
    mix(mix(key ^ mix(seed)).wrapping_add(coordinate.wrapping_mul(GOLDEN)))
}

/// Uniform in `[0, 1)` from the upper 53 bits.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// Fills `weights`, whose first coordinate is number `first` of the row.
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
            for (at, weight) in weights.iter_mut().enumerate() {
                // Box-Muller on two halves of one hash; 1 - u keeps the logarithm finite.
                let random = bits(seed, key, (first + at) as u64);
                let radius = 1.0 - f64::from((random >> 32) as u32) / (u64::from(u32::MAX) + 1) as f64;
                let angle = f64::from(random as u32) / (u64::from(u32::MAX) + 1) as f64;
                *weight = ((-2.0 * radius.ln()).sqrt() * (TAU * angle).cos() * f64::from(std)) as f32;
            }
        }
    }
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
