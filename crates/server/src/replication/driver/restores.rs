//! The changes of a restore: tables that get their rows beside the present ones, and replace them.

use std::sync::mpsc::SyncSender;

use sanderling_replica::push_dedup::Outcome;
use sanderling_replica::{Answer, Event as ReplicaEvent, Operation, Standing};
use sanderling_wire::Fault;

use super::super::restore::{RestoreChange, RestoreResult};
use super::{Driver, Waiting};
use crate::refusal::Refusal;

impl Driver {
    /// Makes a change of a restore, if this server is still the primary of that epoch.
    pub(super) fn change_for_restore(
        &mut self,
        epoch: u64,
        change: RestoreChange,
        told: SyncSender<RestoreResult>,
    ) {
        if !matches!(change, RestoreChange::Drop { .. })
            && let Some(reason) = self.lacks_replace()
        {
            let _ = told.send(Err(Refusal::bad(reason)));
            return;
        }
        self.stop_workers();
        self.refresh();
        if self.standing != (Standing::Primary { epoch, is_open: true }) {
            let _ = told.send(Err(self.shared.not_taking()));
            return;
        }
        let (table, operation) = match change {
            RestoreChange::Create { config, note } => {
                let table = self.new_number(epoch);
                (table, Operation::Create { table, config, note })
            }
            RestoreChange::Import { table, rows, pushes } => {
                (table, Operation::Import { table, rows, pushes })
            }
            RestoreChange::Drop { table } => (table, Operation::Drop { table }),
            RestoreChange::Replace { notes, placement_version } => {
                let present = self.node.placement().map(|placement| placement.version);
                if present != Some(placement_version) {
                    let reason =
                        "slots have moved while the checkpoint was read; restore it again".to_owned();
                    let _ = told.send(Err(Refusal::busy(reason)));
                    return;
                }
                self.shared.note_replaced();
                (0, Operation::Replace { notes })
            }
        };
        let request = self.new_request();
        self.waiting.insert(request, Waiting::Restore(told, table));
        self.step(ReplicaEvent::Operate { request, operation });
    }

    pub(super) fn reply_to_restore(&mut self, told: &SyncSender<RestoreResult>, table: u32, answer: &Answer) {
        // The restore goes on with the present list of tables.
        self.refresh();
        let result = match (self.refusal(answer), answer) {
            (Some(refusal), _) => Err(refusal),
            (None, Answer::Done(Outcome::Full { rejected })) => {
                let found = self.node.tables().1.get(&table);
                let (rows, budget) =
                    found.map_or((0, None), |table| (table.len() as u64, table.config().budget_bytes));
                let budget_bytes = budget.unwrap_or(u64::MAX);
                let reason =
                    "a table of the checkpoint has no room for its rows beside the present tables".to_owned();
                Err(Refusal::new(Fault::TableFull { rejected: *rejected, rows, budget_bytes }, reason))
            }
            _ => Ok(table),
        };
        let _ = told.send(result);
    }

    /// Drops the tables of a restore that ended with the primary before this one.
    pub(super) fn drop_unfinished(&mut self) {
        let (_, tables) = self.node.tables();
        let is_unfinished = |number: &&u32| self.note_of(**number).is_some_and(|note| note.restoring);
        let unfinished: Vec<u32> = tables.keys().filter(is_unfinished).copied().collect();
        for table in unfinished {
            let (told, _) = std::sync::mpsc::sync_channel(1);
            let request = self.new_request();
            self.waiting.insert(request, Waiting::Restore(told, table));
            self.step(ReplicaEvent::Operate { request, operation: Operation::Drop { table } });
        }
    }
}
