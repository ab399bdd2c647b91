//! A report as text for a terminal: the numbers of the page without its drawings. Knows no width of a terminal.

use std::fmt::Write as _;

use sanderling_observe::LatencySummary;

use super::{RunReport, bottleneck, features, numbers, sections, slowest_server, values_of};

/// The last points of a curve that are listed.
const POINTS_MAX: usize = 10;
/// The tables that are listed: those with most rows.
const TABLES_MAX: usize = 20;
/// Letters of a cell. Longer text is cut.
const CELL_CHARS_MAX: usize = 100;

/// The report as lines. `now_unix_s` is the time of the reader.
#[must_use]
pub fn render_text(report: &RunReport, now_unix_s: u64) -> String {
    let mut text = String::new();
    head(&mut text, report, now_unix_s);
    for (title, curve) in [("training", &report.train_curve), ("validation", &report.valid_curve)] {
        let names = report.metric_names();
        let header = ["pass", "step", "examples", names[0], names[1], "examples/s"];
        let rows = curve[curve.len().saturating_sub(POINTS_MAX)..].iter().map(|point| {
            let [first, second] = point.values().map(|value| sections::of_metric(report, value, 5));
            let rate = numbers::figure(point.examples_per_s);
            let [step, examples] = [point.step, point.examples].map(numbers::count);
            vec![point.pass.to_string(), step, examples, first, second, rate]
        });
        table(&mut text, title, &header, 0, rows);
    }
    let stages = report.stages.iter().filter(|stage| stage.count > 0).map(|stage| {
        let (time, share) = (numbers::duration(stage.seconds), numbers::percent(stage.share));
        vec![stage.name.clone(), time, share, numbers::count(stage.count)]
    });
    table(&mut text, "time by stage", &["stage", "time", "share", "entered"], 1, stages);
    if let Some(found) = bottleneck(&report.stages) {
        line(&mut text, &found);
    }
    if let Some(found) = slowest_server(&report.servers) {
        line(&mut text, &found);
    }
    let times = |latency: &LatencySummary| {
        let LatencySummary { count, average_ns, p50_ns, p99_ns, max_ns, .. } = *latency;
        let us = [average_ns, p50_ns, p99_ns, max_ns].map(|ns| format!("{:.1}", ns as f64 / 1e3));
        std::iter::once(numbers::count(count)).chain(us)
    };
    let columns = ["count", "average us", "p50 us", "p99 us", "max us"];
    let calls = report.calls.iter().map(|calls| {
        [calls.command.clone(), calls.of.clone()].into_iter().chain(times(&calls.latency)).collect()
    });
    table(&mut text, "requests to servers", &[&["command", "of"], &columns[..]].concat(), 2, calls);
    let servers = report.servers.iter().map(|server| {
        [server.server.clone(), server.transport.clone()].into_iter().chain(times(&server.latency)).collect()
    });
    table(&mut text, "servers", &[&["server", "over"], &columns[..]].concat(), 2, servers);
    let tables = report.tables.iter().take(TABLES_MAX).map(|table| {
        let keys = table.keys.map(|keys| [keys.admitted, keys.rejected, keys.evicted]);
        let keys = keys.map_or([const { String::new() }; 3], |keys| keys.map(numbers::count));
        let of = [table.name.clone(), numbers::count(table.rows), numbers::bytes(table.bytes)];
        of.into_iter().chain(keys).collect()
    });
    let header = ["table", "rows", "memory", "admitted", "rejected", "evicted"];
    table(&mut text, "tables", &header, 1, tables);
    let (header, rows) = features::lines(report);
    table(&mut text, "features", &header, 1, rows.into_iter());
    text
}

fn head(text: &mut String, report: &RunReport, now_unix_s: u64) {
    let state = match &report.under_way {
        Some(under_way) => under_way.words(now_unix_s),
        None if report.stopped => "stopped; go on with --resume".to_owned(),
        None => "ended".to_owned(),
    };
    line(text, &format!("{}: {state}", report.name));
    text.push('\n');
    let mut facts = vec![
        ("model", report.model.clone()),
        ("started", numbers::date(report.started_unix_s)),
        ("trained for", numbers::duration(report.train_s)),
        ("examples", numbers::count(report.examples)),
        ("examples/s", numbers::figure(report.examples_per_s)),
    ];
    for (name, value) in report.metric_names().into_iter().zip(values_of(&report.metrics)) {
        facts.push((name, sections::of_metric(report, value, 5)));
    }
    facts.push(("measured on", sections::measured_on(report)));
    if let Some(left_s) = report.under_way.as_ref().and_then(|under_way| under_way.left_s) {
        facts.push(("time left", numbers::duration(left_s)));
    }
    if let Some(saved) = &report.saved {
        facts.push(("last save", sections::saved_words(saved)));
    }
    facts.push(("bad rows", numbers::count(report.bad_rows)));
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in facts {
        line(text, &format!("{name:width$}  {value}"));
    }
    let warning = report.under_way.as_ref().and_then(|under_way| under_way.warning(now_unix_s));
    for warning in warning.iter().chain(&report.warnings).chain(&features::warnings(report)) {
        line(text, &format!("! {warning}"));
    }
}

fn line(text: &mut String, words: &str) {
    // Names of a configuration must not move the cursor of a terminal.
    let shown = words.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter });
    text.extend(shown);
    text.push('\n');
}

/// Rows in aligned columns, the first ones to the left; nothing without rows.
fn table(
    text: &mut String,
    title: &str,
    header: &[&str],
    left: usize,
    rows: impl Iterator<Item = Vec<String>>,
) {
    let rows: Vec<Vec<String>> = rows.map(|row| row.iter().map(|cell| cut(cell)).collect()).collect();
    if rows.is_empty() {
        return;
    }
    text.push('\n');
    line(text, title);
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let width = |at: usize| {
        std::iter::once(&header).chain(&rows).map(|row| row[at].chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    for row in std::iter::once(&header).chain(&rows) {
        let mut words = String::new();
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if at == 0 { "" } else { "  " };
            match at < left {
                true => write!(words, "{gap}{cell:width$}"),
                false => write!(words, "{gap}{cell:>width$}"),
            }
            .expect("a string takes everything");
        }
        line(text, words.trim_end());
    }
}

fn cut(cell: &str) -> String {
    match cell.chars().count() > CELL_CHARS_MAX {
        true => cell.chars().take(CELL_CHARS_MAX - 1).chain(['…']).collect(),
        false => cell.to_owned(),
    }
}
