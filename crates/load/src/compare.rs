//! Two sets of runs side by side: how large the difference is, how sure that is, and what could have been
//! missed. Compares runs, not requests: those of one run are not independent of each other. Knows no engine
//! and no text beyond a verdict.
//!
//! All is computed on logarithms, so that a difference is a ratio, and the same read from either side.

pub mod permutation;
pub mod student;

use crate::observed::distribution::PRECISION;
use crate::result::RunResult;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // as they are called
pub enum Side {
    A,
    B,
}

/// The order in which so many runs of each side are made: A B B A, again and again, so that what drifts with
/// time falls on both alike.
#[must_use]
pub fn abba(runs: usize) -> Vec<Side> {
    (0..2 * runs).map(|at| if matches!(at % 4, 0 | 3) { Side::A } else { Side::B }).collect()
}

/// The compared metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // as they are called; latencies are response times
pub enum Metric {
    KeysPerS,
    CallsPerS,
    Mean,
    P50,
    P99,
    P999,
}

impl Metric {
    /// All, in order.
    pub const ALL: [Metric; 6] =
        [Metric::KeysPerS, Metric::CallsPerS, Metric::Mean, Metric::P50, Metric::P99, Metric::P999];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Metric::KeysPerS => "keys/s",
            Metric::CallsPerS => "calls/s",
            Metric::Mean => "mean",
            Metric::P50 => "p50",
            Metric::P99 => "p99",
            Metric::P999 => "p99.9",
        }
    }

    /// The ratio, as a logarithm, below which two values are the same one: what histograms do not tell apart.
    fn precision(self) -> f64 {
        match self {
            Metric::P50 | Metric::P99 | Metric::P999 => PRECISION,
            Metric::KeysPerS | Metric::CallsPerS | Metric::Mean => 0.0,
        }
    }

    /// Whether it is a rate, of which more is better, and not a latency in nanoseconds.
    #[must_use]
    pub fn is_rate(self) -> bool {
        matches!(self, Metric::KeysPerS | Metric::CallsPerS)
    }

    /// Of a run; none if it has too few samples, or nothing.
    #[must_use]
    pub fn of(self, run: &RunResult) -> Option<f64> {
        let measured = &run.measured;
        let quantile = |quantile| measured.response().quantile_ns(quantile).map(|ns| ns as f64);
        let value = match self {
            Metric::KeysPerS => Some(measured.keys_per_s()),
            Metric::CallsPerS => Some(measured.calls_per_s()),
            Metric::Mean => measured.response().mean_ns(),
            Metric::P50 => quantile(0.5),
            Metric::P99 => quantile(0.99),
            Metric::P999 => quantile(0.999),
        };
        value.filter(|&value| value > 0.0 && value.is_finite())
    }
}

/// With at least so many runs on both sides the permutation test can find small probabilities (6 and 6 can be
/// dealt in 924 ways) and is taken, since it assumes nothing of how runs scatter; with fewer, Welch's test.
pub const PERMUTATION_RUNS_MIN: usize = 6;
/// With fewer runs on a side an interval tells nothing: of 2 runs Student's t is 12.7.
pub const INTERVAL_RUNS_MIN: usize = 3;
/// A difference counts as found below this probability, corrected.
pub const ALPHA: f64 = 0.05;
/// Probability with which a difference would have been found.
pub const POWER: f64 = 0.8;
/// Seed of the random deals, which only more than 10 runs on each side need.
const PERMUTATION_SEED: u64 = 0x5a4d;

/// Why runs cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// A single run does not say how much runs scatter.
    #[error("{a} and {b} runs: at least 2 of each are needed to know how much runs differ by themselves")]
    TooFewRuns {
        /// Runs of A.
        a: usize,
        /// Runs of B.
        b: usize,
    },
}

/// Two sets of runs, compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Runs of A.
    pub runs_a: usize,
    /// Runs of B.
    pub runs_b: usize,
    /// Runs of both that were not valid, and were taken all the same.
    pub invalid: usize,
    /// Where a probability comes from: `permutation` or `Welch`.
    pub test: &'static str,
    /// For every metric that all runs have.
    pub differences: Vec<Difference>,
}

