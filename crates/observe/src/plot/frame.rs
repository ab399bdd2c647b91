//! Shared parts of all charts: colours, sizes, text, and the SVG element around them. Knows no axis and no data.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Colours of series, first one first: Okabe and Ito's palette, distinct for colour-blind readers, without its yellow,
/// which is too faint on white. A page may map them (and [`INK`], [`MUTED`], [`GRID`]) to others by CSS attribute
/// selectors such as `[stroke="#0072B2"]`: they are always written in this form.
pub const PALETTE: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xE6, 0x9F, 0x00),
];
/// Titles and bar labels.
pub const INK: RGBColor = RGBColor(0x1F, 0x29, 0x33);
/// Ticks, axis names and guide lines.
pub const MUTED: RGBColor = RGBColor(0x5F, 0x6B, 0x7A);
/// Mesh and empty parts of bars.
pub const GRID: RGBColor = RGBColor(0xE3, 0xE7, 0xEC);

/// Plotters draws on integer positions: units per CSS pixel, so that curves come out smooth.
pub(super) const SCALE: i32 = 8;
/// Title, in CSS pixels.
pub(super) const TITLE_PX: i32 = 15;
/// Ticks, legends and labels, in CSS pixels.
pub(super) const TEXT_PX: i32 = 13;
/// Width of an average character as a part of the font size: sans-serif faces lie between 0.5 and 0.6.
const CHARACTER_EMS: f64 = 0.56;
/// Plotters divides a font's size by this before it writes it.
const PLOTTERS_FONT_FACTOR: f64 = 1.24;
const XMLNS: &str = "xmlns=\"http://www.w3.org/2000/svg\"";

pub(super) type Canvas<DB> = DrawingArea<DB, Shift>;
pub(super) type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws on a canvas of `width_px` x `height_px` CSS pixels and returns the SVG element.
pub(super) fn draw(
    width_px: i32,
    height_px: i32,
    label: &str,
    paint: impl FnOnce(&Canvas<SVGBackend<'_>>) -> Drawn,
) -> String {
    let (width, height) = (width_px * SCALE, height_px * SCALE);
    let mut raw = String::new();
    let drawn = {
        let canvas = SVGBackend::with_string(&mut raw, (width as u32, height as u32)).into_drawing_area();
        paint(&canvas).and_then(|()| Ok(canvas.present()?))
    };
    // Writing into a string does not fail; were plotters ever to refuse a chart, the page should say so and stand.
    let body = match drawn {
        Ok(()) => raw.split_once('>').map_or("", |(_, body)| body).to_owned(),
        Err(error) => {
            let (x, y, size) = (10 * SCALE, 30 * SCALE, TEXT_PX * SCALE);
            let message = escape(&format!("chart not drawn: {error}"));
            format!("\n<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\">{message}</text>\n</svg>\n")
        }
    };
    let label = escape(label);
    format!(
        "<svg class=\"chart\" role=\"img\" aria-label=\"{label}\" viewBox=\"0 0 {width} {height}\">{body}"
    )
}

/// The chart as an SVG file: with a name space and a size, on white.
pub fn standalone(chart: &str) -> String {
    let (tag, rest) = chart.split_once('>').unwrap_or((chart, ""));
    let view_box = tag.split_once("viewBox=\"0 0 ").and_then(|(_, rest)| rest.split_once('"'));
    let sizes = view_box.map(|(sizes, _)| sizes.split(' ').filter_map(|size| size.parse::<i32>().ok()));
    let sizes: Vec<i32> = sizes.map(|sizes| sizes.map(|units| units / SCALE).collect()).unwrap_or_default();
    let size = match sizes[..] {
        [width, height] => format!("width=\"{width}\" height=\"{height}\" "),
        _ => String::new(),
    };
    let tag = tag.replacen("<svg ", &format!("<svg {XMLNS} {size}"), 1);
    format!("{tag}>\n<rect width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>{rest}")
}

/// A text style of `size_px` CSS pixels, anchored at `h`, `v`.
pub(super) fn text(size_px: i32, color: RGBColor, h: HPos, v: VPos) -> TextStyle<'static> {
    let size = f64::from(size_px * SCALE) * PLOTTERS_FONT_FACTOR;
    ("sans-serif", size).into_font().color(&color).pos(Pos::new(h, v))
}

