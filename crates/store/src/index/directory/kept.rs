//! The directory of an index that outlives the process.

use std::ptr::null_mut;
use std::sync::Arc;

use super::{Directory, Generation, Part, STRIPES};
use crate::index::Index;
use crate::index::growth::{Moves, PARTS};
use crate::kept::Kept;
use crate::kept::live::Record;
use crate::sync::epoch::Epoch;
use crate::sync::{AtomicPtr, AtomicUsize, Mutex};

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

    /// Removes the file of an index that no thread uses any more.
    pub(super) fn remove_file(&self, index: &Index) {
        if let Some(kept) = &self.kept {
            kept.remove_index(index.number);
        }
    }
}
