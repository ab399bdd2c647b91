//! Requests of clients at a replica: pushes, pulls, and changes between pushes.

use std::sync::Arc;

use super::{Node, Role};
use crate::fault::Fault;
use crate::message::{Action, Answer, AppliedPush, Operation, Push, Record};
use crate::placement::SlotOwner;
use crate::primary::{Outbox, Primary};
use crate::push_dedup::Verdict;

impl Node {
    /// The primary, if it takes changes now.
    fn taking(&mut self) -> Result<&mut Primary, Answer> {
        let has_enough = self.has_enough();
        let Role::Primary(primary) = &mut self.role else { return Err(Answer::NotHere) };
        if !has_enough || primary.handing_over.is_some() || primary.is_full() {
            return Err(Answer::Busy);
        }
        Ok(primary)
    }

    pub(super) fn push(&mut self, request: u64, stream: usize, push: Arc<Push>) -> Result<(), Answer> {
        let (client, sequence) = (push.client, push.sequence);
        let fault = self.rows.fault;
        let primary = self.taking()?;
        // It was applied, but its followers have not all acknowledged it.
        if fault != Fault::RepeatAnsweredEarly && primary.join_pending(client, sequence, request) {
            return Ok(());
        }
        let places = self.check_places(push.table, &push.keys);
        if fault == Fault::PlacesBeforeMarks {
            places.clone()?;
        }
        let mut window = None;
        match self.push_dedup.begin(&mut window, client, sequence) {
            Verdict::Apply => {}
            Verdict::Known(outcome) => return Err(Answer::Done(outcome)),
            Verdict::UnderWay => return Err(Answer::Busy),
            Verdict::Stale => return Err(Answer::Stale),
        }
        let applied = if places.is_ok() { self.rows.push(push).ok() } else { None };
        window
            .into_iter()
            .for_each(|window| window.finish(sequence, applied.as_ref().map(|push| push.outcome)));
        places?;
        let Some(applied) = applied else { return Err(self.refusal()) };
        let mut out = Outbox::new();
        if let Role::Primary(primary) = &mut self.role {
            primary.send_push((request, stream), Record::Push(applied), &self.rows, &mut out);
        }
        self.send_all(out);
        Ok(())
    }

    /// Whether this group has these keys of a table.
    fn check_places(&self, table: u32, keys: &[u64]) -> Result<(), Answer> {
        let home = self.rows.home_of(table);
        keys.iter().try_for_each(|&key| match self.rows.owner_of(home, key) {
            SlotOwner::Here => Ok(()),
            SlotOwner::InHandOver => Err(Answer::Busy),
            SlotOwner::Elsewhere(_) => {
                let version = self.rows.placement.as_ref().map_or(0, |placement| placement.version);
                Err(Answer::Elsewhere { version })
            }
        })
    }

    /// The answer to a request that does not fit the rows here. Those of a primary that may have been replaced do not
    /// count: its successor may have a table that it does not know.
    fn refusal(&self) -> Answer {
        let has_lease = self.now < self.lease_until();
        if has_lease { Answer::Refused } else { Answer::Busy }
    }

    /// Sends a push that a worker has applied in this epoch.
    pub(super) fn send_applied(&mut self, (request, stream): (u64, usize), epoch: u64, applied: AppliedPush) {
        let mut out = Outbox::new();
        match &mut self.role {
            Role::Primary(primary) if primary.epoch == epoch => {
                primary.send_push((request, stream), Record::Push(applied), &self.rows, &mut out);
            }
            // The rows that it changed end with the epoch.
            _ => self.actions.push(Action::Answer { request, answer: Answer::NotHere }),
        }
        self.send_all(out);
    }

    pub(super) fn operate(&mut self, request: u64, operation: &Operation) -> Result<(), Answer> {
        self.taking()?;
        let outcome = self.rows.operate(operation, true).map_err(|_| self.refusal())?;
        let (must_have, mut out) = (self.must_have(), Outbox::new());
        if let Role::Primary(primary) = &mut self.role {
            primary.send_barrier((request, outcome), operation, &must_have, &self.rows, &mut out);
        }
        self.send_all(out);
        Ok(())
    }

    pub(super) fn pull(&self, table: u32, keys: &[u64]) -> Answer {
        let Role::Primary(primary) = &self.role else { return Answer::NotHere };
        let has_lease = primary.has_lease(&self.must_have(), self.now);
        if primary.handing_over.is_some() || !has_lease && self.rows.fault != Fault::PullsWithoutLease {
            return Answer::Busy;
        }
        if let Err(answer) = self.check_places(table, keys) {
            return answer;
        }
        match self.rows.pull(table, keys) {
            Some(weights) => Answer::Rows { epoch: primary.epoch, weights },
            None => Answer::Refused,
        }
    }
}
