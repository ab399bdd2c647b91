//! How sure the numbers of one run are, from how they vary within it. Knows nothing of what varies between
//! runs, which is more: for that, runs are compared with runs.
//!
//! The measured part is cut into batches of neighbouring intervals, a number is computed of each, and the
//! scatter of the batches gives the error (batch means: B. Schmeiser, "Batch size effects in the analysis of
//! simulation output", Operations Research 30, 1982; for percentiles: M. Nakayama, "Confidence intervals for
//! quantiles using sectioning", TOMACS 24, 2014). What correlation is left between neighbouring batches makes
//! them count for fewer (effective sample size of a first-order autoregression: G. Bayley and J. Hammersley,
//! 1946).

use hdrhistogram::Histogram;

use crate::compare::student;
use crate::observed::distribution::{PRECISION, SAMPLES_BEYOND_MIN};
use crate::observed::{Interval, Measured};

/// The most batches: longer ones are less correlated, and more than some 30 hardly make the error any surer.
const BATCHES_MAX: usize = 32;
/// With fewer batches no error is told.
const BATCHES_MIN: usize = 8;
/// Correlation beyond this cannot be told from a trend.
const CORRELATION_MAX: f64 = 0.9;

/// A number and its error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Of the whole measured part.
    pub value: f64,
    /// Half the width of its interval of 95 %; none when the run was too short to know.
    pub half_width: Option<f64>,
}

/// Calls per second that succeeded.
#[must_use]
pub fn calls_per_s(measured: &Measured) -> Estimate {
    rate(measured, measured.calls_per_s(), |interval| interval.calls)
}

/// Keys per second.
#[must_use]
pub fn keys_per_s(measured: &Measured) -> Estimate {
    rate(measured, measured.keys_per_s(), |interval| interval.keys)
}

/// The mean response time in nanoseconds.
#[must_use]
pub fn mean_ns(measured: &Measured) -> Option<Estimate> {
    let value = measured.response().mean_ns()?;
    let half_width = batches(measured, 0.0, BATCHES_MAX).and_then(|batches| {
        let means = batches.iter().map(|batch| (!batch.response.is_empty()).then(|| batch.response.mean()));
        error(&means.collect::<Option<Vec<f64>>>()?)
    });
    Some(Estimate { value, half_width: half_width.map(|half| half.max(PRECISION * value)) })
}

/// A percentile of the response time in nanoseconds, where there are enough samples.
#[must_use]
pub fn quantile_ns(measured: &Measured, quantile: f64) -> Option<Estimate> {
    let response = measured.response();
    let value = response.quantile_ns(quantile)? as f64;
    // A batch must have enough samples beyond the percentile for one of its own.
    let beyond = (1.0 - quantile) * response.count() as f64 / SAMPLES_BEYOND_MIN;
    let half_width = batches(measured, 0.0, BATCHES_MAX.min(beyond as usize)).and_then(|batches| {
        let quantiles = batches.iter().map(|batch| coarse_quantile_ns(&batch.response, quantile));
        error(&quantiles.collect::<Option<Vec<f64>>>()?)
    });
    Some(Estimate { value, half_width: half_width.map(|half| half.max(PRECISION * value)) })
}

fn rate(measured: &Measured, value: f64, of: impl Fn(&Interval) -> u64) -> Estimate {
    let half_width = batches(measured, measured.backlog_s, BATCHES_MAX).and_then(|batches| {
        let seconds = measured.series.interval().as_secs_f64() * batches.first()?.length as f64;
        error(&batches.iter().map(|batch| of(batch) as f64 / seconds).collect::<Vec<f64>>())
    });
    Estimate { value, half_width }
}

struct Batch {
    length: usize,
    sum: Interval,
}

impl std::ops::Deref for Batch {
    type Target = Interval;

    fn deref(&self) -> &Interval {
        &self.sum
    }
}

/// At most so many batches of equal length, from a time on; the intervals that are left over belong to none.
fn batches(measured: &Measured, from_s: f64, at_most: usize) -> Option<Vec<Batch>> {
    let whole = measured.series.whole(measured.seconds);
    let before = (from_s / measured.series.interval().as_secs_f64()).ceil() as usize;
    let whole = &whole[before.min(whole.len())..];
    if at_most.min(whole.len()) < BATCHES_MIN {
        return None;
    }
    let length = whole.len().div_ceil(at_most);
    let batch = |part: &[Interval]| {
        let mut sum = part[0].clone();
        part[1..].iter().for_each(|interval| sum.merge(interval));
        Batch { length, sum }
    };
    let batches: Vec<Batch> = whole.chunks_exact(length).map(batch).collect();
    (batches.len() >= BATCHES_MIN).then_some(batches)
}

/// Half the width of the interval of 95 % of the mean.
fn error(values: &[f64]) -> Option<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    if squares <= 0.0 {
        return Some(0.0);
    }
    let neighbours: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    let correlation = (neighbours / squares).clamp(0.0, CORRELATION_MAX);
    let effective = (count * (1.0 - correlation) / (1.0 + correlation)).max(2.0);
    let deviation = (squares / (count - 1.0)).sqrt();
    Some(student::quantile_beyond(0.025, effective - 1.0) * deviation / effective.sqrt())
}

/// A percentile of an interval's coarse histogram, straight within a bucket; none of an empty one.
#[must_use]
pub fn coarse_quantile_ns(histogram: &Histogram<u32>, quantile: f64) -> Option<f64> {
    let wanted = quantile * histogram.len() as f64;
    let mut before = 0.0;
    let mut found = None;
    for step in histogram.iter_recorded() {
        let count = f64::from(step.count_at_value());
        let (low, high) = (
            histogram.lowest_equivalent(step.value_iterated_to()) as f64,
            histogram.highest_equivalent(step.value_iterated_to()) as f64,
        );
        found = Some(low + (high - low) * ((wanted - before) / count).clamp(0.0, 1.0));
        before += count;
        if before >= wanted {
            break;
        }
    }
    found
}
