//! What one minibatch needs of the tables, reused from minibatch to minibatch: per table the distinct keys, their rows
//! and room for their gradients; per feature where each of its keys went. Knows no table, only shapes.

use std::ops::Range;

use sanderling_sample::Rows;
use sanderling_store::Dedup;

use crate::fan::Fan;
use crate::session::Session;

/// The distinct keys of one table in a minibatch, with their rows and gradients.
#[derive(Debug)]
pub struct TableLookup {
    pub(crate) dedup: Dedup,
    pub(crate) dim: usize,
    pub(crate) rows: Vec<f32>,
    pub(crate) grads: Vec<f32>,
}

/// The lookups of a minibatch; one per worker, allocated once.
#[derive(Debug)]
pub struct Lookup {
    pub(crate) tables: Vec<TableLookup>,
    /// Per feature: its table, and where its keys lie in that table's `inverse`.
    columns: Vec<(usize, Range<usize>)>,
    /// The table whose one row every minibatch needs (a model's bias).
    constant: Option<usize>,
    /// For tables on servers: which of each table's distinct keys is where, and the connections.
    pub(crate) fans: Vec<Fan>,
    pub(crate) session: Option<Session>,
}

/// The key of the one row of the constant table.
pub const CONSTANT_KEY: u64 = 0;

impl Lookup {
    pub(crate) fn new(
        dims: impl Iterator<Item = usize>,
        column_tables: &[usize],
        constant: Option<usize>,
    ) -> Self {
        let tables =
            dims.map(|dim| TableLookup { dedup: Dedup::default(), dim, rows: Vec::new(), grads: Vec::new() });
        Lookup {
            tables: tables.collect(),
            columns: column_tables.iter().map(|table| (*table, 0..0)).collect(),
            constant,
            fans: Vec::new(),
            session: None,
        }
    }

    /// Collects the distinct keys of a minibatch, features that share a table together.
    pub(crate) fn assign(&mut self, rows: &Rows<'_>) {
        for table in &mut self.tables {
            table.dedup.clear();
        }
        for (column, (table, range)) in self.columns.iter_mut().enumerate() {
            *range = self.tables[*table].dedup.add(rows.keys(column));
        }
        if let Some(constant) = self.constant {
            self.tables[constant].dedup.add(&[CONSTANT_KEY]);
        }
        for table in &mut self.tables {
            // Only the gradients must start at zero; rows are overwritten by the pull.
            let floats = table.dedup.unique.len() * table.dim;
            table.rows.resize(floats, 0.0);
            table.grads.clear();
            table.grads.resize(floats, 0.0);
        }
    }

    /// For each key of a feature, in the minibatch's order, the index of its row in the feature's table lookup.
    #[must_use]
    pub fn indices(&self, column: usize) -> &[u32] {
        let (table, range) = &self.columns[column];
        &self.tables[*table].dedup.inverse[range.clone()]
    }

    /// The table lookup that a feature reads.
    #[must_use]
    pub fn table(&self, column: usize) -> &TableLookup {
        &self.tables[self.columns[column].0]
    }

    /// A feature's row indices, its table's rows and its table's gradients, the latter to be added to.
    pub fn backward(&mut self, column: usize) -> (&[u32], &[f32], &mut [f32]) {
        let (table, range) = &self.columns[column];
        let table = &mut self.tables[*table];
        (&table.dedup.inverse[range.clone()], &table.rows, &mut table.grads)
    }

    /// The row of the constant table; empty without one.
    #[must_use]
    pub fn constant(&self) -> &[f32] {
        self.constant.map_or(&[], |table| &self.tables[table].rows)
    }

    /// The gradient of the constant table's row, to be added to; empty without one.
    pub fn constant_grad(&mut self) -> &mut [f32] {
        self.constant.map_or(&mut [], |table| &mut self.tables[table].grads)
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

    /// The rows of the distinct keys, `dim` floats each.
    #[must_use]
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }
}
