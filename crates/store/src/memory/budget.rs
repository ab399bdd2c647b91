//! Counts the bytes of a table against its limit.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counter of a table's bytes.
#[derive(Debug)]
pub(crate) struct Budget {
    used_bytes: AtomicU64,
    limit_bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit_bytes: Option<u64>) -> Budget {
        Budget { used_bytes: AtomicU64::new(0), limit_bytes: limit_bytes.unwrap_or(u64::MAX) }
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether [`Budget::take`] would succeed at the moment.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.total(self.used_bytes(), bytes).is_some()
    }

    /// The total after `bytes` more, if it is within the limit.
    fn total(&self, used_bytes: u64, bytes: usize) -> Option<u64> {
        used_bytes.checked_add(bytes as u64).filter(|&total| total <= self.limit_bytes)
    }

    /// Takes `bytes` if they are within the limit. Relaxed ordering suffices: the counter guards no data.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let more = |used| self.total(used, bytes);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        let before = self.used_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        debug_assert!(before >= bytes as u64, "more bytes given back than taken");
    }
}
