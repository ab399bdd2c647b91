//! The lease table: which trainer holds which minibatch, as a state machine.
//!
//! Its inputs are minibatches, requests, acknowledgements and the time; its outputs are answers. It reads no clock
//! and no file, never blocks, and does not look into a minibatch.
//!
//! A number is in one of five states: not made yet, ready, leased to a trainer, due for redelivery to its trainer, or
//! acknowledged. A minibatch is kept until it is acknowledged, so that it can be leased again. If keys are fed to
//! servers, a minibatch is leased only after its keys were fed (`feeding`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ack_set::AckSet;

mod admission;
pub(crate) use admission::LeaseHolder;

mod feeding;
pub(crate) use feeding::Fed;
use feeding::Feeding;

mod passes;
pub(crate) use passes::PassStart;

mod record;
use record::Log;
pub(crate) use record::Record;

mod trainer;
use trainer::Trainer;
pub use trainer::TrainerCounts;

/// A minibatch as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Minibatch {
    pub(crate) pass: u64,
    pub(crate) rows: u32,
    pub(crate) payload: Vec<u8>,
    /// When its making began and ended; a trace shows it.
    pub(crate) made: (Instant, Instant),
}

/// The limits of a lease table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseLimits {
    /// Most minibatches that are ready, and most bytes of them.
    pub(crate) queue_batches: usize,
    pub(crate) queue_bytes: usize,
    /// Most bytes leased and not acknowledged; beyond it each trainer gets one minibatch at a time.
    pub(crate) unacknowledged_bytes: usize,
    /// Most minibatches that one trainer may hold.
    pub(crate) window: u32,
    /// A trainer that stays away for longer loses its leases to the others.
    pub(crate) trainer_timeout: Duration,
    /// Assigns minibatch `s` to the trainer of rank `s % stride`; 0: to any trainer.
    pub(crate) stride: u32,
    /// Whether keys are fed to servers before a minibatch is leased.
    pub(crate) feeds: bool,
    /// Whether changes are kept for the journal.
    pub(crate) logs: bool,
}

#[derive(Debug)]
struct Open {
    number: u64,
    /// `None`: a trainer holds it from before the hub's restart, and it is not made yet.
    batch: Option<Arc<Minibatch>>,
    /// The feeding that belongs to its next lease.
    fed: Option<Arc<Fed>>,
    owner: Option<usize>,
}

impl Open {
    fn bytes(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.payload.len())
    }
}

/// The lease table. All times are microseconds on the caller's clock.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    limits: LeaseLimits,
    stream: u64,
    trainers: Vec<Trainer>,
    /// Changes for the journal.
    log: Log,
    /// Minibatches that are made or claimed and not acknowledged.
    open: BTreeMap<u64, Open>,
    /// Ready minibatches, by rank if there are ranks.
    ready: Vec<BTreeSet<u64>>,
    acked: AckSet,
    /// The number of the next minibatch to be made.
    next: u64,
    passes: VecDeque<PassStart>,
    ready_bytes: usize,
    ready_max: usize,
    ready_bytes_max: usize,
    unacknowledged_bytes: usize,
    ended: bool,
    failed: Option<Arc<str>>,
    /// The queue of minibatches to be fed; `None` if the hub feeds nothing.
    feeding: Option<Feeding>,
    /// The latest time that a caller passed.
    now_us: u64,
}

/// The answer to a trainer's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Batch {
        number: u64,
        batch: Arc<Minibatch>,
    },
    /// A minibatch without the keys that were fed.
    Fed {
        number: u64,
        batch: Arc<Minibatch>,
        fed: Arc<Fed>,
        age_us: u64,
    },
    Wait,
    Over,
    Failed(Arc<str>),
    Nothing,
}

/// How far the trainers are from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completion {
    /// The hub is neither finished nor failed, or some trainer has not been told.
    No,
    /// The hub is finished, and no trainer ever subscribed.
    Unasked,
    /// All trainers have been told, and some are still connected: the message may be on its way.
    Told,
    /// All trainers have been told and have disconnected.
    Left,
}

