//! The epochs of a table's change stream, and the keys that changed in each of the last ones.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::changes::notes::Notes;
use crate::changes::pages::Progress;
use crate::sync::Mutex;

/// Sets from which on the older ones are merged rather than dropped.
const SETS_TO_MERGE: usize = 3;
/// Keys below which a merge is not worth its trouble.
const MERGED_KEYS_MIN: usize = 512;

/// The change stream of a table.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) notes: Notes,
    pub(super) stream: Mutex<Stream>,
    /// Keys that the sets of all epochs hold together.
    pub(super) keys_max: usize,
}

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) epoch: u64,
    /// The oldest epoch that a subscriber may have.
    pub(super) oldest: u64,
    /// The epochs after `oldest`, each with the hashes that changed in it, in order.
    pub(super) sets: VecDeque<(u64, Vec<u64>)>,
    /// Hashes in all sets.
    keys: usize,
    pub(super) progress: Progress,
}

impl Stream {
    pub(super) fn new() -> Stream {
        // Higher than any epoch of an earlier process, whose subscribers may come back: there is less than one drain
        // per microsecond.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let epoch = u64::try_from(since.as_micros()).unwrap_or_default();
        Stream { epoch, oldest: epoch, sets: VecDeque::new(), keys: 0, progress: Progress::new() }
    }

    /// Begins an epoch that no earlier subscriber can reach.
    pub(super) fn forget(&mut self) {
        self.oldest = self.epoch;
        self.sets.clear();
        self.keys = 0;
    }

    /// Keeps the set of the present epoch, at the expense of the oldest ones.
    pub(super) fn keep(&mut self, hashes: Vec<u64>, keys_max: usize) {
        self.keys += hashes.len();
        self.sets.push_back((self.epoch, hashes));
        let mut room = 0;
        if self.keys > keys_max && keys_max >= MERGED_KEYS_MIN {
            // A merge costs as much as the sets are large. So it must gain some room, or the oldest set goes.
            room = keys_max / 8;
            while self.keys > keys_max - room && self.sets.len() >= SETS_TO_MERGE {
                self.merge_older();
            }
        }
        while self.keys > keys_max - room
            && let Some((epoch, hashes)) = self.sets.pop_front()
        {
            self.oldest = epoch;
            self.keys -= hashes.len();
        }
    }

    /// Makes one set of the older half of the sets, so that a key which changed in many epochs is kept once. A subscriber
    /// from between them gets some keys again, at their present value.
    fn merge_older(&mut self) {
        let merged: Vec<_> = self.sets.drain(..self.sets.len().div_ceil(2)).collect();
        let Some(&(epoch, _)) = merged.last() else { return };
        let mut all: Vec<u64> = merged.into_iter().flat_map(|(_, hashes)| hashes).collect();
        self.keys -= all.len();
        // Stable, because this one merges sorted runs.
        all.sort();
        all.dedup();
        all.shrink_to_fit();
        self.keys += all.len();
        self.sets.push_front((epoch, all));
    }

    /// The hashes of all epochs after `since`.
    pub(super) fn after(&self, since: u64) -> Vec<u64> {
        let sets = self.sets.iter().filter(|(epoch, _)| *epoch > since);
        sets.flat_map(|(_, hashes)| hashes.iter().copied()).collect()
    }
}
