//! Charts with two axes: lines, receiver operating characteristic, calibration. Knows positions and names only.

use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Scale};
use super::frame::{
    Canvas, GRID, INK, LegendEntry, MUTED, PALETTE, SCALE, TEXT_PX, draw, heading, heading_px, label, text,
};

const LINE_WIDTH_PX: i32 = 480;
const LINE_HEIGHT_PX: i32 = 310;
const SQUARE_WIDTH_PX: i32 = 480;
const SQUARE_HEIGHT_PX: i32 = 400;
const TICKS: usize = 5;
/// The most points drawn per series: more would not be seen, and would make the page heavy.
const POINTS_MAX: usize = 1000;
/// 1.96 standard deviations: intervals of 95 %.
const Z: f64 = 1.959_964;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// x and y; points that are not finite (or not positive on a logarithmic axis) are left out.
    pub points: Vec<(f64, f64)>,
    /// A dot at every point, and a stronger line: for few points that matter.
    pub dots: bool,
    /// Colour, as a position in [`PALETTE`], which is used round and round.
    pub color: usize,
}

/// Several lines over one x axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineChart {
    /// What the chart shows; also its description for those who cannot see it.
    pub title: String,
    /// Name and unit of the x axis.
    pub x_label: String,
    /// Whether x is drawn on a logarithmic axis.
    pub x_log: bool,
    /// The lines, later ones on top.
    pub series: Vec<Series>,
    /// Values of x where something happened (a pass ended): thin vertical lines.
    pub x_marks: Vec<f64>,
}

impl LineChart {
    /// Draws it; without any point, empty axes that say so.
    pub fn svg(&self) -> String {
        let scale = if self.x_log { Scale::Log } else { Scale::Linear };
        let lines: Vec<Vec<(f64, f64)>> =
            self.series.iter().map(|series| placed(&series.points, scale)).collect();
        let all = || lines.iter().flatten();
        let x = Axis::over(all().map(|point| point.0), scale, TICKS, false);
        let y = Axis::over(all().map(|point| point.1), Scale::Linear, TICKS, true);
        let marks: Vec<f64> = self.x_marks.iter().filter_map(|&x| scale.position(x)).collect();
        let legend: Vec<LegendEntry<'_>> = self
            .series
            .iter()
            .map(|series| LegendEntry { name: &series.name, color: color(series.color), dot: series.dots })
            .collect();
        draw(LINE_WIDTH_PX, LINE_HEIGHT_PX, &self.title, |canvas| {
            heading(canvas, &self.title, &legend, LINE_WIDTH_PX)?;
            let top = heading_px(&self.title, &legend, LINE_WIDTH_PX);
            let mut chart = axes(canvas, top, &x, &y, &self.x_label, "")?;
            for mark in marks.iter().filter(|mark| x.range.contains(mark)) {
                let line = vec![(*mark, y.range.start), (*mark, y.range.end)];
                chart.draw_series(DashedLineSeries::new(
                    line,
                    3 * SCALE as u32,
                    3 * SCALE as u32,
                    thin(MUTED),
                ))?;
            }
            for (series, line) in self.series.iter().zip(&lines) {
                let color = color(series.color);
                let width = if series.dots { 5 * SCALE / 2 } else { 3 * SCALE / 2 };
                chart.draw_series(LineSeries::new(thinned(line), color.stroke_width(width as u32)))?;
                if series.dots || line.len() == 1 {
                    let dot = |&point: &(f64, f64)| Circle::new(point, 4 * SCALE, color.filled());
                    chart.draw_series(line.iter().map(dot))?;
                }
            }
            if lines.iter().all(Vec::is_empty) {
                let middle = ((x.range.start + x.range.end) / 2.0, (y.range.start + y.range.end) / 2.0);
                let style = text(TEXT_PX, MUTED, HPos::Center, VPos::Center);
                chart.draw_series([Text::new("no finite values", middle, style)])?;
            }
            Ok(())
        })
    }
}

