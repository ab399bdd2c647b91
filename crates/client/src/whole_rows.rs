//! Copies whole rows between tables and checkpoints, a block at a time, so that a table may be larger than this
//! process.

use sanderling_store::{Checkpoint, CheckpointWriter, RowColumns, TableConfig, WholeRows};
use sanderling_wire::RowBlock;

use crate::error::ClientError;
use crate::remote::RemoteTable;

/// Rows of a block.
const ROWS: usize = 1 << 14;

/// Calls `send` on the rows of a saved table, in blocks.
pub(crate) fn import_rows(
    checkpoint: &Checkpoint,
    table: &str,
    mut send: impl FnMut(WholeRows<'_>) -> Result<(), ClientError>,
) -> Result<(), ClientError> {
    let mut rows = RowColumns::default();
    checkpoint.for_each_row::<ClientError>(table, |row| {
        rows.push(row);
        if rows.len() == ROWS {
            send(rows.rows())?;
            rows.clear();
        }
        Ok(())
    })?;
    send(rows.rows())
}

/// Adds the rows of a saved table to a table on servers.
pub(crate) fn import_remote(
    remote: &RemoteTable,
    checkpoint: &Checkpoint,
    name: &str,
) -> Result<(), ClientError> {
    let saved = checkpoint.tables().iter().find(|saved| saved.name == name);
    if let Some(saved) = saved {
        check_shape(remote, &saved.config)?;
    }
    import_rows(checkpoint, name, |rows| {
        let WholeRows { keys, frequencies, last_uses, versions, weights, states } = rows;
        let (dim, state) = (remote.dim() as u32, remote.state() as u32);
        remote.import(&RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states })
    })
}

/// Fetches a table from servers and writes it to a checkpoint with this configuration. No client may push meanwhile.
pub(crate) fn save_remote(
    remote: &RemoteTable,
    config: &TableConfig,
    writer: &mut CheckpointWriter,
) -> Result<(), ClientError> {
    check_shape(remote, config)?;
    let (dim, state) = (config.dim(), config.state());
    // The budget is the servers', each of which has its share: in one process the same rows may take a little more.
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
        Ok::<u64, ClientError>(clock.into())
    })
}

fn check_shape(remote: &RemoteTable, config: &TableConfig) -> Result<(), ClientError> {
    let (dim, state) = (config.dim(), config.state());
    if (remote.dim(), remote.state()) == (dim, state) {
        return Ok(());
    }
    let reason = format!(
        "table {:?}: its rows have {} weights and {} state values on the servers, those of the model {dim} and {state}",
        remote.name(),
        remote.dim(),
        remote.state()
    );
    Err(ClientError::Cluster { reason })
}
