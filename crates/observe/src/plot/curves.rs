//! Squares with two axes from 0: receiver operating characteristic, calibration. Knows positions and names only.

use std::ops::Range;

use plotters::prelude::*;

use super::axis::{Axis, Scale};
use super::frame::{MUTED, PALETTE, SCALE, draw, heading, heading_px};
use super::lines::{axes, thin, thinned};

const SQUARE_WIDTH_PX: i32 = 480;
const SQUARE_HEIGHT_PX: i32 = 400;
/// 1.96 standard deviations: intervals of 95 %.
const Z: f64 = 1.959_964;

/// Receiver operating characteristic: points (false positive rate, true positive rate) in order of the threshold,
/// each from 0 to 1 (others are left out); the area below is filled, the diagonal is what chance would give.
pub fn roc(title: &str, points: &[(f64, f64)]) -> String {
    let unit = Axis::between(0.0..1.0, Scale::Linear, 5);
    let inside = |point: &&(f64, f64)| (0.0..=1.0).contains(&point.0) && (0.0..=1.0).contains(&point.1);
    let curve = thinned(&points.iter().filter(inside).copied().collect::<Vec<_>>());
    draw(SQUARE_WIDTH_PX, SQUARE_HEIGHT_PX, title, |canvas| {
        heading(canvas, title, &[], SQUARE_WIDTH_PX)?;
        let top = heading_px(title, &[], SQUARE_WIDTH_PX);
        let mut chart = axes(canvas, (top, None), &unit, &unit, "false positive rate", "true positive rate")?;
        chart.draw_series(AreaSeries::new(curve.iter().copied(), 0.0, PALETTE[0].mix(0.12)))?;
        chart.draw_series(diagonal(1.0))?;
        chart.draw_series(LineSeries::new(curve, PALETTE[0].stroke_width(5 * SCALE as u32 / 2)))?;
        Ok(())
    })
}

/// Examples with similar predictions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalibrationPoint {
    /// Mean predicted probability.
    pub predicted: f64,
    /// Part of them that was positive.
    pub observed: f64,
    /// How many; decides the size of the dot and the 95 % interval around `observed`.
    pub examples: f64,
}

/// Predicted against observed probability: on the diagonal, predictions can be taken at their word. Points outside
/// 0 to 1 or without examples are left out.
pub fn calibration(title: &str, points: &[CalibrationPoint]) -> String {
    let unit = 0.0..=1.0;
    let sound = |point: &&CalibrationPoint| {
        unit.contains(&point.predicted) && unit.contains(&point.observed) && point.examples > 0.0
    };
    let points: Vec<CalibrationPoint> = points.iter().filter(sound).copied().collect();
    let most = points.iter().map(|point| point.examples).fold(1.0, f64::max);
    let reach = points.iter().map(|point| point.predicted.max(interval(point).end)).fold(0.0, f64::max);
    let end = if points.is_empty() || reach > 0.8 { 1.0 } else { (reach * 1.05).max(1e-6) };
    let axis = Axis::between(0.0..end, Scale::Linear, 5);
    draw(SQUARE_WIDTH_PX, SQUARE_HEIGHT_PX, title, |canvas| {
        heading(canvas, title, &[], SQUARE_WIDTH_PX)?;
        let top = heading_px(title, &[], SQUARE_WIDTH_PX);
        let mut chart = axes(canvas, (top, None), &axis, &axis, "predicted probability", "observed rate")?;
        chart.draw_series(diagonal(end))?;
        let bar = |point: &CalibrationPoint| {
            let Range { start, end: high } = interval(point);
            let ends = vec![(point.predicted, start), (point.predicted, high.min(end))];
            PathElement::new(ends, PALETTE[0].mix(0.5).stroke_width(SCALE as u32))
        };
        chart.draw_series(points.iter().map(bar))?;
        let line = points.iter().map(|point| (point.predicted, point.observed));
        chart.draw_series(LineSeries::new(line, PALETTE[0].stroke_width(3 * SCALE as u32 / 2)))?;
        let dot = |point: &CalibrationPoint| {
            let radius_px = 3.0 + 4.0 * (point.examples / most).sqrt();
            Circle::new(
                (point.predicted, point.observed),
                (radius_px * f64::from(SCALE)) as i32,
                PALETTE[0].filled(),
            )
        };
        chart.draw_series(points.iter().map(dot))?;
        Ok(())
    })
}

/// Wilson's score interval of a rate (E. B. Wilson, 1927): sound for rates near 0 and for few examples.
fn interval(point: &CalibrationPoint) -> Range<f64> {
    let (n, rate) = (point.examples, point.observed.clamp(0.0, 1.0));
    let center = (rate + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (rate * (1.0 - rate) / n + Z * Z / (4.0 * n * n)).sqrt();
    (center - half).max(0.0)..(center + half).min(1.0)
}

fn diagonal(end: f64) -> DashedLineSeries<std::vec::IntoIter<(f64, f64)>, u32> {
    DashedLineSeries::new(vec![(0.0, 0.0), (end, end)], 4 * SCALE as u32, 4 * SCALE as u32, thin(MUTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_holds_the_rate() {
        fn check(observed: f64, examples: f64, low: f64, high: f64) {
            let got = interval(&CalibrationPoint { predicted: 0.0, observed, examples });
            assert!((got.start - low).abs() < 1e-3 && (got.end - high).abs() < 1e-3, "{got:?}");
        }
        // 50 of 100, none of 10, all of 10: textbook values of the score interval.
        check(0.5, 100.0, 0.4038, 0.5962);
        check(0.0, 10.0, 0.0, 0.2775);
        check(1.0, 10.0, 0.7225, 1.0);
    }
}
