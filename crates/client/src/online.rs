//! Row-by-row access for online learning with embedded tables: the keys of many samples are resolved together, then
//! each sample reads and updates its rows at once. Same result as a pull and a push per sample, at a fraction of the
//! lookups.
//!
//! Tables that lend rows ([`sanderling_store::Table::supports_local_cache`]) are worked on in copies, so that workers learn at the
//! same time and see each other's updates from run to run. With any other table, other workers wait while it lasts.

use sanderling_sample::Rows;
use sanderling_store::{CacheBuffers, LocalCache, PushScale, RowHandle, TableWriter};

use crate::client::Client;
use crate::error::ClientError;
use crate::lookup::CONSTANT_KEY;

/// Samples of a run that is worth its price: of tables that lend rows to one worker, who has nobody's updates to miss, and
/// to several; and of others, which keep workers waiting.
const RUN_ROWS_ONE: usize = 4096;
const RUN_ROWS_CACHED: usize = 1024;
const RUN_ROWS_EXCLUSIVE: usize = 128;

/// The rows of a run of samples, per feature in the order of its keys; one per worker, reused.
#[derive(Debug, Default)]
pub struct Handles {
    columns: Vec<Vec<RowHandle>>,
    constant: Vec<RowHandle>,
    buffers: Vec<CacheBuffers>,
}

/// Access to the tables for a run of samples. [`Online::finish`] says whether all of it had room.
#[derive(Debug)]
pub struct Online<'a> {
    tables: Vec<OnlineTable<'a>>,
    column_tables: &'a [usize],
    constant_table: usize,
    columns: &'a [Vec<RowHandle>],
    constant: Option<RowHandle>,
}

/// A table's rows by handle.
#[derive(Debug)]
pub enum OnlineTable<'a> {
    /// In place.
    Exclusive(TableWriter<'a>),
    /// Copies.
    Cached(LocalCache<'a>),
}

impl Client {
    /// Samples that [`Client::online`] should get at a time, where so many workers learn.
    #[must_use]
    pub fn online_rows(&self, workers: usize) -> usize {
        match (self.supports_local_cache(), workers) {
            (true, 0 | 1) => RUN_ROWS_ONE,
            (true, _) => RUN_ROWS_CACHED,
            (false, _) => RUN_ROWS_EXCLUSIVE,
        }
    }

    /// Do all tables lend rows? A model's updates are either all seen by other workers at once or all run by run.
    fn supports_local_cache(&self) -> bool {
        self.tables().iter().all(|table| table.supports_local_cache())
    }

    /// Resolves the rows of all keys of `rows`. `scale` holds for all updates. Keys without a row get one, now or when
    /// the result is finished or dropped. Tables on servers have no such rows.
    pub fn online<'a>(
        &'a self,
        rows: &Rows<'_>,
        scale: PushScale,
        handles: &'a mut Handles,
    ) -> Result<Online<'a>, ClientError> {
        if !self.remote_tables().is_empty() {
            return Err(ClientError::NotHere);
        }
        let Handles { columns, constant, buffers } = handles;
        buffers.resize_with(self.tables().len(), CacheBuffers::default);
        let supports_local_cache = self.supports_local_cache();
        // Always in the same order, so that two workers cannot wait for each other.
        let tables = self.tables().iter().zip(buffers).map(|(table, buffers)| {
            Ok(if supports_local_cache {
                OnlineTable::Cached(table.local_cache(scale, buffers)?)
            } else {
                OnlineTable::Exclusive(table.writer(scale)?)
            })
        });
        let mut tables: Vec<OnlineTable<'a>> = tables.collect::<Result<_, ClientError>>()?;
        let column_tables = self.column_tables();
        columns.resize_with(column_tables.len(), Vec::new);
        for (column, (&table, handles)) in column_tables.iter().zip(&mut *columns).enumerate() {
            handles.clear();
            tables[table].resolve(rows.keys(column), handles)?;
        }
        constant.clear();
        if let Some(table) = self.constant_table() {
            tables[table].resolve(&[CONSTANT_KEY], constant)?;
            if let (OnlineTable::Cached(cache), [handle]) = (&mut tables[table], constant.as_slice()) {
                // It is in every sample.
                cache
                    .expect_updates(*handle, u32::try_from(rows.len()).unwrap_or(u32::MAX).saturating_sub(1));
            }
        }
        let constant_table = self.constant_table().unwrap_or(0);
        Ok(Online { tables, column_tables, constant_table, columns, constant: constant.first().copied() })
    }
}

