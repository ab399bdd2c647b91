//! Whole rows on their way between tables: columns of keys, metadata, weights and optimizer state, and how such rows come
//! into a table beside its readers and pushers. Knows neither files nor the network.

use crate::StoreError;
use crate::lookup::scratch::with_scratch;
use crate::lookup::{CHUNK_KEYS, Lookup, with_lookup};
use crate::policy::clock::ImportClock;
use crate::rows::layout::{HEADER_WORDS, Layout};
use crate::rows::numbers::RowNumbers;
use crate::rows::row::RowRef;
use crate::rows::slab::RowMut;
use crate::simd::{self, Vector, Work};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::update::push::{Edit, edit_rows};

/// Rows, column by column, as [`crate::Row`] explains them. Each column has one entry per key; weights have `dim` of them,
/// states [`crate::TableConfig::state`].
#[derive(Debug, Clone, Copy)]
pub struct WholeRows<'a> {
    /// The keys.
    pub keys: &'a [u64],
    /// Occurrences in pushes.
    pub frequencies: &'a [u32],
    /// The use clock at the last push.
    pub last_uses: &'a [u32],
    /// Updates.
    pub versions: &'a [u32],
    /// Weights, row after row.
    pub weights: &'a [f32],
    /// Optimizer state, row after row.
    pub states: &'a [f32],
}

/// Room for such rows, to be filled one by one.
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
    /// Appends a row; all must be of one table.
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

    /// Has it none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The rows.
    #[must_use]
    pub fn rows(&self) -> WholeRows<'_> {
        let RowColumns { keys, frequencies, last_uses, versions, weights, states } = self;
        WholeRows { keys, frequencies, last_uses, versions, weights, states }
    }
}

impl<'a> WholeRows<'a> {
    /// The row at a place.
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
    /// Puts whole rows into the table as they are, metadata included; rows of these keys that are there are replaced, and
    /// all others stay. Keys need no admission. Readers see each row before or after, pushes come before or after. Weights
    /// of tables of halves are rounded to the nearest, which changes nothing if they were halves before.
    ///
    /// Into a table that is empty, and until somebody pushes to it, rows bring their use clock: that of the table moves on to
    /// the latest use among them. Later its clock stays, and a row from its future counts as used now. (One that was not used
    /// for long by its clock is old here, and for eviction to take.)
    ///
    /// Fails with [`StoreError::Length`] or [`StoreError::BadRow`] before any row is touched: columns do not fit, a key occurs
    /// twice, a value is not finite, or a sum of squares is below 0. With [`StoreError::TableFull`], the rows whose keys were
    /// there and those that found room are in; as for a push, eviction makes room first.
    pub fn import(&self, rows: WholeRows<'_>) -> Result<(), StoreError> {
        self.check_rows(&rows)?;
        self.check_not_writing()?;
        let (dim, state) = (self.dim(), self.state_len());
        let lane = lane();
        let uses = self.clock.follow(rows.last_uses, self.is_empty());
        // A row that is replaced is another one to who remembers it. Who is at it already is waited for.
        let _removing = self.removals.begin();
        self.directory.synchronize();
        let rejected: u64 = with_lookup(|lookup| {
            let firsts = (0..rows.keys.len()).step_by(CHUNK_KEYS);
            let parts =
                firsts.map(|first| rows.part(first, CHUNK_KEYS.min(rows.keys.len() - first), dim, state));
            parts.map(|rows| simd::run(self.width(), Import { table: self, lane, lookup, rows, uses })).sum()
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
            // Distinct keys are numbered in their order: the first that is not new has a lower number than its place.
            let mut numbers = scratch.dedup.inverse.iter().enumerate();
            numbers.find(|&(at, &number)| number as usize != at).map(|(at, _)| at)
        });
        twice.map_or(Ok(()), |at| bad(at, "the key occurs twice".to_string()))
    }
}

/// A chunk of an import. Its result is the number of keys that were left out because the table is full.
struct Import<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a mut Lookup,
    rows: WholeRows<'a>,
    uses: ImportClock,
}

impl Work for Import<'_> {
    type Output = u64;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> u64 {
        let Import { table, lane, lookup, rows, uses } = self;
        lookup.assign(rows.keys);
        let replace = Replace { layout: &table.layout, rows, uses, weights: vec![0.0; table.dim()] };
        edit_rows(table, lane, lookup, rows.keys, None, replace, vector)
    }
}

/// Rows that replace those of their keys.
struct Replace<'a> {
    layout: &'a Layout,
    rows: WholeRows<'a>,
    uses: ImportClock,
    /// Those of one row while they are packed.
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
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, _is_new: bool) {
        let (layout, row) = (self.layout, row.by(vector));
        let RowRef { frequency, last_use, version, weights, state, .. } =
            self.rows.row(at, layout.dim, layout.state);
        match layout.half {
            None => row.store(0, weights),
            Some(half) => {
                self.weights.copy_from_slice(weights);
                let first = half.pack(&mut self.weights);
                row.store(0, &self.weights[first..]);
            }
        }
        // The key in front of these is the row's already.
        let header = layout.header_at();
        row.set(header + 2, frequency);
        row.set(header + 3, self.uses.reading(last_use));
        row.set(header + 4, version);
        row.store(header + HEADER_WORDS, state);
    }
}
