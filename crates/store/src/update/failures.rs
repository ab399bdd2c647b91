//! Keys of a push that were not updated, and the error that reports them.

use crate::StoreError;
use crate::table::Table;

/// Keys of a push that were not updated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PushFailures {
    /// New keys without room.
    full: u64,
    /// Rows whose update would not be finite, and the key of the first one.
    not_finite: u64,
    first: u64,
}

impl PushFailures {
    /// Counts a row whose update would not be finite.
    #[cold]
    pub(crate) fn note(&mut self, key: u64) {
        if self.not_finite == 0 {
            self.first = key;
        }
        self.not_finite += 1;
    }

    /// Counts new keys without room.
    pub(crate) fn note_full(&mut self, keys: u64) {
        self.full += keys;
    }

    /// Returns an error if a key was not updated; updates that are not finite take precedence.
    pub(crate) fn check(self, table: &Table) -> Result<(), StoreError> {
        let PushFailures { full, not_finite: rows, first: key } = self;
        if rows > 0 {
            return Err(StoreError::NotFinite { table: table.name().to_string(), key, rows });
        }
        if full > 0 { Err(table.full(full)) } else { Ok(()) }
    }
}
