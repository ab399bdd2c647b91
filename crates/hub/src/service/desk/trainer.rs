//! One trainer as the desk sees it: what it has, and what it was given so far. Decides nothing.

use std::collections::{BTreeSet, VecDeque};

use sanderling_wire::Subscribe;

use super::Minibatch;

/// What a trainer was given so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrainerCounts {
    /// How often it was started, as far as it came here.
    pub starts: u64,
    /// Minibatches handed to it, again included.
    pub batches: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Times that it asked and none was ready.
    pub stalls: u64,
    /// Acknowledgements of minibatches that had been given to another.
    pub late: u64,
    /// Times that it needed the keys of a minibatch that were fed to servers.
    pub asked_whole: u64,
}

#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) name: String,
    instance: u64,
    /// None: it is gone.
    pub(super) connection: Option<u64>,
    /// When it went, if it is gone.
    pub(super) left_at_us: u64,
    /// It was gone for too long.
    pub(super) expired: bool,
    /// It was here before the hub's start, and may have what the hub does not know of.
    pub(super) awaited: bool,
    pub(super) rank: Option<u32>,
    pub(super) window: u32,
    /// What it has.
    pub(super) handed: BTreeSet<u64>,
    /// What is to be handed to it again.
    pub(super) owed: BTreeSet<u64>,
    /// What it has acknowledged last: it may say so again, if it did not hear the answer.
    pub(super) accepted: VecDeque<u64>,
    /// Whether it knows that all is over, or that the hub has failed.
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
            handed: BTreeSet::new(),
            owed: BTreeSet::new(),
            accepted: VecDeque::new(),
            told: false,
            counts: TrainerCounts::default(),
        }
    }

    /// It has come, or come back.
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
        self.owed.remove(&number);
        self.handed.insert(number);
        self.counts.batches += 1;
        self.counts.rows += u64::from(batch.rows);
        self.counts.bytes += bytes as u64;
    }

    /// Notes an acknowledgement. The trainer has at most a window of them unanswered.
    pub(super) fn accept(&mut self, number: u64) {
        while self.accepted.len() >= 2 * self.window as usize {
            self.accepted.pop_front();
        }
        self.accepted.push_back(number);
    }
}
