//! The buffers of one minibatch, reused: per table the distinct keys, their rows and gradients; per feature the
//! positions of its keys. Knows no table, only shapes.

use std::ops::Range;

use sanderling_sample::Rows;
use sanderling_store::{Dedup, PulledRows};

use crate::feature_watch::FeatureSampler;
use crate::fed::FedRows;
use crate::floats::Floats;
use crate::key_partition::KeyPartition;
use crate::session::Session;

/// The distinct keys of one table in a minibatch, with their rows and gradients.
#[derive(Debug)]
pub struct TableLookup {
    pub(crate) dedup: Dedup,
    pub(crate) dim: usize,
    pub(crate) rows: Floats,
    /// As many; those that were not made zeros yet are of any values.
    grads: Floats,
    /// Gradients of so many distinct keys were made zeros.
    cleared: usize,
    /// In place of gradients, their sums in fixed point; as many, or none.
    pub(crate) sums: Vec<i64>,
    /// Positions of the distinct keys that have no row, if that is to be known.
    pub(crate) missing: Vec<u32>,
    /// The rows that the pull found in a table in this process, so that the push need not search its keys.
    pub(crate) pulled: PulledRows,
}

/// Distinct keys, how often each occurs, and their gradients.
type GradientsOfKeys<'a> = (&'a [u64], &'a [u32], &'a [f32]);

/// Where the keys of a feature are.
#[derive(Debug)]
struct FeatureKeys {
    table: usize,
    /// Its column in the minibatch.
    column: usize,
    /// Its keys in the table's `inverse`.
    range: Range<usize>,
    /// Distinct keys of the table up to this feature.
    distinct: usize,
}

/// The lookups of a minibatch; one per worker, allocated once.
#[derive(Debug)]
pub struct Lookup {
    pub(crate) tables: Vec<TableLookup>,
    features: Vec<FeatureKeys>,
    /// By table, the features that read it.
    readers: Vec<Vec<usize>>,
    /// The table whose one row every minibatch needs (a model's bias).
    constant: Option<usize>,
    /// For tables on servers: which of each table's distinct keys is where, and the connections.
    pub(crate) partitions: Vec<KeyPartition>,
    pub(crate) session: Option<Session>,
    /// Whether a pull notes which keys have no row.
    pub(crate) notes_missing: bool,
    /// Features that the servers pool; their tables' rows are not pulled.
    pub(crate) fed: Vec<FedRows>,
    pub(crate) spare_fed: Vec<FedRows>,
    /// Tables whose rows were pooled by the servers and are pushed from here.
    pub(crate) unfed: Vec<usize>,
    /// The number under which the next ones are fed, if nothing that was pushed has it.
    pub(crate) batch: Option<u64>,
    /// Whether the next pull finds its keys numbered.
    is_numbered: bool,
    /// Draws minibatches, and tells of their features.
    pub(crate) sampler: Option<FeatureSampler>,
}

/// The key of the one row of the constant table.
pub const CONSTANT_KEY: u64 = 0;

impl Lookup {
    pub(crate) fn new(
        dims: impl Iterator<Item = usize>,
        column_tables: &[usize],
        constant: Option<usize>,
    ) -> Self {
        let tables = dims.map(|dim| TableLookup {
            dedup: Dedup::default(),
            dim,
            rows: Floats::default(),
            grads: Floats::default(),
            cleared: 0,
            sums: Vec::new(),
            missing: Vec::new(),
            pulled: PulledRows::default(),
        });
        let tables: Vec<TableLookup> = tables.collect();
        let mut readers = vec![Vec::new(); tables.len()];
        column_tables.iter().enumerate().for_each(|(feature, &table)| readers[table].push(feature));
        let features = column_tables.iter().enumerate();
        let features =
            features.map(|(column, &table)| FeatureKeys { table, column, range: 0..0, distinct: 0 });
        Lookup {
            tables,
            features: features.collect(),
            readers,
            constant,
            partitions: Vec::new(),
            session: None,
            notes_missing: false,
            fed: Vec::new(),
            spare_fed: Vec::new(),
            unfed: Vec::new(),
            batch: None,
            is_numbered: false,
            sampler: None,
        }
    }

    /// Sets the column of the minibatch that each feature reads.
    ///
    /// By default the first feature reads the first column, and so on.
    ///
    /// # Panics
    /// If there is not one column per feature.
    pub fn read_columns(&mut self, columns: &[usize]) {
        assert_eq!(columns.len(), self.features.len(), "a column per feature");
        for (feature, &column) in self.features.iter_mut().zip(columns) {
            feature.column = column;
        }
    }

