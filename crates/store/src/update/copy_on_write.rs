//! Edits of rows with copy-on-write: a changed copy replaces the row in the index.
//!
//! In a table that survives the loss of power, the copies of a chunk are made first and are durable before any of them
//! gets its key; the keys' slots are durable before the former rows are freed and the caller is answered. That takes
//! two fences per chunk.

use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::{Lookup, Visit};
use crate::memory::persist::{Step, unlocked};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::RowMut;
use crate::simd::Width;
use crate::sync::write_gate::WriteGate;
use crate::update::create::RowInit;
use crate::update::edit::{Edit, InPlaceEditor};

/// Prefetch distance of buckets of planned copies.
const AHEAD_BUCKETS: usize = 8;

/// Edits copies of rows, in tables with copy-on-write. Copies need `spare` rows; keys without one are `waiting`.
///
/// If the table survives the loss of power (`durable`), copies are `planned` until they are durable.
struct CowEditor<'a, E> {
    durable: bool,
    updater: InPlaceEditor<'a, E, Width>,
    hashes: &'a [u64],
    keys: &'a [u64],
    words: Vec<f32>,
    spare: Vec<u32>,
    retired: Vec<u32>,
    waiting: Vec<u32>,
    planned: Vec<Planned>,
}

/// A copy that is to replace a row.
struct Planned {
    at: u32,
    from: u32,
    to: u32,
}

impl<E: Edit> CowEditor<'_, E> {
    /// Updates a copy of a row.
    fn copy(&mut self, at: usize, from: u32, to: u32) {
        let table = self.updater.table;
        table.slab.read(from, &mut self.words);
        table.slab.write_unpublished(to, &self.words);
        self.updater.update_from_elsewhere(at, table.slab.unpublished(to), false);
        if self.durable
            && let Some(persist) = table.persist()
        {
            table.slab.flush(to, persist);
        }
    }

    /// Updates a copy of the key's row and publishes it. Returns false if the key has no row any more.
    fn update_elsewhere(&mut self, at: usize, to: u32, locked: &KeyLock<'_>) -> bool {
        // The row may have been replaced before the key was locked.
        let from = locked.find();
        if from == NO_ROW {
            return false;
        }
        self.copy(at, from, to);
        if self.durable {
            self.fence(Step::Rows);
        }
        self.publish(at, from, to, locked);
        true
    }

    /// Replaces a row of a key by a copy.
    #[inline(always)]
    fn publish(&mut self, at: usize, from: u32, to: u32, locked: &KeyLock<'_>) {
        let table = self.updater.table;
        table.row_allocator.note_moved(self.keys[at], from, to, locked);
        locked.replace(to);
        if let Some(notes) = self.updater.notes {
            notes.note_store(to);
        }
        table.row_allocator.note_inherited(from);
        self.retired.push(from);
    }

    fn fence(&self, step: Step) {
        if let Some(persist) = self.updater.table.persist() {
            persist.fence(step);
        }
    }

    /// Makes a copy that [`CowEditor::publish_planned`] publishes. Rows must not be reused until then.
    fn plan(&mut self, at: usize, from: u32) {
        let Some(to) = self.spare.pop() else { return self.waiting.push(at as u32) };
        self.copy(at, from, to);
        self.planned.push(Planned { at: at as u32, from, to });
    }

    /// Plans the updates of keys at these positions; there must be a spare row for each.
    fn plan_again(&mut self, lane: usize, positions: impl Iterator<Item = u32>) {
        let view = self.updater.table.directory.pin(lane);
        for at in positions {
            match view.find(self.hashes[at as usize]) {
                NO_ROW => self.updater.absent.push(at),
                row => self.plan(at as usize, row),
            }
        }
        self.publish_planned();
    }

    /// Publishes all copies; afterwards the former rows may be freed.
    fn publish_planned(&mut self) {
        if self.planned.is_empty() {
            return;
        }
        self.fence(Step::Rows);
        unlocked();
        let planned = std::mem::take(&mut self.planned);
        for (number, &Planned { at, from, to }) in planned.iter().enumerate() {
            let at = at as usize;
            let locked = self.updater.table.directory.lock(self.hashes[at]);
            if let Some(later) = planned.get(number + AHEAD_BUCKETS) {
                locked.prefetch_to_change(self.hashes[later.at as usize]);
            }
            if locked.find() == from {
                self.publish(at, from, to, &locked);
            } else if !self.update_elsewhere(at, to, &locked) {
                self.spare.push(to);
                self.updater.absent.push(at as u32);
            }
        }
        self.fence(Step::Slots);
        self.planned = planned;
        self.planned.clear();
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
        } else if self.durable {
            self.plan(at, row);
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
pub(super) fn edit_rows_cow<E: Edit>(
    lane: usize,
    lookup: &mut Lookup,
    keys: &[u64],
    updater: InPlaceEditor<'_, E, Width>,
    cow_gate: &WriteGate,
) -> u64 {
    let (table, shared) = (updater.table, updater.shared);
    let take = |rows: usize, spare: &mut Vec<u32>| {
        table.row_allocator.take(lane, rows, &table.slab, &table.budget, &table.directory, spare);
    };
    let hashes = lookup.hashes().to_vec();
    let durable = table.persist().is_some();
    let mut mover = CowEditor {
        durable,
        updater,
        hashes: &hashes,
        keys,
        words: vec![0.0; table.layout.words()],
        spare: Vec::new(),
        retired: std::mem::take(&mut lookup.retired),
        waiting: Vec::new(),
        planned: Vec::new(),
    };
    // Held while this push owns spare or retired rows.
    let mut holding = Some(cow_gate.lock_shared(lane));
    let mut exclusive = None;
    take(keys.len(), &mut mover.spare);
    let vector = mover.updater.vector;
    {
        // A row that is still its key's has not been another key's meanwhile.
        let _pinned = durable.then(|| table.directory.pin(lane));
        table.search(vector, lane, lookup, &mut mover);
        mover.publish_planned();
    }
    // The table is nearly full: rows that become free serve the next keys, which free others.
    let have_spare = |mover: &mut CowEditor<'_, E>| {
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
    let create = |mover: &mut CowEditor<'_, E>, lookup: &mut Lookup| {
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
        let mut done = 0;
        while done < waiting.len() {
            if !have_spare(&mut mover) && exclusive.is_none() {
                // Other threads own all spare rows. They have returned them once this one, which owns none, holds
                // the gate exclusively.
                drop(holding.take());
                exclusive = Some(cow_gate.lock_exclusive());
                take(waiting.len() - done, &mut mover.spare);
            }
            // A chunk of copies that become durable together, or one.
            let count = if durable { mover.spare.len().clamp(1, waiting.len() - done) } else { 1 };
            if mover.spare.is_empty() {
                // Rows of other tables were loaded into the last spare row. Treat the key as absent.
                mover.updater.absent.push(waiting[done]);
            } else if durable {
                mover.plan_again(lane, waiting[done..done + count].iter().copied());
            } else {
                mover.update_present(waiting[done] as usize);
            }
            done += count;
        }
        lookup.absent = std::mem::take(&mut mover.updater.absent);
    }
    table.row_allocator.give_back(lane, &table.slab, &mut mover.spare);
    table.row_allocator.retire(lane, &table.slab, &table.directory, &mut mover.retired);
    lookup.retired = mover.retired;
    rejected
}