/// Receiver operating characteristic: points (false positive rate, true positive rate) in order of the threshold,
/// each from 0 to 1 (others are left out); the area below is filled, the diagonal is what chance would give.
pub fn roc(title: &str, points: &[(f64, f64)]) -> String {
    let unit = Axis::between(0.0..1.0, Scale::Linear, 5);
    let inside = |point: &&(f64, f64)| (0.0..=1.0).contains(&point.0) && (0.0..=1.0).contains(&point.1);
    let curve = thinned(&points.iter().filter(inside).copied().collect::<Vec<_>>());
    draw(SQUARE_WIDTH_PX, SQUARE_HEIGHT_PX, title, |canvas| {
        heading(canvas, title, &[], SQUARE_WIDTH_PX)?;
        let top = heading_px(title, &[], SQUARE_WIDTH_PX);
        let mut chart = axes(canvas, top, &unit, &unit, "false positive rate", "true positive rate")?;
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
        let mut chart = axes(canvas, top, &axis, &axis, "predicted probability", "observed rate")?;
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

type Chart<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;

/// Axes with mesh, ticks and names below `top_px`.
fn axes<'a, 'b>(
    canvas: &'b Canvas<'a>,
    top_px: i32,
    x: &Axis,
    y: &Axis,
    x_label: &str,
    y_label: &str,
) -> Result<Chart<'a, 'b>, Box<dyn std::error::Error>> {
    let y_name_px = if y_label.is_empty() { 0 } else { 22 };
    let y_area_px = 16 + y.label_characters() as i32 * 8 + y_name_px;
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(top_px * SCALE)
        .margin_right(18 * SCALE)
        .margin_bottom(4 * SCALE)
        .x_label_area_size(44 * SCALE)
        .y_label_area_size(y_area_px * SCALE)
        .build_cartesian_2d(x.clone(), y.clone())?;
    chart
        .configure_mesh()
        .bold_line_style(thin(GRID))
        .light_line_style(TRANSPARENT)
        .axis_style(thin(MUTED))
        .set_all_tick_mark_size(4 * SCALE)
        .label_style(text(TEXT_PX, MUTED, HPos::Center, VPos::Center))
        .axis_desc_style(text(TEXT_PX, INK, HPos::Center, VPos::Center))
        .x_desc(label(x_label, 60))
        .y_desc(label(y_label, 40))
        .draw()?;
    Ok(chart)
}

fn thin(color: RGBColor) -> ShapeStyle {
    color.stroke_width(SCALE as u32)
}

fn color(at: usize) -> RGBColor {
    PALETTE[at % PALETTE.len()]
}

fn diagonal(end: f64) -> DashedLineSeries<std::vec::IntoIter<(f64, f64)>, u32> {
    DashedLineSeries::new(vec![(0.0, 0.0), (end, end)], 4 * SCALE as u32, 4 * SCALE as u32, thin(MUTED))
}

fn placed(points: &[(f64, f64)], x_scale: Scale) -> Vec<(f64, f64)> {
    let place = |&(x, y): &(f64, f64)| Some((x_scale.position(x)?, Scale::Linear.position(y)?));
    points.iter().filter_map(place).collect()
}

/// At most [`POINTS_MAX`] points that draw the same picture: the lowest and the highest of every run.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let run = (2 * points.len()).div_ceil(POINTS_MAX - 2);
    let mut kept = vec![points[0]];
    for run in points.chunks(run) {
        let by_y = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = run.iter().min_by(by_y);
        let high = run.iter().max_by(by_y);
        let mut pair: Vec<(f64, f64)> = low.into_iter().chain(high).copied().collect();
        pair.sort_by(|a, b| a.0.total_cmp(&b.0));
        kept.extend(pair);
    }
    kept.extend(points.last());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_ends_and_extremes() {
        let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), f64::from(i % 7))).collect();
        points[54_321].1 = 99.0;
        let kept = thinned(&points);
        assert!(kept.len() <= POINTS_MAX + 2, "{}", kept.len());
        assert!(kept.contains(&(54_321.0, 99.0)));
        assert_eq!((kept[0], kept[kept.len() - 1]), (points[0], points[99_999]));
        assert!(kept.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

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
