//! The section of a report about tables: sizes, norms of rows, fates of keys, sampled rows. Knows no style.

use maud::{Markup, html};
use sanderling_store::RowSample;

use super::sections::section;
use super::{RunReport, TableSummary, numbers};

/// A list of tables longer than this is folded.
const TABLES_OPEN_MAX: usize = 30;

pub(super) fn tables(report: &RunReport) -> Markup {
    let mut tables: Vec<&TableSummary> = report.tables.iter().collect();
    tables.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.name.cmp(&b.name)));
    let body = html! {
        @if tables.is_empty() && !report.servers.is_empty() {
            p.none { "The tables are on servers, whose status pages show them." }
        } @else if tables.is_empty() {
            p.none { "The model has no table." }
        } @else if tables.len() > TABLES_OPEN_MAX {
            details { summary { "All " (tables.len()) " tables" } (table_list(&tables)) }
        } @else {
            (table_list(&tables))
        }
    };
    let lead = match report.under_way {
        None => {
            "Norms are L2 norms of rows; frequency counts the keys' occurrences in training. Admitted are new keys that got a row, \
             rejected and no room are pushes of keys that did not. Columns from norm p50 on are of 512 random rows in the last \
             seconds of training: the change of a row by one update, and pushes to the table since a row's last one."
        }
        Some(_) => {
            "Admitted are new keys that got a row, rejected and no room are pushes of keys that did not. Columns from norm p50 on \
             are of 512 random rows: the change of a row by one update, and pushes to the table since a row's last one."
        }
    };
    section("tables", "Tables", lead, &body)
}

fn table_list(tables: &[&TableSummary]) -> Markup {
    let frequency: f64 = tables.iter().map(|table| table.frequency_total as f64).sum();
    // Rows are looked at when the run ends, keys are counted while they come.
    let has_rows = tables.iter().any(|table| table.norm_mean.is_finite());
    let has_keys = tables.iter().any(|table| table.keys.is_some());
    let has_sample = tables.iter().any(|table| table.sample.is_some());
    html! {
        div.scroll { table {
            thead { tr {
                th { "table" } th.number { "rows" } th.number { "dim" } th.number { "memory" }
                @if has_rows {
                    th.number { "norm, mean" } th.number { "max" } th.number { "all zero" }
                    th.number { "frequency" } th.number { "share" }
                }
                @if has_keys {
                    th.number { "admitted" } th.number { "rejected" } th.number { "evicted" } th.number { "no room" }
                }
                @if has_sample {
                    th.number { "norm p50" } th.number { "p99" } th.number { "update" } th.number { "relative" }
                    th.number { "idle p50" } th.number { "p90" }
                }
            } }
            tbody { @for table in tables { tr {
                td.name title=(table.name) { (table.name) }
                td.number { (numbers::count(table.rows)) }
                td.number { (table.dim) }
                td.number { (numbers::bytes(table.bytes)) }
                @if has_rows {
                    td.number { (numbers::figure(table.norm_mean)) }
                    td.number { (numbers::figure(table.norm_max)) }
                    td.number { (numbers::count(table.zero_rows)) }
                    td.number { (numbers::count(table.frequency_total)) }
                    td.number { (numbers::percent(table.frequency_total as f64 / frequency)) }
                }
                @if has_keys {
                    @let keys = table.keys.map(|keys| [keys.admitted, keys.rejected, keys.evicted, keys.rejected_full]);
                    @for at in 0..4 { td.number { (keys.map_or("–".to_owned(), |keys| numbers::count(keys[at]))) } }
                }
                @if has_sample { (sample_cells(table.sample)) }
            } } }
        } }
    }
}

/// The cells of a table's sampled rows.
fn sample_cells(sample: Option<RowSample>) -> Markup {
    let sample = sample.filter(|sample| sample.rows > 0);
    let number = |of: fn(&RowSample) -> f32| sample.as_ref().map_or(f64::NAN, |sample| f64::from(of(sample)));
    let updates = [number(|of| of.update_norm), number(|of| of.update_ratio)];
    let updates = updates.map(|value| if sample.is_some_and(|of| of.updated > 0) { value } else { f64::NAN });
    let idle = sample.map(|of| [of.idle_p50, of.idle_p90]);
    html! {
        @for norm in [number(|of| of.norm_p50), number(|of| of.norm_p99)] { td.number { (numbers::figure(norm)) } }
        td.number { (numbers::figure(updates[0])) }
        td.number { (numbers::percent(updates[1])) }
        @for at in 0..2 {
            td.number { (idle.map_or("–".to_owned(), |idle| numbers::count(u64::from(idle[at])))) }
        }
    }
}
