//! Writes rows of a replica in place: each gets the *stamp* of the export or load that it came with, so that older ones are
//! found afterwards.

use sanderling_store::{Table, WholeRows};

use super::{FollowError, Shared};

/// Buffers for rows that are written.
#[derive(Debug, Default)]
pub(super) struct RowWriter {
    zeros: Vec<u32>,
    stamps: Vec<u32>,
}

impl RowWriter {
    /// Writes rows of a table; `weights` has those of one key after the other.
    ///
    /// # Errors
    /// The tables have reached their memory limit, or a weight is not finite.
    pub(super) fn write(
        &mut self,
        shared: &Shared,
        table: &Table,
        stamp: u32,
        keys: &[u64],
        weights: &[f32],
    ) -> Result<(), FollowError> {
        if keys.is_empty() {
            return Ok(());
        }
        if let Some(bytes_max) = shared.config.memory_bytes_max {
            let bytes = shared.model.all_tables().map(|table| table.bytes()).sum();
            if bytes > bytes_max {
                return Err(FollowError::Memory {
                    table: table.name().to_owned(),
                    bytes,
                    rows: table.len(),
                    bytes_max,
                });
            }
        }
        self.zeros.resize(keys.len(), 0);
        self.stamps.clear();
        self.stamps.resize(keys.len(), stamp);
        table.import(WholeRows {
            keys,
            frequencies: &self.zeros,
            last_uses: &self.zeros,
            versions: &self.stamps,
            weights,
            states: &[],
        })?;
        Ok(())
    }
}

/// Removes the rows that `is_old` chooses by key and stamp; returns their number.
pub(super) fn remove_old(table: &Table, is_old: impl Fn(u64, u32) -> bool) -> u64 {
    let mut old = Vec::new();
    table.for_each_row(|row| {
        if is_old(row.key, row.version) {
            old.push(row.key);
        }
    });
    old.iter().for_each(|&key| _ = table.remove(key));
    old.len() as u64
}
