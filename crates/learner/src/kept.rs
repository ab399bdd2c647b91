//! The tables of a saved model as a report needs them, summed up row by row while its files are read: those of a run on servers
//! may be larger than this process. Knows no configuration of a run.

use std::path::Path;

use sanderling_store::Checkpoint;

use crate::error::LearnError;
use crate::report::{TableSummary, TableTally, zero_weights};

/// Summaries of the tables in a directory, in the order of its manifest. How many bytes each takes in memory is said by name.
pub(crate) fn table_summaries(
    path: &Path,
    bytes: &[(String, u64)],
    examples: u64,
) -> Result<Vec<TableSummary>, LearnError> {
    let checkpoint = Checkpoint::open(path)?;
    let summary = |table: &sanderling_store::TableEntry| {
        let mut tally = TableTally::new(&table.name, table.dim);
        checkpoint.for_each_row::<LearnError>(&table.name, |row| {
            let zeros = zero_weights(&table.config.blocks, row.weights, row.state);
            tally.add(row.key, u64::from(row.frequency), row.weights, zeros);
            Ok(())
        })?;
        let found = bytes.iter().find(|(name, _)| *name == table.name);
        Ok(tally.finish(found.map_or(0, |(_, bytes)| *bytes), examples))
    };
    checkpoint.tables().iter().map(summary).collect()
}
