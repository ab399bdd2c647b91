//! Distributions of durations side by side: an aligned table for people, a list of objects for programs. Knows neither what
//! took the time nor where the text goes.

use std::fmt;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, Serializer};

use crate::LatencySummary;

/// Column titles. The unit stands once, in the first line.
const COLUMNS: [&str; 8] = ["count", "average", "max", "min", "p50", "p95", "p99", "p999"];
const NS_PER_US: f64 = 1000.0;

/// Rows of labels and a distribution each, in the order in which they were added.
///
/// `Display` gives text in microseconds, so that rows can be compared at a glance; `Serialize` gives a list of objects in
/// which the labels have the names of their columns and the durations are whole nanoseconds.
///
/// ```
/// use std::time::Duration;
/// use sanderling_observe::{Latency, LatencyTable};
///
/// let mut latency = Latency::new();
/// latency.record(Duration::from_micros(12));
/// let mut table = LatencyTable::new(&["transport", "of"]);
/// table.row(&["tcp", "single call"], latency.summary());
/// let text = table.to_string();
/// assert!(text.starts_with("transport  of           count  average us"));
/// assert!(text.ends_with("12.0"));
/// ```
#[derive(Debug, Clone)]
pub struct LatencyTable {
    labels: Vec<&'static str>,
    rows: Vec<(Vec<String>, LatencySummary)>,
}

impl LatencyTable {
    /// An empty table whose rows have labels of these names, such as "peer" and "command".
    #[must_use]
    pub fn new(labels: &[&'static str]) -> LatencyTable {
        LatencyTable { labels: labels.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When there is not one label per name.
    pub fn row(&mut self, labels: &[&str], summary: LatencySummary) {
        assert_eq!(labels.len(), self.labels.len(), "one label per column");
        self.rows.push((labels.iter().copied().map(str::to_owned).collect(), summary));
    }

    /// The rows, labels in the order of their names.
    pub fn rows(&self) -> impl Iterator<Item = (&[String], &LatencySummary)> {
        self.rows.iter().map(|(labels, summary)| (&labels[..], summary))
    }

    /// The titles of all columns and the cells of all rows, labels first, durations in microseconds.
    #[must_use]
    pub fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let title = |column: &str| if column == "count" { column.to_owned() } else { format!("{column} us") };
        let labels = self.labels.iter().map(ToString::to_string);
        let titles = labels.chain(COLUMNS.iter().map(|column| title(column))).collect();
        let row = |(labels, summary): &(Vec<String>, LatencySummary)| {
            labels.iter().cloned().chain(numbers(summary)).collect()
        };
        (titles, self.rows.iter().map(row).collect())
    }

    /// Whether there is no row.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

fn numbers(summary: &LatencySummary) -> [String; COLUMNS.len()] {
    let us = |ns: u64| format!("{:.1}", ns as f64 / NS_PER_US);
    [
        summary.count.to_string(),
        us(summary.average_ns),
        us(summary.max_ns),
        us(summary.min_ns),
        us(summary.p50_ns),
        us(summary.p95_ns),
        us(summary.p99_ns),
        us(summary.p999_ns),
    ]
}

/// Labels to the left, numbers to the right; no line break at the end.
impl fmt::Display for LatencyTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (titles, rows) = self.cells();
        let width = |at: usize| {
            let cells = rows.iter().chain([&titles]).map(|row| row[at].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..titles.len()).map(width).collect();
        for (number, row) in [&titles].into_iter().chain(&rows).enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if at == 0 { "" } else { "  " };
                match at < self.labels.len() {
                    true => write!(out, "{gap}{cell:width$}")?,
                    false => write!(out, "{gap}{cell:>width$}")?,
                }
            }
        }
        Ok(())
    }
}

impl Serialize for LatencyTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.rows.len()))?;
        for (labels, summary) in &self.rows {
            list.serialize_element(&Row { names: &self.labels, labels, summary })?;
        }
        list.end()
    }
}

struct Row<'a> {
    names: &'a [&'static str],
    labels: &'a [String],
    summary: &'a LatencySummary,
}

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let LatencySummary { count, average_ns, min_ns, max_ns, p50_ns, p95_ns, p99_ns, p999_ns, .. } =
            self.summary;
        let numbers = [count, average_ns, max_ns, min_ns, p50_ns, p95_ns, p99_ns, p999_ns];
        let mut map = serializer.serialize_map(Some(self.names.len() + numbers.len()))?;
        for (name, label) in self.names.iter().zip(self.labels) {
            map.serialize_entry(name, label)?;
        }
        for (column, number) in COLUMNS.iter().zip(numbers) {
            match *column {
                "count" => map.serialize_entry(column, number)?,
                column => map.serialize_entry(&format!("{column}_ns"), number)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> LatencyTable {
        let summary = |count, ns: u64| LatencySummary {
            count,
            sum_ns: count * ns,
            average_ns: ns,
            min_ns: ns / 10,
            max_ns: ns * 100,
            p50_ns: ns,
            p95_ns: ns * 2,
            p99_ns: ns * 3,
            p999_ns: ns * 4,
        };
        let mut table = LatencyTable::new(&["peer", "command"]);
        table.row(&["träiner", "pull"], summary(1_234_567, 12_340));
        table.row(&["b", "pull_pooled"], LatencySummary::default());
        table
    }

    #[test]
    fn people_see_aligned_columns() {
        let expected = "\
peer     command        count  average us  max us  min us  p50 us  p95 us  p99 us  p999 us
träiner  pull         1234567        12.3  1234.0     1.2    12.3    24.7    37.0     49.4
b        pull_pooled        0         0.0     0.0     0.0     0.0     0.0     0.0      0.0";
        assert_eq!(table().to_string(), expected);
        assert!(!table().is_empty() && LatencyTable::new(&[]).is_empty());
    }

    #[test]
    fn programs_see_nanoseconds_under_the_names_of_the_columns() {
        let json = serde_json::to_value(table()).expect("it becomes JSON");
        let expected = serde_json::json!({
            "peer": "träiner", "command": "pull", "count": 1_234_567, "average_ns": 12_340, "max_ns": 1_234_000,
            "min_ns": 1_234, "p50_ns": 12_340, "p95_ns": 24_680, "p99_ns": 37_020, "p999_ns": 49_360
        });
        assert_eq!(json[0], expected);
        assert_eq!(json.as_array().map(Vec::len), Some(2));
    }
}
