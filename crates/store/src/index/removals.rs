//! Counts removals and replacements of rows, so that callers can tell whether remembered row numbers are still
//! valid.
//!
//! A thread that removes keys from the index, or replaces whole rows, calls [`RemovalCounter::begin`] first and
//! drops the guard afterwards. Row numbers found after a [`RemovalStamp`] was taken stay valid, and their rows were
//! only updated, as long as no removal has begun since. If the check is made under an index guard, the rows are
//! neither reused ([`crate::rows::allocator::RowAllocator::retire`]) nor replaced until the guard is dropped,
//! because a later removal waits for it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::sync::AtomicU64;

/// The counters of different tables begin so far apart that no stamp of one is valid in another.
const TABLES_APART: u64 = 1 << 40;
/// Tables so far.
static TABLES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct RemovalCounter {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Guard of a removal in progress.
#[derive(Debug)]
pub(crate) struct RemovalGuard<'a>(&'a RemovalCounter);

/// A moment without a removal in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemovalStamp(u64);

impl RemovalCounter {
    pub(crate) fn new() -> RemovalCounter {
        let first = TABLES.fetch_add(1, Relaxed).wrapping_mul(TABLES_APART);
        RemovalCounter { begun: AtomicU64::new(first), ended: AtomicU64::new(first) }
    }

    /// Begins a removal, before the first key is removed or row replaced. Drop the guard after the last row has
    /// been retired or replaced.
    pub(crate) fn begin(&self) -> RemovalGuard<'_> {
        self.begun.fetch_add(1, SeqCst);
        RemovalGuard(self)
    }

    /// Takes a stamp; `None` while a removal is in progress.
    pub(crate) fn stamp(&self) -> Option<RemovalStamp> {
        // In this order, equal counts prove that every removal begun by the second load had ended by the first.
        let ended = self.ended.load(SeqCst);
        let begun = self.begun.load(SeqCst);
        (begun == ended).then_some(RemovalStamp(begun))
    }

    /// Returns whether no removal has begun since the stamp.
    pub(crate) fn unchanged_since(&self, moment: RemovalStamp) -> bool {
        self.begun.load(SeqCst) == moment.0
    }
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_moment_holds_until_a_removal_begins() {
        let removals = RemovalCounter::new();
        let before = removals.stamp().expect("none is under way");
        assert!(removals.unchanged_since(before));
        assert!(!RemovalCounter::new().unchanged_since(before), "it is another table's");
        let (first, second) = (removals.begin(), removals.begin());
        assert!(!removals.unchanged_since(before) && removals.stamp().is_none());
        drop(first);
        assert!(removals.stamp().is_none());
        drop(second);
        let after = removals.stamp().expect("both have ended");
        assert!(removals.unchanged_since(after) && !removals.unchanged_since(before));
    }
}
