//! Row-by-row access for online learning with embedded tables: the keys of many samples are resolved together, then
//! each sample reads and updates its rows at once. Same result as a pull and a push per sample, at a fraction of the
//! lookups; while it lasts, other workers wait.

use sanderling_sample::Rows;
use sanderling_store::{PushScale, RowHandle, TableWriter};

use crate::client::Client;
use crate::error::ClientError;
use crate::lookup::CONSTANT_KEY;

/// The rows of a run of samples, per feature in the order of its keys; one per worker, reused.
#[derive(Debug, Default)]
pub struct Handles {
    columns: Vec<Vec<RowHandle>>,
    constant: Vec<RowHandle>,
}

/// Exclusive access to the tables for a run of samples.
#[derive(Debug)]
pub struct Online<'a> {
    writers: Vec<TableWriter<'a>>,
    column_tables: &'a [usize],
    constant_table: usize,
    handles: &'a Handles,
}

impl Client {
    /// Resolves the rows of all keys of `rows`, creating those that are absent, and keeps other workers out of the
    /// tables until the result is dropped. `scale` holds for all updates. Tables on servers have no such rows.
    pub fn online<'a>(
        &'a self,
        rows: &Rows<'_>,
        scale: PushScale,
        handles: &'a mut Handles,
    ) -> Result<Online<'a>, ClientError> {
        if !self.remote_tables().is_empty() {
            return Err(ClientError::NotHere);
        }
        // Always in the same order, so that two workers cannot wait for each other.
        let writers = self.tables().iter().map(|table| table.writer(scale));
        let mut writers: Vec<TableWriter<'a>> = writers.collect::<Result<_, _>>()?;
        let column_tables = self.column_tables();
        handles.columns.resize_with(column_tables.len(), Vec::new);
        for (column, (&table, handles)) in column_tables.iter().zip(&mut handles.columns).enumerate() {
            handles.clear();
            writers[table].resolve(rows.keys(column), handles)?;
        }
        handles.constant.clear();
        if let Some(table) = self.constant_table() {
            writers[table].resolve(&[CONSTANT_KEY], &mut handles.constant)?;
        }
        let constant_table = self.constant_table().unwrap_or(0);
        Ok(Online { writers, column_tables, constant_table, handles })
    }
}

impl<'a> Online<'a> {
    /// The handles of a feature's keys, in the order of the samples, and its table to read from.
    #[inline]
    #[must_use]
    pub fn column(&self, column: usize) -> (&[RowHandle], &TableWriter<'_>) {
        (&self.handles.columns[column], &self.writers[self.column_tables[column]])
    }

    /// The same, to update. Gradients must be finite.
    #[inline]
    pub fn column_mut(&mut self, column: usize) -> (&[RowHandle], &mut TableWriter<'a>) {
        (&self.handles.columns[column], &mut self.writers[self.column_tables[column]])
    }

    /// The present weight of the constant; 0 without one.
    #[must_use]
    pub fn constant(&self) -> f32 {
        let handle = self.handles.constant.first();
        handle.map_or(0.0, |handle| self.writers[self.constant_table].weights(*handle)[0])
    }

    /// Applies a gradient to the constant, if there is one.
    pub fn update_constant(&mut self, gradient: f32) {
        if let Some(handle) = self.handles.constant.first() {
            self.writers[self.constant_table].update(*handle, &[gradient]);
        }
    }
}
