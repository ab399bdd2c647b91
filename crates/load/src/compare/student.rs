//! Student's t distribution: probabilities and quantiles. Knows nothing of what is tested.

/// Lanczos' approximation of the logarithm of the gamma function with g = 7 and nine terms (C. Lanczos, 1964;
/// coefficients by P. Godfrey): to 15 digits for positive arguments.
const LANCZOS_G: f64 = 7.0;
const LANCZOS: [f64; 9] = [
    0.999_999_999_999_809_9,
    676.520_368_121_885_1,
    -1_259.139_216_722_402_8,
    771.323_428_777_653_1,
    -176.615_029_162_140_6,
    12.507_343_278_686_905,
    -0.138_571_095_265_720_12,
    9.984_369_578_019_572e-6,
    1.505_632_735_149_311_6e-7,
];
/// Terms of the continued fraction; some dozen suffice for what is asked here.
const TERMS_MAX: usize = 10_000;
/// The smallest difference that matters.
const EPSILON: f64 = 1e-15;
/// Halvings of the interval in which a quantile lies: more digits than a number has.
const HALVINGS: usize = 200;

/// The probability that |T| is at least `t`, for `freedom` degrees of freedom (which may be a fraction).
#[must_use]
pub fn p_two_sided(t: f64, freedom: f64) -> f64 {
    if t.is_nan() || freedom.is_nan() {
        return f64::NAN;
    }
    if t.is_infinite() {
        return 0.0;
    }
    // I_x(v/2, 1/2) with x = v / (v + t^2): Abramowitz and Stegun 26.7.1.
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// The t that is exceeded with probability `beyond`, at most a half.
#[must_use]
pub fn quantile_beyond(beyond: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while p_two_sided(high, freedom) > 2.0 * beyond && high < 1e300 {
        high *= 2.0;
    }
    for _ in 0..HALVINGS {
        let middle = low + (high - low) / 2.0;
        if p_two_sided(middle, freedom) > 2.0 * beyond { low = middle } else { high = middle }
    }
    high
}

fn ln_gamma(x: f64) -> f64 {
    let x = x - 1.0;
    let t = x + LANCZOS_G + 0.5;
    let terms = LANCZOS.iter().enumerate().skip(1).map(|(i, term)| term / (x + i as f64));
    let sum = LANCZOS[0] + terms.sum::<f64>();
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

/// The regularized incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8,
/// evaluated as by W. Lentz, 1976).
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    // It converges fast below the mean; beyond it the other tail is the easier one.
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(a, b, x) / a
    } else {
        1.0 - front * fraction(b, a, 1.0 - x) / b
    }
}

fn fraction(a: f64, b: f64, x: f64) -> f64 {
    let away_from_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for m in 1..TERMS_MAX {
        let m = m as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            change = c * d;
            value *= change;
        }
        if (change - 1.0).abs() < EPSILON {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_and_quantiles_are_those_of_scipy() {
        // scipy 1.17.1: 2 * scipy.stats.t.sf(t, v) and scipy.stats.t.isf(beyond, v).
        fn check(t: f64, freedom: f64, expected: f64) {
            let found = p_two_sided(t, freedom);
            assert!((found / expected - 1.0).abs() < 1e-8, "t {t}, {freedom}: {found} is not {expected}");
            let back = quantile_beyond(expected / 2.0, freedom);
            assert!((back - t).abs() < 1e-6 * t.max(1.0), "{back} is not {t}");
        }
        SCIPY_T.iter().for_each(|&(t, freedom, expected)| check(t, freedom, expected));
        assert!((p_two_sided(0.0, 5.0) - 1.0).abs() < 1e-15);
        assert!(p_two_sided(f64::INFINITY, 5.0) == 0.0 && p_two_sided(f64::NAN, 5.0).is_nan());
    }

    /// t, degrees of freedom, probability.
    const SCIPY_T: &[(f64, f64, f64)] = &[
        (0.5, 1.0, 0.704_832_764_699_133_5),
        (2.0, 1.5, 0.224_188_330_356_051_12),
        (1.0, 3.0, 0.391_002_218_955_770_5),
        (2.5, 4.7, 0.057_592_159_346_867_32),
        (2.228_138_851_964_939, 10.0, 0.050_000_000_001_808_64),
        (4.0, 18.0, 0.000_839_829_317_408_560_9),
        (1.959_963_984_540_054, 1_000_000.0, 0.050_000_277_295_221_7),
        (12.0, 7.0, 6.358310378185098e-6),
        (6.5, 199.5, 6.295733228357972e-10),
    ];
}
