//! Subscriptions and drains: epochs, the keys of past epochs, and frames of present values.
//!
//! Every drain begins an epoch. A drain collects the hashes of keys whose rows changed since the drain before, keeps
//! them as the set of its epoch, and hands out the present values of all keys in the sets since the subscriber's
//! epoch. Values are read after the marks were cleared, so a value may be newer than its epoch; then the row is marked
//! again and in the next drain as well.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use crate::changes::epochs::{Changes, Stream};
use crate::changes::frame::ChangeFrame;
use crate::changes::notes::Notes;
use crate::index::NO_ROW;
use crate::memory::prefetch::PrefetchHint;
use crate::sync::lanes::lane;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::{RowRef, StoreError};

/// Keys of a frame.
const FRAME_KEYS: usize = 1024;
/// Keys that are read under one index guard.
const GROUP: usize = 64;
/// Keys of past epochs that are kept of each table, and more in large ones: so many per row.
const KEPT_KEYS_MIN: usize = 1 << 18;
const KEPT_PER_ROW: usize = 4;

/// Sorts hashes, which is also the order of the index, and removes repeated ones.
fn sort(hashes: &mut Vec<u64>) {
    hashes.sort_unstable();
    hashes.dedup();
}

impl Table {
    /// Keys that [`Table::subscribe_changes`] keeps for late subscribers by default.
    pub const CHANGE_KEYS: usize = 1 << 20;

    /// The notes of changes, if there has been a subscriber.
    #[inline(always)]
    pub(crate) fn notes(&self) -> Option<&Notes> {
        self.changes.get().map(|changes| &changes.notes)
    }

    /// Begins a subscription to the table's changes; returns the present epoch.
    ///
    /// An export of all rows that begins afterwards ([`Table::for_each_row`], a checkpoint), and the changes since
    /// this epoch ([`Table::drain_changes`]), give the table. The first subscription waits for the pushes in progress,
    /// and makes pushes note their rows from then on; that does not end. It sets `keys_max`, the keys of past epochs
    /// that are kept for late subscribers, of 8 bytes each: [`Table::CHANGE_KEYS`] for most. As many removed keys are
    /// kept between two drains. A bit per row comes to that.
    ///
    /// # Errors
    ///
    /// [`StoreError::Config`] without address space for a bit per row. [`StoreError::Writing`] if this thread holds a
    /// [`TableWriter`](crate::TableWriter) of the table.
    pub fn subscribe_changes(&self, keys_max: usize) -> Result<u64, StoreError> {
        self.check_not_writing()?;
        let changes = match self.changes.get() {
            Some(changes) => changes,
            None => {
                let Some(notes) = Notes::new(self.row_allocator.rows_max(), keys_max) else {
                    let reason = "no address space for the marks of changed rows: raise the process's limit (ulimit -v)";
                    return Err(StoreError::Config {
                        table: self.name().to_string(),
                        reason: reason.to_string(),
                    });
                };
                self.changes.get_or_init(|| Changes { notes, stream: Mutex::new(Stream::new()), keys_max })
            }
        };
        // Pushes that began without notes end before.
        drop(self.write_gate.lock_exclusive());
        let stream = &mut *lock(&changes.stream);
        if changes.notes.take_incomplete() {
            stream.epoch += 1;
            stream.forget();
        }
        Ok(stream.epoch)
    }

    /// Passes all changes since the epoch `since` to `f`, in frames of up to 1,024 keys, and begins an epoch; returns
    /// that, from which the next drain goes on. Returns `None` if `f` broke; the subscriber stays at `since`.
    ///
    /// A row is passed once, at its present value, however often it changed. A change that was complete before is in
    /// this drain, one beside it in this or the next one. Pushes do not wait. `f` may use
    /// the table, but must not drain or subscribe.
    ///
    /// # Errors
    ///
    /// [`StoreError::StreamTooLate`] if the changes since `since` are not kept: the subscriber missed too many,
    /// [`Table::clear`] ran, the epoch is another process's, or the table has no subscriber. Subscribe, and start from an export.
    pub fn drain_changes(
        &self,
        since: u64,
        mut f: impl FnMut(&ChangeFrame) -> ControlFlow<()>,
    ) -> Result<Option<u64>, StoreError> {
        let began = Instant::now();
        let too_late = |oldest: u64| Err(self.too_late(since, oldest));
        let Some(changes) = self.changes.get() else { return too_late(0) };
        let mut guard = lock(&changes.stream);
        let stream = &mut *guard;
        if !(stream.oldest..=stream.epoch).contains(&since) {
            return too_late(stream.oldest);
        }
        stream.epoch += 1;
        let mut hashes = Vec::new();
        changes.notes.take_removed(&mut hashes);
        if changes.notes.take_incomplete() {
            stream.forget();
            return too_late(stream.oldest);
        }
        let mut lines = changes.notes.lines_of(self.row_allocator.charged());
        self.take_changed(changes, &mut lines, changes.keys_max, &mut hashes);
        let mut earlier = stream.after(since);
        if lines.is_empty() {
            let set = hashes.clone();
            earlier.append(&mut hashes);
            stream.keep(set, self.kept_keys_max(changes));
            stream.progress.note_whole(began);
        } else {
            // Too many for the sets: only this subscriber gets them.
            earlier.append(&mut hashes);
            stream.forget();
        }
        let epoch = stream.epoch;
        // Other subscribers need not wait for `f`, which may write to a disk, unless there are marks left to take.
        let _guard = (!lines.is_empty()).then_some(guard);
        sort(&mut earlier);
        let mut frame = ChangeFrame { may_repeat: !lines.is_empty(), ..ChangeFrame::default() };
        let mut flow = self.pass_changes(epoch, &earlier, &mut frame, &mut f);
        drop(earlier);
        while flow.is_continue() && !lines.is_empty() {
            hashes.clear();
            self.take_changed(changes, &mut lines, changes.keys_max, &mut hashes);
            flow = self.pass_changes(epoch, &hashes, &mut frame, &mut f);
        }
        Ok(flow.is_continue().then_some(epoch))
    }

