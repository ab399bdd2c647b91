//! Comparisons against numbers of another program, and against what chance does to many simulated ones.

use sanderling_random::Rng;

use super::*;

fn near(found: f64, expected: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{what}: {found} is not {expected}");
}

fn one(a: &[f64], b: &[f64]) -> Difference {
    let values = [(Metric::KeysPerS, a.to_vec(), b.to_vec())];
    compare_values(&values, a.len(), b.len()).expect("enough runs").differences[0]
}

#[test]
fn differences_are_those_of_scipy() {
    // scipy 1.17.1: r = scipy.stats.ttest_ind(log(b), log(a), equal_var=False); ci =
    // r.confidence_interval(.95); 100 * (exp(x) - 1) for x in (ci.low, mean(log(b)) - mean(log(a)), ci.high);
    // permutation_test as in permutation.rs.
    let a = [101.2, 99.8, 100.5, 102.1, 98.9, 100.0, 101.7, 99.4, 100.9, 100.1];
    let b = [104.0, 102.9, 105.1, 103.3, 104.4, 102.2, 103.8, 105.6, 103.0, 104.9];
    let found = one(&a, &b);
    near(found.percent_low, 2.448_089_758_988_314_4, "low");
    near(found.percent, 3.443_817_650_192_215_8, "percent");
    near(found.percent_high, 4.449_223_360_042_143, "high");
    near(found.p, 1.082_508_822_446_903e-5, "p of the permutation");
    assert_eq!(found.verdict(), "B is 3.4 % faster (95 %: 2.4 to 4.4 %), p < .001");
    let back = one(&b, &a);
    assert_eq!(back.verdict(), "B is 3.3 % slower (95 %: 2.4 to 4.3 %), p < .001");

    let (a, b) = ([5.1, 4.9, 5.6, 5.8, 6.1], [5.9, 6.4, 5.5, 6.6, 7.0, 6.2]);
    let found = one(&a, &b);
    near(found.percent_low, 0.880_299_847_419_729_9, "low");
    near(found.percent_high, 28.761_167_034_318_436, "high");
    near(found.p, 0.038_485_885_839_574_796, "p of Welch");
}

#[test]
fn the_correction_is_that_of_holm() {
    // R 4: p.adjust(c(.01, .04, .03, .005), "holm") is .03 .06 .06 .02
    let with = |p| Difference { p, ..one(&[1.0, 2.0], &[1.0, 2.0]) };
    let mut differences = [0.01, 0.04, 0.03, 0.005].map(with);
    correct(&mut differences);
    for (found, expected) in differences.iter().zip([0.03, 0.06, 0.06, 0.02]) {
        near(found.p_corrected, expected, "corrected");
    }
}

#[test]
fn runs_that_do_not_scatter() {
    assert_eq!(one(&[3.0; 4], &[3.0; 4]).p, 1.0);
    let other = one(&[3.0; 4], &[6.0; 4]);
    assert!(other.p == 0.0 && (other.percent - 100.0).abs() < 1e-9 && other.percent_low.is_finite());
    // Percentiles come from histograms, which do not tell apart what differs by less than .1 %.
    for runs in [2, 4, 6, 10] {
        let of = |a: f64, b: f64| {
            let values = [(Metric::P99, vec![a; runs], vec![b; runs])];
            compare_values(&values, runs, runs).expect("enough runs").differences[0]
        };
        for (b, found) in [(1e6, false), (1_000_900.0, false), (1.2e6, true)] {
            let one = of(1e6, b);
            assert_eq!(one.found(), found, "{runs} runs, {b}: {one:?}");
            assert!(one.p > 0.0 && one.detectable_percent > 0.1, "{runs} runs, {b}: {one:?}");
        }
    }
    // Nor where some of the runs are in the next bucket.
    let mut a = vec![1e6; 10];
    a[0] = 1_000_900.0;
    let values = [(Metric::P99, a, vec![1_000_900.0; 10])];
    let one = compare_values(&values, 10, 10).expect("enough runs").differences[0];
    assert_eq!((one.found(), one.p), (false, 1.0), "{one:?}");
    assert_eq!(
        compare_values(&[], 1, 5),
        Err(CompareError::TooFewRuns { a: 1, b: 5 }),
        "a single run says nothing of how runs scatter"
    );
}

#[test]
fn sides_alternate_so_that_drift_falls_on_both() {
    use Side::{A, B};
    assert_eq!(abba(3), [A, B, B, A, A, B]);
    for runs in 0..20 {
        assert_eq!(abba(runs).iter().filter(|&&side| side == A).count(), runs);
    }
}

/// A number from the standard normal distribution, nearly: the sum of twelve uniform ones.
fn normal(rng: &mut Rng) -> f64 {
    (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0
}

/// How often, in so many comparisons of three metrics, any difference was found and the first one's interval
/// held the truth.
fn simulate(seed: u64, runs: usize, faster: f64, rounds: usize) -> (f64, f64) {
    let mut rng = Rng::new(seed, 0, 0);
    let (mut found, mut held) = (0, 0);
    for _ in 0..rounds {
        let mut draw = |factor: f64| -> Vec<f64> {
            (0..runs).map(|_| factor * (0.02 * normal(&mut rng)).exp()).collect()
        };
        let mut metric = |metric| (metric, draw(100.0), draw(100.0 * faster));
        let values = [metric(Metric::KeysPerS), metric(Metric::P50), metric(Metric::P99)];
        let comparison = compare_values(&values, runs, runs).expect("enough runs");
        let first = &comparison.differences[0];
        found += usize::from(comparison.differences.iter().any(Difference::found));
        let truth = 100.0 * (faster - 1.0);
        held += usize::from((first.percent_low..=first.percent_high).contains(&truth));
    }
    (found as f64 / rounds as f64, held as f64 / rounds as f64)
}

#[test]
fn chance_is_rarely_taken_for_a_difference_and_a_difference_rarely_missed() {
    // Standard errors with 1000 rounds: .007 near .05; bounds are four of them away.
    for runs in [4, 6] {
        let (found, held) = simulate(1, runs, 1.0, 1000);
        assert!((0.02..0.08).contains(&found), "{runs} runs: a false difference in {found} of the rounds");
        assert!((0.92..0.98).contains(&held), "{runs} runs: the interval held in {held} of the rounds");
        // 8 % is four standard deviations of a run.
        let (found, held) = simulate(2, runs, 1.08, 300);
        assert!(found > 0.9, "{runs} runs: a true difference found in {found} of the rounds");
        assert!(held > 0.9, "{runs} runs: the interval held in {held} of the rounds");
    }
}

#[test]
fn what_is_called_detectable_is_detected_four_times_in_five() {
    let mut rng = Rng::new(3, 0, 0);
    let mut values =
        |factor: f64| -> Vec<f64> { (0..8).map(|_| factor * (0.02 * normal(&mut rng)).exp()).collect() };
    let detectable: Vec<f64> = (0..200).map(|_| one(&values(1.0), &values(1.0)).detectable_percent).collect();
    let typical = detectable.iter().sum::<f64>() / detectable.len() as f64;
    let detected = (0..500).filter(|_| one(&values(1.0), &values(1.0 + typical / 100.0)).found()).count();
    assert!((340..=460).contains(&detected), "{detected} of 500 differences of {typical} %");
}