/// Counts of minibatches and bytes by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) ready: usize,
    pub(crate) ready_bytes: usize,
    /// The most minibatches that were ready at a time.
    pub(crate) ready_max: usize,
    pub(crate) ready_bytes_max: usize,
    pub(crate) unacknowledged: usize,
    pub(crate) unacknowledged_bytes: usize,
    pub(crate) acknowledged: u64,
}

impl LeaseTable {
    /// Creates a table in which nothing is made but the acknowledged minibatches in `done`; the current pass began
    /// with `start`.
    pub(crate) fn new(limits: LeaseLimits, stream: u64, acked: AckSet, start: PassStart) -> LeaseTable {
        LeaseTable {
            stream,
            trainers: Vec::new(),
            log: Log::new(limits.logs),
            open: BTreeMap::new(),
            ready: vec![BTreeSet::new(); limits.stride.max(1) as usize],
            next: acked.prefix(),
            acked,
            passes: VecDeque::from([start]),
            ready_bytes: 0,
            ready_max: 0,
            ready_bytes_max: 0,
            unacknowledged_bytes: 0,
            ended: false,
            failed: None,
            feeding: limits.feeds.then(Feeding::default),
            now_us: 0,
            limits,
        }
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream
    }

    /// Whether another minibatch may be made.
    pub(crate) fn has_room(&self) -> bool {
        let ready: usize = self.ready.iter().map(BTreeSet::len).sum();
        ready < self.limits.queue_batches && self.ready_bytes < self.limits.queue_bytes
    }

    /// Takes the next minibatch that was made, and drops it if it was acknowledged before.
    pub(crate) fn offer(&mut self, batch: Minibatch) {
        let number = self.next;
        self.next += 1;
        if self.acked.contains(number) {
            return;
        }
        let (bytes, batch) = (batch.payload.len(), Some(Arc::new(batch)));
        if let Some(claimed) = self.open.get_mut(&number) {
            claimed.batch = batch;
            self.unacknowledged_bytes += bytes;
        } else {
            self.open.insert(number, Open { number, batch, fed: None, owner: None });
            self.want_fed(number);
            self.ready_bytes += bytes;
            self.queue_of(number).insert(number);
            let ready = self.ready.iter().map(BTreeSet::len).sum();
            self.ready_max = self.ready_max.max(ready);
            self.ready_bytes_max = self.ready_bytes_max.max(self.ready_bytes);
        }
    }

    /// Notes that the next minibatch is the first of `pass`.
    pub(crate) fn begin_pass(&mut self, pass: u64) {
        let start = PassStart { pass, first: self.next };
        self.log.pass(start);
        self.passes.push_back(start);
        passes::forget(&mut self.passes, self.acked.prefix());
    }

    /// Notes that no more minibatches will be made, after this number of passes.
    pub(crate) fn end(&mut self, passes: u64) {
        self.begin_pass(passes);
        self.ended = true;
        // Drops claims on numbers that never existed.
        let next = self.next;
        self.open.retain(|&number, _| number < next);
        for trainer in &mut self.trainers {
            trainer.leased.retain(|&number| number < next);
        }
    }

    /// Notes that the hub has failed.
    pub(crate) fn fail(&mut self, reason: &str) {
        self.failed.get_or_insert_with(|| reason.into());
    }

    /// Leases a ready minibatch to a trainer.
    fn take(&mut self, at: usize, number: u64) {
        self.queue_of(number).remove(&number);
        let Some(open) = self.open.get_mut(&number) else { return };
        open.owner = Some(at);
        let bytes = open.bytes();
        self.ready_bytes -= bytes;
        self.unacknowledged_bytes += bytes;
    }

    fn queue_of(&mut self, number: u64) -> &mut BTreeSet<u64> {
        let queues = self.ready.len() as u64;
        &mut self.ready[(number % queues) as usize]
    }

    /// Acknowledges minibatches of a connection's trainer and leases it another one if wanted. `None`: no trainer
    /// subscribed on the connection, or it has subscribed on another since.
    pub(crate) fn next(&mut self, connection: u64, wanted: bool, used: &[u64]) -> Option<(Vec<u64>, Answer)> {
        let at = self.trainers.iter().position(|trainer| trainer.connection == Some(connection))?;
        let late = used.iter().copied().filter(|&number| !self.acknowledge(at, number)).collect();
        passes::forget(&mut self.passes, self.acked.prefix());
        Some((late, if wanted { self.pick(at) } else { Answer::Nothing }))
    }