    /// Has pulls note which keys have no row, for [`Lookup::forget_missing`].
    pub fn note_missing(&mut self) {
        self.notes_missing = true;
    }

    /// Drops keys without a row, with their gradients, from the next push, so that they get no row.
    ///
    /// The features' indices are invalid afterwards.
    pub fn forget_missing(&mut self) {
        for (number, table) in self.tables.iter_mut().enumerate() {
            if table.missing.is_empty() {
                continue;
            }
            table.clear_grads(usize::MAX);
            let TableLookup { dedup, dim, grads, missing, .. } = table;
            let mut left = missing.iter().map(|&position| position as usize).peekable();
            let mut kept = 0;
            dedup.retain(|position| {
                if left.next_if_eq(&position).is_some() {
                    return false;
                }
                grads.copy_within(position * *dim..(position + 1) * *dim, kept * *dim);
                kept += 1;
                true
            });
            grads.truncate(kept * *dim);
            missing.clear();
            table.pulled.forget_missing();
            if let (Some(partition), Some(session)) = (self.partitions.get_mut(number), &self.session) {
                partition.assign_again(&session.engine.placement, &dedup.unique);
            }
        }
    }

    /// Exchanges the connections with others, so that a thread can use its own for many lookups.
    ///
    /// Pushes that are under way stay with their connections.
    pub fn swap_session(&mut self, session: &mut Option<Session>) {
        std::mem::swap(&mut self.session, session);
    }

    /// Collects the distinct keys of the next minibatch in advance, for tables on servers.
    pub fn number(&mut self, rows: &Rows<'_>) {
        self.assign(rows);
        self.is_numbered = true;
    }

    /// Per table the distinct keys and the room for their rows, for a caller that reads the rows of tables in this process
    /// by itself after [`Lookup::number`].
    pub fn keys_and_rows(&mut self) -> impl Iterator<Item = (&[u64], &mut [f32])> {
        self.tables.iter_mut().map(|table| (&table.dedup.unique[..], &mut table.rows[..]))
    }

    /// Swaps with the lookup of the next minibatch but keeps the connections.
    ///
    /// Pushes that are under way thus come before the next pull.
    pub fn change_places(&mut self, next: &mut Lookup) {
        std::mem::swap(self, next);
        self.swap_session(&mut next.session);
    }

    /// Collects the distinct keys of a minibatch that is about to be pulled, unless that was done.
    pub(crate) fn assign_once(&mut self, rows: &Rows<'_>) {
        if !std::mem::take(&mut self.is_numbered) {
            self.assign(rows);
        }
    }

    /// Collects the distinct keys of a minibatch, features that share a table together.
    pub(crate) fn assign(&mut self, rows: &Rows<'_>) {
        self.begin();
        for table in 0..self.tables.len() {
            for at in 0..self.readers[table].len() {
                self.add(self.readers[table][at], rows);
            }
            self.add_constant(table);
        }
    }

    /// Forgets the minibatch before.
    pub(crate) fn begin(&mut self) {
        self.is_numbered = false;
        self.spare_fed.append(&mut self.fed);
        self.unfed.clear();
        self.tables.iter_mut().for_each(TableLookup::begin);
    }

    /// The features that read a table.
    pub(crate) fn readers(&self, table: usize) -> &[usize] {
        &self.readers[table]
    }

    /// Collects the distinct keys of a feature, after those of all features before it that read the same table.
    pub(crate) fn add(&mut self, feature: usize, rows: &Rows<'_>) {
        let feature = &mut self.features[feature];
        let table = &mut self.tables[feature.table];
        feature.range = table.dedup.add(rows.keys(feature.column));
        feature.distinct = table.dedup.unique.len();
        table.rows.extend(feature.distinct * table.dim);
    }

    /// Adds the key of the constant's row, if that is of this table.
    pub(crate) fn add_constant(&mut self, table: usize) {
        let is_constant = self.constant == Some(table);
        let table = &mut self.tables[table];
        if is_constant {
            table.dedup.add(&[CONSTANT_KEY]);
        }
        // Overwritten by the pull.
        table.rows.extend(table.dedup.unique.len() * table.dim);
    }