/// About how wide a text comes out, in CSS pixels; no font is at hand to measure it.
pub(super) fn text_width_px(text: &str, size_px: i32) -> i32 {
    (text.chars().count() as f64 * CHARACTER_EMS * f64::from(size_px)).ceil() as i32
}

/// Shortens a label to at most `limit` characters and replaces what XML does not allow.
pub(super) fn label(text: &str, limit: usize) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    if text.chars().count() <= limit {
        return text.chars().map(clean).collect();
    }
    text.chars().take(limit.saturating_sub(1)).map(clean).chain(['…']).collect()
}

/// Escapes text for XML content and double-quoted attributes.
fn escape(text: &str) -> String {
    label(text, usize::MAX)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A name and a colour in the legend.
pub(super) struct LegendEntry<'a> {
    pub(super) name: &'a str,
    pub(super) color: RGBColor,
    pub(super) look: Look,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Look {
    /// A line.
    #[default]
    Line,
    /// A broken line.
    Dashed,
    /// A stronger line with a dot at every point: for few points that matter.
    Dots,
    /// A cross at every point and no line: for points that should be doubted.
    Crosses,
}

const LEGEND_NAME_CHARACTERS: usize = 36;
const SWATCH_PX: i32 = 18;

/// Height of title and legend together.
pub(super) fn heading_px(title: &str, legend: &[LegendEntry<'_>], width_px: i32) -> i32 {
    let title_px = if title.is_empty() { 6 } else { 28 };
    title_px
        + 20 * legend_places(legend, 0, width_px).iter().map(|&(_, line)| line + 1).max().unwrap_or(0)
        + 6
}

/// Where every entry goes: x in CSS pixels, and the line; wraps at the right edge.
fn legend_places(legend: &[LegendEntry<'_>], left_px: i32, width_px: i32) -> Vec<(i32, i32)> {
    let (mut x, mut line) = (left_px, 0);
    let place = |entry: &LegendEntry<'_>| {
        let name = label(entry.name, LEGEND_NAME_CHARACTERS);
        let entry_px = SWATCH_PX + 6 + text_width_px(&name, TEXT_PX) + 14;
        if x > left_px && x + entry_px > width_px {
            (x, line) = (left_px, line + 1);
        }
        let at = (x, line);
        x += entry_px;
        at
    };
    legend.iter().map(place).collect()
}

/// Draws title and legend at the top.
pub(super) fn heading<DB: DrawingBackend<ErrorType: 'static>>(
    canvas: &Canvas<DB>,
    title: &str,
    legend: &[LegendEntry<'_>],
    width_px: i32,
) -> Drawn {
    let at = |x: i32, y: i32| (x * SCALE, y * SCALE);
    let mut y = 6;
    if !title.is_empty() {
        let style = text(TITLE_PX, INK, HPos::Left, VPos::Center);
        canvas.draw(&Text::new(label(title, 80), at(8, 16), style))?;
        y = 28;
    }
    for (entry, (x, line)) in legend.iter().zip(legend_places(legend, 8, width_px)) {
        let middle = y + 20 * line + 10;
        let style = entry.color.stroke_width(2 * SCALE as u32);
        let line =
            |from: i32, to: i32| PathElement::new(vec![at(x + from, middle), at(x + to, middle)], style);
        match entry.look {
            Look::Line | Look::Dots => canvas.draw(&line(0, SWATCH_PX))?,
            Look::Dashed => {
                canvas.draw(&line(0, 7))?;
                canvas.draw(&line(11, SWATCH_PX))?;
            }
            Look::Crosses => canvas.draw(&Cross::new(at(x + SWATCH_PX / 2, middle), 4 * SCALE, style))?,
        }
        if entry.look == Look::Dots {
            canvas.draw(&Circle::new(at(x + SWATCH_PX / 2, middle), 4 * SCALE, entry.color.filled()))?;
        }
        let name = label(entry.name, LEGEND_NAME_CHARACTERS);
        let style = text(TEXT_PX, MUTED, HPos::Left, VPos::Center);
        canvas.draw(&Text::new(name, at(x + SWATCH_PX + 6, middle), style))?;
    }
    Ok(())
}
