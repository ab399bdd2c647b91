//! Import of whole rows: keys, metadata, weights and optimizer state in columns.

use crate::StoreError;
use crate::lookup::scratch::with_scratch;
use crate::lookup::{CHUNK_KEYS, Lookup, with_lookup};
use crate::policy::clock::ImportClock;
use crate::rows::access::RowMut;
use crate::rows::layout::{FREQUENCY, LAST_USE, Layout, VERSION};
use crate::rows::numbers::RowNumbers;
use crate::rows::placement::HEADER_WORDS;
use crate::rows::row::RowRef;
use crate::simd::{self, Vector, Work};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::update::edit::{Edit, edit_rows};
use crate::update::ordered::is_newer_version;

/// Rows in columns, with the fields of [`crate::Row`].
///
/// Each column has one entry per key; weights have `dim` values per key, states [`crate::TableConfig::state`].
#[derive(Debug, Clone, Copy)]
pub struct WholeRows<'a> {
    /// The keys.
    pub keys: &'a [u64],
    /// Occurrences in pushes.
    pub frequencies: &'a [u32],
    /// Use clock at the last push.
    pub last_uses: &'a [u32],
    /// Numbers of updates.
    pub versions: &'a [u32],
    /// Weights, row after row.
    pub weights: &'a [f32],
    /// Optimizer state, row after row.
    pub states: &'a [f32],
}

/// Owned columns of rows, filled row by row.
#[derive(Debug, Clone, Default)]
pub struct RowColumns {
    keys: Vec<u64>,
    frequencies: Vec<u32>,
    last_uses: Vec<u32>,
    versions: Vec<u32>,
    weights: Vec<f32>,
    states: Vec<f32>,
}

impl RowColumns {
    /// Appends a row. All rows must belong to one table.
    pub fn push(&mut self, row: RowRef<'_>) {
        self.keys.push(row.key);
        self.frequencies.push(row.frequency);
        self.last_uses.push(row.last_use);
        self.versions.push(row.version);
        self.weights.extend_from_slice(row.weights);
        self.states.extend_from_slice(row.state);
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        let RowColumns { keys, frequencies, last_uses, versions, weights, states } = self;
        keys.clear();
        [frequencies, last_uses, versions].into_iter().for_each(Vec::clear);
        [weights, states].into_iter().for_each(Vec::clear);
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Borrows the columns.
    #[must_use]
    pub fn rows(&self) -> WholeRows<'_> {
        let RowColumns { keys, frequencies, last_uses, versions, weights, states } = self;
        WholeRows { keys, frequencies, last_uses, versions, weights, states }
    }
}

impl<'a> WholeRows<'a> {
    /// The row at a position.
    #[must_use]
    pub fn row(&self, at: usize, dim: usize, state: usize) -> RowRef<'a> {
        RowRef {
            key: self.keys[at],
            frequency: self.frequencies[at],
            last_use: self.last_uses[at],
            version: self.versions[at],
            weights: &self.weights[at * dim..][..dim],
            state: &self.states[at * state..][..state],
        }
    }

    fn part(&self, first: usize, rows: usize, dim: usize, state: usize) -> WholeRows<'a> {
        let at = first..first + rows;
        WholeRows {
            keys: &self.keys[at.clone()],
            frequencies: &self.frequencies[at.clone()],
            last_uses: &self.last_uses[at.clone()],
            versions: &self.versions[at],
            weights: &self.weights[first * dim..][..rows * dim],
            states: &self.states[first * state..][..rows * state],
        }
    }
}

impl Table {
    /// Imports whole rows with their metadata, without admission.
    ///
    /// Rows of these keys are replaced and missing ones created. Readers and pushes see each row before or after
    /// its import. In tables of 16-bit weights, weights are rounded to nearest, which keeps values that were
    /// halves.
    ///
    /// While the table is empty or holds only imported rows, its use clock advances to the latest use among them.
    /// Later the clock stays, and rows from its future count as used now. (Rows that are old by their own clock are
    /// candidates for eviction.)
    ///
    /// # Errors
    ///
    /// - [`StoreError::Length`] or [`StoreError::BadRow`] for columns that do not fit, repeated keys, values that
    ///   are not finite, and negative sums of squares. Nothing is imported.
    /// - [`StoreError::TableFull`] if eviction found no room for some new keys. All other rows are imported.
    pub fn import(&self, rows: WholeRows<'_>) -> Result<(), StoreError> {
        self.check_rows(&rows)?;
        self.check_not_writing()?;
        let uses = self.clock.follow(rows.last_uses, self.is_empty());
        self.replace_rows(rows, uses, false)
    }

