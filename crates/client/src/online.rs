//! Row-by-row access to tables in this process, for online learning: the keys of many samples are resolved together,
//! then each sample reads and updates its rows at once. The result is the same as with a pull and a push per sample,
//! with far fewer lookups.
//!
//! Tables with a local cache ([`sanderling_store::Table::supports_local_cache`]) are updated in copies: workers learn
//! at the same time and see each other's updates after each run of samples. Any other table blocks the other workers
//! meanwhile.

use sanderling_sample::Rows;
use sanderling_store::{CacheBuffers, LocalCache, PushScale, RowHandle, TableWriter};

use crate::client::Client;
use crate::error::ClientError;
use crate::lookup::CONSTANT_KEY;

/// Length of a run of samples that pays off: for tables with a local cache and one worker, which misses no updates of
/// others, or several; and for other tables, which block the other workers.
const RUN_ROWS_ONE: usize = 4096;
const RUN_ROWS_CACHED: usize = 1024;
const RUN_ROWS_EXCLUSIVE: usize = 128;
/// Several workers with local caches exchange the rows of frequent keys after this many samples: of keys that are in
/// at least one sample of [`SAMPLES_PER_FREQUENT`].
const EXCHANGE_ROWS: usize = 64;
const SAMPLES_PER_FREQUENT: usize = 10;

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
    /// Samples of the run, and those that were learned.
    samples: usize,
    learned: usize,
    exchanges: bool,
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

    /// Resolves the rows of all keys of `rows`, for one of so many workers. `scale` holds for all updates. Keys without
    /// a row get one, now or when the result is finished or dropped. Tables on servers have no such rows.
    pub fn online<'a>(
        &'a self,
        rows: &Rows<'_>,
        workers: usize,
        scale: PushScale,
        handles: &'a mut Handles,
    ) -> Result<Online<'a>, ClientError> {
        let all = self.online_tables()?;
        let Handles { columns, constant, buffers } = handles;
        buffers.resize_with(all.len(), CacheBuffers::default);
        let supports_local_cache = self.supports_local_cache();
        // Always in the same order, so that two workers cannot wait for each other.
        let tables = all.iter().zip(buffers).map(|(table, buffers)| {
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
        Ok(Online {
            tables,
            column_tables,
            constant_table,
            columns,
            constant: constant.first().copied(),
            samples: rows.len(),
            learned: 0,
            exchanges: supports_local_cache && workers > 1,
        })
    }
}

impl<'a> Online<'a> {
    /// The handles of a feature's keys, in the order of the samples, and its table to read from.
    #[inline]
    #[must_use]
    pub fn column(&self, column: usize) -> (&[RowHandle], &OnlineTable<'a>) {
        (&self.columns[column], &self.tables[self.column_tables[column]])
    }

    /// Rows by handle, for updates. Gradients must be finite.
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

    /// Notes that the next sample was learned. From time to time, workers then exchange the rows of frequent keys.
    #[inline]
    pub fn note_learned(&mut self) -> Result<(), ClientError> {
        self.learned += 1;
        if self.exchanges && self.learned.is_multiple_of(EXCHANGE_ROWS) && self.learned < self.samples {
            self.exchange()?;
        }
        Ok(())
    }

    #[cold]
    fn exchange(&mut self) -> Result<(), ClientError> {
        let count_min = u32::try_from(self.samples.div_ceil(SAMPLES_PER_FREQUENT)).unwrap_or(u32::MAX);
        let parts = u32::try_from(self.samples.div_ceil(EXCHANGE_ROWS)).unwrap_or(u32::MAX);
        for table in &mut self.tables {
            if let OnlineTable::Cached(cache) = table {
                cache.exchange(count_min, parts)?;
            }
        }
        Ok(())
    }

    /// Ends the run of samples. Fails if a table has no room for all new rows, or if an update is not finite; all
    /// other updates are applied.
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

    /// Updates several rows in their order, each with its gradient.
    ///
    /// A row that occurs twice is updated twice.
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
