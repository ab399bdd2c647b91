//! Subscribing: how trainers connect and reconnect, also after a restart of the hub, and which leases they keep.
//! Leases nothing.

use std::collections::BTreeSet;

use sanderling_wire::Subscribe;

use super::trainer::Trainer;
use super::{LeaseTable, Open};
use crate::service::limit::TRAINERS_MAX;

/// The answer to a subscription.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) window: u32,
    pub(crate) late: Vec<u64>,
}

/// A trainer's leases at the end of an earlier run of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseHolder {
    pub(crate) name: String,
    /// Its leases, ascending.
    pub(crate) numbers: Vec<u64>,
    /// Its latest acknowledgements, which may not have been confirmed to it.
    pub(crate) used: Vec<u64>,
}

impl LeaseTable {
    /// The trainers that are connected or may come back, and their leases.
    pub(crate) fn holders(&self) -> Vec<LeaseHolder> {
        let known = self.trainers.iter().filter(|trainer| !trainer.expired);
        let holder = |it: &Trainer| LeaseHolder {
            name: it.name.clone(),
            numbers: it.leased.iter().copied().collect(),
            used: it.accepted.iter().copied().collect(),
        };
        known.map(holder).collect()
    }

    /// Restores leases from before a restart; they last until the trainer comes back or expires. Call it before any
    /// minibatch is made.
    ///
    /// If the list may be incomplete (`is_all` is false), nothing new is leased while a trainer is awaited, since
    /// that trainer may hold it.
    pub(crate) fn restore(&mut self, now_us: u64, holders: &[LeaseHolder], is_all: bool) {
        let is_known = !is_all && self.limits.stride == 0;
        for LeaseHolder { name, numbers, used } in holders.iter().take(TRAINERS_MAX) {
            let theirs: BTreeSet<u64> = numbers.iter().copied().filter(|&it| self.is_nobodys(it)).collect();
            let is_waited_for = is_known || !theirs.is_empty();
            if !is_waited_for && used.is_empty() {
                continue;
            }
            let Ok(at) = self.seat(name) else { return };
            for &number in &theirs {
                self.open.insert(number, Open { number, batch: None, fed: None, owner: Some(at) });
            }
            let trainer = &mut self.trainers[at];
            (trainer.leased, trainer.left_at_us, trainer.awaited) = (theirs, now_us, is_known);
            (trainer.accepted, trainer.expired) = (used.iter().copied().collect(), !is_waited_for);
        }
    }

    fn is_nobodys(&self, number: u64) -> bool {
        !self.acked.contains(number) && !self.open.contains_key(&number)
    }

    /// Subscribes a trainer on a connection.
    ///
    /// # Errors
    ///
    /// A sentence that tells the user why it is refused.
    pub(crate) fn subscribe(&mut self, connection: u64, request: &Subscribe<'_>) -> Result<Admitted, String> {
        let window = request.window.clamp(1, self.limits.window);
        if request.stream != 0 && request.stream != self.stream {
            // The trainer sees from the stream number that it is not subscribed.
            return Ok(Admitted { window, late: Vec::new() });
        }
        self.check_rank(request)?;
        let is_known =
            self.trainers.iter().any(|trainer| trainer.name == request.trainer && !trainer.expired);
        let at = self.seat(request.trainer)?;
        // It had expired before the hub's restart; an awaited trainer may hold its former leases.
        let is_outranked = !is_known && self.awaits();
        if !is_known {
            self.log.came(request.trainer);
        }
        self.trainers[at].enter(connection, window, request);
        let held: BTreeSet<u64> = request.held.iter().copied().collect();
        let late = held.iter().copied().filter(|&number| !self.keep(at, number, is_outranked)).collect();
        // The trainer does not hold the rest: it lost them, or they were lost on the way.
        let trainer = &mut self.trainers[at];
        let lost: Vec<u64> = trainer.leased.difference(&held).copied().collect();
        let mut lost_here = Vec::new();
        for number in lost {
            trainer.leased.remove(&number);
            if self.open.get(&number).is_some_and(|open| open.batch.is_some()) {
                trainer.to_redeliver.insert(number);
                lost_here.push(number);
            } else {
                self.open.remove(&number);
            }
        }
        lost_here.into_iter().for_each(|number| self.want_fed(number));
        Ok(Admitted { window, late })
    }

    fn check_rank(&self, request: &Subscribe<'_>) -> Result<(), String> {
        let stride = self.limits.stride;
        match request.rank {
            _ if stride == 0 => Ok(()),
            None => Err(format!("minibatches are assigned to {stride} ranks; set the rank of this trainer")),
            Some(rank) if rank >= stride => Err(format!("rank {rank}: must be 0 to {}", stride - 1)),
            Some(rank) => {
                let other = |trainer: &&Trainer| {
                    trainer.rank == Some(rank) && trainer.name != request.trainer && !trainer.expired
                };
                match self.trainers.iter().find(other) {
                    Some(other) => Err(format!("rank {rank} is taken by trainer {:?}", other.name)),
                    None => Ok(()),
                }
            }
        }
    }

    /// The index of the trainer of this name, new if need be; reuses the entry of a disconnected trainer without
    /// leases when there are too many.
    fn seat(&mut self, name: &str) -> Result<usize, String> {
        if let Some(at) = self.trainers.iter().position(|trainer| trainer.name == name) {
            return Ok(at);
        }
        if self.trainers.len() < TRAINERS_MAX {
            self.trainers.push(Trainer::new(name));
            return Ok(self.trainers.len() - 1);
        }
        let at = self.trainers.iter().position(|trainer| trainer.expired);
        let at = at.ok_or_else(|| {
            format!("there are {TRAINERS_MAX} trainers already, the most that a hub serves")
        })?;
        self.trainers[at] = Trainer::new(name);
        Ok(at)
    }

    /// Confirms a lease that the trainer claims; `false` if it has lost it.
    fn keep(&mut self, at: usize, number: u64, is_outranked: bool) -> bool {
        if self.acked.contains(number) {
            return self.trainers[at].accepted.contains(&number);
        }
        if is_outranked {
            return false;
        }
        match self.open.get(&number).map(|open| open.owner) {
            Some(Some(owner)) if owner != at => return false,
            Some(Some(_)) => {}
            Some(None) => self.take(at, number),
            // Leased before the hub's restart.
            None if number >= self.next && !self.ended => {
                self.open.insert(number, Open { number, batch: None, fed: None, owner: Some(at) });
            }
            None => return false,
        }
        self.trainers[at].to_redeliver.remove(&number);
        self.trainers[at].leased.insert(number);
        true
    }
}