    /// Acknowledges minibatches of a connection's trainer and releases its other leases at once. Returns the late
    /// numbers and how many leases were released; `None` as in [`LeaseTable::next`].
    pub(crate) fn leave(&mut self, connection: u64, used: &[u64]) -> Option<(Vec<u64>, usize)> {
        let at = self.trainers.iter().position(|trainer| trainer.connection == Some(connection))?;
        let late = used.iter().copied().filter(|&number| !self.acknowledge(at, number)).collect();
        passes::forget(&mut self.passes, self.acked.prefix());
        self.trainers[at].connection = None;
        Some((late, self.let_go(at)))
    }

    /// Acknowledges a number; `false` if the lease was lost before.
    fn acknowledge(&mut self, at: usize, number: u64) -> bool {
        let trainer = &mut self.trainers[at];
        if trainer.accepted.contains(&number) {
            return true;
        }
        if !trainer.leased.remove(&number) && !trainer.to_redeliver.remove(&number) {
            trainer.counts.late += 1;
            return false;
        }
        trainer.accept(number);
        self.log.used(&trainer.name, number);
        if let Some(open) = self.open.remove(&number) {
            self.unacknowledged_bytes -= open.bytes();
        }
        let is_new = self.acked.insert(number);
        debug_assert!(is_new, "{number} was open and acknowledged");
        true
    }

    fn pick(&mut self, at: usize) -> Answer {
        if let Some(reason) = &self.failed {
            self.trainers[at].told = true;
            return Answer::Failed(Arc::clone(reason));
        }
        if self.is_over() || self.is_over_for(at) {
            self.trainers[at].told = true;
            return Answer::Over;
        }
        let trainer = &mut self.trainers[at];
        let has = trainer.leased.len();
        let may = has < trainer.window as usize
            && (has == 0 || self.unacknowledged_bytes < self.limits.unacknowledged_bytes);
        if !may {
            return Answer::Wait;
        }
        let rank = if self.limits.stride > 0 { trainer.rank.unwrap_or_default() } else { 0 };
        let (to_redeliver, ready) =
            (trainer.to_redeliver.first().copied(), self.ready[rank as usize].first().copied());
        let number = to_redeliver.or_else(|| ready.filter(|_| !self.awaits()));
        let Some(open) = number.and_then(|number| self.open.get(&number)) else {
            self.trainers[at].counts.stalls += u64::from(!self.ended);
            return Answer::Wait;
        };
        let (number, is_ready) = (open.number, open.owner.is_none());
        let Some(batch) = open.batch.clone() else { return Answer::Wait };
        if !self.is_fed(number) {
            self.trainers[at].counts.stalls += 1;
            return Answer::Wait;
        }
        let answer = self.answer_with(number, Arc::clone(&batch));
        let bytes = match &answer {
            Answer::Fed { fed, .. } => fed.bytes,
            _ => batch.payload.len(),
        };
        self.trainers[at].hand_out(number, &batch, bytes);
        if is_ready {
            self.take(at, number);
        }
        answer
    }

    /// Whether a ready minibatch may belong to a trainer from before the restart that has not come back yet.
    fn awaits(&self) -> bool {
        self.trainers.iter().any(|trainer| trainer.awaited)
    }

    /// Whether all passes have ended and every minibatch was acknowledged.
    pub(crate) fn is_over(&self) -> bool {
        self.ended && self.open.is_empty()
    }

    /// Whether every minibatch of the trainer's rank was acknowledged and none will be made. Leases of other ranks
    /// never come to it, so trainers in lockstep need not wait for each other to hear of the end.
    fn is_over_for(&self, at: usize) -> bool {
        let stride = u64::from(self.limits.stride);
        let rank = self.trainers[at].rank.map(u64::from);
        self.ended && stride > 0 && !self.open.keys().any(|number| Some(number % stride) == rank)
    }