    /// The row index of each key of a feature, in the minibatch's order, within the table's lookup.
    #[must_use]
    pub fn indices(&self, feature: usize) -> &[u32] {
        let FeatureKeys { table, range, .. } = &self.features[feature];
        &self.tables[*table].dedup.inverse[range.clone()]
    }

    /// The table lookup that a feature reads.
    #[must_use]
    pub fn table(&self, feature: usize) -> &TableLookup {
        &self.tables[self.features[feature].table]
    }

    /// A feature's row indices, its table's rows, and the table's gradients to be added to.
    ///
    /// Only the gradients at these indices and those of earlier features are initialised.
    pub fn backward(&mut self, feature: usize) -> (&[u32], &[f32], &mut [f32]) {
        let FeatureKeys { table, range, distinct, .. } = &self.features[feature];
        let table = &mut self.tables[*table];
        table.clear_grads(*distinct);
        (&table.dedup.inverse[range.clone()], &table.rows, &mut table.grads)
    }

    /// Collects the distinct keys of features that a hub has fed. Their gradients are 0.
    pub fn assign_ahead(&mut self, rows: &Rows<'_>) {
        for at in 0..self.fed.len() {
            let feature = self.fed[at].feature();
            if self.fed[at].is_ahead() {
                self.tables[self.features[feature].table].begin();
                self.add(feature, rows);
            }
        }
    }

    /// Number of features.
    pub(crate) fn features(&self) -> usize {
        self.features.len()
    }

    /// Number of the table that a feature reads.
    pub(crate) fn table_number(&self, feature: usize) -> usize {
        self.features[feature].table
    }

    /// Distinct keys of a feature that no feature before it has in the same table.
    pub(crate) fn new_keys(&self, feature: usize) -> usize {
        let FeatureKeys { table, distinct, .. } = &self.features[feature];
        let before = self.readers[*table].iter().take_while(|&&other| other != feature).last();
        distinct - before.map_or(0, |&before| self.features[before].distinct)
    }

    /// A feature's row indices, the width of its rows, and the gradients of its table's rows.
    pub(crate) fn gradients_of(&mut self, feature: usize) -> (&[u32], usize, &[f32]) {
        let FeatureKeys { table, range, .. } = &self.features[feature];
        let table = &mut self.tables[*table];
        table.clear_grads(usize::MAX);
        (&table.dedup.inverse[range.clone()], table.dim, &table.grads)
    }

    /// Whether a table is that of the constant.
    pub(crate) fn is_constant(&self, table: usize) -> bool {
        self.constant == Some(table)
    }

    /// The column that a feature reads.
    pub(crate) fn column(&self, feature: usize) -> usize {
        self.features[feature].column
    }

    /// Whether the servers pool a table's rows, so that these are not here.
    pub(crate) fn is_fed(&self, table: usize) -> bool {
        self.fed.iter().any(|fed| self.features[fed.feature()].table == table)
    }

    /// The features that the servers pool, each with its pooled rows.
    #[must_use]
    pub fn fed(&self) -> &[FedRows] {
        &self.fed
    }

    /// The features that the servers pool, to change their gradients.
    pub fn fed_mut(&mut self) -> &mut [FedRows] {
        &mut self.fed
    }

    /// An element of [`Lookup::fed`], its row indices, and the gradients of its table's distinct rows.
    ///
    /// A push does not send those gradients.
    pub fn backward_fed(&mut self, number: usize) -> (&FedRows, &[u32], &mut [f32]) {
        let fed = &self.fed[number];
        let FeatureKeys { table, range, .. } = &self.features[fed.feature()];
        let table = &mut self.tables[*table];
        table.clear_grads(usize::MAX);
        (fed, &table.dedup.inverse[range.clone()], &mut table.grads)
    }

    /// Makes the push send the gradients of distinct rows instead of those of pooled rows.
    ///
    /// [`Lookup::backward_fed`] gives room for them. The keys fed to the servers are not used any more.
    pub fn unfeed(&mut self) {
        self.unfed.extend(self.fed.iter().map(|fed| self.features[fed.feature()].table));
        self.spare_fed.append(&mut self.fed);
    }

    /// The row of the constant table; empty without one.
    #[must_use]
    pub fn constant(&self) -> &[f32] {
        self.constant.map_or(&[], |table| &self.tables[table].rows)
    }

