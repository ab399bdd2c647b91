//! Statistics of a table: sizes, and counters per lane.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::lanes::Lanes;

/// Sizes of a table, and counters since it was created or loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableStats {
    /// Rows.
    pub rows: u64,
    /// Removed rows that wait for reuse.
    pub free_rows: u64,
    /// Pushes so far, including those before a checkpoint.
    pub pushes: u64,
    /// Bytes of the index and of the empty table.
    pub index_bytes: u64,
    /// Bytes of the rows, including free and reserved ones.
    pub slab_bytes: u64,
    /// Bytes of index and rows on huge pages. The system's count is slow: read it after loading, not per request.
    pub huge_bytes: u64,
    /// New keys that got a row.
    pub admitted: u64,
    /// Pushes of new keys that the table's admission rejected.
    pub rejected: u64,
    /// Evicted rows.
    pub evicted: u64,
    /// Pushes of new keys that a full table rejected.
    pub rejected_full: u64,
    /// Keys moved to their home buckets.
    pub promoted: u64,
}

/// Counters of a lane.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) admitted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) rejected_full: AtomicU64,
    pub(crate) promoted: AtomicU64,
}

impl TableStats {
    /// Adds the counters of all lanes.
    pub(crate) fn count(mut self, lanes: &Lanes<Counters>) -> TableStats {
        for lane in lanes.iter() {
            self.admitted += lane.admitted.load(Relaxed);
            self.rejected += lane.rejected.load(Relaxed);
            self.evicted += lane.evicted.load(Relaxed);
            self.rejected_full += lane.rejected_full.load(Relaxed);
            self.promoted += lane.promoted.load(Relaxed);
        }
        self
    }
}
