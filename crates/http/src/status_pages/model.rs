//! The content of a status page without its form: names with values, tables, notes.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sanderling_observe::{Series, Span};

/// Rows of a table on one page. Further ones are on the next page.
pub(super) const ROWS_MAX: usize = 200;
/// Metrics on one page. Each has three drawings.
const SERIES_MAX: usize = 100;

/// A page.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Title, such as the name of a table.
    pub title: String,
    /// Its parts from top to bottom.
    pub parts: Vec<Part>,
}

impl Page {
    /// A page with parts.
    pub fn new(title: impl Into<String>, parts: impl IntoIterator<Item = Part>) -> Page {
        Page { title: title.into(), parts: parts.into_iter().collect() }
    }
}

/// A part of a page.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Names with one value each.
    Facts(Vec<(String, Cell)>),
    /// Rows under columns.
    Table(Table),
    /// A sentence.
    Note(String),
    /// A sentence that needs attention.
    Warning(String),
    /// Lines of text in a fixed width.
    Text(String),
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number as text.
    Number(String),
    /// Text that stands out.
    Marked(String),
    /// Text with the path of a page.
    Link(String, String),
    /// Points of a metric, the oldest first.
    Trend(Vec<f32>),
}

impl Cell {
    /// Text.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// A number.
    #[allow(clippy::needless_pass_by_value)] // numbers are small
    pub fn number(number: impl ToString) -> Cell {
        Cell::Number(number.to_string())
    }

    /// Text with the path of a page.
    pub fn link(text: impl Into<String>, path: impl Into<String>) -> Cell {
        Cell::Link(text.into(), path.into())
    }

    /// A name with the page `/PAGE/NAME`. The name may have any letters.
    pub fn below(page: &str, name: &str) -> Cell {
        Cell::link(name, format!("/{page}/{}", utf8_percent_encode(name, NON_ALPHANUMERIC)))
    }
}

/// Seconds over which a rate is averaged.
const RATE_S: usize = 10;

impl Cell {
    /// A name with text.
    pub fn fact(name: &str, text: impl Into<String>) -> (String, Cell) {
        (name.to_owned(), Cell::text(text))
    }

    /// The growth of a counter per second, of late.
    #[must_use]
    pub fn rate(series: Option<&Series>) -> Cell {
        let rate = series.and_then(|series| series.recent(RATE_S));
        Cell::Number(rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")))
    }
}

/// A time with the units that people say.
#[must_use]
pub fn period(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        s @ 60..3600 => format!("{} min {} s", s / 60, s % 60),
        s @ 3600..86_400 => format!("{} h {} min", s / 3600, s / 60 % 60),
        s => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

/// A column: its title, and whether its cells are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    pub(super) title: &'static str,
    pub(super) is_number: bool,
}

impl Column {
    /// A column of text or links.
    #[must_use]
    pub fn text(title: &'static str) -> Column {
        Column { title, is_number: false }
    }

    /// A column of numbers or trends.
    #[must_use]
    pub fn number(title: &'static str) -> Column {
        Column { title, is_number: true }
    }
}

/// Rows under columns, perhaps a part of a longer list.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Number of the first row in the whole list.
    pub(super) from: usize,
    /// Rows of the whole list.
    pub(super) total: usize,
    /// Rows of one page.
    pub(super) rows_max: usize,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: impl IntoIterator<Item = Column>) -> Table {
        let columns = columns.into_iter().collect();
        Table { title: title.into(), columns, rows: Vec::new(), from: 0, total: 0, rows_max: ROWS_MAX }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// There is not one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert_eq!(cells.len(), self.columns.len(), "one cell per column");
        self.rows.push(cells);
        self.total += 1;
    }

    /// Fills the table with the rows of a list from a number on, as many as one page has. Only these become cells.
    #[must_use]
    pub fn part_of<T>(
        mut self,
        list: impl IntoIterator<Item = T>,
        from: usize,
        cells: impl Fn(T) -> Vec<Cell>,
    ) -> Table {
        let mut total = 0;
        for item in list {
            if total >= from && self.rows.len() < self.rows_max {
                self.row(cells(item));
            }
            total += 1;
        }
        (self.from, self.total) = (from, total);
        self
    }

    /// A list of metrics with their trends, from a number on.
    #[must_use]
    pub fn of_series<'a, N: Into<String>>(
        title: impl Into<String>,
        list: impl IntoIterator<Item = (N, &'a Series)>,
        from: usize,
    ) -> Table {
        let columns = [
            Column::text("metric"),
            Column::number("value"),
            Column::number("last 60 s"),
            Column::number("60 min"),
            Column::number("24 h"),
        ];
        let table = Table { rows_max: SERIES_MAX, ..Table::new(title, columns) };
        table.part_of(list, from, |(name, series)| {
            let trend = |span| Cell::Trend(series.points(span).unwrap_or_default());
            let mut cells = vec![Cell::text(name), Cell::number(series.value())];
            cells.extend([Span::Minute, Span::Hour, Span::Day].map(trend));
            cells
        })
    }

    /// Which rows of the list these are, if they are not all.
    pub(super) fn place(&self) -> Option<String> {
        let count = |number: usize| sanderling_observe::numbers::count(number as u64);
        match self.rows.len() == self.total {
            true => None,
            false if self.rows.is_empty() => Some(format!("none of {}", count(self.total))),
            false => {
                let (first, last) = (self.from + 1, self.from + self.rows.len());
                Some(format!("{} to {} of {}", count(first), count(last), count(self.total)))
            }
        }
    }

    /// Numbers of the first rows of the page before and the page after this one.
    pub(super) fn neighbours(&self) -> (Option<usize>, Option<usize>) {
        let next = self.from.saturating_add(self.rows.len());
        let before = self.from.min(self.total).saturating_sub(self.rows_max);
        ((self.from > 0).then_some(before), (next < self.total).then_some(next))
    }
}
