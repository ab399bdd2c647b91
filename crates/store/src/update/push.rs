//! Pushes: search every key, create missing rows, and update each row with its gradient.

use std::ops::Range;

use crate::lookup::scratch::{Scratch, with_scratch};
use crate::lookup::{CHUNK_KEYS, CachedRows, Lookup, with_lookup};
use crate::rows::access::RowMut;
use crate::rows::layout::{Layout, Update};
use crate::simd::halves::{Format, Singles};
use crate::simd::{self, Vector, Work};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::update::edit::{Edit, edit_rows};
use crate::update::failures::PushFailures;
use crate::update::kernel::OptimizerStep;
use crate::update::ordered::{ReplicatedEdit, Replication, RowVersions, edit_replicated};
use crate::{PulledRows, PushScale, StoreError, bad_gradient};

/// The reading of the use clock at a push.
#[derive(Debug, Clone, Copy)]
pub struct PushClock(u32);

impl PushClock {
    /// The clock of a push that another replica has counted.
    #[must_use]
    pub fn of_reading(reading: u32) -> PushClock {
        PushClock(reading)
    }

    /// The reading, which rows store as their last use.
    #[must_use]
    pub fn reading(self) -> u32 {
        self.0
    }
}

impl Table {
    /// Applies the optimizer with `grads`, `keys.len() * dim` values, row-major.
    ///
    /// Gradients of a repeated key are summed first (f32, in order), and its row is updated once. Missing rows are
    /// created.
    pub fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), StoreError> {
        let dim = self.layout.dim;
        self.check_length("grads", keys.len() * dim, grads.len())?;
        with_scratch(|scratch| {
            let Scratch { dedup, floats } = scratch;
            dedup.assign(keys);
            if dedup.unique.len() == keys.len() {
                self.push_unique(&dedup.unique, &dedup.counts, grads, scale)
            } else {
                floats.clear();
                floats.resize(dedup.unique.len() * dim, 0.0);
                for (gradient, &unique) in grads.chunks_exact(dim).zip(&dedup.inverse) {
                    for (sum, g) in floats[unique as usize * dim..][..dim].iter_mut().zip(gradient) {
                        *sum += g;
                    }
                }
                self.push_unique(&dedup.unique, &dedup.counts, floats, scale)
            }
        })
    }

    /// Pushes distinct keys, like [`Table::push`].
    ///
    /// `counts[i]` occurrences are added to a row's frequency. A key that occurs twice after all is updated twice.
    pub fn push_unique(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), StoreError> {
        self.check_push(keys, counts, grads, scale)?.apply()
    }

    /// Counts a push that is applied in parts, with [`Table::push_part`] or [`CheckedPush::apply_part`].
    pub fn count_push(&self) -> PushClock {
        PushClock(self.tick(lane()))
    }

    /// The clock of the latest push, for the rest of a push whose first part was counted elsewhere.
    pub fn latest_push(&self) -> PushClock {
        PushClock(self.clock.now())
    }

    /// Pushes some keys of a counted push, like [`Table::push_unique`].
    pub fn push_part(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
        clock: PushClock,
    ) -> Result<(), StoreError> {
        self.check_push(keys, counts, grads, scale)?.apply_part(0..keys.len(), clock)
    }

    /// Validates a push of distinct keys without applying it.
    ///
    /// A push to several tables can so be applied to all of them or none, and the gradients are checked once.
    pub fn check_push<'a>(
        &'a self,
        keys: &'a [u64],
        counts: &'a [u32],
        grads: &'a [f32],
        scale: PushScale,
    ) -> Result<CheckedPush<'a>, StoreError> {
        self.check_length("grads", keys.len() * self.layout.dim, grads.len())?;
        self.check_length("counts", keys.len(), counts.len())?;
        self.check_not_writing()?;
        self.check_gradients(keys, grads)?;
        self.check_scale(scale)?;
        Ok(CheckedPush { table: self, keys, counts, grads, scale, cached: None })
    }

    /// Rejects an invalid scale, and one that makes a learning rate infinite.
    pub(crate) fn check_scale(&self, scale: PushScale) -> Result<(), StoreError> {
        scale.check(self.name())?;
        if self.layout.blocks.iter().all(|block| block.kernel.scales(scale.lr_scale)) {
            return Ok(());
        }
        Err(StoreError::BadScale { table: self.name().to_string(), lr_scale: scale.lr_scale })
    }

    fn check_gradients(&self, keys: &[u64], grads: &[f32]) -> Result<(), StoreError> {
        let Some(at) = bad_gradient(grads) else { return Ok(()) };
        let (key, coordinate) = (keys[at / self.layout.dim], at % self.layout.dim);
        Err(StoreError::BadGradient { table: self.name().to_string(), key, coordinate, value: grads[at] })
    }
}

/// A valid push of distinct keys to a table, see [`Table::check_push`].
#[derive(Debug, Clone, Copy)]
pub struct CheckedPush<'a> {
    table: &'a Table,
    keys: &'a [u64],
    counts: &'a [u32],
    grads: &'a [f32],
    scale: PushScale,
    cached: Option<CachedRows<'a>>,
}

