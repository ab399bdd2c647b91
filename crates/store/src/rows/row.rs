//! One row, as it is shown to the outside, and as it is copied in and out whole. Knows nothing of requests.

use crate::index::hash::index_hash;
use crate::index::{Index, NO_ROW};
use crate::lookup::with_lookup;
use crate::rows::layout::Header;
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::{StoreError, Writes};

/// A copy of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes, saturating.
    pub frequency: u32,
    /// The table's use clock (its number of pushes, modulo 2^32) at the row's last push; 2^31 pushes ago, if that was longer
    /// ago.
    pub last_use: u32,
    /// Updates of this row: exact up to 2^32 - 1, and then round and round from 2^31 to 2^32 - 1.
    pub version: u32,
    /// Weights, `dim` of them.
    pub weights: Vec<f32>,
    /// Optimizer state, block after block, slot after slot: momentum `v`, Adagrad `a`, Adam and AdamW `m v`, FTRL `z n`,
    /// `dims` values each; row-wise Adagrad one `a` per block.
    pub state: Vec<f32>,
}

/// A row in place, as [`Table::for_each_row`] shows it; fields as in [`Row`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRef<'a> {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes, saturating.
    pub frequency: u32,
    /// The table's use clock at the row's last push.
    pub last_use: u32,
    /// Updates of this row, as in [`Row`].
    pub version: u32,
    /// Weights.
    pub weights: &'a [f32],
    /// Optimizer state, that of each block after the other's; of FTRL all z, then all n.
    pub state: &'a [f32],
}

impl Row {
    /// It, as it is shown in place.
    #[must_use]
    pub fn as_ref(&self) -> RowRef<'_> {
        let &Row { key, frequency, last_use, version, ref weights, ref state } = self;
        RowRef { key, frequency, last_use, version, weights, state }
    }
}

impl Table {
    /// A copy of the key's row.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Row> {
        let view = self.directory.pin(lane());
        let row = view.index().find(index_hash(key));
        if row == NO_ROW {
            return None;
        }
        let mut words = vec![0.0; self.layout.unpacked()];
        self.layout.read_row(&self.slab, row, &mut words);
        let RowRef { key, frequency, last_use, version, weights, state } = self.layout.parts(&words);
        Some(Row { key, frequency, last_use, version, weights: weights.to_vec(), state: state.to_vec() })
    }

    /// Makes the first weight of a key's row NaN, as no push does: for tests of what else may be there.
    #[doc(hidden)]
    pub fn spoil(&self, key: u64) -> bool {
        let (lane, hash) = (lane(), index_hash(key));
        let shared = self.write_gate.lock_shared(lane);
        let row = self.directory.pin(lane).index().find(hash);
        if row != NO_ROW {
            self.slab.write(row, &shared).row.set(0, f32::NAN.to_bits());
        }
        row != NO_ROW
    }

    /// Makes room for all rows of a checkpoint in an empty table. Rows come first, and the index has what they leave, so that
    /// it is fuller where the budget is all but used up; it does not grow at their cost while they come. Once a table has had
    /// as many rows, this has room for them in every table of its configuration.
    pub(crate) fn make_room(&mut self, rows: u64) {
        // By one that is left, a full copy-on-write table updates all others.
        let left = u64::from(self.config().writes == Writes::CopyOnWrite);
        self.row_allocator.charge_ahead(lane(), rows + left, &self.slab, &self.budget);
        let keys = usize::try_from(rows).unwrap_or(usize::MAX / 128);
        for fill_percent in Index::RESERVED_PERCENTS {
            if self.grow(|index| index.reserved_bytes(keys, fill_percent)) {
                break;
            }
        }
    }

    /// Inserts a row as a checkpoint holds it: `values` are weights, then state. False when the key is there. Eviction makes
    /// room where there is none.
    pub(crate) fn restore_row(&mut self, header: Header, values: &[f32]) -> Result<bool, StoreError> {
        let (lane, hash) = (lane(), index_hash(header.key));
        if self.directory.lock(hash).index().find(hash) != NO_ROW {
            return Ok(false);
        }
        let shared = self.write_gate.lock_shared(lane);
        let restored = with_lookup(|lookup| {
            let row = loop {
                let claimed = self.claim(1);
                self.row_allocator.take(
                    lane,
                    claimed,
                    &self.slab,
                    &self.budget,
                    &self.directory,
                    &mut lookup.spare,
                );
                if let Some(row) = lookup.spare.pop() {
                    break row;
                }
                self.directory.unclaim(claimed);
                if self.evict(lane, 1, &shared) == 0 {
                    return false;
                }
            };
            lookup.words.resize(self.layout.unpacked(), 0.0);
            let words = self.layout.join_row(header, values, &mut lookup.words);
            self.slab.write_unpublished(row, words);
            self.directory.lock(hash).index().insert(hash, row);
            true
        });
        if restored { Ok(true) } else { Err(self.full(1)) }
    }
}
