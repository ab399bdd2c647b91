//! The cursor of eviction: its position, and the result of its last scan.

/// Position of the next scan, and the result of the last one.
#[derive(Debug, Default)]
pub(crate) struct EvictionCursor {
    pub(super) at: u64,
    pub(super) found: Vec<Candidate>,
    pub(super) scan_pause: Option<ScanPause>,
    #[cfg(all(test, not(loom)))]
    pub(super) scanned: u64,
}

/// No row can be evicted, and none is searched, before this reading of the use clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct ScanPause {
    pub(super) until: u64,
}

/// A row that may be evicted, as the scan saw it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) row: u32,
    pub(super) key: u64,
    pub(super) last_use: u32,
    pub(super) version: u32,
}
