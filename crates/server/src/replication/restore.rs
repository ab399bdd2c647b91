//! Restores a checkpoint in a group: its primary reads it, and all replicas get its tables beside the present ones, which
//! they then replace at once. Clients keep their tables until then.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use sanderling_store::{RowColumns, TableConfig};
use sanderling_wire::Restored;

use super::{Input, Replication};
use crate::limit::{MOVE_ANSWER_WITHIN, RESTORED_PAGE_BYTES};
use crate::placement::Slots;
use crate::refusal::Refusal;
use crate::state::State;
use crate::tables::Candidate;

/// A change for a restore.
#[derive(Debug)]
pub(crate) enum RestoreChange {
    Create {
        config: Box<TableConfig>,
        note: String,
    },
    Import {
        table: u32,
        rows: Arc<RowColumns>,
        pushes: u64,
    },
    Drop {
        table: u32,
    },
    /// These tables replace all others, if this is still the version of the placement.
    Replace {
        notes: Vec<(u32, String)>,
        placement_version: u64,
    },
}

/// The number of the table that a change was about, or why it was not made.
pub(super) type RestoreResult = Result<u32, Refusal>;

/// Tables that are being read. They are dropped unless they replace the others.
struct Staged<'a> {
    shared: &'a Replication,
    epoch: u64,
    notes: Vec<(u32, String)>,
}

/// Replaces the tables of a group by those of a checkpoint, as its primary. On failure they stay as they are.
pub(crate) fn restore(state: &State, shared: &Replication, name: &str) -> Result<Restored, Refusal> {
    let epoch = shared.epoch();
    let slots = state.tables.directory().slots.clone();
    let Some(slots) = slots.filter(|_| epoch != 0) else { return Err(shared.not_taking()) };
    if slots.is_moving() {
        return Err(Refusal::busy("slots of this group move; restore when they have arrived".to_owned()));
    }
    let candidates = state.checkpoints()?.of_group(&state.tables, name, &slots)?;
    let rows = candidates.iter().map(|candidate| candidate.table.len() as u64).sum();
    let restored = Restored { tables: candidates.len() as u64, rows };
    let mut staged = Staged { shared, epoch, notes: Vec::new() };
    for candidate in candidates {
        staged.add(&candidate)?;
    }
    staged.replace(&slots)?;
    Ok(restored)
}

impl Staged<'_> {
    /// Creates a table, and gives it the rows.
    fn add(&mut self, candidate: &Candidate) -> Result<(), Refusal> {
        let (config, note) = (Box::new(candidate.table.config().clone()), candidate.note(true).to_text());
        let table = self.make(RestoreChange::Create { config, note })?;
        self.notes.push((table, candidate.note(false).to_text()));
        let (pushes, mut sent) = (candidate.table.pushes(), Ok(0));
        let row_bytes = 20 + 4 * (candidate.table.config().dim() + candidate.table.config().state());
        let rows_max = (RESTORED_PAGE_BYTES / row_bytes).max(1);
        let mut page = RowColumns::default();
        candidate.table.for_each_row(|row| {
            page.push(row);
            if page.len() >= rows_max && sent.is_ok() {
                let rows = Arc::new(std::mem::take(&mut page));
                sent = self.make(RestoreChange::Import { table, rows, pushes });
            }
            if sent.is_err() {
                page.clear();
            }
        });
        sent?;
        // Also without rows: it has had its pushes.
        self.make(RestoreChange::Import { table, rows: Arc::new(page), pushes }).map(|_| ())
    }

    fn replace(mut self, slots: &Slots) -> Result<(), Refusal> {
        let (notes, placement_version) = (self.notes.clone(), slots.record.version);
        self.make(RestoreChange::Replace { notes, placement_version })?;
        self.notes.clear();
        Ok(())
    }

    /// Lets the thread of replication make a change, and waits until all replicas in sync have it.
    fn make(&self, change: RestoreChange) -> RestoreResult {
        let (told, result): (SyncSender<RestoreResult>, _) = sync_channel(1);
        let _ = self.shared.inputs.send(Input::Restore { epoch: self.epoch, change, told });
        let late = || {
            Refusal::busy("the replicas of the group did not take a part of the restore in time".to_owned())
        };
        result.recv_timeout(MOVE_ANSWER_WITHIN).unwrap_or_else(|_| Err(late()))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        for (table, _) in std::mem::take(&mut self.notes) {
            let _ = self.make(RestoreChange::Drop { table });
        }
    }
}
