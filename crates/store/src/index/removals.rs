//! Whether rows may have left a table or been replaced since a moment, for who remembers where rows are. Knows nothing of rows.
//!
//! Who takes keys out of the index, or puts whole rows in place of theirs, says so before and after. Rows that were found after
//! a moment at which nobody did are where they were, and have only been updated, as long as nobody has begun since; and if that
//! is asked by who has a view, they are neither used for other keys ([`crate::rows::allocator::Rows::retire`]) nor replaced before it is
//! gone, since whoever begins later waits for it.

use std::sync::atomic::Ordering::SeqCst;

use crate::sync::AtomicU64;

#[derive(Debug)]
pub(crate) struct Removals {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A removal that is under way.
#[derive(Debug)]
pub(crate) struct Removing<'a>(&'a Removals);

/// A moment at which none was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment(u64);

impl Removals {
    pub(crate) fn new() -> Removals {
        Removals { begun: AtomicU64::new(0), ended: AtomicU64::new(0) }
    }

    /// To be called before the first key goes, or row is replaced; the result is dropped when the last row has been retired, or
    /// replaced.
    pub(crate) fn begin(&self) -> Removing<'_> {
        self.begun.fetch_add(1, SeqCst);
        Removing(self)
    }

    /// Marks this moment; `None` while a removal is under way.
    pub(crate) fn moment(&self) -> Option<Moment> {
        // In this order: both are equal only if all that had begun by the second look had ended by the first.
        let ended = self.ended.load(SeqCst);
        let begun = self.begun.load(SeqCst);
        (begun == ended).then_some(Moment(begun))
    }

    /// Has none begun since?
    pub(crate) fn none_since(&self, moment: Moment) -> bool {
        self.begun.load(SeqCst) == moment.0
    }
}

impl Drop for Removing<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_moment_holds_until_a_removal_begins() {
        let removals = Removals::new();
        let before = removals.moment().expect("none is under way");
        assert!(removals.none_since(before));
        let (first, second) = (removals.begin(), removals.begin());
        assert!(!removals.none_since(before) && removals.moment().is_none());
        drop(first);
        assert!(removals.moment().is_none());
        drop(second);
        let after = removals.moment().expect("both have ended");
        assert!(removals.none_since(after) && !removals.none_since(before));
    }
}
