//! Lines over one x axis, alone or as panels above each other. Knows positions and names only.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::axis::{Axis, Scale};
use super::frame::{
    Canvas, Drawn, GRID, INK, LegendEntry, Look, MUTED, PALETTE, SCALE, TEXT_PX, draw, heading, heading_px,
    label, text, text_width_px,
};

const WIDTH_PX: i32 = 480;
const HEIGHT_PX: i32 = 310;
/// Room at the edges: for texts, and to the right of an axis.
const EDGE_PX: i32 = 6;
const RIGHT_PX: i32 = 18;
/// Pixels per tick, at least.
const X_TICK_PX: i32 = 90;
const Y_TICK_PX: i32 = 55;
/// The most points drawn per series: more would not be seen, and would make the page heavy.
const POINTS_MAX: usize = 1000;
/// Characters of the text at a horizontal mark.
const MARK_CHARACTERS: usize = 40;

/// One line of a chart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Name in the legend; none without.
    pub name: String,
    /// x and y; points that are not finite (or not positive on a logarithmic axis) are left out.
    pub points: Vec<(f64, f64)>,
    /// How they are drawn.
    pub look: Look,
    /// Colour, as a position in [`PALETTE`], which is used round and round.
    pub color: usize,
}

/// Several lines over one x axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineChart {
    /// Title of the chart; also its description for screen readers.
    pub title: String,
    /// Name and unit of the x axis.
    pub x_label: String,
    /// Name and unit of the y axis; it may be in the title instead.
    pub y_label: String,
    /// Whether x is drawn on a logarithmic axis.
    pub x_log: bool,
    /// Where x begins and ends, for charts that are to be in line; otherwise where the lines do.
    pub x_ends: Option<(f64, f64)>,
    /// Whether there is room left and right of the lines, for dots and crosses at their ends.
    pub x_room: bool,
    /// Whether y is drawn on a logarithmic axis.
    pub y_log: bool,
    /// Whether a linear y axis begins at 0.
    pub y_from_zero: bool,
    /// The lines, later ones on top.
    pub series: Vec<Series>,
    /// Values of x where something happened (a pass ended): thin vertical lines.
    pub x_marks: Vec<f64>,
    /// Values of y that matter, and what they are: thin horizontal lines.
    pub y_marks: Vec<(f64, String)>,
    /// Where x has ticks, and what is written there; when empty, round numbers.
    pub x_ticks: Vec<(f64, String)>,
}

/// Charts above each other whose x axes are in line, for a file of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Of all, in CSS pixels.
    pub width_px: i32,
    /// Every chart and its height in CSS pixels, from the top.
    pub panels: Vec<(LineChart, i32)>,
}

impl Figure {
    /// Its height in CSS pixels.
    #[must_use]
    pub fn height_px(&self) -> i32 {
        self.panels.iter().map(|(_, height_px)| height_px).sum()
    }

    /// As SVG.
    #[must_use]
    pub fn svg(&self) -> String {
        let title = self.panels.first().map_or("", |(chart, _)| &chart.title);
        draw(self.width_px, self.height_px(), title, |canvas| self.paint(canvas))
    }

    fn paint<DB: DrawingBackend<ErrorType: 'static>>(&self, canvas: &Canvas<DB>) -> Drawn {
        let areas = self
            .panels
            .iter()
            .map(|(chart, height_px)| y_area_px(&chart.placed(self.width_px, *height_px).y, &chart.y_label));
        let widest = areas.max();
        let mut top = 0;
        for (chart, height_px) in &self.panels {
            let end = top + height_px * SCALE;
            let part = canvas.clone().shrink((0, top), (self.width_px * SCALE, height_px * SCALE));
            chart.paint(&part, (self.width_px, *height_px), widest)?;
            top = end;
        }
        Ok(())
    }
}

/// A chart's axes, and its lines in their positions.
struct Placed {
    x: Axis,
    y: Axis,
    lines: Vec<Vec<(f64, f64)>>,
    y_marks: Vec<f64>,
}

impl LineChart {
    /// Draws it; without any point, empty axes that say so.
    #[must_use]
    pub fn svg(&self) -> String {
        draw(WIDTH_PX, HEIGHT_PX, &self.title, |canvas| self.paint(canvas, (WIDTH_PX, HEIGHT_PX), None))
    }

    fn scales(&self) -> (Scale, Scale) {
        let scale = |log| if log { Scale::Log } else { Scale::Linear };
        (scale(self.x_log), scale(self.y_log))
    }

    fn placed(&self, width_px: i32, height_px: i32) -> Placed {
        let (x_scale, y_scale) = self.scales();
        let lines: Vec<Vec<(f64, f64)>> =
            self.series.iter().map(|series| placed(&series.points, x_scale, y_scale)).collect();
        let y_marks: Vec<f64> = self.y_marks.iter().filter_map(|(y, _)| y_scale.position(*y)).collect();
        let (x_wanted, y_wanted) = (width_px / X_TICK_PX, height_px / Y_TICK_PX);
        let all = || lines.iter().flatten();
        let ends =
            self.x_ends.and_then(|(low, high)| Some((x_scale.position(low)?, x_scale.position(high)?)));
        let mut x = match ends {
            Some((low, high)) if low < high => Axis::between(low..high, x_scale, x_wanted.max(2) as usize),
            _ => Axis::over(all().map(|point| point.0), x_scale, x_wanted.max(2) as usize, self.x_room),
        };
        if !self.x_ticks.is_empty() {
            let ticks = self.x_ticks.iter();
            x.set_ticks(ticks.filter_map(|(x, name)| Some((x_scale.position(*x)?, name.clone()))));
        }
        let zero = (self.y_from_zero && !self.y_log && all().next().is_some()).then_some(0.0);
        let values = all().map(|point| point.1).chain(y_marks.iter().copied()).chain(zero);
        let mut y = Axis::over(values, y_scale, y_wanted.max(3) as usize, true);
        if zero.is_some() && y.range.start < 0.0 && all().all(|point| point.1 >= 0.0) {
            y = Axis::between(0.0..y.range.end, y_scale, y_wanted.max(3) as usize);
        }
        Placed { x, y, lines, y_marks }
    }

