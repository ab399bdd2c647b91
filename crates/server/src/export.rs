//! Rows of a table in key order, a block at a time. Memory between blocks is bounded. The cursor is a key, so that
//! every server with the same rows can continue. It knows no connection.

use std::cell::Cell;
use std::collections::VecDeque;

use sanderling_store::{RowColumns, WholeRows};
use sanderling_wire::{Exported, Fault, RowBlock};

use crate::limit::{EXPORT_KEYS_MAX, EXPORT_WINDOWS_MAX};
use crate::refusal::Refusal;
use crate::tables::Entry;

/// Bytes of a reply besides its rows, including padding.
const HEAD_BYTES: usize = 256;
/// Key, frequency, last use and version of a row.
const ROW_HEAD_BYTES: usize = 8 + 3 * 4;

/// The next keys of the tables under export, and the last block.
#[derive(Debug)]
pub(crate) struct Exporter {
    /// Maximum number of keys per window.
    keys_max: usize,
    /// One window per export that is under way, the most recently used last.
    windows: VecDeque<Window>,
    block: RowColumns,
}

/// All keys of a table from one key up to the window's last.
#[derive(Debug)]
struct Window {
    /// Number of the table.
    table: u32,
    from: u64,
    /// Keys, ascending.
    keys: Vec<u64>,
    /// Whether the table has keys beyond the window.
    more: bool,
}

impl Default for Exporter {
    fn default() -> Exporter {
        Exporter::new(EXPORT_KEYS_MAX)
    }
}

impl Exporter {
    pub(crate) fn new(keys_max: usize) -> Exporter {
        Exporter { keys_max, windows: VecDeque::new(), block: RowColumns::default() }
    }

    /// Copies up to `rows_max` rows with keys from `from` on, as many as fit a frame of `frame_bytes_max`.
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
        let window = self.take_window(entry, from);
        let (keys, first) = (&window.keys, window.keys.partition_point(|&key| key < from));
        let taken = keys.len().min(first + rows_max);
        self.block.clear();
        // Rows may have been removed since.
        entry.table.copy_rows(&keys[first..taken], &mut self.block);
        let next = match keys.get(taken) {
            Some(&key) => Some(key),
            None if window.more => keys.last().and_then(|last| last.checked_add(1)),
            None => None,
        };
        // After its last block a window is of no use.
        if taken < keys.len() {
            self.windows.push_back(window);
        }
        let WholeRows { keys, frequencies, last_uses, versions, weights, states } = self.block.rows();
        let rows = RowBlock { dim, state, keys, frequencies, last_uses, versions, weights, states };
        Ok(Exported { next, rows })
    }

    /// Finds the window to continue in or makes one. A new window may replace the least recently used one.
    fn take_window(&mut self, entry: &Entry, from: u64) -> Window {
        // An export sees all keys that existed when it began, so it must not start in an older window.
        if from == 0 {
            self.windows.retain(|window| window.table != entry.number);
        }
        let covers = |window: &Window| window.table == entry.number && window.covers(from);
        let known = self.windows.iter().rposition(covers);
        if let Some(window) = known.and_then(|at| self.windows.remove(at)) {
            return window;
        }
        if self.windows.len() == EXPORT_WINDOWS_MAX {
            self.windows.pop_front();
        }
        Window::look(entry, from, self.keys_max)
    }
}

impl Window {
    /// Whether the window tells the first key from `from` on.
    fn covers(&self, from: u64) -> bool {
        self.from <= from && (!self.more || self.keys.last().is_some_and(|&last| from <= last))
    }

    /// Collects the smallest keys from `from` on.
    fn look(entry: &Entry, from: u64, keys_max: usize) -> Window {
        let (mut keys, mut more) = (Vec::new(), false);
        let last = Cell::new(u64::MAX);
        let wants = |key: u64| (from..=last.get()).contains(&key);
        entry.table.for_each_key(wants, |key| {
            keys.push(key);
            if keys.len() == 2 * keys_max {
                keys.select_nth_unstable(keys_max - 1);
                keys.truncate(keys_max);
                last.set(keys[keys_max - 1]);
                more = true;
            }
        });
        keys.sort_unstable();
        more |= keys.len() > keys_max;
        keys.truncate(keys_max);
        keys.shrink_to_fit();
        Window { table: entry.number, from, keys, more }
    }
}
