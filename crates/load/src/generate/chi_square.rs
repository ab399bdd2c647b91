//! Pearson's test of counts against a law, for the tests of what is generated. Knows no law.

/// Expectation below which a cell is pooled with its neighbours, as the test's approximation needs.
const EXPECTED_MIN: f64 = 10.0;

/// Panics if `seen` cannot be `weights` (of any sum) by chance: beyond five standard deviations of
/// chi-square.
pub(super) fn check(what: &str, seen: &[u64], weights: &[f64]) {
    assert_eq!(seen.len(), weights.len(), "{what}");
    let draws = seen.iter().sum::<u64>() as f64;
    let total: f64 = weights.iter().sum();
    let (mut cells, mut pool) = (Vec::new(), (0.0, 0.0));
    for (&seen, weight) in seen.iter().zip(weights) {
        let expected = weight / total * draws;
        assert!(expected > 0.0 || seen == 0, "{what}: {seen} where none can be");
        pool = (pool.0 + seen as f64, pool.1 + expected);
        if pool.1 >= EXPECTED_MIN {
            cells.push(std::mem::take(&mut pool));
        }
    }
    match cells.last_mut() {
        Some(last) => *last = (last.0 + pool.0, last.1 + pool.1),
        None => cells.push(pool),
    }
    let square: f64 = cells.iter().map(|(seen, expected)| (seen - expected).powi(2) / expected).sum();
    let freedom = cells.len() as f64 - 1.0;
    let limit = freedom + 5.0 * (2.0 * freedom).sqrt() + 5.0;
    assert!(square <= limit, "{what}: chi-square {square:.1} with {freedom} degrees of freedom");
}

#[test]
fn a_wrong_law_is_seen() {
    check("fair", &[5020, 4980], &[1.0, 1.0]);
    check("pooled", &[0, 1, 100_000, 2], &[1e-5, 1e-5, 1.0, 1e-5]);
    for (seen, weights) in [([5300, 4700], [1.0, 1.0]), ([10_000, 1], [1.0, 0.0])] {
        assert!(std::panic::catch_unwind(|| check("unfair", &seen, &weights)).is_err(), "{seen:?}");
    }
}
