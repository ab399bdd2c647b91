//! The tables of a saved model as a report needs them, summed up row by row while its files are read: those of a run on servers
//! may be larger than this process. Knows no configuration of a run.

use std::path::Path;

use sanderling_store::{Block, Checkpoint, RowRef, TableEntry};

use crate::error::LearnError;
use crate::report::{TOP_KEYS_MAX, TableSummary, TableTally, zero_weights};

/// Adds a row of a table of these blocks.
pub(crate) fn tally_row(tally: &mut TableTally, blocks: &[Block], row: RowRef<'_>) {
    let zeros = zero_weights(blocks, row.weights, row.state);
    tally.add(row.key, u64::from(row.frequency), row.weights, zeros);
}

/// Most rows first.
pub(crate) fn sort(summaries: &mut [TableSummary]) {
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
