//! Metrics against sums over pairs and known values, however rows are kept.

use super::sorted::sorted;
use super::*;
use proptest::prelude::*;

fn collect(rows: &[(f32, f32, f32)]) -> Scores {
    let mut scores = Scores::new();
    for (logit, label, weight) in rows {
        scores.push(*logit, *label, *weight);
    }
    scores
}

/// The definition: the chance that a positive scores above a negative, ties half.
fn auc_by_pairs(rows: &[(f32, f32, f32)]) -> f64 {
    let (mut wins, mut pairs) = (0.0, 0.0);
    for (a, _, wa) in rows.iter().filter(|row| row.1 > 0.5) {
        for (b, _, wb) in rows.iter().filter(|row| row.1 <= 0.5) {
            let weight = f64::from(*wa) * f64::from(*wb);
            pairs += weight;
            wins += weight
                * if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                };
        }
    }
    wins / pairs
}

#[test]
fn known_values() {
    let metrics = collect(&[(0.0, 1.0, 1.0), (0.0, 0.0, 1.0)]).metrics();
    assert_eq!((metrics.auc, metrics.prob_mean, metrics.real_mean), (0.5, 0.5, 0.5));
    assert!((metrics.logloss - 2f64.ln()).abs() < 1e-12);
    assert!((metrics.normalized_entropy - 1.0).abs() < 1e-12);
    let quarter = [(0.0, 1.0, 1.0), (0.0, 0.0, 3.0)];
    let base = -(0.25 * 0.25_f64.ln() + 0.75 * 0.75_f64.ln());
    assert!((collect(&quarter).metrics().normalized_entropy - 2f64.ln() / base).abs() < 1e-12);
    assert!(collect(&[(0.0, 1.0, 1.0)]).metrics().normalized_entropy.is_nan());
    assert!(collect(&[(1.0, 1.0, 1.0)]).metrics().auc.is_nan());
    let extreme = collect(&[(200.0, 0.0, 1.0), (-200.0, 1.0, 1.0)]).metrics();
    assert_eq!((extreme.auc, extreme.logloss), (0.0, 200.0));
    assert!(Scores::new().metrics().logloss.is_nan());
    let json = serde_json::to_string(&Scores::new().metrics()).unwrap();
    assert!(json.contains("\"auc\":null"), "{json}");
}

/// All ways to count the same rows, of a score, a label and a weight each, give one result.
fn check_rows(rows: &[(i8, bool, u8)], ways: impl Fn(&Scores, &[(f32, f32, f32)]) -> Vec<Scores>) {
    let rows: Vec<(f32, f32, f32)> =
        rows.iter().map(|(s, y, w)| (f32::from(*s), f32::from(*y), f32::from(*w))).collect();
    let expected = auc_by_pairs(&rows);
    let whole = collect(&rows);
    for scores in ways(&whole, &rows).iter().chain([&whole]) {
        let (auc, logloss) = (scores.metrics().auc, scores.metrics().logloss);
        assert!((auc - expected).abs() < 1e-9 || (auc.is_nan() && expected.is_nan()), "{auc} {expected}");
        assert!((logloss - whole.metrics().logloss).abs() < 1e-9 || whole.weight.value() == 0.0);
    }
    let calibrated: f64 = whole.calibration(5).iter().map(|bin| bin.weight).sum();
    assert!((calibrated - whole.weight.value()).abs() < 1e-6);
}

proptest! {
    #[test]
    fn auc_equals_its_definition(
        rows in proptest::collection::vec((-4i8..4, any::<bool>(), 0u8..4), 2..80),
        cut in 0usize..80,
    ) {
        check_rows(&rows, |whole, rows| {
            let (left, right) = rows.split_at(cut.min(rows.len()));
            let mut merged = collect(left);
            merged.merge(&collect(right));
            vec![merged, Scores::from_bytes(&whole.to_bytes(), 1 << 20).unwrap()]
        });
    }
}

proptest! {
    // A million bins each.
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn auc_of_bins_is_that_of_rows(
        rows in proptest::collection::vec((-4i8..4, any::<bool>(), 0u8..4), 2..80),
    ) {
        check_rows(&rows, |whole, _| {
            let mut binned = Scores::with_exact_rows(1);
            binned.merge(whole);
            let restored = Scores::from_bytes(&binned.to_bytes(), 1).unwrap();
            vec![binned, restored]
        });
    }
}

#[test]
fn the_radix_sort_sorts() {
    let score = |i: u32| f32::from_bits(i.wrapping_mul(2_654_435_761));
    let scores = (0..20_000).map(score).filter(|score| !score.is_nan());
    let rows: Vec<Scored> = scores.map(|score| Scored { score, positive: 1.0, negative: 0.0 }).collect();
    let mut expected = rows.clone();
    expected.sort_by(|a, b| a.score.total_cmp(&b.score));
    let bits = |rows: &[Scored]| rows.iter().map(|row| row.score.to_bits()).collect::<Vec<_>>();
    assert!(rows.len() > 1 << 12 && bits(&sorted(&rows)) == bits(&expected));
}

/// Parts in order are the sorted rows, up and down, whatever the scores are; equal scores are in one part.
#[test]
fn sorted_parts_are_the_sorted_rows() {
    let n = 300_000_u32;
    let hash = |i: u32| i.wrapping_mul(2_654_435_761);
    let random = |i: u32| (hash(i) >> 8) as f32 / (1 << 24) as f32 * 8.0 - 5.0;
    let check = |score: &dyn Fn(u32) -> f32, parts: usize| {
        let row = |i: u32| Scored { score: score(i), positive: 1.0, negative: i as f32 };
        let rows: Vec<Scored> = (0..n).map(row).collect();
        let mut expected = rows.clone();
        expected.sort_by(|a, b| a.score.total_cmp(&b.score));
        let up: Vec<Vec<Scored>> = SortedParts::of(&rows).collect();
        assert!(up.len() >= parts && up.concat() == expected);
        let mut down: Vec<Vec<Scored>> = SortedParts::of(&rows).rev().collect();
        down.reverse();
        assert!(down == up);
        let ends = up.windows(2).map(|pair| (pair[0].last(), pair[1].first()));
        assert!(ends.flat_map(|(a, b)| a.zip(b)).all(|(a, b)| a.score < b.score));
    };
    check(&random, 4);
    check(&|i| random(i % 1000), 4);
    check(&|i| if i % 2 == 0 { 0.0 } else { -0.0 }, 1);
    check(&|i| if i % 3 == 0 { random(i) } else { 0.5 }, 2);
}

#[test]
fn the_roc_curve_encloses_the_auc() {
    let rows: Vec<_> = (0..5000u32)
        .map(|i| {
            let noise = f64::from(i.wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24);
            (noise as f32, f32::from(i % 3 == 0 && noise > 0.3), 1.0)
        })
        .collect();
    let scores = collect(&rows);
    let curve = scores.roc(500);
    let area: f64 = curve
        .windows(2)
        .map(|p| {
            (p[1].false_positive_rate - p[0].false_positive_rate)
                * (p[0].true_positive_rate + p[1].true_positive_rate)
                / 2.0
        })
        .sum();
    assert!(curve.len() <= 1002 && (area - scores.metrics().auc).abs() < 1e-3, "{area}");
    assert!(Scores::from_bytes(b"junk", 1).is_none());
}
