//! Seeded permutations. Knows nothing of what it permutes.

/// SplitMix64 (Steele, Lea, Flood 2014): a full-period generator whose streams are told apart by their seed.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound`, without bias that could be measured (Lemire 2019, multiply and shift on 64 bits).
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Mixes the parts of a seed into one.
pub(crate) fn seed_of(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |seed, part| SplitMix(seed ^ part).next())
}

/// Fills `order` with a permutation of `0..rows` that depends on the seed alone (Fisher and Yates).
pub(crate) fn permutation(rows: usize, seed: u64, order: &mut Vec<u32>) {
    order.clear();
    order.extend(0..rows as u32);
    let mut random = SplitMix(seed);
    for i in (1..rows).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
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
