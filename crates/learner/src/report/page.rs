//! The page around the sections: head, style, title, headline numbers. Knows no chart.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use sanderling_observe::PAGE_STYLE;

use super::sections::{lower_names, of_metric};
use super::{RunReport, numbers, sections, values_of};

/// The report as HTML. All text is escaped; the page refers to nothing outside itself and runs no script.
pub fn render(report: &RunReport) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (report.name) " · Sanderling" }
                style { (PreEscaped(PAGE_STYLE)) }
            }
            body {
                main {
                    (header(report))
                    (sections::learning_curves(report))
                    (sections::test_sets(report))
                    (sections::progressive_validation(report))
                    (sections::quality(report))
                    (sections::importance(report))
                    (sections::tables(report))
                    (sections::top_keys(report))
                    (sections::timings(report))
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

fn header(report: &RunReport) -> Markup {
    let metrics = &report.metrics;
    let rows: u64 = report.tables.iter().map(|table| table.rows).sum();
    let table_bytes: u64 = report.tables.iter().map(|table| table.bytes).sum();
    let measured = report.valid.as_ref().map_or("training, progressive, pass 1", |_| "validation");
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
                span.whole { (passes) } ", " span.whole { (threads) } ", "
                span.whole { (numbers::duration(report.train_s)) }
            }
            dl.cards {
                @for (name, value) in report.metric_names().into_iter().zip(values_of(metrics)) {
                    (card(name, &number(value, 4), measured))
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
                (card("Rows", &numbers::count(rows), &tables_text(report.tables.len())))
                (card("Memory", &numbers::bytes(report.memory_peak_bytes), &format!(
                    "peak; tables {}", numbers::bytes(table_bytes),
                )))
            }
            @if let Some(seen) = &report.seen {
                p.note {
                    "Of pass " (seen.pass) " over training (seen) data: " (names[0]) " " (number(values_of(&seen.metrics)[0], 4))
                    ", " (names[1]) " " (number(values_of(&seen.metrics)[1], 4))
                    ". Earlier passes have learned from these rows: such metrics say nothing of new ones."
                }
            }
            @for warning in &report.warnings { p.warning { (warning) } }
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
