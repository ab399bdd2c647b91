//! Loads tables without their optimizer state.

use super::read::{Checkpoint, shape};
use super::rows;
use crate::{StoreError, Table};

impl Checkpoint {
    /// Loads the weights of a table without its optimizer state, for serving ([`TableConfig::weights_only`]).
    ///
    /// # Errors
    ///
    /// As for [`Checkpoint::load_table`].
    pub fn load_weights(&self, name: &str) -> Result<Table, StoreError> {
        let record = self.table_record(name)?;
        let saved = record.config();
        let mut table = Table::of_any_budget(saved.weights_only())?;
        let entry = self.manifest.table_entry(record);
        table.make_room(entry.rows.min(rows::rows_max(shape(&saved), entry.bytes)));
        self.restore_rows(record, &mut table, |_| true)?;
        Ok(table)
    }
}
