//! Seeded permutations. Knows nothing of what it permutes.

use sanderling_random::{SPLITMIX_STEP, splitmix};

/// Mixes the parts of a seed into one.
pub fn seed_of(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |seed, part| splitmix(seed ^ part))
}

/// Fills `order` with a permutation of `0..rows` that depends on the seed alone (Fisher and Yates).
pub(crate) fn permutation(rows: usize, seed: u64, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..rows as u32);
    let mut state = seed;
    for i in (1..rows).rev() {
        let drawn = splitmix(state);
        state = state.wrapping_add(SPLITMIX_STEP);
        // Uniform up to `i`, without bias that could be measured (Lemire 2019, multiply and shift on 64 bits).
        order.swap(i, ((u128::from(drawn) * (i as u128 + 1)) >> 64) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_once_and_every_place_equally_often() {
        let (rows, rounds) = (8, 40_000);
        let mut counts = vec![0u32; rows * rows];
        let mut order = Vec::new();
        for round in 0..rounds {
            permutation(rows, seed_of(&[7, round]), &mut order);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.iter().copied().eq(0..rows as u32));
            order.iter().enumerate().for_each(|(place, row)| counts[place * rows + *row as usize] += 1);
        }
        // Chi-square over the 64 cells, 49 degrees of freedom: above 85 happens once in a thousand.
        let expected = rounds as f64 / rows as f64;
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        assert!(chi < 85.0, "chi-square {chi}");
    }
}
