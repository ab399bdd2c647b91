//! Whether rows may have left a table or been replaced since a moment, for who remembers where rows are. Knows nothing of rows.
//!
//! Who takes keys out of the index, or puts whole rows in place of theirs, says so before and after. Rows that were found after
//! a moment at which nobody did are where they were, and have only been updated, as long as nobody has begun since; and if that
//! is asked by who has a view, they are neither used for other keys ([`crate::rows::allocator::RowAllocator::retire`]) nor replaced before it is
//! gone, since whoever begins later waits for it.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

#[derive(Debug)]
pub(crate) struct RemovalCounter {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A removal that is under way.
#[derive(Debug)]
pub(crate) struct RemovalGuard<'a>(&'a RemovalCounter);

/// A moment at which none was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemovalStamp(u64);

impl RemovalCounter {
    pub(crate) fn new() -> RemovalCounter {
        RemovalCounter { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// To be called before the first key goes, or row is replaced; the result is dropped when the last row has been retired, or
    /// replaced.
    pub(crate) fn begin(&self) -> RemovalGuard<'_> {
        self.begun.fetch_add(1, SeqCst);
        RemovalGuard(self)
    }

    /// Marks this moment; `None` while a removal is under way.
    pub(crate) fn stamp(&self) -> Option<RemovalStamp> {
        // In this order: both are equal only if all that had begun by the second look had ended by the first.
        let ended = self.ended.load(SeqCst);
        let begun = self.begun.load(SeqCst);
        (begun == ended).then_some(RemovalStamp(begun))
    }

    /// Has none begun since?
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
        let (first, second) = (removals.begin(), removals.begin());
        assert!(!removals.unchanged_since(before) && removals.stamp().is_none());
        drop(first);
        assert!(removals.stamp().is_none());
        drop(second);
        let after = removals.stamp().expect("both have ended");
        assert!(removals.unchanged_since(after) && !removals.unchanged_since(before));
    }
}
