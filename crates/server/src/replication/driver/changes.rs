//! Changes between pushes, of clients and for moves of slots: checks, numbers, and what all replicas are to do.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use sanderling_replica::push_dedup::Outcome;
use sanderling_replica::{Answer, Event as ReplicaEvent, Operation, Standing, TableHead, Told};
use sanderling_wire::Fault;

use super::super::MoveChange;
use super::{Change, Driver, Made, NUMBER_BITS, Waiting};
use crate::background::{JobKind, QueuedJob};
use crate::refusal::Refusal;
use crate::tables::Asked;

impl Driver {
    /// Makes a change for a move of slots, if this server is still the primary of that epoch.
    pub(super) fn change_for_move(&mut self, epoch: u64, change: MoveChange, told: SyncSender<Told>) {
        self.stop_workers();
        self.refresh();
        if self.standing != (Standing::Primary { epoch, is_open: true }) {
            let _ = told.send(Told::Failed);
            return;
        }
        let operation = match change {
            MoveChange::Place(placement) => Operation::Place(placement),
            MoveChange::Import { table, rows, pushes } => Operation::Import { table, rows, pushes },
            MoveChange::Create(head) => {
                let TableHead { config, note, .. } = *head;
                let config = Box::new(self.state.tables.limited(config));
                Operation::Create { table: self.new_number(epoch), config, note }
            }
        };
        let request = self.new_request();
        self.waiting.insert(request, Waiting::Move(told));
        self.step(ReplicaEvent::Operate { request, operation });
    }

    /// A number for the request of a change. Workers count theirs from 0.
    pub(super) fn new_request(&mut self) -> u64 {
        self.jobs += 1;
        u64::MAX - self.jobs
    }

    /// A number for a table. Another epoch's numbers are not given again.
    pub(super) fn new_number(&mut self, epoch: u64) -> u32 {
        if self.created.0 != epoch {
            self.created = (epoch, 0);
        }
        let number = (epoch as u32) << NUMBER_BITS | self.created.1;
        self.created.1 += 1;
        number
    }

    pub(super) fn change(&mut self, job: Box<QueuedJob>) {
        self.stop_workers();
        // The list that the change is checked against.
        self.refresh();
        match self.prepare(&job) {
            Ok((Some(operation), made)) => {
                let request = self.new_request();
                self.waiting.insert(request, Waiting::Job(job, made));
                self.step(ReplicaEvent::Operate { request, operation });
            }
            Ok((None, made)) => self.reply_to_job(*job, made, &Answer::Done(Outcome::Applied)),
            Err(refusal) => {
                let frame = job.job.refused(&refusal);
                (job.reply)(frame, job.job.since.elapsed());
            }
        }
    }

    /// Checks a change; returns what all replicas are to do.
    fn prepare(&mut self, job: &QueuedJob) -> Result<(Option<Operation>, Made), Refusal> {
        let Standing::Primary { epoch, is_open: true } = self.standing else {
            return Err(self.shared.not_taking());
        };
        let JobKind::Change(change) = &job.job.work else {
            return Err(Refusal::new(Fault::Internal, "no change of tables"));
        };
        let directory = self.state.tables.directory();
        Ok(match change {
            Change::Create { name, home, config } => {
                self.state.placement.check_home(name, *home)?;
                match self.state.tables.ask(name, *home, config)? {
                    Asked::There(entry) => (None, Made::Created(entry.number)),
                    Asked::New { config, note } => {
                        let table = self.new_number(epoch);
                        let note = note.to_text();
                        (Some(Operation::Create { table, config, note }), Made::Created(table))
                    }
                }
            }
            Change::Drop { name } => {
                let entry = directory.named(name).ok_or_else(|| Refusal::no_table(&format!("{name:?}")))?;
                (Some(Operation::Drop { table: entry.number }), Made::Dropped)
            }
            Change::Import { table, rows } => {
                let imported = Made::Imported(rows.rows().keys.len() as u64);
                (Some(Operation::Import { table: *table, rows: Arc::clone(rows), pushes: 0 }), imported)
            }
            Change::Delete { table, keys } => {
                let entry = directory.entries.iter().find(|entry| entry.number == *table);
                let entry = entry.ok_or_else(|| Refusal::no_table_number(*table))?;
                let gone = keys.iter().filter(|&&key| entry.table.get(key).is_some()).count();
                (Some(Operation::Remove { table: *table, keys: keys.clone() }), Made::Deleted(gone as u64))
            }
        })
    }
}
