//! A frame of the change stream, and its application to another table.

use crate::{RowColumns, StoreError, Table};

/// Changed rows of a table at their present value, and keys without a row.
///
/// Frames of one drain are applied in their order. A drain has each key once, unless `may_repeat` is set.
#[derive(Debug, Clone, Default)]
pub struct ChangeFrame {
    /// The epoch of the drain, which the receiver has reached after its last frame.
    pub epoch: u64,
    /// More rows changed than the stream keeps keys: a later frame may have a key again, at a newer value.
    pub may_repeat: bool,
    /// Rows that were created or changed.
    pub rows: RowColumns,
    /// Keys that have no row any more. The receiver may never have had one.
    pub removed: Vec<u64>,
}

impl ChangeFrame {
    /// Returns whether the frame has neither rows nor removed keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.removed.is_empty()
    }

    /// Number of rows and removed keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len() + self.removed.len()
    }

    pub(super) fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.rows.clear();
        self.removed.clear();
    }
}

impl Table {
    /// Applies a frame of another table with the same rows: removes keys, and imports rows.
    ///
    /// A table that is changed by frames alone equals the other one bit for bit after the last frame of a drain.
    ///
    /// # Errors
    ///
    /// As for [`Table::import`].
    pub fn apply_changes(&self, frame: &ChangeFrame) -> Result<(), StoreError> {
        self.check_not_writing()?;
        for &key in &frame.removed {
            self.remove(key);
        }
        if frame.rows.is_empty() { Ok(()) } else { self.import(frame.rows.rows()) }
    }
}
