//! Edits of rows in place in tables that outlive the process: each row is copied before, for a process that finds it
//! half edited ([`crate::rows::undo`]).

use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::{CachedRows, Lookup, Visit};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::RowMut;
use crate::rows::undo::{UndoSlot, UndoSlots};
use crate::simd::{self, Vector, Width, Work};
use crate::update::create::RowInit;
use crate::update::edit::{Edit, InPlaceEditor};

/// Edits rows in place, each after it was copied.
struct KeptEditor<'a, E> {
    updater: InPlaceEditor<'a, E, Width>,
    slot: UndoSlot<'a>,
}

impl<E: Edit> KeptEditor<'_, E> {
    fn change(&mut self, at: usize, row: u32) {
        let InPlaceEditor { edit, vector, table, shared, notes, .. } = &mut self.updater;
        let writing = table.write_row(row, shared, *notes);
        simd::run(*vector, EditKeptRow { edit, at, row, words: writing.row, slot: &mut self.slot });
    }
}

impl<E: Edit> Visit for KeptEditor<'_, E> {
    const HINT: PrefetchHint = PrefetchHint::Write;

    fn visit(&mut self, at: usize, row: u32) {
        if row == NO_ROW {
            self.updater.absent.push(at as u32);
        } else {
            self.change(at, row);
        }
    }
}

impl<E: Edit> RowInit for KeptEditor<'_, E> {
    fn initializes(&self, at: usize) -> bool {
        self.updater.initializes(at)
    }

    fn new_row(&mut self, at: usize, row: u32, words: RowMut<'_>) {
        self.updater.new_row(at, row, words);
    }

    fn existing_row(&mut self, at: usize, row: u32, _: &KeyLock<'_>) {
        self.change(at, row);
    }
}

/// Copies and edits one row as a unit of vectorized work.
struct EditKeptRow<'a, 'b, E> {
    edit: &'a mut E,
    at: usize,
    row: u32,
    words: RowMut<'a>,
    slot: &'a mut UndoSlot<'b>,
}

impl<E: Edit> Work for EditKeptRow<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        self.slot.begin(self.row, &self.words.by(vector));
        self.edit.edit(vector, self.at, self.words, false);
        self.slot.end();
    }
}

/// Edits rows like [`crate::update::edit::edit_rows`], and copies each before.
///
/// It is not compiled for each vector width, only the work per row is: private tables have their own code, without a
/// branch per row.
#[inline(never)]
pub(super) fn edit_rows_kept(
    lane: usize,
    lookup: &mut Lookup,
    keys: &[u64],
    cached: Option<CachedRows<'_>>,
    updater: InPlaceEditor<'_, impl Edit, Width>,
    undo: &UndoSlots,
) -> u64 {
    let (table, shared, vector) = (updater.table, updater.shared, updater.vector);
    let mut editor = KeptEditor { updater, slot: undo.take(lane) };
    // A key that had no row may have got one, and must not be admitted like a new one.
    let may_use = |cached: &CachedRows<'_>| table.admission_filter.admits_all() || cached.is_complete();
    if !cached.filter(may_use).is_some_and(|cached| table.visit_cached(lane, cached, &mut editor)) {
        editor.updater.edit.invalidate_cached();
        table.search(vector, lane, lookup, &mut editor);
    }
    lookup.absent = std::mem::take(&mut editor.updater.absent);
    if lookup.absent.is_empty() {
        return 0;
    }
    editor.updater.edit.admit(table, lane, lookup);
    editor.updater.edit.invalidate_cached();
    table.create_absent(lane, lookup, keys, Some(shared), &mut editor)
}
