//! Horizontal bars: names on the left, bars, values on the right. Knows neither axis nor order: rows come as given.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::frame::{
    GRID, INK, MUTED, PALETTE, SCALE, TEXT_PX, draw, heading, heading_px, label, text, text_width_px,
};

const WIDTH_PX: i32 = 480;
const ROW_PX: i32 = 24;
const BAR_PX: i32 = 14;
const NAME_CHARACTERS: usize = 22;
const VALUE_CHARACTERS: usize = 18;
const GAP_PX: i32 = 8;
/// A bar that is not zero is at least this long.
const BAR_MIN_PX: f64 = 1.5;

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name on the left; long ones are shortened.
    pub name: String,
    /// Length; what is negative or not finite has none.
    pub value: f64,
    /// Text at the right end.
    pub text: String,
}

/// Draws the rows from top to bottom; the longest bar takes the whole width.
pub fn bars(title: &str, rows: &[Bar]) -> String {
    let names: Vec<String> = rows.iter().map(|row| label(&row.name, NAME_CHARACTERS)).collect();
    let texts: Vec<String> = rows.iter().map(|row| label(&row.text, VALUE_CHARACTERS)).collect();
    let widest = |texts: &[String]| texts.iter().map(|text| text_width_px(text, TEXT_PX)).max().unwrap_or(0);
    let left = GAP_PX + widest(&names) + GAP_PX;
    let right = WIDTH_PX - GAP_PX - widest(&texts) - GAP_PX;
    let top = heading_px(title, &[], WIDTH_PX);
    let length = |row: &Bar| if row.value.is_finite() { row.value.max(0.0) } else { 0.0 };
    let longest = rows.iter().map(length).fold(0.0, f64::max);
    let height_px = top + ROW_PX * rows.len().max(1) as i32 + GAP_PX;
    draw(WIDTH_PX, height_px, if title.is_empty() { "bars" } else { title }, |canvas| {
        heading(canvas, title, &[], WIDTH_PX)?;
        let at = |x: i32, y: i32| (x * SCALE, y * SCALE);
        for (i, ((row, name), value)) in rows.iter().zip(names).zip(texts).enumerate() {
            let middle = top + ROW_PX * i as i32 + ROW_PX / 2;
            let (y0, y1) = (middle - BAR_PX / 2, middle + BAR_PX / 2);
            canvas.draw(&Text::new(
                name,
                at(left - GAP_PX, middle),
                text(TEXT_PX, INK, HPos::Right, VPos::Center),
            ))?;
            canvas.draw(&Rectangle::new([at(left, y0), at(right, y1)], GRID.mix(0.6).filled()))?;
            if longest > 0.0 && length(row) > 0.0 {
                let bar_px = (length(row) / longest * f64::from(right - left)).max(BAR_MIN_PX);
                let end = (left * SCALE + (bar_px * f64::from(SCALE)) as i32, y1 * SCALE);
                canvas.draw(&Rectangle::new([at(left, y0), end], PALETTE[0].filled()))?;
            }
            let style = text(TEXT_PX, MUTED, HPos::Left, VPos::Center);
            canvas.draw(&Text::new(value, at(right + GAP_PX, middle), style))?;
        }
        Ok(())
    })
}
