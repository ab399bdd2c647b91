//! A bijection that scatters ranks over the numbers of keys, so that popular keys are not neighbours in a
//! table that was loaded in order. Knows no law.
//!
//! `number = rank * step mod n` with a step near the golden section of `n` and coprime to it. The remainder
//! needs no division: Shoup's multiplication by a constant takes the quotient from a product with `step *
//! 2^64 / n`.

/// The bijection of `0..n`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scatter {
    n: u64,
    step: u64,
    /// `floor(step * 2^64 / n)`.
    quotient: u64,
}

impl Scatter {
    /// For `n` ranks, from 1 to 2^62.
    pub(super) fn new(n: u64) -> Self {
        assert!((1..=1 << 62).contains(&n), "{n} ranks");
        let mut step = ((u128::from(n) * 0x9e37_79b9_7f4a_7c15) >> 64) as u64;
        while gcd(step, n) != 1 {
            step += 1;
        }
        let quotient = ((u128::from(step % n) << 64) / u128::from(n)) as u64;
        Scatter { n, step: step % n, quotient }
    }

    /// The number of a rank below `n`.
    #[inline]
    pub(super) fn number(&self, rank: u64) -> u64 {
        let quotient = ((u128::from(rank) * u128::from(self.quotient)) >> 64) as u64;
        // The quotient is right or one too small.
        let number = rank.wrapping_mul(self.step).wrapping_sub(quotient.wrapping_mul(self.n));
        if number >= self.n { number - self.n } else { number }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_number_of_its_own() {
        for n in [1, 2, 3, 4, 5, 6, 64, 1000, 65_537, 300_000] {
            let scatter = Scatter::new(n);
            let mut seen = vec![false; n as usize];
            let mut near = 0;
            for rank in 0..n {
                let number = scatter.number(rank);
                assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} of {n} twice");
                near += u64::from(rank > 0 && number.abs_diff(scatter.number(rank - 1)) < 16);
            }
            assert!(n < 64 || near == 0, "{near} of {n} stay together");
        }
    }

    #[test]
    fn the_remainder_is_that_of_a_division() {
        for n in [1u64 << 40, (1 << 40) - 1, (1 << 40) - 87, 1_000_000_000, 10_000_000] {
            let scatter = Scatter::new(n);
            for rank in (0..1000).chain((0..1000).map(|i| n - 1 - i)).chain((1..1000).map(|i| n / 1000 * i)) {
                let exact = u128::from(rank) * u128::from(scatter.step) % u128::from(n);
                assert_eq!(u128::from(scatter.number(rank)), exact, "rank {rank} of {n}");
            }
        }
    }
}
