//! The table as a replica: primaries number removals, followers neither evict nor admit by themselves.
//!
//! [`Table::import`] and [`Table::clear`] have no numbers: replicas do them between the same pushes.

use std::sync::atomic::Ordering::Relaxed;

use crate::Table;

impl Table {
    /// Makes the table the one that its followers copy: removals are numbered from `removals` on.
    ///
    /// The keys of the last `keys_max` removals are kept. The caller must not push meanwhile, and pushes by
    /// [`CheckedPush::apply_and_report`](crate::CheckedPush::apply_and_report) from here on.
    ///
    /// # Panics
    ///
    /// If this thread holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub fn lead(&self, removals: u64, keys_max: usize) {
        self.assert_not_writing();
        // Removals that began without numbers end before.
        let _exclusive = self.write_gate.lock_exclusive();
        self.removal_log.begin(removals, keys_max);
        self.is_follower.store(false, Relaxed);
    }

    /// Makes the table a copy of another one: it evicts nothing, and numbers no removals.
    ///
    /// # Panics
    ///
    /// If this thread holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub fn follow(&self) {
        self.assert_not_writing();
        let _exclusive = self.write_gate.lock_exclusive();
        self.removal_log.end();
        self.is_follower.store(true, Relaxed);
    }

    /// Number of removals since the table [leads](Table::lead), plus those before.
    #[must_use]
    pub fn removals(&self) -> u64 {
        self.removal_log.count()
    }

    /// Keys of up to `keys_max` removals after the first `removals`, in order; `None` if they are no longer kept.
    #[must_use]
    pub fn removals_after(&self, removals: u64, keys_max: usize) -> Option<Vec<u64>> {
        self.removal_log.after(removals, keys_max)
    }

    /// Drops the keys of the first `removals` removals, which all followers have.
    pub fn forget_removals(&self, removals: u64) {
        self.removal_log.forget(removals);
    }

    /// Pushes to the table so far.
    #[must_use]
    pub fn pushes(&self) -> u64 {
        self.clock()
    }
}
