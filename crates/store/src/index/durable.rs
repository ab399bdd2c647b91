//! Slots of an index that survives the loss of power ([`crate::memory::persist`]).

use std::ops::Range;

use crate::index::Index;
use crate::memory::persist::Step;

impl Index {
    /// Begins to make a bucket durable, if the table survives the loss of power.
    #[inline]
    pub(super) fn flush(&self, step: Step, bucket: usize) {
        if let Some(persist) = self.persist {
            persist.flush(step, &self.buckets[bucket..=bucket]);
        }
    }

    /// Waits until flushed buckets are durable, if the table survives the loss of power.
    #[inline]
    pub(super) fn fence(&self, step: Step) {
        if let Some(persist) = self.persist {
            persist.fence(step);
        }
    }

    /// Makes buckets durable, if the table survives the loss of power; those beyond the end are left out.
    pub(crate) fn write_back(&self, step: Step, buckets: Range<usize>) {
        let len = self.buckets.len();
        if let Some(persist) = self.persist {
            persist.write_back(step, &self.buckets[buckets.start.min(len)..buckets.end.min(len)]);
        }
    }

    /// Inserts an absent hash of a kept table, and begins to make it durable if it survives the loss of power.
    pub(crate) fn insert_kept(&self, hash: u64, row: u32, step: Step) {
        let at = self.insert_at(hash, row);
        self.flush(step, at);
    }
}