    /// The gradient of the constant table's row, to be added to; empty without one.
    pub fn constant_grad(&mut self) -> &mut [f32] {
        let Some(table) = self.constant else { return &mut [] };
        self.tables[table].clear_grads(usize::MAX);
        &mut self.tables[table].grads
    }

    /// The gradients of all tables, a slice per table.
    pub fn grads(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.tables.iter_mut().map(|table| {
            table.clear_grads(usize::MAX);
            &mut table.grads[..]
        })
    }

    /// Per table the distinct keys, how often each occurs, and their gradients: what a push would send.
    pub fn gradients(&mut self) -> impl Iterator<Item = (&[u64], &[u32], &[f32])> {
        self.tables.iter_mut().map(TableLookup::gradients)
    }

    /// Makes room for sums of gradients in fixed point (see [`Fixed`](crate::Fixed)), all 0.
    pub fn clear_sums(&mut self) {
        for table in &mut self.tables {
            table.sums.clear();
            table.sums.resize(table.rows.len(), 0);
        }
    }

    /// As [`Lookup::backward`] with the sums that [`Lookup::clear_sums`] made room for.
    pub fn backward_sums(&mut self, feature: usize) -> (&[u32], &[f32], &mut [i64]) {
        let FeatureKeys { table, range, .. } = &self.features[feature];
        let table = &mut self.tables[*table];
        (&table.dedup.inverse[range.clone()], &table.rows, &mut table.sums)
    }

    /// The sums of the constant table's row; empty without one.
    pub fn constant_sum(&mut self) -> &mut [i64] {
        self.constant.map_or(&mut [], |table| &mut self.tables[table].sums)
    }

    /// Says how often the constant occurred: in a minibatch it is looked up once, whatever its rows.
    pub fn count_constant(&mut self, occurrences: u32) {
        if let Some(count) = self.constant.and_then(|table| self.tables[table].dedup.counts.first_mut()) {
            *count = occurrences;
        }
    }

    /// As [`Lookup::gradients`] with the sums.
    pub fn sums(&self) -> impl Iterator<Item = (&[u64], &[u32], &[i64])> {
        self.tables.iter().map(|table| (&table.dedup.unique[..], &table.dedup.counts[..], &table.sums[..]))
    }

    /// Memory behind the rows and their gradients.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of_table = |table: &TableLookup| {
            let sums = table.sums.capacity() * size_of::<i64>();
            table.rows.bytes() + table.grads.bytes() + sums + table.pulled.bytes()
        };
        let tables: usize = self.tables.iter().map(of_table).sum();
        let fed = self.fed.iter().chain(&self.spare_fed);
        let fed: usize = fed.map(|fed| fed.rows.capacity() + fed.grads.capacity()).sum();
        tables + fed * size_of::<f32>()
    }

    /// Distinct keys over all tables.
    #[must_use]
    pub fn unique_keys(&self) -> usize {
        self.tables.iter().map(|table| table.dedup.unique.len()).sum()
    }
}

impl TableLookup {
    /// Width of a row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Distinct keys.
    #[must_use]
    pub fn distinct(&self) -> usize {
        self.dedup.unique.len()
    }

    /// The rows of the distinct keys, `dim` floats each.
    #[must_use]
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Forgets the minibatch before.
    fn begin(&mut self) {
        self.dedup.clear();
        self.missing.clear();
        self.pulled.clear();
        self.rows.truncate(0);
        // They must be zeros, but when they are added to: then they are in a near cache.
        self.cleared = 0;
    }

    /// Makes the gradients of the first distinct keys, as many as that or all, zeros where nothing was added to them yet.
    fn clear_grads(&mut self, distinct: usize) {
        let distinct = distinct.min(self.dedup.unique.len());
        if self.cleared == 0 {
            self.grads.resize(self.rows.len());
        }
        if self.cleared < distinct {
            self.grads[self.cleared * self.dim..distinct * self.dim].fill(0.0);
            self.cleared = distinct;
        }
    }

    /// The distinct keys, how often each occurs, and their gradients.
    pub(crate) fn gradients(&mut self) -> GradientsOfKeys<'_> {
        self.gradients_and_rows().0
    }

    /// As [`TableLookup::gradients`], with the rows that the pull found.
    pub(crate) fn gradients_and_rows(&mut self) -> (GradientsOfKeys<'_>, &PulledRows) {
        self.clear_grads(usize::MAX);
        ((&self.dedup.unique, &self.dedup.counts, &self.grads), &self.pulled)
    }
}
