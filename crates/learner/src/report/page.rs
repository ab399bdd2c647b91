//! The page around the sections: head, style, title, headline numbers. The page of a run under way and the report of one that has
//! ended are the same. Knows no chart.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use sanderling_observe::PAGE_STYLE;

use super::sections::{lower_names, of_metric};
use super::{
    RunReport, UnderWay, bottleneck, features, numbers, sections, slowest_server, tables, values_of,
};

/// The surroundings of a report that a process shows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Frame<'a> {
    /// Other pages of the process.
    pub links: &'a [PageLink<'a>],
    /// After so many seconds the page is loaded again while the run goes on; 0: never.
    pub refresh_s: u32,
    /// Time of the reader, seconds since 1970 (UTC); 0 for a page in a file.
    pub now_unix_s: u64,
}

/// A page `/NAME`.
#[derive(Debug, Clone, Copy)]
pub struct PageLink<'a> {
    /// Its name.
    pub name: &'a str,
    /// A sentence about it.
    pub help: &'a str,
}

/// The report as HTML, for a file. All text is escaped; the page refers to nothing outside itself and runs no script.
pub fn render(report: &RunReport) -> String {
    render_in(report, &Frame::default())
}

/// [`render`] for a process that shows it: with links to its other pages, and loaded again while the run goes on.
pub fn render_in(report: &RunReport, frame: &Frame<'_>) -> String {
    let is_live = report.under_way.as_ref().is_some_and(|now| now.is_alive(frame.now_unix_s));
    let refresh_s = frame.refresh_s * u32::from(is_live);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if refresh_s > 0 { meta http-equiv="refresh" content=(refresh_s); }
                title { (report.name) " · Sanderling" }
                style { (PreEscaped(PAGE_STYLE)) }
            }
            body {
                main {
                    (header(report, frame, is_live))
                    (sections::learning_curves(report))
                    (sections::test_sets(report))
                    (sections::progressive_validation(report))
                    @if report.under_way.is_none() {
                        (sections::quality(report))
                        (sections::importance(report))
                    } @else {
                        (sections::timings(report))
                        (sections::servers(report))
                    }
                    (tables::tables(report))
                    (features::features(report))
                    @if report.under_way.is_none() {
                        (sections::top_keys(report))
                        (sections::timings(report))
                        (sections::servers(report))
                    }
                    (sections::data_and_model(report))
                    (sections::machine(report))
                    (sections::config(report))
                }
                footer { "Sanderling " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
    .into_string()
}

fn header(report: &RunReport, frame: &Frame<'_>, is_live: bool) -> Markup {
    let metrics = &report.metrics;
    let rows: u64 = report.tables.iter().map(|table| table.rows).sum();
    let table_bytes: u64 = report.tables.iter().map(|table| table.bytes).sum();
    let measured = sections::measured_on(report);
    let calibration = metrics.prob_mean / metrics.real_mean;
    let names = lower_names(report);
    let number = |value, digits| of_metric(report, value, digits);
    let threads =
        if report.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", report.threads) };
    let passes = if report.passes == 1 { "1 pass".to_owned() } else { format!("{} passes", report.passes) };
    html! {
        header {
            h1 { (report.name) }
            p.lead {
                (report.model) " · " span.whole { (numbers::date(report.started_unix_s)) } " · "
                span.whole { (numbers::count(report.examples)) " examples" } " in "
                span.whole { (passes) @if report.under_way.is_some() { " begun" } } ", " span.whole { (threads) } ", "
                span.whole { (numbers::duration(report.train_s)) }
            }
            @if frame.now_unix_s > 0 { (links(frame, is_live)) }
            @if let Some(under_way) = &report.under_way { (progress(report, under_way, frame.now_unix_s)) }
            @if report.stopped {
                p.warning { "The run was stopped before its end; " code { "--resume" } " continues it." }
            }
            dl.cards {
                @for (name, value) in report.metric_names().into_iter().zip(values_of(metrics)) {
                    (card(name, &number(value, 4), &measured))
                }
                @if metrics.numbers.is_some() {
                    (card("Mean predicted", &numbers::figure(metrics.prob_mean), &format!(
                        "real {}", numbers::figure(metrics.real_mean),
                    )))
                } @else {
                    (card("Calibration", &numbers::decimal(calibration, 3), &format!(
                        "predicted {} / real {}",
                        numbers::decimal(metrics.prob_mean, 4),
                        numbers::decimal(metrics.real_mean, 4),
                    )))
                }
                (card("Examples/s", &rate(report.examples_per_s), &threads))
                @if report.tables.is_empty() && !report.servers.is_empty() {
                    (card("Memory", &numbers::bytes(report.memory_peak_bytes), "peak; tables on servers"))
                } @else {
                    (card("Rows", &numbers::count(rows), &tables_text(report.tables.len())))
                    (card("Memory", &numbers::bytes(report.memory_peak_bytes), &format!(
                        "peak; tables {}", numbers::bytes(table_bytes),
                    )))
                }
            }
            @if let Some(seen) = &report.seen {
                p.note {
                    "Of pass " (seen.pass) " over training (seen) data: " (names[0]) " " (number(values_of(&seen.metrics)[0], 4))
                    ", " (names[1]) " " (number(values_of(&seen.metrics)[1], 4))
                    ". Earlier passes have learned from these rows: such metrics say nothing of new ones."
                }
            }
            @for warning in report.warnings.iter().chain(&features::warnings(report)) { p.warning { (warning) } }
            @for (count, of) in [(report.bad_rows, ""), (report.valid_bad_rows, " of the validation data")] {
                @if count > 0 {
                    p.warning {
                        strong { (numbers::count(count)) " bad " @if count == 1 { "row" } @else { "rows" } }
                        (of) " skipped. " a href="#data" { "See which" } "."
                    }
                }
            }
        }
    }
}

/// Links to the other pages of the process, and to this one with or without being loaded again.
fn links(frame: &Frame<'_>, is_live: bool) -> Markup {
    html! {
        nav {
            @for link in frame.links { a href={ "/" (link.name) } title=(link.help) { (link.name) } " " }
            a href="/?json" title="This page as JSON." { "json" } " "
            @if is_live && frame.refresh_s > 0 {
                a href="?refresh=0" title="Do not load this page again by itself." { "hold" }
            } @else if is_live {
                a href="?refresh=5" title="Load this page again every 5 s." { "follow" }
            }
        }
    }
}

/// How far a run is.
fn progress(report: &RunReport, under_way: &UnderWay, now_unix_s: u64) -> Markup {
    let (is_alive, elapsed) = (under_way.is_alive(now_unix_s), numbers::duration(under_way.elapsed_s));
    html! {
        @if let Some(warning) = under_way.warning(now_unix_s) { p.warning { (warning) } }
        @else {
            p.progress {
                strong { (under_way.words(now_unix_s)) }
                span { (elapsed) " so far"
                    @if let Some(left_s) = under_way.left_s {
                        ", about " (numbers::duration(left_s)) " of training left"
                    }
                    @match &report.saved {
                        Some(saved) => { "; saved at step " (numbers::count(saved.step)) }
                        None => { "; nothing saved yet" }
                    }
                }
            }
        }
        @if let (true, Some(share)) = (is_alive, under_way.share) {
            progress value=(format!("{share:.4}")) max="1" {}
        }
        @if let Some(found) = bottleneck(&report.stages) { p.finding { (found) } }
        @if let Some(found) = slowest_server(&report.servers) { p.finding { (found) } }
    }
}

fn card(name: &str, value: &str, note: &str) -> Markup {
    html! {
        div { dt { (name) } dd { span.value { (value) } span.note { (note) } } }
    }
}

fn rate(examples_per_s: f64) -> String {
    if examples_per_s.is_finite() {
        numbers::count(examples_per_s.max(0.0).round() as u64)
    } else {
        "–".to_owned()
    }
}

fn tables_text(tables: usize) -> String {
    if tables == 1 { "in 1 table".to_owned() } else { format!("in {tables} tables") }
}