    /// Imports the rows that are newer than this table's, from a table with `pushes` pushes so far.
    ///
    /// Rows of the same or a higher version are left as they are, so that the rows and the pushes of another table
    /// may come in any order. The use clock advances to `pushes`, and rows keep their last use.
    ///
    /// # Errors
    ///
    /// As for [`Table::import`].
    pub fn import_newer(&self, rows: WholeRows<'_>, pushes: u64) -> Result<(), StoreError> {
        self.check_rows(&rows)?;
        self.check_not_writing()?;
        self.replace_rows(rows, self.clock.reach(pushes), true)
    }

    fn replace_rows(
        &self,
        rows: WholeRows<'_>,
        uses: ImportClock,
        only_newer: bool,
    ) -> Result<(), StoreError> {
        let (dim, state) = (self.dim(), self.state_len());
        let lane = lane();
        // Replaced rows invalidate cached rows. Threads that use these now are waited for.
        let _removing = self.removals.begin();
        self.directory.synchronize();
        let rejected: u64 = with_lookup(|lookup| {
            let firsts = (0..rows.keys.len()).step_by(CHUNK_KEYS);
            let parts =
                firsts.map(|first| rows.part(first, CHUNK_KEYS.min(rows.keys.len() - first), dim, state));
            parts
                .map(|rows| {
                    simd::run(self.width(), Import { table: self, lane, lookup, rows, uses, only_newer })
                })
                .sum()
        });
        self.resume_scan();
        if rejected > 0 {
            return Err(self.full(rejected));
        }
        Ok(())
    }

    fn check_rows(&self, rows: &WholeRows<'_>) -> Result<(), StoreError> {
        let (count, dim, state) = (rows.keys.len(), self.dim(), self.state_len());
        for (what, expected, found) in [
            ("frequencies", count, rows.frequencies.len()),
            ("last_uses", count, rows.last_uses.len()),
            ("versions", count, rows.versions.len()),
            ("weights", count * dim, rows.weights.len()),
            ("states", count * state, rows.states.len()),
        ] {
            self.check_length(what, expected, found)?;
        }
        let bad = |at: usize, reason: String| {
            Err(StoreError::BadRow { table: self.name().to_string(), key: rows.keys[at], reason })
        };
        let numbers = RowNumbers::new(self.config());
        for at in 0..count {
            let row = rows.row(at, dim, state);
            numbers.check(row.weights, row.state).or_else(|reason| bad(at, reason))?;
        }
        let twice = with_scratch(|scratch| {
            scratch.dedup.assign(rows.keys);
            // Distinct keys are numbered in order; the first repeated key has a lower number than its position.
            let mut numbers = scratch.dedup.inverse.iter().enumerate();
            numbers.find(|&(at, &number)| number as usize != at).map(|(at, _)| at)
        });
        twice.map_or(Ok(()), |at| bad(at, "the key occurs twice".to_string()))
    }
}

/// A chunk of an import; its output is the number of keys without room.
struct Import<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a mut Lookup,
    rows: WholeRows<'a>,
    uses: ImportClock,
    only_newer: bool,
}

impl Work for Import<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> u64 {
        let Import { table, lane, lookup, rows, uses, only_newer } = self;
        lookup.assign(table.hash_key, rows.keys);
        let replace =
            Replace { layout: &table.layout, rows, uses, only_newer, weights: vec![0.0; table.dim()] };
        edit_rows(table, lane, lookup, rows.keys, None, replace, vector)
    }
}

/// Overwrites rows.
struct Replace<'a> {
    layout: &'a Layout,
    rows: WholeRows<'a>,
    uses: ImportClock,
    only_newer: bool,
    /// Buffer for packing a row's weights.
    weights: Vec<f32>,
}

impl Edit for Replace<'_> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        None
    }

    fn initializes(&self, _at: usize) -> bool {
        true
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, is_new: bool) {
        let (layout, row) = (self.layout, row.by(vector));
        let RowRef { frequency, last_use, version, weights, state, .. } =
            self.rows.row(at, layout.dim, layout.state);
        if self.only_newer && !is_new && !is_newer_version(version, row.get(VERSION)) {
            return;
        }
        match layout.half {
            None => row.store_weights(0, weights),
            Some(half) => {
                self.weights.copy_from_slice(weights);
                let first = half.pack(&mut self.weights);
                row.store_weights(0, &self.weights[first..]);
            }
        }
        // The key before these words is already right.
        row.set(FREQUENCY, frequency);
        row.set(LAST_USE, self.uses.reading(last_use));
        row.set(VERSION, version);
        row.store_rest(HEADER_WORDS, state);
    }
}
