//! The tables of a saved model as a report needs them, summed up row by row while its files are read: those of a run on servers
//! may be larger than this process. Knows no configuration of a run.

use std::path::Path;

use sanderling_sample::spec::Feature;
use sanderling_store::{Block, Checkpoint, RowRef, RowSample, Table, TableEntry};

use crate::error::LearnError;
use crate::model::Model;
use crate::names::NameCollector;
use crate::report::{TOP_KEYS_MAX, TableSummary, TableTally, zero_weights};
use crate::table_counters::TableCounters;

/// Adds a row of a table of these blocks.
fn tally_row(tally: &mut TableTally, blocks: &[Block], row: RowRef<'_>) {
    let zeros = zero_weights(blocks, row.weights, row.state);
    tally.add(row.key, u64::from(row.frequency), row.weights, zeros);
}

/// Most rows first.
fn sort(summaries: &mut [TableSummary]) {
    summaries.sort_by(|a, b| b.rows.cmp(&a.rows).then_with(|| a.name.cmp(&b.name)));
}

/// Summaries of the tables in a directory, most rows first. How many bytes each takes in memory is said by name.
pub(crate) fn table_summaries(path: &Path, bytes: &[(String, u64)]) -> Result<Vec<TableSummary>, LearnError> {
    let checkpoint = Checkpoint::open(path)?;
    let summary = |table: &TableEntry| -> Result<TableSummary, LearnError> {
        let mut tally = TableTally::new(&table.name, table.dim, TOP_KEYS_MAX);
        checkpoint.for_each_row::<LearnError>(&table.name, |row| {
            tally_row(&mut tally, &table.config.blocks, row);
            Ok(())
        })?;
        let found = bytes.iter().find(|(name, _)| *name == table.name);
        Ok(tally.finish(found.map_or(0, |(_, bytes)| *bytes)))
    };
    let mut summaries = checkpoint.tables().iter().map(summary).collect::<Result<Vec<_>, _>>()?;
    sort(&mut summaries);
    Ok(summaries)
}

/// Gives the top keys of tables their names.
pub fn name_keys(tables: &mut [TableSummary], features: &[Feature], names: &NameCollector) {
    for table in tables {
        let features = features.iter().filter(|feature| feature.table() == table.name);
        let features: Vec<&str> = features.map(|feature| feature.name.as_str()).collect();
        for key in &mut table.top {
            key.value = names.find(&features, key.key);
        }
    }
}

/// Summaries of the tables of a model in this process, most rows first.
pub(crate) fn summaries_of(model: &Model) -> Vec<TableSummary> {
    let tables = model.client().tables().iter();
    let mut summaries: Vec<TableSummary> = tables.map(|table| table_summary(table, TOP_KEYS_MAX)).collect();
    sort(&mut summaries);
    summaries
}

/// Sizes of a table and fates of its keys, without a look at its rows.
#[must_use]
pub fn quick_table_summary(table: &Table, keys: TableCounters, sample: Option<RowSample>) -> TableSummary {
    TableSummary {
        name: table.name().to_owned(),
        rows: table.len() as u64,
        dim: table.dim(),
        bytes: table.bytes(),
        norm_mean: f64::NAN,
        norm_max: f64::NAN,
        frequency_total: 0,
        zero_rows: 0,
        zero_weights: 0,
        top: Vec::new(),
        keys: Some(keys),
        sample,
    }
}

/// The summary of a table, with up to `top_max` keys of large norm.
#[must_use]
pub fn table_summary(table: &Table, top_max: usize) -> TableSummary {
    let mut tally = TableTally::new(table.name(), table.dim(), top_max);
    let blocks = &table.config().blocks;
    table.for_each_row(|row| tally_row(&mut tally, blocks, row));
    tally.finish(table.bytes())
}