impl<'a> CheckedPush<'a> {
    /// Updates the rows that pulls of these keys, in this order, have found, without a search where that is possible.
    #[must_use]
    pub fn with_rows(self, rows: &'a PulledRows) -> CheckedPush<'a> {
        CheckedPush { cached: rows.of_keys(self.keys.len()), ..self }
    }

    /// The table of the push.
    #[must_use]
    pub fn table(&self) -> &Table {
        self.table
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Applies the push.
    pub fn apply(&self) -> Result<(), StoreError> {
        // Before it is counted: the thread may have got a writer since the check.
        self.table.check_not_writing()?;
        self.apply_part(0..self.len(), self.table.count_push())
    }

    /// Applies the keys at these positions, as a part of a push that [`Table::count_push`] has counted.
    pub fn apply_part(&self, part: Range<usize>, clock: PushClock) -> Result<(), StoreError> {
        self.apply_as(part, clock, &mut Replication::None)
    }

    /// Applies the push, as counted by [`Table::count_push`], and reports the version of each row after it.
    pub fn apply_and_report(&self, clock: PushClock, versions: &mut RowVersions) -> Result<(), StoreError> {
        versions.assign(self.len());
        self.apply_as(0..self.len(), clock, &mut Replication::Report(versions))
    }

    /// Applies a push that another table has [reported](CheckedPush::apply_and_report), in the order of versions.
    ///
    /// A row is updated if its version is the one before; newer rows are left as they are. Positions of keys with an
    /// older row, or without one, are appended to `later`. Keys of version 0 are skipped.
    pub fn apply_in_order(
        &self,
        versions: &[u32],
        clock: PushClock,
        later: &mut Vec<u32>,
    ) -> Result<(), StoreError> {
        self.table.check_length("versions", self.len(), versions.len())?;
        self.apply_as(0..self.len(), clock, &mut Replication::InOrder { versions, later })
    }

    fn apply_as(
        &self,
        part: Range<usize>,
        PushClock(clock): PushClock,
        replication: &mut Replication<'_>,
    ) -> Result<(), StoreError> {
        let (table, dim, lane) = (self.table, self.table.layout.dim, lane());
        table.check_not_writing()?;
        let (keys, counts) = (&self.keys[part.clone()], &self.counts[part.clone()]);
        let grads = &self.grads[part.start * dim..part.end * dim];
        let cached = self.cached.map(|cached| cached.part(part));
        let mut failures = PushFailures::default();
        with_lookup(|lookup| {
            lookup.steps.clear();
            lookup
                .steps
                .extend(table.layout.blocks.iter().map(|block| block.kernel.step(self.scale.lr_scale)));
            let chunks =
                keys.chunks(CHUNK_KEYS).zip(counts.chunks(CHUNK_KEYS)).zip(grads.chunks(CHUNK_KEYS * dim));
            for (number, ((keys, counts), grads)) in chunks.enumerate() {
                let first = number * CHUNK_KEYS;
                let cached = cached.map(|cached| cached.part(first..first + keys.len()));
                let failures = &mut failures;
                let chunk = PushChunk {
                    table,
                    lane,
                    lookup,
                    keys,
                    counts,
                    grads,
                    cached,
                    clock,
                    failures,
                    first,
                    replication,
                };
                simd::run(table.width(), chunk);
            }
        });
        failures.check(table)
    }
}

/// A chunk of a push.
pub(crate) struct PushChunk<'a, 'b> {
    pub(crate) table: &'a Table,
    pub(crate) lane: usize,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) counts: &'a [u32],
    pub(crate) grads: &'a [f32],
    pub(crate) cached: Option<CachedRows<'a>>,
    pub(crate) clock: u32,
    pub(crate) failures: &'a mut PushFailures,
    /// Position of the first key in the push.
    pub(crate) first: usize,
    pub(crate) replication: &'a mut Replication<'b>,
}

/// Updates each row with its gradient.
struct Gradients<'a, F> {
    format: F,
    layout: &'a Layout,
    steps: &'a [OptimizerStep],
    keys: &'a [u64],
    counts: &'a [u32],
    grads: &'a [f32],
    clock: u32,
    /// Buffer for a row.
    before: &'a mut Vec<f32>,
    failures: &'a mut PushFailures,
}

impl<F: Format> Edit for Gradients<'_, F> {
    #[inline(always)]
    fn use_clock(&self) -> Option<u32> {
        Some(self.clock)
    }

    fn initializes(&self, _at: usize) -> bool {
        false
    }

    #[inline(always)]
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, _is_new: bool) {
        let gradient = &self.grads[at * self.layout.dim..][..self.layout.dim];
        let update = Update { count: self.counts[at], clock: self.clock, gradient };
        if !self.layout.update(self.steps, self.format, row.by(vector), update, self.before) {
            self.failures.note(self.keys[at]);
        }
    }
}

impl Work for PushChunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        // Dispatched per chunk instead of per row.
        match self.table.layout.half {
            None => self.run_as(Singles, vector),
            Some(half) => self.run_as(half, vector),
        }
    }
}

impl PushChunk<'_, '_> {
    #[inline(always)]
    fn run_as(self, format: impl Format, vector: impl Vector) {
        let PushChunk {
            table,
            lane,
            lookup,
            keys,
            counts,
            grads,
            cached,
            clock,
            failures,
            first,
            replication,
        } = self;
        let (steps, mut before) = (std::mem::take(&mut lookup.steps), std::mem::take(&mut lookup.before));
        lookup.assign(table.hash_key, keys);
        let edit = Gradients {
            format,
            layout: &table.layout,
            steps: &steps,
            keys,
            counts,
            grads,
            clock,
            before: &mut before,
            failures: &mut *failures,
        };
        let full = match replication {
            Replication::None => edit_rows(table, lane, lookup, keys, cached, edit, vector),
            replication => {
                let log = &table.removal_log;
                let edit = ReplicatedEdit { edit, keys, log, first, replication };
                edit_replicated(table, lane, lookup, keys, cached, edit, vector.width())
            }
        };
        failures.note_full(full);
        (lookup.steps, lookup.before) = (steps, before);
    }
}
