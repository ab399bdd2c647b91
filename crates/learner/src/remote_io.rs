//! The rows of a model's table on their way between servers and a directory, some at a time, so that a table may be larger
//! than this process. Knows no configuration of a run.

use sanderling_client::{ClientError, RemoteTable, RowBlock};
use sanderling_store::{Checkpoint, CheckpointWriter, RowColumns, TableConfig, WholeRows};

use crate::error::LearnError;

/// Rows that are sent together.
const ROWS: usize = 1 << 14;

/// Fetches a table and writes it with this configuration. No client may push meanwhile.
pub(crate) fn save(
    remote: &RemoteTable,
    config: &TableConfig,
    writer: &mut CheckpointWriter,
) -> Result<(), LearnError> {
    let (dim, state) = (config.dim(), config.state());
    if (remote.dim(), remote.state()) != (dim, state) {
        return Err(misfit(remote, dim, state));
    }
    // A budget is that of the servers, each of which has its share: in one process the same rows may take a little more.
    let config = TableConfig { budget_bytes: None, ..config.clone() };
    writer.rows(&config, |each| {
        let mut clock = 0;
        remote.try_export(|block| {
            let RowBlock { keys, frequencies, last_uses, versions, weights, states, .. } = *block;
            let rows = WholeRows { keys, frequencies, last_uses, versions, weights, states };
            clock = last_uses.iter().copied().fold(clock, u32::max);
            (0..keys.len()).try_for_each(|at| each(rows.row(at, dim, state)))
        })?;
        // The last push was to some row.
        Ok::<u64, LearnError>(clock.into())
    })
}

/// Puts the rows of a saved table into one on servers.
pub(crate) fn import(checkpoint: &Checkpoint, table: &str, remote: &RemoteTable) -> Result<(), LearnError> {
    let saved = checkpoint.tables().iter().find(|saved| saved.name == table);
    if let Some((dim, state)) = saved.map(|saved| (saved.config.dim(), saved.config.state()))
        && (remote.dim(), remote.state()) != (dim, state)
    {
        return Err(misfit(remote, dim, state));
    }
    let mut rows = RowColumns::default();
    let send = |rows: &mut RowColumns| {
        let WholeRows { keys, frequencies, last_uses, versions, weights, states } = rows.rows();
        let (dim, state) = (remote.dim() as u32, remote.state() as u32);
        let block = RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
        let sent = remote.import(&block);
        rows.clear();
        sent
    };
    checkpoint.for_each_row::<LearnError>(table, |row| {
        rows.push(row);
        if rows.len() == ROWS {
            send(&mut rows)?;
        }
        Ok(())
    })?;
    Ok(send(&mut rows)?)
}

fn misfit(remote: &RemoteTable, dim: usize, state: usize) -> LearnError {
    let reason = format!(
        "table {:?}: its rows have {} weights and {} state values on the servers, those of the model {dim} and {state}",
        remote.name(),
        remote.dim(),
        remote.state()
    );
    ClientError::Cluster { reason }.into()
}