/// One metric of two sets of runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Which.
    pub metric: Metric,
    /// Geometric mean of A's runs.
    pub a: f64,
    /// Of B's.
    pub b: f64,
    /// How much more B has, in percent of A.
    pub percent: f64,
    /// Ends of its interval of 95 % (B. L. Welch, 1947).
    pub percent_low: f64,
    /// The upper end.
    pub percent_high: f64,
    /// How probable at least such a difference is if there is none.
    pub p: f64,
    /// The p-value corrected for the number of metrics (S. Holm, 1979).
    pub p_corrected: f64,
    /// A difference beyond this percentage is found with probability [`POWER`], given the number
    /// of runs and their variance.
    pub detectable_percent: f64,
}

/// Compares runs.
pub fn compare(a: &[&RunResult], b: &[&RunResult]) -> Result<Comparison, CompareError> {
    let of = |runs: &[&RunResult], metric: Metric| -> Option<Vec<f64>> {
        runs.iter().map(|run| metric.of(run)).collect()
    };
    let values: Vec<_> =
        Metric::ALL.into_iter().filter_map(|metric| Some((metric, of(a, metric)?, of(b, metric)?))).collect();
    let mut comparison = compare_values(&values, a.len(), b.len())?;
    comparison.invalid = a.iter().chain(b).filter(|run| !run.validity.valid).count();
    Ok(comparison)
}

/// Compares metrics with positive values per run.
pub fn compare_values(
    values: &[(Metric, Vec<f64>, Vec<f64>)],
    runs_a: usize,
    runs_b: usize,
) -> Result<Comparison, CompareError> {
    if runs_a < 2 || runs_b < 2 {
        return Err(CompareError::TooFewRuns { a: runs_a, b: runs_b });
    }
    let permute = runs_a.min(runs_b) >= PERMUTATION_RUNS_MIN;
    let mut differences: Vec<Difference> =
        values.iter().map(|(metric, a, b)| difference(*metric, a, b, values.len(), permute)).collect();
    correct(&mut differences);
    let test = if permute { "permutation" } else { "Welch" };
    Ok(Comparison { runs_a, runs_b, invalid: 0, test, differences })
}

fn difference(metric: Metric, a: &[f64], b: &[f64], metrics: usize, permute: bool) -> Difference {
    let logarithms = |values: &[f64]| values.iter().map(|value| value.ln()).collect::<Vec<f64>>();
    let (a, b) = (logarithms(a), logarithms(b));
    let ((mean_a, error_a), (mean_b, error_b)) = (mean_and_error(&a), mean_and_error(&b));
    let (change, scatter) = (mean_b - mean_a, (error_a + error_b).sqrt());
    let precision = metric.precision();
    let error = scatter.max(precision);
    // Below this the runs do not scatter at all, but for rounding.
    let (same, still) = (change.abs() <= precision.max(1e-12), scatter <= 1e-12);
    let freedom = if still && precision > 0.0 {
        (a.len() + b.len() - 2) as f64
    } else if still {
        1.0
    } else {
        let part = |error: f64, runs: usize| error * error / (runs - 1) as f64;
        (error_a + error_b).powi(2) / (part(error_a, a.len()) + part(error_b, b.len()))
    };
    let p = match (still, permute) {
        _ if same => 1.0,
        (_, true) => permutation::p_two_sided(&a, &b, PERMUTATION_SEED),
        (true, false) if precision == 0.0 => 0.0,
        (_, false) => student::p_two_sided(change / error, freedom),
    };
    let percent = |logarithm: f64| 100.0 * (logarithm.exp() - 1.0);
    let half = student::quantile_beyond(ALPHA / 2.0, freedom) * error;
    // Of the corrected tests the first one is the strictest.
    let strict = student::quantile_beyond(ALPHA / 2.0 / metrics as f64, freedom);
    let detectable = (strict + student::quantile_beyond(1.0 - POWER, freedom)) * error;
    Difference {
        metric,
        a: mean_a.exp(),
        b: mean_b.exp(),
        percent: percent(change),
        percent_low: percent(change - half),
        percent_high: percent(change + half),
        p,
        p_corrected: p,
        detectable_percent: percent(detectable),
    }
}

/// The mean, and the square of its standard error.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance / count)
}

