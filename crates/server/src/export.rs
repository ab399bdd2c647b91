//! Rows of a table in the order of their keys, a block at a time. What is kept between blocks is bounded, and where to go
//! on is a key, so that any server with the same rows can. Knows no connection.

use std::cell::Cell;

use sanderling_store::{RowColumns, WholeRows};
use sanderling_wire::{Exported, Fault, RowBlock};

use crate::limit::EXPORT_KEYS_MAX;
use crate::refusal::Refusal;
use crate::tables::Entry;

/// Bytes of a reply beside its rows, with room for padding.
const HEAD_BYTES: usize = 256;
/// Key, frequency, last use and version of a row.
const ROW_HEAD_BYTES: usize = 8 + 3 * 4;

/// The next keys of the table that is being exported, and the block that was made last.
#[derive(Debug, Default)]
pub(crate) struct Exporter {
    /// Number of the table, and from which key on `keys` are all there are up to their last.
    window: Option<(u32, u64)>,
    /// Ascending.
    keys: Vec<u64>,
    /// Were there more keys than these?
    more: bool,
    block: RowColumns,
}

impl Exporter {
    /// Up to `rows_max` rows with keys from `from` on, as many as a frame of `frame_bytes_max` takes.
    pub(crate) fn rows(
        &mut self,
        entry: &Entry,
        from: u64,
        rows_max: u32,
        frame_bytes_max: usize,
    ) -> Result<Exported<'_>, Refusal> {
        let (dim, state) = (entry.dim(), entry.state);
        let row_bytes = ROW_HEAD_BYTES + 4 * (dim + state) as usize;
        let fit = (frame_bytes_max - HEAD_BYTES) / row_bytes;
        let rows_max = fit.min(rows_max as usize);
        if rows_max == 0 {
            let (bytes, bytes_max) = ((HEAD_BYTES + row_bytes) as u64, frame_bytes_max as u64);
            let reason = "not even one row fits, or none was asked for";
            return Err(Refusal::new(Fault::TooLarge { bytes, bytes_max }, reason));
        }
        let covered = self.window.is_some_and(|(table, start)| table == entry.number && start <= from)
            && (!self.more || self.keys.last().is_some_and(|&last| from <= last));
        // The first block of an export sees the table as it is.
        if from == 0 || !covered {
            self.look(entry, from);
        }
        let first = self.keys.partition_point(|&key| key < from);
        let taken = self.keys.len().min(first + rows_max);
        self.block.clear();
        // Rows may have gone since.
        entry.table.copy_rows(&self.keys[first..taken], &mut self.block);
        let next = match self.keys.get(taken) {
            Some(&key) => Some(key),
            None if self.more => self.keys.last().and_then(|last| last.checked_add(1)),
            None => None,
        };
        let WholeRows { keys, frequencies, last_uses, versions, weights, states } = self.block.rows();
        let rows = RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
        Ok(Exported { next, rows })
    }

    /// Sets the smallest keys from `from` on aside.
    fn look(&mut self, entry: &Entry, from: u64) {
        let keys = &mut self.keys;
        keys.clear();
        self.more = false;
        let last = Cell::new(u64::MAX);
        let wants = |key: u64| (from..=last.get()).contains(&key);
        entry.table.for_each_key(wants, |key| {
            keys.push(key);
            if keys.len() == 2 * EXPORT_KEYS_MAX {
                keys.select_nth_unstable(EXPORT_KEYS_MAX - 1);
                keys.truncate(EXPORT_KEYS_MAX);
                last.set(keys[EXPORT_KEYS_MAX - 1]);
                self.more = true;
            }
        });
        keys.sort_unstable();
        self.more |= keys.len() > EXPORT_KEYS_MAX;
        keys.truncate(EXPORT_KEYS_MAX);
        self.window = Some((entry.number, from));
    }
}
