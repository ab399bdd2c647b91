//! Features whose values are so large that they swamp the model, and the values behind a step that went wrong. Knows no training.
//!
//! A key counts as 1. An adaptive optimizer moves a weight by about its learning rate, so a value of `x` moves the logit by `x`
//! times what a key moves it by: from [`SWAMPS`] on, the first step decides the sign of every prediction.

use sanderling_sample::Rows;
use sanderling_sample::spec::{Feature, FeatureKind};

use crate::numbers::about;

/// A feature swamps the model if the root mean square of its values is at least this.
pub const SWAMPS: f64 = 100.0;
/// Rows at the start of training that are looked at, by each worker.
pub(crate) const LOOK_ROWS: u64 = 4096;
/// A row's weight from which it is named when a step fails.
const LARGE_WEIGHT: f32 = 1e6;

/// A feature with large values.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeValues {
    /// The feature.
    pub feature: String,
    /// Root mean square of its values.
    pub size: f64,
    /// The remedy.
    pub remedy: &'static str,
}

impl std::fmt::Display for LargeValues {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LargeValues { feature, size, remedy } = self;
        write!(
            out,
            "values of {feature:?} are about {}, where a key counts as 1, and swamp the model: {remedy}",
            about(*size)
        )
    }
}

/// The remedy for the large values of a feature.
fn remedy(feature: &Feature) -> &'static str {
    match feature.kind {
        FeatureKind::Sparse => "scale them to about 1 in the file",
        _ => "set its type to \"log\" or \"quantile\"",
    }
}

/// Sums over the values of the first rows; one per worker.
#[derive(Debug)]
pub(crate) struct Magnitudes {
    rows_left: u64,
    /// By feature, the sum of squares of the values and their number.
    squares: Vec<(f64, u64)>,
}

impl Magnitudes {
    pub(crate) fn new(features: usize) -> Self {
        Magnitudes { rows_left: LOOK_ROWS, squares: vec![(0.0, 0); features] }
    }

    /// Looks at rows, unless enough were looked at. True when these were the last ones.
    #[inline]
    pub(crate) fn add(&mut self, rows: &Rows<'_>) -> bool {
        if self.rows_left == 0 {
            return false;
        }
        for (column, (sum, count)) in self.squares.iter_mut().enumerate() {
            if let Some(values) = rows.values(column) {
                *sum += values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
                *count += values.len() as u64;
            }
        }
        self.rows_left = self.rows_left.saturating_sub(rows.len() as u64);
        self.rows_left == 0
    }

    /// Features whose values are large, given all features in the order of the columns; and looks no further.
    pub(crate) fn take_large(&mut self, features: &[Feature]) -> Vec<LargeValues> {
        self.rows_left = 0;
        let found = features.iter().zip(&mut self.squares).filter_map(|(feature, squares)| {
            let (sum, count) = std::mem::take(squares);
            let size = (sum / count.max(1) as f64).sqrt();
            (size >= SWAMPS).then(|| LargeValues {
                feature: feature.name.clone(),
                size,
                remedy: remedy(feature),
            })
        });
        found.collect()
    }
}

/// The likely cause of a failed step: the largest value of these rows, or their largest weight; `None` if neither is
/// large.
pub(crate) fn cause(rows: &Rows<'_>, features: &[Feature]) -> Option<String> {
    let weight = rows.weights().iter().fold(0.0f32, |most, weight| most.max(*weight));
    if weight >= LARGE_WEIGHT {
        return Some(format!("a row has the weight {}: bound the weights", about(f64::from(weight))));
    }
    let (feature, value) = largest(rows, features)?;
    let name = &feature.name;
    Some(format!("feature {name:?} has the value {}: {}", about(f64::from(value)), remedy(feature)))
}

/// The feature with the largest value in these rows, and that value; none if none is large.
fn largest<'a>(rows: &Rows<'_>, features: &'a [Feature]) -> Option<(&'a Feature, f32)> {
    let of = |(column, feature)| {
        let values = rows.values(column)?.iter().copied();
        Some((feature, values.reduce(|a: f32, b| if b.abs() > a.abs() { b } else { a })?))
    };
    let found = features.iter().enumerate().filter_map(of);
    let found = found.max_by(|a: &(&Feature, f32), b| a.1.abs().total_cmp(&b.1.abs()))?;
    (f64::from(found.1.abs()) >= SWAMPS).then_some(found)
}
