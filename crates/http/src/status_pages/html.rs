//! A status page as HTML: escaped, without script, and without anything from elsewhere.

use std::fmt::Write as _;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use sanderling_observe::PAGE_STYLE;

use super::model::{Cell, Page, Part, Table};
use super::text::{average, brief, clean, plain};

/// Additions of status pages to the look of all pages.
const STYLE: &str = include_str!("style.css");
/// Height of a trend, in units of its drawing.
const TREND_HEIGHT: f32 = 16.0;

/// Letters of a cell that stay on one line.
const LINE_CHARS_MAX: usize = 24;

/// A page that the navigation names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: &'static str,
    /// A sentence about it.
    pub help: &'static str,
}

/// The page as HTML, loaded again after so many seconds; 0: never.
pub(super) fn render(process: &str, links: &[Link], page: &Page, refresh_s: u32) -> String {
    let process = plain(process);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if refresh_s > 0 { meta http-equiv="refresh" content=(refresh_s); }
                title { (plain(&page.title)) " · " (process) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(STYLE)) }
            }
            body {
                main {
                    header {
                        p.lead { a href="/" { (process) } }
                        h1 { (plain(&page.title)) }
                        nav {
                            @for link in links { a href={ "/" (link.name) } title=(link.help) { (link.name) } " " }
                            a href="/metrics" title="Metrics for Prometheus." { "metrics" } " "
                            @if refresh_s > 0 {
                                a href="?refresh=0" title="Do not load this page again by itself." { "hold" }
                            } @else {
                                a href="?refresh=5" title="Load this page again every 5 s." { "follow" }
                            }
                        }
                    }
                    @for shown in &page.parts { (part(shown)) }
                }
                footer { "Sanderling " (env!("CARGO_PKG_VERSION")) }
            }
        }
    }
    .into_string()
}

fn part(part: &Part) -> Markup {
    match part {
        Part::Facts(facts) => html! {
            section { dl.facts { @for (name, value) in facts { dt { (plain(name)) } dd { (cell(value)) } } } }
        },
        Part::Table(shown) => table(shown),
        Part::Note(note) => html! { p.note { (clean(note)) } },
        Part::Warning(warning) => html! { p.warning { (clean(warning)) } },
        Part::Text(text) => {
            html! { section { pre { (text.lines().map(clean).collect::<Vec<_>>().join("\n")) } } }
        }
    }
}

fn table(table: &Table) -> Markup {
    let (before, next) = table.neighbours();
    html! {
        section {
            h2 { (plain(&table.title)) }
            @if let Some(place) = table.place() {
                p.note {
                    (place)
                    @if let Some(before) = before { " · " a href={ "?from=" (before) } { "previous" } }
                    @if let Some(next) = next { " · " a href={ "?from=" (next) } { "next" } }
                }
            }
            @if table.rows.is_empty() {
                p.none { "None." }
            } @else {
                div.scroll { table {
                    thead { tr {
                        @for column in &table.columns { th.number[column.is_number] { (column.title) } }
                    } }
                    tbody { @for row in &table.rows { tr {
                        @for value in row { td class=[class(value)] { (cell(value)) } }
                    } } }
                } }
            }
        }
    }
}

fn class(cell: &Cell) -> Option<&'static str> {
    match cell {
        Cell::Number(_) | Cell::Trend(_) => Some("number"),
        Cell::Marked(_) => Some("marked"),
        Cell::Text(text) | Cell::Link(text, _) => (text.chars().count() > LINE_CHARS_MAX).then_some("long"),
    }
}

fn cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Text(text) | Cell::Number(text) => html! { (plain(text)) },
        Cell::Marked(text) => html! { strong { (plain(text)) } },
        Cell::Link(text, path) => html! { a href=(path) { (plain(text)) } },
        Cell::Trend(points) => trend(points),
    }
}

/// Points as a line. The least and the most are at its edges, and in words below the pointer.
fn trend(points: &[f32]) -> Markup {
    let Some(average) = average(points) else { return html! { "–" } };
    let (least, most) =
        points.iter().fold((f32::MAX, f32::MIN), |(least, most), &point| (least.min(point), most.max(point)));
    let words =
        format!("average {}, {} to {}", brief(average), brief(f64::from(least)), brief(f64::from(most)));
    let last = points.len().saturating_sub(1).max(1);
    html! {
        svg.trend viewBox={ "0 -1 " (last) " " (TREND_HEIGHT + 2.0) } preserveAspectRatio="none" role="img" {
            title { (words) }
            path d=(line(points, least, most));
        }
    }
}

/// The path of the line, without points that lie between two of the same height.
fn line(points: &[f32], least: f32, most: f32) -> String {
    let range = most - least;
    let height = |point: f32| match range > 0.0 {
        true => (TREND_HEIGHT * (most - point) / range).round() as i32,
        false => (TREND_HEIGHT / 2.0) as i32,
    };
    let mut heights: Vec<i32> = points.iter().map(|&point| height(point)).collect();
    if heights.len() == 1 {
        heights.push(heights[0]);
    }
    let mut path = String::from("M");
    for (at, height) in heights.iter().enumerate() {
        let is_between =
            at > 0 && at + 1 < heights.len() && heights[at - 1] == *height && heights[at + 1] == *height;
        if !is_between {
            let gap = if at == 0 { "" } else { " " };
            write!(path, "{gap}{at} {height}").expect("a string takes everything");
        }
    }
    path
}
