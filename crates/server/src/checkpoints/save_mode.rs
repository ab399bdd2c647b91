//! The modes of a save, and its report.

use sanderling_wire::Saved;

/// The rows that a save writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaveMode {
    /// All rows.
    Full,
    /// All rows; deltas can follow.
    Base,
    /// Rows that changed since the last save of this name; all rows (`Base`) if that is not possible.
    Delta,
}

/// The result of a save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveReport {
    /// The rows and bytes that were written.
    pub saved: Saved,
    /// Number of deltas of the checkpoint. 0: the save is a full one.
    pub deltas: u64,
    /// Why a save was full, although a delta was asked for. Empty: it was as asked.
    pub full_because: String,
}
