//! The allocator of rows that an earlier process has kept.

use std::sync::Arc;

use super::{Charge, RowAllocator};
use crate::kept::Kept;
use crate::memory::budget::Budget;
use crate::rows::inherited::InheritedRows;
use crate::rows::slab::Slab;
use crate::sync::lock;
use crate::sync::seqlock::SeqLocks;

impl RowAllocator {
    /// An allocator of kept rows, `rows` of which an earlier process has charged; `None` if the budget is too small.
    pub(crate) fn of_kept(slab: &Slab, budget: &Budget, kept: Arc<Kept>, rows: u64) -> Option<RowAllocator> {
        let mut allocator = RowAllocator::new(slab)?;
        let bytes = rows as usize * slab.row_bytes() + SeqLocks::bytes(rows);
        if rows > allocator.rows_max || !budget.take(bytes) {
            return None;
        }
        *lock(&allocator.charge) = Charge { rows, bytes };
        // Also without rows, because the count of keys may be of a chunk that was in hand.
        (allocator.kept, allocator.inherited) = (Some(kept), Some(InheritedRows::new(rows)));
        Some(allocator)
    }

    /// The rows of an earlier process, while the free ones among them are not found.
    pub(crate) fn inherited(&self) -> Option<&InheritedRows> {
        self.inherited.as_ref().filter(|inherited| inherited.is_pending())
    }

    /// Notes that a key of an earlier process has this row, or has just lost it, while the key is locked.
    #[inline]
    pub(crate) fn note_inherited(&self, row: u32) {
        if let Some(inherited) = self.inherited() {
            inherited.note_used(row);
        }
    }

    /// Frees the rows of an earlier process that no key had; returns the number of those that one had. All of these
    /// must be noted.
    pub(crate) fn free_inherited(&self, slab: &Slab) -> u64 {
        self.inherited().map_or(0, |inherited| inherited.end(|free| lock(&self.reserve).append(slab, free)))
    }
}
