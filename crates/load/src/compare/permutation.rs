//! The permutation test of a difference of means: how often would chance alone, which deals the same numbers
//! to two sides anew, make as large a difference? Knows nothing of what the numbers are.

use sanderling_random::{Rng, below};

/// Up to so many ways to deal, all are tried (10 runs on each side have 184 756); beyond it, so many random
/// ones.
pub const DEALS_MAX: u64 = 200_000;
/// Differences that differ by less than this part count as equal: sums in another order round otherwise.
const ROUNDING: f64 = 1e-9;

/// The two-sided probability; the seed decides only where not all ways are tried.
#[must_use]
pub fn p_two_sided(a: &[f64], b: &[f64], seed: u64) -> f64 {
    let all: Vec<f64> = a.iter().chain(b).copied().collect();
    let (total, count) = (all.iter().sum::<f64>(), all.len());
    let difference =
        |sum_of_a: f64| (sum_of_a / a.len() as f64 - (total - sum_of_a) / (count - a.len()) as f64).abs();
    let spread = all.iter().map(|value| (value - total / count as f64).abs()).fold(0.0, f64::max);
    let least = difference(a.iter().sum()) - ROUNDING * spread;
    if ways(count as u64, a.len() as u64) <= DEALS_MAX {
        let (mut tried, mut as_large) = (0_u64, 0_u64);
        every_choice(&all, a.len(), 0.0, &mut |sum| {
            tried += 1;
            as_large += u64::from(difference(sum) >= least);
        });
        return as_large as f64 / tried as f64;
    }
    let mut random = Rng::new(seed, 0, 0);
    let mut cards = all;
    let mut as_large = 0_u64;
    for _ in 0..DEALS_MAX {
        for place in 0..a.len() {
            let other = place + below((random.next() >> 32) as u32, (cards.len() - place) as u32) as usize;
            cards.swap(place, other);
        }
        as_large += u64::from(difference(cards[..a.len()].iter().sum()) >= least);
    }
    // The observed order is one of the ways: without it a probability of 0 would come out (B. Phipson, G. Smyth,
    // 2010).
    (as_large + 1) as f64 / (DEALS_MAX + 1) as f64
}

/// How many ways there are to choose `k` of `n`, or more than [`DEALS_MAX`].
fn ways(n: u64, k: u64) -> u64 {
    let mut ways = 1_u64;
    for i in 0..k.min(n - k) {
        ways = ways.saturating_mul(n - i) / (i + 1);
        if ways > DEALS_MAX {
            break;
        }
    }
    ways
}

fn every_choice(values: &[f64], wanted: usize, sum: f64, found: &mut impl FnMut(f64)) {
    if wanted == 0 {
        return found(sum);
    }
    for first in 0..=values.len() - wanted {
        every_choice(&values[first + 1..], wanted - 1, sum + values[first], found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_scipy() {
        // scipy 1.17.1: scipy.stats.permutation_test((a, b), lambda x, y, axis: np.abs(np.mean(x, axis=axis)
        // - np.mean(y, axis=axis)), n_resamples=np.inf, alternative="greater", vectorized=True).pvalue
        let a = [5.1, 4.9, 5.6, 5.8, 6.1];
        let b = [5.9, 6.4, 5.5, 6.6, 7.0, 6.2];
        assert!((p_two_sided(&a, &b, 0) - 22.0 / 462.0).abs() < 1e-12);
        assert!((p_two_sided(&b, &a, 0) - 22.0 / 462.0).abs() < 1e-12);
    }

    #[test]
    fn many_runs_are_dealt_at_random() {
        // 12 against 12: 2 704 156 ways, of which two are as extreme as sides that do not overlap.
        let a: Vec<f64> = (0..12).map(f64::from).collect();
        let b: Vec<f64> = (12..24).map(f64::from).collect();
        assert!(ways(24, 12) > DEALS_MAX && ways(20, 10) == 184_756);
        let p = p_two_sided(&a, &b, 7);
        assert!(p < 5e-5 && p > 0.0, "{p}");
        assert!(p_two_sided(&a, &a, 7) > 0.99);
        assert!((p_two_sided(&a, &b, 7) - p).abs() < 1e-15, "the same seed gives the same");
    }
}
