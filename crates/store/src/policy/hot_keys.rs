//! Hot keys of a table: samples of look-ups, and a sketch of how often each key was sampled.

use crate::memory::budget::Budget;
use crate::policy::sketch::Sketch;

/// Size of the sketch that counts samples per key.
const HOT_KEY_BYTES: usize = 1 << 16;

/// Samples of hot keys.
#[derive(Debug, Default)]
pub(crate) struct HotKeys {
    /// Read position of each lane's samples.
    pub(super) read: Vec<usize>,
    /// Samples since the last round.
    pub(super) hashes: Vec<u64>,
    /// Created on first use, if the budget has room.
    pub(super) counts: Option<Sketch>,
}

impl HotKeys {
    /// A table with a budget reserves the sketch at once, unless it exceeds a 16th of the budget, because rows may
    /// take all memory later.
    pub(crate) fn new(budget: &Budget) -> HotKeys {
        let mut hot_keys = HotKeys::default();
        let limit_bytes = budget.limit_bytes();
        if limit_bytes < u64::MAX && limit_bytes / 16 >= HOT_KEY_BYTES as u64 {
            hot_keys.make_counts(budget);
        }
        hot_keys
    }

    /// Creates the sketch, if the budget has room.
    pub(super) fn make_counts(&mut self, budget: &Budget) {
        if self.counts.is_none() && budget.take(HOT_KEY_BYTES) {
            self.counts = Sketch::new(HOT_KEY_BYTES);
            if self.counts.is_none() {
                budget.give_back(HOT_KEY_BYTES);
            }
        }
    }
}
