//! The rows that a pull found, for the push of the same keys, which then needs no search.

use crate::index::NO_ROW;
use crate::index::removals::RemovalStamp;
use crate::lookup::CachedRows;
use crate::table::Table;

/// The rows that pulls found, for [`CheckedPush::with_rows`](crate::CheckedPush::with_rows).
///
/// They serve a push of the same keys, in the same order, to the same table. A push searches its keys again if a row
/// of the table was removed, evicted or replaced since the first pull.
#[derive(Debug, Default)]
pub struct PulledRows {
    /// The row of each key, or [`NO_ROW`].
    rows: Vec<u32>,
    /// Taken before the first pull; `None` if rows were being removed, or have been removed between pulls.
    since: Option<RemovalStamp>,
}

impl PulledRows {
    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.since = None;
    }

    /// Forgets the keys without a row, for a push of the other keys.
    pub fn forget_missing(&mut self) {
        self.rows.retain(|&row| row != NO_ROW);
    }

    /// Allocated bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<u32>()
    }

    /// Appends `keys` places, for the rows that a pull is about to find.
    pub(crate) fn extend(&mut self, table: &Table, keys: usize) -> &mut [u32] {
        let first = self.rows.len();
        self.since = if first == 0 {
            table.removals.stamp()
        } else {
            self.since.filter(|&since| table.removals.unchanged_since(since))
        };
        self.rows.resize(first + keys, NO_ROW);
        &mut self.rows[first..]
    }

    /// The rows, if they may still be those of `keys` keys.
    pub(crate) fn of_keys(&self, keys: usize) -> Option<CachedRows<'_>> {
        let since = self.since.filter(|_| self.rows.len() == keys)?;
        Some(CachedRows { rows: &self.rows, since })
    }
}
