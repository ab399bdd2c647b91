//! One trainer in the lease table: its leases and its counts. Decides nothing.

use std::collections::{BTreeSet, VecDeque};

use sanderling_wire::Subscribe;

use super::Minibatch;

/// The counts of one trainer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrainerCounts {
    /// Starts of the trainer that reached this hub.
    pub starts: u64,
    /// Minibatches leased to it, redeliveries included.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests while none was ready.
    pub stalls: u64,
    /// Acknowledgements after the lease had gone to another trainer.
    pub late: u64,
    /// Requests for a minibatch with the keys that were fed.
    pub asked_full: u64,
}

#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) name: String,
    instance: u64,
    /// `None`: not connected.
    pub(super) connection: Option<u64>,
    /// The time of its disconnect.
    pub(super) left_at_us: u64,
    /// Whether it was away for too long.
    pub(super) expired: bool,
    /// Whether it was connected before the hub's restart, and may hold minibatches that the hub does not know of.
    pub(super) awaited: bool,
    pub(super) rank: Option<u32>,
    pub(super) window: u32,
    /// Its leases.
    pub(super) leased: BTreeSet<u64>,
    /// Leases that are due for redelivery.
    pub(super) to_redeliver: BTreeSet<u64>,
    /// Its latest acknowledgements, which it repeats if it did not receive the answer.
    pub(super) accepted: VecDeque<u64>,
    /// Whether it has been told that all is finished, or that the hub has failed.
    pub(super) told: bool,
    pub(super) counts: TrainerCounts,
}

impl Trainer {
    pub(super) fn new(name: &str) -> Trainer {
        Trainer {
            name: name.to_owned(),
            instance: 0,
            connection: None,
            left_at_us: 0,
            expired: false,
            awaited: false,
            rank: None,
            window: 1,
            leased: BTreeSet::new(),
            to_redeliver: BTreeSet::new(),
            accepted: VecDeque::new(),
            told: false,
            counts: TrainerCounts::default(),
        }
    }

    /// Connects the trainer, for the first time or again.
    pub(super) fn enter(&mut self, connection: u64, window: u32, request: &Subscribe<'_>) {
        if self.counts.starts == 0 || self.instance != request.instance {
            self.counts.starts += 1;
        }
        self.instance = request.instance;
        (self.connection, self.expired, self.told) = (Some(connection), false, false);
        self.awaited = false;
        (self.rank, self.window) = (request.rank, window);
    }

    pub(super) fn hand_out(&mut self, number: u64, batch: &Minibatch, bytes: usize) {
        self.to_redeliver.remove(&number);
        self.leased.insert(number);
        self.counts.batches += 1;
        self.counts.rows += u64::from(batch.rows);
        self.counts.bytes += bytes as u64;
    }

    /// Notes an acknowledgement; at most a window of them is unanswered.
    pub(super) fn accept(&mut self, number: u64) {
        while self.accepted.len() >= 2 * self.window as usize {
            self.accepted.pop_front();
        }
        self.accepted.push_back(number);
    }
}