impl<'a> Online<'a> {
    /// The handles of a feature's keys, in the order of the samples, and its table to read from.
    #[inline]
    #[must_use]
    pub fn column(&self, column: usize) -> (&[RowHandle], &OnlineTable<'a>) {
        (&self.columns[column], &self.tables[self.column_tables[column]])
    }

    /// The same, to update. Gradients must be finite.
    #[inline]
    pub fn column_mut(&mut self, column: usize) -> (&[RowHandle], &mut OnlineTable<'a>) {
        (&self.columns[column], &mut self.tables[self.column_tables[column]])
    }

    /// The present weight of the constant; 0 without one.
    #[must_use]
    pub fn constant(&self) -> f32 {
        self.constant.map_or(0.0, |handle| self.tables[self.constant_table].weights(handle)[0])
    }

    /// Applies a gradient to the constant, if there is one.
    pub fn update_constant(&mut self, gradient: f32) {
        if let Some(handle) = self.constant {
            self.tables[self.constant_table].update(handle, &[gradient]);
        }
    }

    /// Ends the run. Fails when a table has no room for all new rows, or when an update of some is not finite; all others are
    /// there.
    pub fn finish(self) -> Result<(), ClientError> {
        let finish = |table| match table {
            OnlineTable::Exclusive(writer) => writer.finish(),
            OnlineTable::Cached(cache) => cache.flush(),
        };
        // The first error after all are settled.
        let finished: Vec<_> = self.tables.into_iter().map(finish).collect();
        Ok(finished.into_iter().collect::<Result<(), _>>()?)
    }
}

impl OnlineTable<'_> {
    fn resolve(&mut self, keys: &[u64], handles: &mut Vec<RowHandle>) -> Result<(), ClientError> {
        match self {
            OnlineTable::Exclusive(writer) => writer.resolve(keys, handles)?,
            OnlineTable::Cached(cache) => cache.resolve(keys, handles),
        }
        Ok(())
    }

    /// The weights of a row.
    #[inline]
    #[must_use]
    pub fn weights(&self, handle: RowHandle) -> &[f32] {
        match self {
            OnlineTable::Exclusive(writer) => writer.weights(handle),
            OnlineTable::Cached(cache) => cache.weights(handle),
        }
    }

    /// The first weight of a row: all there is in logistic regression.
    #[inline]
    #[must_use]
    pub fn first_weight(&self, handle: RowHandle) -> f32 {
        match self {
            OnlineTable::Exclusive(writer) => writer.first_weight(handle),
            OnlineTable::Cached(cache) => cache.first_weight(handle),
        }
    }

    /// Applies the optimizer to a row at once, as a push of this gradient alone would.
    ///
    /// # Panics
    /// If the gradient does not have the table's dim.
    pub fn update(&mut self, handle: RowHandle, gradient: &[f32]) {
        match self {
            OnlineTable::Exclusive(writer) => writer.update(handle, gradient),
            OnlineTable::Cached(cache) => cache.update(handle, gradient),
        }
    }

    /// The same for several rows, a gradient each, in their order; a row that is there twice is updated twice.
    ///
    /// # Panics
    /// If there is not one gradient value per weight of each row.
    pub fn update_all(&mut self, handles: &[RowHandle], gradients: &[f32]) {
        match self {
            OnlineTable::Exclusive(writer) => writer.update_all(handles, gradients),
            OnlineTable::Cached(cache) => cache.update_all(handles, gradients),
        }
    }
}
