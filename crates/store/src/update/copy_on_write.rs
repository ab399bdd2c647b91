//! Edits of rows with copy-on-write: a changed copy replaces the row in the index.

use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::{Lookup, Visit};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::RowMut;
use crate::simd::Width;
use crate::sync::write_gate::WriteGate;
use crate::update::create::RowInit;
use crate::update::edit::{Edit, InPlaceEditor};

/// Edits copies of rows, in tables with copy-on-write. Copies need `spare` rows; keys without one are `waiting`.
struct CowEditor<'a, E> {
    updater: InPlaceEditor<'a, E, Width>,
    hashes: &'a [u64],
    keys: &'a [u64],
    words: Vec<f32>,
    spare: Vec<u32>,
    retired: Vec<u32>,
    waiting: Vec<u32>,
}

impl<E: Edit> CowEditor<'_, E> {
    /// Updates a copy of the key's row and publishes it. Returns false if the key has no row any more.
    fn update_elsewhere(&mut self, at: usize, to: u32, locked: &KeyLock<'_>) -> bool {
        let table = self.updater.table;
        // The row may have been replaced before the key was locked.
        let from = locked.find();
        if from == NO_ROW {
            return false;
        }
        table.slab.read(from, &mut self.words);
        table.slab.write_unpublished(to, &self.words);
        self.updater.update_from_elsewhere(at, table.slab.unpublished(to), false);
        table.row_allocator.note_moved(self.keys[at], from, to, locked);
        locked.replace(to);
        if let Some(notes) = self.updater.notes {
            notes.note_store(to);
        }
        table.row_allocator.note_inherited(from);
        self.retired.push(from);
        true
    }

    fn update_present(&mut self, at: usize) {
        let Some(to) = self.spare.pop() else { return self.waiting.push(at as u32) };
        let locked = self.updater.table.directory.lock(self.hashes[at]);
        if !self.update_elsewhere(at, to, &locked) {
            self.spare.push(to);
            self.updater.absent.push(at as u32);
        }
    }
}

impl<E: Edit> Visit for CowEditor<'_, E> {
    const HINT: PrefetchHint = PrefetchHint::Read;

    fn visit(&mut self, at: usize, row: u32) {
        if row == NO_ROW {
            self.updater.absent.push(at as u32);
        } else {
            self.update_present(at);
        }
    }
}

impl<E: Edit> RowInit for CowEditor<'_, E> {
    fn initializes(&self, at: usize) -> bool {
        self.updater.initializes(at)
    }

    fn new_row(&mut self, at: usize, row: u32, words: RowMut<'_>) {
        self.updater.new_row(at, row, words);
    }

    fn existing_row(&mut self, at: usize, _row: u32, locked: &KeyLock<'_>) {
        match self.spare.pop() {
            Some(to) => _ = self.update_elsewhere(at, to, locked),
            None => self.waiting.push(at as u32),
        }
    }
}

/// Edits rows like [`edit_rows`], with copy-on-write.
pub(super) fn edit_rows_cow(
    lane: usize,
    lookup: &mut Lookup,
    keys: &[u64],
    updater: InPlaceEditor<'_, impl Edit, Width>,
    cow_gate: &WriteGate,
) -> u64 {
    let (table, shared) = (updater.table, updater.shared);
    let take = |rows: usize, spare: &mut Vec<u32>| {
        table.row_allocator.take(lane, rows, &table.slab, &table.budget, &table.directory, spare);
    };
    let hashes = lookup.hashes().to_vec();
    let mut mover = CowEditor {
        updater,
        hashes: &hashes,
        keys,
        words: vec![0.0; table.layout.words()],
        spare: Vec::new(),
        retired: std::mem::take(&mut lookup.retired),
        waiting: Vec::new(),
    };
    // Held while this push owns spare or retired rows.
    let mut holding = Some(cow_gate.lock_shared(lane));
    let mut exclusive = None;
    take(keys.len(), &mut mover.spare);
    let vector = mover.updater.vector;
    table.search(vector, lane, lookup, &mut mover);
    // The table is nearly full: rows that become free serve the next keys, which free others.
    let have_spare = |mover: &mut CowEditor<'_, _>| {
        if mover.spare.is_empty() {
            let wanted = mover.retired.len().max(1);
            table.row_allocator.retire_now(lane, &table.slab, &table.directory, &mut mover.retired);
            take(wanted, &mut mover.spare);
        }
        if mover.spare.is_empty() && table.find_free_rows() {
            take(1, &mut mover.spare);
        }
        while mover.spare.is_empty() && table.evict(lane, 1, shared) > 0 {
            take(1, &mut mover.spare);
        }
        !mover.spare.is_empty()
    };
    // Creates rows for `lookup.absent`.
    let create = |mover: &mut CowEditor<'_, _>, lookup: &mut Lookup| {
        // New rows use the same memory, except one row: a key that was created meanwhile may need it. As long as no
        // thread creates rows without it, one spare row remains for updates.
        if !have_spare(mover) {
            return table.reject_absent(lane, lookup);
        }
        table.row_allocator.give_back(lane, &table.slab, &mut mover.spare.split_off(1));
        table.create_absent(lane, lookup, keys, Some(shared), mover)
    };
    let mut rejected = 0;
    lookup.absent = std::mem::take(&mut mover.updater.absent);
    mover.updater.edit.admit(table, lane, lookup);
    // Repeats only if rows were evicted meanwhile, and perhaps created again by other threads.
    while !lookup.absent.is_empty() || !mover.waiting.is_empty() {
        if !lookup.absent.is_empty() {
            rejected += create(&mut mover, lookup);
        }
        let waiting = std::mem::take(&mut mover.waiting);
        for (done, &at) in waiting.iter().enumerate() {
            if !have_spare(&mut mover) && exclusive.is_none() {
                // Other threads own all spare rows. They have returned them once this one, which owns none, holds
                // the gate exclusively.
                drop(holding.take());
                exclusive = Some(cow_gate.lock_exclusive());
                take(waiting.len() - done, &mut mover.spare);
            }
            if mover.spare.is_empty() {
                // Rows of other tables were loaded into the last spare row. Treat the key as absent.
                mover.updater.absent.push(at);
            } else {
                mover.update_present(at as usize);
            }
        }
        lookup.absent = std::mem::take(&mut mover.updater.absent);
    }
    table.row_allocator.give_back(lane, &table.slab, &mut mover.spare);
    table.row_allocator.retire(lane, &table.slab, &table.directory, &mut mover.retired);
    lookup.retired = mover.retired;
    rejected
}
