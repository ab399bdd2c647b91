//! What a table says of itself: sizes, and counters that every lane keeps for itself. Knows nothing of rows' contents.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::sync::lanes::Lanes;

/// Sizes of a table, and what has happened to it since it was made or loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct TableStats {
    /// Rows.
    pub rows: u64,
    /// Rows that were removed and wait to be reused.
    pub free_rows: u64,
    /// Pushes so far, those before a checkpoint included.
    pub pushes: u64,
    /// Bytes of the index and of what else a table without rows has.
    pub index_bytes: u64,
    /// Bytes of the rows, free ones and their reserve included.
    pub slab_bytes: u64,
    /// Bytes of both that the system has put on huge pages. It counts them as it pleases: read this after loading,
    /// not per request.
    pub huge_bytes: u64,
    /// New keys that got a row.
    pub admitted: u64,
    /// Sightings of new keys that did not, by the table's admission.
    pub rejected: u64,
    /// Rows that made room for others, or were too old or too small to stay.
    pub evicted: u64,
    /// Sightings of new keys that found the table full.
    pub rejected_full: u64,
    /// Keys that were moved to where a search for them begins.
    pub promoted: u64,
}

/// What a lane counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) admitted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) rejected_full: AtomicU64,
    pub(crate) promoted: AtomicU64,
}

impl TableStats {
    /// Adds what the lanes have counted.
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
