//! The directory of an index that outlives the process.

use std::ptr::null_mut;
use std::sync::Arc;

use super::{Directory, Generation, Part, STRIPES};
use crate::index::Index;
use crate::index::growth::{Moves, PARTS};
use crate::kept::Kept;
use crate::kept::live::Record;
use crate::memory::persist::Step;
use crate::sync::epoch::Epoch;
use crate::sync::{AtomicPtr, AtomicUsize, Mutex};

/// Buckets that are made durable under one index guard.
const PINNED_BUCKETS: usize = 1 << 14;

impl Directory {
    /// The directory of a kept index, and of the next one if it grows.
    pub(crate) fn of_kept(index: Index, next: Option<(Index, Moves)>, kept: Arc<Kept>) -> Directory {
        let (keys, grows) = (kept.live.keys() as usize, next.is_some());
        let (next, moves) = match next {
            Some((next, moves)) => (Generation::boxed(next), moves),
            None => (null_mut(), Moves::new(&index)),
        };
        let current = Box::new(Generation { index, next: AtomicPtr::new(next), moves });
        Directory {
            current: AtomicPtr::new(Box::into_raw(current)),
            epoch: Epoch::new(),
            parts: (0..PARTS).map(|_| Part(std::array::from_fn(|_| Mutex::new(())))).collect(),
            claimed: AtomicUsize::new(keys),
            growths: AtomicUsize::new(usize::from(grows)),
            replacement: Mutex::new(()),
            kept: Some(kept),
        }
    }

    /// The record of a key lock, if the index outlives the process. Only the holder of the lock may use it.
    pub(super) fn record(&self, (part, at): (usize, usize)) -> Option<Record<'_>> {
        self.kept.as_ref().map(|kept| kept.live.record(part * STRIPES + at))
    }

    /// Makes all slots durable, if the table survives the loss of power. The caller must hold no index guard.
    pub(crate) fn write_back(&self, lane: usize, step: Step) {
        if self.kept.as_ref().is_none_or(|kept| kept.persist().is_none()) {
            return;
        }
        let mut first = 0;
        loop {
            let pinned = self.pin(lane);
            let (view, part) = (pinned.view(), first..first + PINNED_BUCKETS);
            if first >= view.latest().len().max(view.index.len()) {
                return;
            }
            view.index.write_back(step, part.clone());
            if let Some((next, _)) = view.growth {
                next.write_back(step, part);
            }
            first += PINNED_BUCKETS;
        }
    }

    /// Removes the file of an index that no thread uses any more.
    pub(super) fn remove_file(&self, index: &Index) {
        if let Some(kept) = &self.kept {
            kept.remove_index(index.number);
        }
    }
}