fn correct(differences: &mut [Difference]) {
    let mut order: Vec<usize> = (0..differences.len()).collect();
    order.sort_by(|&i, &j| differences[i].p.total_cmp(&differences[j].p));
    let mut least = 0.0_f64;
    for (rank, &at) in order.iter().enumerate() {
        let factor = (order.len() - rank) as f64;
        least = least.max((differences[at].p * factor).min(1.0));
        differences[at].p_corrected = least;
    }
}

impl Comparison {
    /// Whether there are enough runs for intervals.
    #[must_use]
    pub fn has_intervals(&self) -> bool {
        self.runs_a.min(self.runs_b) >= INTERVAL_RUNS_MIN
    }

    /// In words: a line for the throughput, and one for every other metric in which a difference was found,
    /// or for the p99 if there is none.
    #[must_use]
    pub fn verdict(&self) -> Vec<String> {
        let throughput = self.differences.iter().position(|difference| difference.metric.is_rate());
        if !self.has_intervals() && !self.differences.is_empty() {
            let (few, least) = (self.runs_a.min(self.runs_b), INTERVAL_RUNS_MIN);
            let mut lines = vec![format!(
                "{few} runs per side are too few for an interval: at least {least}, better 10 (--runs 10)"
            )];
            lines.extend(self.doubt());
            return lines;
        }
        let mut lines: Vec<String> = throughput.iter().map(|&at| self.differences[at].verdict()).collect();
        let others = self.differences.iter().enumerate().filter(|(at, difference)| {
            Some(*at) != throughput && difference.found() && difference.metric != Metric::CallsPerS
        });
        if self.differences.is_empty() {
            lines.push("nothing to compare: there is no number that all runs have".to_owned());
        }
        let found: Vec<String> = others.map(|(_, difference)| difference.verdict()).collect();
        if found.is_empty() {
            let p99 = self.differences.iter().find(|difference| difference.metric == Metric::P99);
            lines.extend(p99.map(Difference::verdict));
        }
        lines.extend(found);
        lines.extend(self.doubt());
        lines
    }

    fn doubt(&self) -> Option<String> {
        let (invalid, all) = (self.invalid, self.runs_a + self.runs_b);
        (invalid > 0)
            .then(|| format!("runs that are not valid, of {all}: {invalid}; see why before believing this"))
    }
}

impl Difference {
    /// Whether it is more than chance would give.
    #[must_use]
    pub fn found(&self) -> bool {
        self.p_corrected < ALPHA
    }

    /// In words.
    #[must_use]
    pub fn verdict(&self) -> String {
        let Difference { metric, percent, percent_low, percent_high, .. } = *self;
        let name = metric.name();
        if !self.found() {
            let of = if metric.is_rate() { String::new() } else { format!(" of {name}") };
            let least = digits(self.detectable_percent);
            return format!("no difference{of} found; one of more than {least} % would probably have been");
        }
        let (from, to) =
            (percent_low.abs().min(percent_high.abs()), percent_low.abs().max(percent_high.abs()));
        let (from, to) = if percent_low < 0.0 && percent_high > 0.0 { (-from, to) } else { (from, to) };
        let subject = match (metric, percent > 0.0) {
            (Metric::KeysPerS | Metric::CallsPerS, true) => format!("B is {} % faster", digits(percent)),
            (Metric::KeysPerS | Metric::CallsPerS, false) => format!("B is {} % slower", digits(-percent)),
            (_, true) => format!("{name} of B is {} % higher", digits(percent)),
            (_, false) => format!("{name} of B is {} % lower", digits(-percent)),
        };
        format!("{subject} (95 %: {} to {} %), p {}", digits(from), digits(to), probability(self.p_corrected))
    }
}

/// A percentage with as many decimals as make sense. Few runs that scatter much give intervals beyond any meaning.
pub(crate) fn digits(percent: f64) -> String {
    match percent.abs() {
        size if size >= 999.5 => ">999".to_owned(),
        size if size >= 99.95 => format!("{percent:.0}"),
        size if size >= 0.095 => format!("{percent:.1}"),
        _ => format!("{percent:.2}"),
    }
}

/// `= .004`, or `< .001`.
pub(crate) fn probability(p: f64) -> String {
    if p < 0.001 {
        return "< .001".to_owned();
    }
    let text = if p < 0.0995 { format!("{p:.3}") } else { format!("{p:.2}") };
    format!("= {}", text.strip_prefix('0').unwrap_or(&text))
}

#[cfg(test)]
mod tests;
