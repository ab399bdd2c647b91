//! Numbered removals of rows, for the followers of a replicated table.
//!
//! An update belongs to the row that its key had then. If the key's row was removed and made again, versions begin
//! again; the number of removals before each update tells the rows of a key apart.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::rows::slab::Slab;
use crate::sync::write_gate::SharedGuard;
use crate::sync::{AtomicU64, Mutex, lock};

/// The last removals of a table that has followers.
#[derive(Debug)]
pub(crate) struct RemovalLog {
    is_on: AtomicBool,
    count: AtomicU64,
    last: Mutex<LastRemovals>,
}

#[derive(Debug, Default)]
struct LastRemovals {
    /// Removals before the first key.
    before: u64,
    keys: VecDeque<u64>,
    keys_max: usize,
}

impl RemovalLog {
    pub(crate) fn new() -> RemovalLog {
        RemovalLog { is_on: AtomicBool::new(false), count: AtomicU64::new(0), last: Mutex::default() }
    }

    /// Counts from `removals` on, and keeps the last `keys_max` keys.
    pub(crate) fn begin(&self, removals: u64, keys_max: usize) {
        *lock(&self.last) = LastRemovals { before: removals, keys: VecDeque::new(), keys_max };
        self.count.store(removals, Relaxed);
        self.is_on.store(true, Relaxed);
    }

    pub(crate) fn end(&self) {
        self.is_on.store(false, Relaxed);
        *lock(&self.last) = LastRemovals::default();
    }

    /// Removals so far.
    #[inline(always)]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// Numbers the removal of the row from the index. The caller must hold the key's lock.
    pub(crate) fn note(&self, slab: &Slab, row: u32, key: u64, shared: &SharedGuard<'_>) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        {
            // A push that has found the row and locks it from here on sees that it lost its key, so that every update
            // of the row has a lower count.
            let writing = slab.write(row, shared);
            writing.row.set(0, !writing.row.get(0));
        }
        let mut last = lock(&self.last);
        last.keys.push_back(key);
        if last.keys.len() > last.keys_max {
            last.keys.pop_front();
            last.before += 1;
        }
        self.count.store(last.before + last.keys.len() as u64, Release);
    }

    /// Keys of up to `keys_max` removals after the first `removals`; `None` if they are no longer kept.
    pub(crate) fn after(&self, removals: u64, keys_max: usize) -> Option<Vec<u64>> {
        let last = lock(&self.last);
        let skipped = usize::try_from(removals.checked_sub(last.before)?).ok()?;
        Some(last.keys.iter().skip(skipped).take(keys_max).copied().collect())
    }

    /// Drops the keys of the first `removals` removals.
    pub(crate) fn forget(&self, removals: u64) {
        let mut last = lock(&self.last);
        while last.before < removals && last.keys.pop_front().is_some() {
            last.before += 1;
        }
    }
}
