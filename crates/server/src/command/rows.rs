//! Whole rows: deleting them, and what an export is to do. Knows no connection.

use sanderling_wire::{Delete, Export, Reply};

use crate::call::Call;
use crate::errand::Work;
use crate::refusal::Refusal;
use crate::state::State;

pub(crate) fn delete(call: &Call<'_>, delete: &Delete<'_>, slot: &mut [u8]) -> Result<usize, Refusal> {
    let entry = call.view.table(delete.table)?;
    call.state.placement.check_keys(entry.home, delete.keys)?;
    let gone = delete.keys.iter().filter(|&&key| entry.table.remove(key)).count();
    call.encode(&Reply::Delete(gone as u64), slot)
}

/// An export goes over the whole table, which is too long for a worker.
pub(crate) fn export(state: &State, export: &Export) -> Result<Work, Refusal> {
    let directory = state.tables.directory();
    let entry = directory.entries.iter().find(|entry| entry.number == export.table);
    let entry = entry.ok_or_else(|| Refusal::no_table(&format!("number {}", export.table)))?;
    Ok(Work::Export { entry: entry.clone(), from: export.cursor, rows_max: export.rows_max })
}

/// The store takes whole rows from checkpoints only.
pub(crate) fn import_refused() -> Refusal {
    Refusal::bad("this server takes whole rows from checkpoints only: save there, restore here")
}
