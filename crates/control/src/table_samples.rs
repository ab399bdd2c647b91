//! Estimates of a table's rows and keys from samples, as a part of its page and as metrics. Takes no sample itself.

use sanderling_http::status_pages::{Cell, Column, Table};
use sanderling_observe::{Exposition, Parts};
use sanderling_server::{Control, KeyShares, RowSample};

/// The samples of one table.
#[derive(Debug, Clone)]
pub(crate) struct TableSamples {
    name: String,
    rows: Option<RowSample>,
    keys: Option<KeyShares>,
    /// The keys of the training before the start.
    trained: Option<Parts>,
}

impl TableSamples {
    /// The samples of all tables.
    pub(crate) fn of_all(control: &Control) -> Vec<TableSamples> {
        let (mut rows, mut keys) = (control.row_samples(), control.key_shares());
        let tables = control.quick_tables().into_iter();
        let trained = control.trained_keys();
        let of = tables.map(|table| TableSamples {
            rows: rows.remove(&table.number),
            keys: keys.remove(&table.number),
            trained: trained(&table.name),
            name: table.name,
        });
        of.collect()
    }

    /// The samples of a table, by its number.
    pub(crate) fn of(control: &Control, number: u32, name: &str) -> TableSamples {
        let (rows, keys) = (control.row_sample(number), control.key_shares().remove(&number));
        TableSamples { trained: control.trained_keys()(name), name: name.to_owned(), rows, keys }
    }

    /// Each estimate: its metric, with a quantile where it has several, its help and its value.
    fn estimates(&self) -> Vec<(Estimate, f64)> {
        let mut all = Vec::new();
        if let Some(rows) = self.rows.filter(|rows| rows.rows > 0) {
            let norms = [
                ("0.5", rows.norm_p50),
                ("0.9", rows.norm_p90),
                ("0.99", rows.norm_p99),
                ("1", rows.norm_max),
            ];
            all.extend(norms.map(|(quantile, norm)| (NORM.at(quantile), f64::from(norm))));
            let idle = [("0.5", rows.idle_p50), ("0.9", rows.idle_p90)];
            all.extend(idle.map(|(quantile, pushes)| (IDLE.at(quantile), f64::from(pushes))));
            all.push((ZERO, f64::from(rows.zero_share)));
            if rows.updated > 0 {
                all.push((UPDATE, f64::from(rows.update_norm)));
                all.push((UPDATE_RATIO, f64::from(rows.update_ratio)));
            }
        }
        if let Some(keys) = &self.keys {
            all.extend(keys.unseen_share().map(|share| (UNSEEN, share)));
            all.extend(keys.drift().map(|drift| (DRIFT, drift)));
            let trained = self.trained.and_then(|trained| keys.drift_from(&trained));
            all.extend(trained.map(|drift| (DRIFT_TRAINED, drift)));
        }
        all
    }

    /// The estimates as a table of its page.
    pub(crate) fn table(&self) -> Table {
        let columns = [Column::text("estimate"), Column::number("value"), Column::text("of")];
        let rows = self.rows.map_or(0, |rows| rows.rows);
        let title = format!("Estimates, of {rows} random rows and of sampled requests");
        let mut table = Table::new(title, columns);
        for (estimate, value) in self.estimates() {
            let name = match estimate.quantile {
                Some(quantile) => format!("{}, quantile {quantile}", estimate.metric),
                None => estimate.metric.to_owned(),
            };
            let number = format!("{value:.4}");
            let is_other = [DRIFT, DRIFT_TRAINED].contains(&estimate) && value > DRIFT_MAX;
            let number = if is_other { Cell::Marked(number) } else { Cell::Number(number) };
            table.row([Cell::text(name), number, Cell::text(estimate.help)]);
        }
        table
    }
}

/// From this stability index on, keys are others than before.
const DRIFT_MAX: f64 = 0.25;

/// A number that is estimated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Estimate {
    metric: &'static str,
    quantile: Option<&'static str>,
    help: &'static str,
}

impl Estimate {
    const fn new(metric: &'static str, help: &'static str) -> Estimate {
        Estimate { metric, quantile: None, help }
    }

    fn at(self, quantile: &'static str) -> Estimate {
        Estimate { quantile: Some(quantile), ..self }
    }
}

const NORM: Estimate = Estimate::new("row_norm", "L2 norms of random rows.");
const IDLE: Estimate =
    Estimate::new("row_idle_pushes", "Pushes to the table since the last one of a random row.");
const ZERO: Estimate = Estimate::new("zero_rows_ratio", "Share of random rows whose weights are all zero.");
const UPDATE: Estimate =
    Estimate::new("update_norm", "Mean L2 norm of the change of a followed row by one update.");
const UPDATE_RATIO: Estimate =
    Estimate::new("update_ratio", "Mean of that change by the norm of the row before.");
const UNSEEN: Estimate =
    Estimate::new("unseen_keys_ratio", "Share of the keys of sampled pulls of late that have no row.");
const DRIFT: Estimate = Estimate::new(
    "key_drift",
    "Population stability index of sampled keys of late against those since the start.",
);
const DRIFT_TRAINED: Estimate = Estimate::new(
    "key_drift_trained",
    "Population stability index of sampled keys of late against those of the checkpoint that was restored.",
);

/// The estimates of all tables as metrics.
pub(crate) fn exposition(text: &mut Exposition, tables: &[TableSamples]) {
    let all: Vec<(&str, Vec<(Estimate, f64)>)> =
        tables.iter().map(|table| (&*table.name, table.estimates())).collect();
    for estimate in [NORM, IDLE, ZERO, UPDATE, UPDATE_RATIO, UNSEEN, DRIFT, DRIFT_TRAINED] {
        let name = format!("sanderling_table_{}", estimate.metric);
        text.family(&name, "gauge", estimate.help);
        for (table, estimates) in &all {
            for (found, value) in estimates.iter().filter(|(found, _)| found.metric == estimate.metric) {
                let quantile = found.quantile.map(|quantile| ("quantile", quantile));
                let labels: Vec<(&str, &str)> = [("table", *table)].into_iter().chain(quantile).collect();
                text.sample(&name, &labels, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_told_where_there_are_some() {
        let rows = RowSample { rows: 5, norm_p50: 1.5, norm_max: 2.0, idle_p90: 7, ..RowSample::default() };
        let with = |rows: Option<RowSample>| TableSamples {
            name: "a\"b".to_owned(),
            rows,
            keys: None,
            trained: None,
        };
        let moved = RowSample { updated: 3, update_norm: 0.25, ..rows };
        for (rows, lines) in [
            (None, &[][..]),
            (Some(RowSample::default()), &[]),
            (
                Some(rows),
                &[
                    "sanderling_table_row_norm{table=\"a\\\"b\",quantile=\"0.5\"} 1.5",
                    "sanderling_table_row_norm{table=\"a\\\"b\",quantile=\"1\"} 2",
                    "sanderling_table_row_idle_pushes{table=\"a\\\"b\",quantile=\"0.9\"} 7",
                ],
            ),
            (Some(moved), &["sanderling_table_update_norm{table=\"a\\\"b\"} 0.25"]),
        ] {
            let mut text = Exposition::default();
            exposition(&mut text, &[with(rows)]);
            let text = text.finish();
            lines.iter().for_each(|line| assert!(text.lines().any(|found| found == *line), "{line}: {text}"));
            assert_eq!(text.contains("row_norm{"), !lines.is_empty());
            assert_eq!(text.contains("update_norm{"), rows.is_some_and(|rows| rows.updated > 0));
        }
    }
}
