//! The minibatches to be fed before they are leased, and the fed part of each. Each lease has a feeding of its own,
//! so that two trainers that hold the same minibatch in turn do not share one at the servers. Feeds nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, LeaseTable, Minibatch};

/// A feeding older than this is repeated before the lease: servers forget it after 300 s.
pub(super) const FRESH: Duration = Duration::from_secs(60);

/// The fed part of a minibatch. The rest is packed when it is leased, so that a minibatch is stored once.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fed {
    /// The number by which the servers know it.
    pub(crate) batch: u64,
    /// The columns, ascending. None: it is leased with all keys.
    pub(crate) columns: Vec<u32>,
    /// Version of the placement by which the keys were shared out.
    pub(crate) placement_version: u64,
    pub(crate) servers: u32,
    /// Per column, how many keys each server got: [columns, servers].
    pub(crate) keys: Vec<u32>,
    /// The length of the minibatch without those keys, packed.
    pub(crate) bytes: usize,
    /// The time of the feeding, on the lease table's clock.
    pub(crate) at_us: u64,
}

/// Minibatches to be fed, and those being fed.
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
    /// Queues a ready minibatch to be fed, if the hub feeds keys.
    pub(super) fn want_fed(&mut self, number: u64) {
        if let Some(feeding) = &mut self.feeding {
            feeding.want(number);
        }
    }

    /// The next minibatches to be fed, at most `most`, once a trainer is there for them.
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

    /// Notes that the servers have the keys. A minibatch that was acknowledged meanwhile, or reclaimed by its
    /// trainer, is unchanged.
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

    /// Whether a minibatch may be leased as it is. If not, it and the rest of its queue are fed.
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

    /// The answer with a minibatch: without the fed keys, whose feeding is this trainer's from now on.
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

    /// A minibatch that a connection's trainer holds, with all its keys. `None` as in [`LeaseTable::next`].
    pub(crate) fn keys(&mut self, connection: u64, number: u64) -> Option<Answer> {
        let at = self.trainers.iter().position(|trainer| trainer.connection == Some(connection))?;
        if let Some(reason) = &self.failed {
            return Some(Answer::Failed(Arc::clone(reason)));
        }
        if !self.trainers[at].leased.contains(&number) {
            return Some(Answer::Nothing);
        }
        // Leased before the restart; it is being made again.
        let Some(batch) = self.open.get(&number).and_then(|open| open.batch.clone()) else {
            return Some(Answer::Wait);
        };
        let counts = &mut self.trainers[at].counts;
        (counts.asked_full, counts.bytes) =
            (counts.asked_full + 1, counts.bytes + batch.payload.len() as u64);
        Some(Answer::Batch { number, batch })
    }
}
