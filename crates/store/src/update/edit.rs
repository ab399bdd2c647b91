//! Edits of rows: search every key of a chunk, create missing rows, and change each row in place.

use crate::changes::notes::Notes;
use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::{CachedRows, Lookup, Visit};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::{RowMut, RowWrite};
use crate::simd::{self, Vector, Work};
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;
use crate::update::copy_on_write::edit_rows_cow;
use crate::update::create::RowInit;
use crate::update::kept::edit_rows_kept;

/// Changes the rows of keys.
pub(crate) trait Edit {
    /// The reading of the use clock if this counts as use: keys are sampled, and new keys need admission. Otherwise
    /// `None`.
    fn use_clock(&self) -> Option<u32>;
    /// Whether a new row's weights and state are stored completely, for the key at this position of the chunk.
    fn initializes(&self, at: usize) -> bool;
    /// Keeps the positions in `lookup.absent` of keys that get a row.
    fn admit(&mut self, table: &Table, lane: usize, lookup: &mut Lookup) {
        if let Some(clock) = self.use_clock() {
            table.admit(lane, lookup, clock);
        }
    }
    /// Changes the row of the key at this position of the chunk.
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, is_new: bool);
    /// From here on, rows may differ from the [`CachedRows`].
    fn invalidate_cached(&mut self) {}
}

/// Edits the rows of a chunk of keys, which `lookup` holds, and creates missing ones. Uses the rows of `cached` if
/// they are still valid. Returns the number of keys without room.
#[inline(always)]
pub(crate) fn edit_rows(
    table: &Table,
    lane: usize,
    lookup: &mut Lookup,
    keys: &[u64],
    cached: Option<CachedRows<'_>>,
    edit: impl Edit,
    vector: impl Vector,
) -> u64 {
    let mut absent = std::mem::take(&mut lookup.absent);
    absent.clear();
    let shared = &table.write_gate.lock_shared(lane);
    // Also for keys that have rows, so that a growth ends although no new ones come.
    table.directory.advance_growth(lane, 0);
    // Once per chunk: a first subscriber waits for this thread.
    let notes = table.notes();
    if edit.use_clock().is_some() {
        table.note(lane, lookup);
    }
    if let Some(cow_gate) = &table.cow_gate {
        let updater = InPlaceEditor { edit, vector: vector.width(), table, shared, notes, absent };
        return edit_rows_cow(lane, lookup, keys, updater, cow_gate);
    }
    if let Some(undo) = &table.slab.undo {
        let updater = InPlaceEditor { edit, vector: vector.width(), table, shared, notes, absent };
        return edit_rows_kept(lane, lookup, keys, cached, updater, undo);
    }
    let mut updater = InPlaceEditor { edit, vector, table, shared, notes, absent };
    // A key that had no row may have got one, and must not be admitted like a new one.
    let may_use = |cached: &CachedRows<'_>| table.admission_filter.admits_all() || cached.is_complete();
    // Not in a closure, which would not be compiled for the detected instructions.
    let visited = match cached.filter(may_use) {
        Some(cached) => table.visit_cached(lane, cached, &mut updater),
        None => false,
    };
    if !visited {
        updater.edit.invalidate_cached();
        table.search(vector, lane, lookup, &mut updater);
    }
    lookup.absent = std::mem::take(&mut updater.absent);
    if lookup.absent.is_empty() {
        return 0;
    }
    updater.edit.admit(table, lane, lookup);
    updater.edit.invalidate_cached();
    table.create_absent(lane, lookup, keys, Some(shared), &mut updater)
}

impl Table {
    /// Locks a row for a change, and notes the change if there are notes.
    #[inline(always)]
    pub(crate) fn write_row(
        &self,
        row: u32,
        shared: &SharedGuard<'_>,
        notes: Option<&Notes>,
    ) -> RowWrite<'_> {
        let writing = self.slab.write(row, shared);
        if let Some(notes) = notes {
            notes.note_update(row);
        }
        writing
    }
}

/// Edits the rows of a chunk in place, and collects the positions of absent keys.
pub(super) struct InPlaceEditor<'a, E, V> {
    pub(super) edit: E,
    pub(super) vector: V,
    pub(super) table: &'a Table,
    pub(super) shared: &'a SharedGuard<'a>,
    pub(super) notes: Option<&'a Notes>,
    pub(super) absent: Vec<u32>,
}

impl<E: Edit, V: Vector> InPlaceEditor<'_, E, V> {
    /// For code that is not compiled for the detected instructions.
    pub(super) fn update_from_elsewhere(&mut self, at: usize, row: RowMut<'_>, is_new: bool) {
        simd::run(self.vector.width(), EditRow { edit: &mut self.edit, at, row, is_new });
    }
}

impl<E: Edit, V: Vector> Visit for InPlaceEditor<'_, E, V> {
    const HINT: PrefetchHint = PrefetchHint::Write;

    // Not a closure: it must be inlined to be compiled for the detected instructions.
    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        if row == NO_ROW {
            self.absent.push(at as u32);
        } else {
            let writing = self.table.write_row(row, self.shared, self.notes);
            self.edit.edit(self.vector, at, writing.row, false);
        }
    }
}

impl<E: Edit, V: Vector> RowInit for InPlaceEditor<'_, E, V> {
    fn initializes(&self, at: usize) -> bool {
        self.edit.initializes(at)
    }

    fn new_row(&mut self, at: usize, _row: u32, words: RowMut<'_>) {
        self.update_from_elsewhere(at, words, true);
    }

    fn existing_row(&mut self, at: usize, row: u32, _: &KeyLock<'_>) {
        let writing = self.table.write_row(row, self.shared, self.notes);
        self.update_from_elsewhere(at, writing.row, false);
    }
}

/// Edits one row as a unit of vectorized work.
pub(super) struct EditRow<'a, E> {
    pub(super) edit: &'a mut E,
    pub(super) at: usize,
    pub(super) row: RowMut<'a>,
    pub(super) is_new: bool,
}

impl<E: Edit> Work for EditRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        self.edit.edit(vector, self.at, self.row, self.is_new);
    }
}
