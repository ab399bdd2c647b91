//! The epochs of a table's change stream, and the keys that changed in each of the last ones.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::changes::notes::Notes;
use crate::changes::progress::Progress;
use crate::sync::Mutex;

/// Sets that are kept. Further ones are joined in pairs: a subscriber gets keys of an epoch that it has, too.
const SETS_MAX: usize = 1024;
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
    pub(super) keys: usize,
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
        if hashes.is_empty() {
            return;
        }
        self.keys += hashes.len();
        self.sets.push_back((self.epoch, hashes));
        if self.sets.len() > SETS_MAX {
            self.join_pairs();
        }
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

    /// Joins each pair of neighboring sets, under the later epoch.
    fn join_pairs(&mut self) {
        let mut sets = std::mem::take(&mut self.sets).into_iter();
        self.keys = 0;
        while let Some((epoch, mut hashes)) = sets.next() {
            let (epoch, later) = sets.next().unwrap_or((epoch, Vec::new()));
            hashes.extend(later);
            hashes.sort_unstable();
            hashes.dedup();
            self.keys += hashes.len();
            self.sets.push_back((epoch, hashes));
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Every subscriber gets at least the keys of the epochs that it missed, from a bounded number of sets.
    #[test]
    fn many_small_sets_are_joined() {
        let mut stream = Stream::new();
        let first = stream.epoch;
        for key in 0..10_000 {
            stream.epoch += 1;
            stream.keep(if key % 3 == 0 { Vec::new() } else { vec![key % 4_000, key % 7] }, 1 << 20);
        }
        assert!(stream.sets.len() <= SETS_MAX && stream.oldest == first);
        for missed in [0, 1, 17, 5_000, 9_999, 10_000] {
            let found = stream.after(first + 10_000 - missed);
            let keys =
                (10_000 - missed..10_000).filter(|key| key % 3 != 0).flat_map(|key| [key % 4_000, key % 7]);
            for key in keys {
                assert!(found.contains(&key), "{missed}: {key}");
            }
        }
    }
}
