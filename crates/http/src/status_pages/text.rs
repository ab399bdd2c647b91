//! A status page as text for a terminal: aligned columns, and no letters that move its cursor.

use std::fmt::Write as _;

use super::model::{Cell, Page, Part, Table};

/// Letters of a cell. Longer text is cut.
pub(super) const CELL_CHARS_MAX: usize = 160;

/// The page as lines.
pub(super) fn render(process: &str, page: &Page) -> String {
    let mut text = format!("{}: {}\n", plain(process), plain(&page.title));
    for part in &page.parts {
        text.push('\n');
        match part {
            Part::Facts(facts) => {
                let rows: Vec<Vec<String>> =
                    facts.iter().map(|(name, cell)| vec![plain(name), of(cell)]).collect();
                lines(&mut text, &rows, &[false; 2]);
            }
            Part::Table(shown) => table(&mut text, shown),
            Part::Note(note) => writeln!(text, "{}", clean(note)).expect("a string takes everything"),
            Part::Warning(warning) => {
                writeln!(text, "! {}", clean(warning)).expect("a string takes everything");
            }
            Part::Text(lines) => {
                lines.lines().for_each(|line| {
                    writeln!(text, "{}", clean(line)).expect("a string takes everything");
                });
            }
        }
    }
    text
}

fn table(text: &mut String, table: &Table) {
    let place = table.place().map_or(String::new(), |place| format!(" ({place})"));
    writeln!(text, "{}{place}", plain(&table.title)).expect("a string takes everything");
    if !table.rows.is_empty() {
        let titles = table.columns.iter().map(|column| column.title.to_owned()).collect();
        let rows = table.rows.iter().map(|row| row.iter().map(of).collect());
        let rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
        let right: Vec<bool> = table.columns.iter().map(|column| column.is_number).collect();
        lines(text, &rows, &right);
    }
    if let (_, Some(next)) = table.neighbours() {
        writeln!(text, "next: ?from={next}").expect("a string takes everything");
    }
}

/// Rows in aligned columns, numbers to the right.
fn lines(text: &mut String, rows: &[Vec<String>], right: &[bool]) {
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..right.len()).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let (gap, width) = (if at == 0 { "" } else { "  " }, widths[at]);
            match right[at] {
                true => write!(line, "{gap}{cell:>width$}"),
                false => write!(line, "{gap}{cell:width$}"),
            }
            .expect("a string takes everything");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn of(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) | Cell::Number(text) | Cell::Link(text, _) => plain(text),
        Cell::Marked(text) => format!("{} *", plain(text)),
        Cell::Trend(points) => average(points).map_or("-".to_owned(), brief),
    }
}

fn shown(letter: char) -> char {
    if letter.is_control() { '\u{fffd}' } else { letter }
}

/// Text without letters that a terminal obeys.
pub(super) fn clean(text: &str) -> String {
    text.chars().map(shown).collect()
}

/// Text without letters that a terminal obeys, and cut.
pub(super) fn plain(text: &str) -> String {
    let mut letters = text.chars().map(shown);
    let mut plain: String = letters.by_ref().take(CELL_CHARS_MAX).collect();
    if letters.next().is_some() {
        plain.pop();
        plain.push('…');
    }
    plain
}

pub(super) fn average(points: &[f32]) -> Option<f64> {
    let sum: f64 = points.iter().map(|&point| f64::from(point)).sum();
    (!points.is_empty()).then(|| sum / points.len() as f64)
}

/// A number with as many digits as a person reads.
pub(super) fn brief(number: f64) -> String {
    let size = number.abs();
    if size == 0.0 || size >= 1e15 || (size >= 1000.0 || number.fract() == 0.0) {
        return format!("{number:.0}");
    }
    let digits = if size >= 1.0 { 2 } else { (2 - size.log10().floor() as i32).min(9) as usize };
    let text = format!("{number:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
