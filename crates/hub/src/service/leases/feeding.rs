//! Which minibatches are to be fed before they are handed out, and what was fed of them. Each hand-out has a feeding of its own,
//! so that trainers which had the same minibatch one after the other have nothing to do with each other at the servers.
//! Feeds nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, LeaseTable, Minibatch};

/// What was fed longer ago is fed again before it is handed out: servers forget it after 300 s.
pub(super) const FRESH: Duration = Duration::from_secs(60);

/// What was fed of a minibatch. What is left of it is made when it is handed out, so that a minibatch is here once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fed {
    /// The number by which the servers know it.
    pub(crate) batch: u64,
    /// The columns, ascending. None: it goes out whole.
    pub(crate) columns: Vec<u32>,
    pub(crate) servers: u32,
    /// Per column, how many keys each server got: [columns, servers].
    pub(crate) keys: Vec<u32>,
    /// How long the minibatch without those keys is, packed.
    pub(crate) bytes: usize,
    /// The time of the feeding, on the lease table's clock.
    pub(crate) at_us: u64,
}

/// What is to be fed, and what is being fed.
#[derive(Debug, Default)]
pub(super) struct Feeding {
    wanted: BTreeSet<u64>,
    under_way: BTreeSet<u64>,
}

impl Feeding {
    pub(super) fn want(&mut self, number: u64) {
        if !self.under_way.contains(&number) {
            self.wanted.insert(number);
        }
    }
}

impl LeaseTable {
    /// A minibatch without an owner is to be fed, if minibatches are.
    pub(super) fn want_fed(&mut self, number: u64) {
        if let Some(feeding) = &mut self.feeding {
            feeding.want(number);
        }
    }

    /// The next minibatches to be fed, at most so many, once there is a trainer for them.
    pub(crate) fn next_to_feed(&mut self, most: usize) -> Vec<(u64, Arc<Minibatch>)> {
        let mut next = Vec::new();
        if self.failed.is_some() || self.trainers.iter().all(|trainer| trainer.expired) {
            return next;
        }
        while next.len() < most {
            let Some(number) = self.feeding.as_mut().and_then(|feeding| feeding.wanted.pop_first()) else {
                break;
            };
            if self.is_handed_out(number) {
                continue;
            }
            let Some(batch) = self.open.get(&number).and_then(|open| open.batch.clone()) else { continue };
            if let Some(feeding) = &mut self.feeding {
                feeding.under_way.insert(number);
            }
            next.push((number, batch));
        }
        next
    }

    /// The servers have it. What was acknowledged meanwhile, or is in the hands of who has come back with it, stays as it is.
    pub(crate) fn fed(&mut self, number: u64, fed: Fed) {
        if let Some(feeding) = &mut self.feeding {
            feeding.under_way.remove(&number);
        }
        if self.is_handed_out(number) {
            return;
        }
        if let Some(open) = self.open.get_mut(&number) {
            open.fed = Some(Arc::new(fed));
        }
    }

    fn is_handed_out(&self, number: u64) -> bool {
        let owner = self.open.get(&number).and_then(|open| open.owner);
        owner.is_some_and(|at| self.trainers[at].leased.contains(&number))
    }

    /// Whether a minibatch may be handed out as it is. If not, it, and what else this queue has, will be.
    pub(super) fn is_fed(&mut self, number: u64) -> bool {
        let LeaseTable { feeding, open, ready, now_us, .. } = self;
        let Some(feeding) = feeding else { return true };
        let now_us = *now_us;
        let is_fresh = |number: &u64| {
            let fed = open.get(number).and_then(|open| open.fed.as_ref());
            fed.is_some_and(|fed| now_us.saturating_sub(fed.at_us) < FRESH.as_micros() as u64)
        };
        if is_fresh(&number) {
            return true;
        }
        feeding.want(number);
        let queue = &ready[(number % ready.len() as u64) as usize];
        queue.iter().filter(|number| !is_fresh(number)).for_each(|&number| feeding.want(number));
        false
    }

    /// How a minibatch is handed out: without what was fed of it, which is this trainer's then.
    pub(super) fn answer_with(&mut self, number: u64, batch: Arc<Minibatch>) -> Answer {
        let fed = self.open.get_mut(&number).and_then(|open| open.fed.take());
        match fed.filter(|fed| !fed.columns.is_empty()) {
            Some(fed) => {
                let age_us = self.now_us.saturating_sub(fed.at_us);
                Answer::Fed { number, batch, fed, age_us }
            }
            None => Answer::Batch { number, batch },
        }
    }

    /// A minibatch that the trainer of a connection has, whole. None: as [`LeaseTable::next`].
    pub(crate) fn keys(&mut self, connection: u64, number: u64) -> Option<Answer> {
        let at = self.trainers.iter().position(|trainer| trainer.connection == Some(connection))?;
        if let Some(reason) = &self.failed {
            return Some(Answer::Failed(Arc::clone(reason)));
        }
        if !self.trainers[at].leased.contains(&number) {
            return Some(Answer::Nothing);
        }
        // From before the hub's start it is being made once more.
        let Some(batch) = self.open.get(&number).and_then(|open| open.batch.clone()) else {
            return Some(Answer::Wait);
        };
        let counts = &mut self.trainers[at].counts;
        (counts.asked_full, counts.bytes) =
            (counts.asked_full + 1, counts.bytes + batch.payload.len() as u64);
        Some(Answer::Batch { number, batch })
    }
}