    /// Returns whether a drain since this epoch would find changes.
    ///
    /// # Errors
    ///
    /// [`StoreError::StreamTooLate`] as for [`Table::drain_changes`].
    pub fn has_changes(&self, since: u64) -> Result<bool, StoreError> {
        let too_late = |oldest: u64| Err(self.too_late(since, oldest));
        let Some(changes) = self.changes.get() else { return too_late(0) };
        let stream = lock(&changes.stream);
        if !(stream.oldest..=stream.epoch).contains(&since) {
            return too_late(stream.oldest);
        }
        let is_in_sets = stream.sets.iter().any(|(epoch, hashes)| *epoch > since && !hashes.is_empty());
        Ok(is_in_sets || !changes.notes.is_empty())
    }

    /// Keys of past epochs that are kept. A subscriber that lacks several times as many as there are rows gets all rows
    /// sooner than them.
    pub(super) fn kept_keys_max(&self, changes: &Changes) -> usize {
        changes.keys_max.min((KEPT_PER_ROW * self.len()).max(KEPT_KEYS_MIN))
    }

    /// The error of a subscriber at an epoch whose changes are not kept.
    pub(super) fn too_late(&self, epoch: u64, oldest: u64) -> StoreError {
        StoreError::StreamTooLate { table: self.name().to_string(), epoch, oldest }
    }

    /// Appends the hashes of the keys of marked rows, until there are `keys_max`, and sorts all of them.
    pub(super) fn take_changed(
        &self,
        changes: &Changes,
        lines: &mut Range<usize>,
        keys_max: usize,
        hashes: &mut Vec<u64>,
    ) {
        changes.notes.take_rows(lines, |row| {
            // A row that has lost its key, or is just getting one, may give any key, of which the present value does
            // no harm. The key that it lost is among the removed or has another row, which is marked.
            hashes.push(self.hash_key.hash(self.key_of(row)));
            hashes.len() >= keys_max.max(1)
        });
        sort(hashes);
    }

    /// Passes the present values of keys to `f`.
    fn pass_changes(
        &self,
        epoch: u64,
        hashes: &[u64],
        frame: &mut ChangeFrame,
        f: &mut impl FnMut(&ChangeFrame) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for hashes in hashes.chunks(FRAME_KEYS) {
            frame.begin(epoch);
            self.read_present(hashes, |key, row| match row {
                None => frame.removed.push(key),
                Some(row) => frame.rows.push(row),
            });
            f(frame)?;
        }
        ControlFlow::Continue(())
    }

    /// Passes the present row of each hash to `each`, which must not use the table, or `None` without one.
    pub(super) fn read_present(&self, hashes: &[u64], mut each: impl FnMut(u64, Option<RowRef<'_>>)) {
        let (lane, mut words) = (lane(), vec![0.0; self.layout.unpacked()]);
        for group in hashes.chunks(GROUP) {
            let view = self.directory.pin(lane);
            for &hash in group {
                view.view().of(hash).prefetch(hash, PrefetchHint::Read);
            }
            for &hash in group {
                let row = view.find(hash);
                if row == NO_ROW {
                    each(self.hash_key.key(hash), None);
                } else {
                    // Not reused before the guard is dropped. If it is removed or replaced meanwhile, the next drain
                    // has the key.
                    self.layout.read_row(&self.slab, row, &mut words);
                    let row = self.layout.parts(&words);
                    each(row.key, Some(row));
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Init, Optimizer, PushScale, TableConfig};

    /// A small table whose rows all change in each epoch keeps few sets, and a subscriber from the beginning gets all keys.
    #[test]
    fn the_kept_keys_of_a_small_table_are_few() {
        let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
        let table = Table::new(TableConfig::single("t", 1, Init::Zero, sgd)).unwrap();
        let first = table.subscribe_changes(1 << 24).unwrap();
        let keys: Vec<u64> = (0..2_000).collect();
        let mut since = first;
        for _ in 0..300 {
            table.push(&keys, &vec![1.0; keys.len()], PushScale::default()).unwrap();
            since = table.drain_changes(since, |_| std::ops::ControlFlow::Continue(())).unwrap().unwrap();
            let kept = table.changes.get().unwrap().stream.lock().unwrap().keys;
            assert!(kept <= KEPT_KEYS_MIN, "{kept}");
        }
        let mut rows = 0;
        let drained = table.drain_changes(first, |frame| {
            rows += frame.rows.len();
            std::ops::ControlFlow::Continue(())
        });
        drained.unwrap();
        assert_eq!(rows, keys.len());
    }
}