    /// How far the trainers are from the end.
    pub(crate) fn completion(&self) -> Completion {
        let knows = |trainer: &Trainer| trainer.told || trainer.expired;
        if !self.is_over() && self.failed.is_none() || !self.trainers.iter().all(knows) {
            Completion::No
        } else if !self.trainers.iter().any(|trainer| trainer.told) {
            Completion::Unasked
        } else if self.trainers.iter().any(|trainer| trainer.connection.is_some()) {
            Completion::Told
        } else {
            Completion::Left
        }
    }

    /// The position to resume from: the acknowledged numbers, and the pass of the first number that is not.
    pub(crate) fn position(&self) -> (&AckSet, PassStart) {
        (&self.acked, self.passes.front().copied().unwrap_or_default())
    }

    /// The passes that have begun after that of the position.
    pub(crate) fn later_passes(&self) -> impl Iterator<Item = PassStart> {
        self.passes.iter().skip(1).copied()
    }

    /// The number of changes so far. An answer that confirms an acknowledgement or a subscription is sent once they
    /// are in the journal.
    pub(crate) fn changes(&self) -> u64 {
        self.log.count()
    }

    /// The number of changes when a trainer last expired. Its minibatches are leased again once those are in the
    /// journal.
    pub(crate) fn changes_before_hand_out(&self) -> u64 {
        self.log.gone()
    }

    pub(crate) fn has_records(&self) -> bool {
        !self.log.is_empty()
    }

    /// Takes the changes since the last call.
    pub(crate) fn take_records(&mut self) -> Vec<Record> {
        self.log.take()
    }

    pub(crate) fn depth(&self) -> Depth {
        let ready = self.ready.iter().map(BTreeSet::len).sum();
        let above: u64 = self.acked.above().map(|(first, end)| end - first).sum();
        Depth {
            ready,
            ready_bytes: self.ready_bytes,
            ready_max: self.ready_max,
            ready_bytes_max: self.ready_bytes_max,
            unacknowledged: self.open.len() - ready,
            unacknowledged_bytes: self.unacknowledged_bytes,
            acknowledged: self.acked.prefix() + above,
        }
    }

    /// The trainers: name, whether connected, and counts.
    pub(crate) fn trainers(&self) -> impl Iterator<Item = (&str, bool, &TrainerCounts)> {
        self.trainers.iter().map(|it| (it.name.as_str(), it.connection.is_some(), &it.counts))
    }

    /// Notes that a connection has ended.
    pub(crate) fn disconnect(&mut self, now_us: u64, connection: u64) {
        self.now_us = self.now_us.max(now_us);
        for trainer in self.trainers.iter_mut().filter(|trainer| trainer.connection == Some(connection)) {
            (trainer.connection, trainer.left_at_us) = (None, now_us);
        }
    }

    /// Releases the leases of trainers that have been away for too long. Returns their names and how many each had.
    pub(crate) fn expire(&mut self, now_us: u64) -> Vec<(String, usize)> {
        self.now_us = self.now_us.max(now_us);
        let timeout_us = self.limits.trainer_timeout.as_micros() as u64;
        let mut lost = Vec::new();
        for at in 0..self.trainers.len() {
            let trainer = &self.trainers[at];
            if trainer.connection.is_some() || trainer.expired || now_us < trainer.left_at_us + timeout_us {
                continue;
            }
            let count = self.let_go(at);
            if count > 0 {
                lost.push((self.trainers[at].name.clone(), count));
            }
        }
        lost
    }

    /// Expires a trainer and releases its leases; returns how many.
    fn let_go(&mut self, at: usize) -> usize {
        let trainer = &mut self.trainers[at];
        (trainer.expired, trainer.awaited) = (true, false);
        self.log.gone_for_good(&trainer.name);
        let leased = std::mem::take(&mut trainer.leased);
        let numbers: Vec<u64> = leased.into_iter().chain(std::mem::take(&mut trainer.to_redeliver)).collect();
        for &number in &numbers {
            self.release(number);
        }
        numbers.len()
    }

    /// Makes a leased minibatch available to any trainer.
    fn release(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        open.owner = None;
        let bytes = open.bytes();
        if open.batch.is_none() {
            // It becomes ready when it is made.
            self.open.remove(&number);
            return;
        }
        self.unacknowledged_bytes -= bytes;
        self.ready_bytes += bytes;
        self.queue_of(number).insert(number);
        self.want_fed(number);
    }
}

#[cfg(test)]
mod tests;
