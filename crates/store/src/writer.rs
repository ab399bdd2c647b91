//! Updates row by row: keys are resolved to rows once, many at a time, and then every update is applied at once, so
//! that the next read sees it. What online learning needs, where a push per sample would look every key up twice.
//! Knows nothing of how rows are found or updated; it holds the locks while others do that.

use std::sync::RwLockWriteGuard;

use crate::StoreError;
use crate::hash::mix;
use crate::index::{NO_ROW, PREFETCH_KEYS};
use crate::kernel::Step;
use crate::request::{SHARDS, shard_of};
use crate::shard::{Shard, update_row};
use crate::slab::{HEADER_WORDS, Place, touch};
use crate::table::Table;

/// Where a row lies, for as long as the writer that resolved it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHandle {
    shard: u32,
    place: Place,
}

/// Exclusive access to a table's rows by handle. Every other access to the table waits until it is dropped.
#[derive(Debug)]
pub struct TableWriter<'a> {
    table: &'a Table,
    shards: [RwLockWriteGuard<'a, Shard>; SHARDS],
    steps: Vec<Step>,
    clock: u32,
}

impl<'a> TableWriter<'a> {
    pub(crate) fn new(
        table: &'a Table,
        shards: [RwLockWriteGuard<'a, Shard>; SHARDS],
        steps: Vec<Step>,
        clock: u32,
    ) -> Self {
        TableWriter { table, shards, steps, clock }
    }

    /// Appends the row of every key to `handles`; keys without a row get one. Keys may repeat.
    ///
    /// Fails with [`StoreError::TableFull`] when the budget has no room; rows created until then stay, with their
    /// first weights.
    pub fn resolve(&mut self, keys: &[u64], handles: &mut Vec<RowHandle>) -> Result<(), StoreError> {
        let (layout, budget) = (&self.table.layout, &self.table.budget);
        handles.reserve(keys.len());
        // Hashes of the keys from `at` on, round and round.
        let mut hashes = [0; PREFETCH_KEYS];
        for (place, &key) in hashes.iter_mut().zip(keys) {
            *place = mix(key);
            self.shards[shard_of(*place)].index.prefetch(*place);
        }
        for (at, &key) in keys.iter().enumerate() {
            let hash = hashes[at % PREFETCH_KEYS];
            if let Some(&ahead) = keys.get(at + PREFETCH_KEYS) {
                let ahead = mix(ahead);
                self.shards[shard_of(ahead)].index.prefetch(ahead);
                hashes[at % PREFETCH_KEYS] = ahead;
            }
            let number = shard_of(hash);
            let shard = &mut *self.shards[number];
            let mut row = shard.index.find(hash);
            if row == NO_ROW {
                let Some(created) = shard.create(layout, budget, hash, key) else {
                    // Counted here: this writer holds the locks that the table would wait for.
                    let rows = self.shards.iter().map(|shard| shard.index.len()).sum();
                    return Err(self.table.full_with(rows, 1));
                };
                row = created;
            }
            let place = shard.slab.place(row);
            shard.slab.prefetch_at(place, layout.words());
            handles.push(RowHandle { shard: number as u32, place });
        }
        Ok(())
    }

    /// The weights of a row.
    #[inline]
    #[must_use]
    pub fn weights(&self, handle: RowHandle) -> &[f32] {
        &self.words(handle)[HEADER_WORDS..][..self.table.layout.dim]
    }

    /// The first weight of a row: all there is in logistic regression.
    #[inline]
    #[must_use]
    pub fn first_weight(&self, handle: RowHandle) -> f32 {
        self.words(handle)[HEADER_WORDS]
    }

    #[inline(always)]
    fn words(&self, handle: RowHandle) -> &[f32] {
        self.shards[handle.shard as usize % SHARDS].slab.at(handle.place)
    }

    /// Applies the optimizer to a row at once, as a push of this gradient alone would.
    ///
    /// The gradient must have the table's dim and be finite; the caller has made sure of it, as the rows before this
    /// one are updated already.
    #[inline]
    pub fn update(&mut self, handle: RowHandle, gradient: &[f32]) {
        debug_assert!(gradient.len() == self.table.layout.dim && gradient.iter().all(|g| g.is_finite()));
        if let ([Step::Ftrl(step)], [gradient]) = (self.steps.as_slice(), gradient) {
            // The row of logistic regression: w, z, n after the header.
            let row = self.shards[handle.shard as usize % SHARDS].slab.at_mut(handle.place);
            touch(row, 1, self.clock);
            if let [w, z, n, ..] = &mut row[HEADER_WORDS..] {
                (*w, *z, *n) = step.update(*w, *z, *n, *gradient);
            }
            return;
        }
        self.update_any(handle, gradient);
    }

    /// Apart, so that the short way above stays short.
    #[inline(never)]
    fn update_any(&mut self, handle: RowHandle, gradient: &[f32]) {
        let row = self.shards[handle.shard as usize % SHARDS].slab.at_mut(handle.place);
        update_row(&self.table.layout, &self.steps, row, 1, self.clock, gradient);
    }
}

#[cfg(test)]
mod tests {
    use crate::{Absent, Block, Init, Optimizer, PushScale, Table, TableConfig};

    fn table() -> Table {
        let ftrl = Optimizer::Ftrl { alpha: 0.1, beta: 1.0, l1: 0.01, l2: 0.1 };
        let adam = Optimizer::Adam { lr: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, l2: 0.0 };
        let blocks = vec![
            Block { dims: 1, init: Init::Zero, optimizer: ftrl },
            Block { dims: 3, init: Init::Normal { std: 0.1 }, optimizer: adam },
        ];
        Table::new(TableConfig { name: "t".into(), blocks, seed: 7, budget_bytes: None }).unwrap()
    }

    #[test]
    fn updates_by_handle_equal_pushes_one_by_one() {
        let (by_push, by_handle) = (table(), table());
        let mut writer = by_handle.writer(PushScale { lr: 0.5 }).unwrap();
        let mut handles = Vec::new();
        let keys: Vec<u64> = (0..500).map(|i| (i * 7919) % 101).collect();
        writer.resolve(&keys, &mut handles).unwrap();
        for (i, (key, handle)) in keys.iter().zip(&handles).enumerate() {
            let gradient = [0.1, -0.2, 0.3, -0.4].map(|g| g * (i as f32).sin());
            by_push.push(&[*key], &gradient, PushScale { lr: 0.5 }).unwrap();
            writer.update(*handle, &gradient);
            let mut pulled = [0.0; 4];
            by_push.pull(&[*key], Absent::Zero, &mut pulled, None).unwrap();
            assert_eq!(writer.weights(*handle), pulled);
        }
        drop(writer);
        assert_eq!(by_push.len(), by_handle.len());
        by_push.for_each_row(|row| {
            let twin = by_handle.get(row.key).unwrap();
            assert_eq!((row.weights, row.state), (&twin.weights[..], &twin.state[..]));
            assert_eq!((row.frequency, row.version), (twin.frequency, twin.version));
        });
    }
}