    fn paint<DB: DrawingBackend<ErrorType: 'static>>(
        &self,
        canvas: &Canvas<DB>,
        (width_px, height_px): (i32, i32),
        y_area_px: Option<i32>,
    ) -> Drawn {
        let Placed { x, y, lines, y_marks } = self.placed(width_px, height_px);
        let x_marks = self.x_marks.iter().filter_map(|&x| self.scales().0.position(x));
        let named = self.series.iter().filter(|series| !series.name.is_empty());
        let legend: Vec<LegendEntry<'_>> = named
            .map(|series| LegendEntry { name: &series.name, color: color(series.color), look: series.look })
            .collect();
        heading(canvas, &self.title, &legend, width_px)?;
        let top = heading_px(&self.title, &legend, width_px);
        let mut chart = axes(canvas, (top, y_area_px), &x, &y, &self.x_label, &self.y_label)?;
        let dash = 3 * SCALE as u32;
        for mark in x_marks.filter(|mark| x.range.contains(mark)) {
            let line = vec![(mark, y.range.start), (mark, y.range.end)];
            chart.draw_series(DashedLineSeries::new(line, dash, dash, thin(MUTED)))?;
        }
        for (mark, (_, name)) in y_marks.iter().zip(&self.y_marks) {
            let line = vec![(x.range.start, *mark), (x.range.end, *mark)];
            chart.draw_series(DashedLineSeries::new(line, dash, dash, thin(INK)))?;
            let style = text(TEXT_PX, INK, HPos::Left, VPos::Bottom);
            let place = (x.range.start, *mark);
            let name = label(name, MARK_CHARACTERS);
            let offset = (6 * SCALE, -3 * SCALE);
            chart.draw_series([EmptyElement::at(place) + Text::new(name, offset, style)])?;
        }
        for (series, line) in self.series.iter().zip(&lines) {
            let color = color(series.color);
            let width = if series.look == Look::Dots { 5 * SCALE / 2 } else { 3 * SCALE / 2 };
            let style = color.stroke_width(width as u32);
            match series.look {
                Look::Line | Look::Dots => {
                    chart.draw_series(LineSeries::new(thinned(line), style))?;
                }
                Look::Dashed => {
                    let (long, short) = (7 * SCALE as u32, 4 * SCALE as u32);
                    chart.draw_series(DashedLineSeries::new(thinned(line), long, short, style))?;
                }
                Look::Crosses => {
                    let style = color.stroke_width(2 * SCALE as u32);
                    chart.draw_series(line.iter().map(|&point| Cross::new(point, 5 * SCALE, style)))?;
                }
            }
            if series.look == Look::Dots || (line.len() == 1 && series.look != Look::Crosses) {
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
    }
}

pub(super) type Chart<'b, DB> = ChartContext<'b, DB, Cartesian2d<Axis, Axis>>;

/// The width left of the y axis.
fn y_area_px(y: &Axis, y_label: &str) -> i32 {
    let name_px = if y_label.is_empty() { 0 } else { 22 + EDGE_PX };
    16 + y.label_characters() as i32 * 8 + name_px
}

/// Axes with mesh, ticks and names below `top_px`, with so much room to the left, or as much as they need.
pub(super) fn axes<'b, DB: DrawingBackend<ErrorType: 'static>>(
    canvas: &'b Canvas<DB>,
    (top_px, left_px): (i32, Option<i32>),
    x: &Axis,
    y: &Axis,
    x_label: &str,
    y_label: &str,
) -> Result<Chart<'b, DB>, Box<dyn std::error::Error>> {
    let left_px = left_px.unwrap_or_else(|| y_area_px(y, y_label));
    // The name of y would touch the edge, and the last label of x may reach beyond the axis.
    let edge_px = if y_label.is_empty() { 0 } else { EDGE_PX };
    let right_px = (text_width_px(x.last_label(), TEXT_PX) / 2 + EDGE_PX).max(RIGHT_PX);
    let mut chart = ChartBuilder::on(canvas)
        .margin_top(top_px * SCALE)
        .margin_right(right_px * SCALE)
        .margin_left(edge_px * SCALE)
        .margin_bottom(4 * SCALE)
        .x_label_area_size(44 * SCALE)
        .y_label_area_size((left_px - edge_px) * SCALE)
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

pub(super) fn thin(color: RGBColor) -> ShapeStyle {
    color.stroke_width(SCALE as u32)
}

fn color(at: usize) -> RGBColor {
    PALETTE[at % PALETTE.len()]
}

fn placed(points: &[(f64, f64)], x_scale: Scale, y_scale: Scale) -> Vec<(f64, f64)> {
    let place = |&(x, y): &(f64, f64)| Some((x_scale.position(x)?, y_scale.position(y)?));
    points.iter().filter_map(place).collect()
}

/// At most [`POINTS_MAX`] points that draw the same picture: the lowest and the highest of every run.
pub(super) fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
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
}
