//! Whole rows: imports, deletions, and the preparation of exports and of pages of changes.

use std::sync::Arc;

use sanderling_store::WholeRows;
use sanderling_wire::{Changes, Delete, Export, Import, Reply, RowBlock};

use super::check_dim;
use crate::background::JobKind;
use crate::call::Call;
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::Entry;

pub(crate) fn delete(call: &Call<'_>, delete: &Delete<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let entry = call.view.table(delete.table)?;
    call.check_keys(entry.home, delete.keys)?;
    let gone = delete.keys.iter().filter(|&&key| entry.table.remove(key)).count();
    call.encode(&Reply::Delete(gone as u64), slot)
}

/// Prepares an export as a background job, because it scans the whole table.
pub(crate) fn export(state: &State, export: &Export) -> Result<JobKind, Refusal> {
    let entry = find(state, export.table)?;
    Ok(JobKind::Export { entry, from: export.cursor, rows_max: export.rows_max })
}

/// Prepares a page of a table's change stream as a background job, because a drain looks at all rows' marks.
pub(crate) fn changes(state: &State, changes: &Changes) -> Result<JobKind, Refusal> {
    Ok(JobKind::Changes { entry: find(state, changes.table)?, changes: *changes })
}

fn find(state: &State, table: u32) -> Result<Arc<Entry>, Refusal> {
    let directory = state.tables.directory();
    let entry = directory.entries.iter().find(|entry| entry.number == table);
    entry.cloned().ok_or_else(|| Refusal::no_table_number(table))
}

/// Stores rows unchanged. They replace the rows of the same keys.
pub(crate) fn import(call: &Call<'_>, import: &Import<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let rows = checked(call, import)?;
    call.view.table(import.table)?.table.import(rows)?;
    call.encode(&Reply::Import(rows.keys.len() as u64), slot)
}

/// Checks that rows are of this server's table.
pub(super) fn checked<'a>(call: &Call<'_>, import: &Import<'a>) -> Result<WholeRows<'a>, Refusal> {
    let entry = call.view.table(import.table)?;
    let RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states } = import.rows;
    check_dim(entry, dim)?;
    if state != entry.state {
        let (name, expected) = (entry.table.name(), entry.state);
        let reason = format!(
            "rows of table {name:?} have {expected} state values, those to import {state}: they are another optimizer's"
        );
        return Err(Refusal::bad(reason));
    }
    call.check_keys(entry.home, keys)?;
    Ok(WholeRows { keys, frequencies, last_uses, versions, weights, states })
}
