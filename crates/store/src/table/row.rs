//! Access to single rows: copies for callers, and room for the rows of a checkpoint.

use crate::index::fill::Fill;
use crate::index::{Index, NO_ROW};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::{Row, RowRef, Writes};

impl Table {
    /// Copies the key's row.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Row> {
        let view = self.directory.pin(lane());
        let row = view.find(self.hash_key.hash(key));
        if row == NO_ROW {
            return None;
        }
        let mut words = vec![0.0; self.layout.unpacked()];
        self.layout.read_row(&self.slab, row, &mut words);
        let RowRef { key, frequency, last_use, version, weights, state } = self.layout.parts(&words);
        Some(Row { key, frequency, last_use, version, weights: weights.to_vec(), state: state.to_vec() })
    }

    /// Makes the first weight of a key's row NaN, which no push does. For tests of corrupted tables.
    #[cfg(test)]
    pub(crate) fn spoil(&self, key: u64) -> bool {
        let (lane, hash) = (lane(), self.hash_key.hash(key));
        let shared = self.write_gate.lock_shared(lane);
        let row = self.directory.pin(lane).find(hash);
        if row != NO_ROW {
            self.slab.write(row, &shared).row.set_weight(0, f32::NAN.to_bits());
        }
        row != NO_ROW
    }

    /// Reserves memory for the rows of a checkpoint in an empty table.
    ///
    /// Rows are charged first and the index gets the rest of the budget, so that it is fuller if the budget is
    /// tight, but does not grow at the expense of rows. A table that once had this many rows has room for them in a
    /// new table of the same configuration.
    pub(crate) fn make_room(&mut self, rows: u64) {
        // A full copy-on-write table needs one spare row for updates.
        let left = u64::from(self.config().writes == Writes::CopyOnWrite);
        self.row_allocator.charge_ahead(lane(), rows + left, &self.slab, &self.budget);
        let keys = usize::try_from(rows).unwrap_or(usize::MAX / 128);
        for fill_percent in Index::reserved_percents(Fill::of(self.config().packing)) {
            if self.grow(|index| index.reserved_bytes(keys, fill_percent)) {
                break;
            }
        }
        self.directory.finish_growth(lane());
    }
}
