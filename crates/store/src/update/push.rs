//! The inside of a push: every key is looked up, rows are made where there are none, and each is updated, or edited in
//! another way ([`Edit`]). Knows nothing of how keys are found or of the optimizers.

use crate::index::NO_ROW;
use crate::index::directory::KeyLock;
use crate::lookup::scratch::{Scratch, with_scratch};
use crate::lookup::{CHUNK_KEYS, CachedRows, Lookup, Visit, with_lookup};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::layout::{Layout, Update};
use crate::rows::slab::RowMut;
use crate::simd::halves::{Format, Singles};
use crate::simd::{self, Vector, Width, Work};
use crate::sync::lanes::lane;
use crate::sync::write_gate::{SharedGuard, WriteGate};
use crate::table::Table;
use crate::update::create::RowInit;
use crate::update::kernel::OptimizerStep;
use crate::{PushScale, StoreError, bad_gradient};

/// Keys of a push that were not updated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PushFailures {
    /// New keys for which there is no room.
    full: u64,
    /// Rows whose update would not be finite, and the key of the first.
    not_finite: u64,
    first: u64,
}

impl PushFailures {
    /// Notes a row whose update would not be finite.
    #[cold]
    pub(crate) fn note(&mut self, key: u64) {
        if self.not_finite == 0 {
            self.first = key;
        }
        self.not_finite += 1;
    }

    /// Notes new keys for which there is no room.
    pub(crate) fn note_full(&mut self, keys: u64) {
        self.full += keys;
    }

    /// An error if there are any: rows that are not finite before keys without room.
    pub(crate) fn check(self, table: &Table) -> Result<(), StoreError> {
        let PushFailures { full, not_finite: rows, first: key } = self;
        if rows > 0 {
            return Err(StoreError::NotFinite { table: table.name().to_string(), key, rows });
        }
        if full > 0 { Err(table.full(full)) } else { Ok(()) }
    }
}

/// A push that is counted: what the table's use clock said then.
#[derive(Debug, Clone, Copy)]
pub struct PushClock(u32);

impl Table {
    /// Applies the optimizer. `grads` is `keys.len() * dim`, row-major. Gradients of a key that occurs more than
    /// once are summed first (f32, in order) and its row is updated once. Keys without a row get one.
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

    /// [`Table::push`] for keys that the caller knows to be distinct. `counts[i]` occurrences are added to the
    /// row's frequency. (A key that does occur twice is updated twice.)
    pub fn push_unique(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), StoreError> {
        self.check_unique(keys, counts, grads, scale)?;
        self.update_unique(keys, counts, grads, scale, self.count_push())
    }

    /// Counts a push that several threads make together, each of some of its keys, with [`Table::push_part`].
    pub fn count_push(&self) -> PushClock {
        PushClock(self.tick(lane()))
    }

    /// [`Table::push_unique`] of some keys of a push that is counted.
    pub fn push_part(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
        clock: PushClock,
    ) -> Result<(), StoreError> {
        self.check_unique(keys, counts, grads, scale)?;
        self.update_unique(keys, counts, grads, scale, clock)
    }

    /// What [`Table::push_unique`] refuses whatever is in the table: for who pushes to several, to all of them or none.
    pub fn check_unique(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
    ) -> Result<(), StoreError> {
        self.check_length("grads", keys.len() * self.layout.dim, grads.len())?;
        self.check_length("counts", keys.len(), counts.len())?;
        self.check_not_writing()?;
        self.check_gradients(keys, grads)?;
        self.check_scale(scale)
    }

    /// Refuses a scale that is none, or that the learning rate of some block is too large for.
    pub(crate) fn check_scale(&self, scale: PushScale) -> Result<(), StoreError> {
        scale.check(self.name())?;
        if self.layout.blocks.iter().all(|block| block.kernel.scales(scale.lr_scale)) {
            return Ok(());
        }
        Err(StoreError::BadScale { table: self.name().to_string(), lr_scale: scale.lr_scale })
    }

    fn update_unique(
        &self,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        scale: PushScale,
        PushClock(clock): PushClock,
    ) -> Result<(), StoreError> {
        let (dim, lane) = (self.layout.dim, lane());
        let mut failures = PushFailures::default();
        with_lookup(|lookup| {
            lookup.steps.clear();
            lookup.steps.extend(self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr_scale)));
            let chunks =
                keys.chunks(CHUNK_KEYS).zip(counts.chunks(CHUNK_KEYS)).zip(grads.chunks(CHUNK_KEYS * dim));
            for ((keys, counts), grads) in chunks {
                let failures = &mut failures;
                let scatter = PushChunk { table: self, lane, lookup, keys, counts, grads, clock, failures };
                simd::run(self.width(), scatter);
            }
        });
        failures.check(self)
    }

    fn check_gradients(&self, keys: &[u64], grads: &[f32]) -> Result<(), StoreError> {
        let Some(at) = bad_gradient(grads) else { return Ok(()) };
        let (key, coordinate) = (keys[at / self.layout.dim], at % self.layout.dim);
        Err(StoreError::BadGradient { table: self.name().to_string(), key, coordinate, value: grads[at] })
    }
}

/// A chunk of a push.
pub(crate) struct PushChunk<'a> {
    pub(crate) table: &'a Table,
    pub(crate) lane: usize,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) counts: &'a [u32],
    pub(crate) grads: &'a [f32],
    pub(crate) clock: u32,
    pub(crate) failures: &'a mut PushFailures,
}

/// What is done with the row of a key.
pub(crate) trait Edit {
    /// The table's use clock if this is a use of the keys: then look-ups are sampled, and keys without a row ask to be
    /// admitted. `None`: they come in unasked.
    fn use_clock(&self) -> Option<u32>;
    /// Does it store all weights and all state of a row that is new, for the key at this place of the chunk?
    fn initializes(&self, at: usize) -> bool;
    /// Changes the row of the key at this place of the chunk, which may be new.
    fn edit(&mut self, vector: impl Vector, at: usize, row: RowMut<'_>, is_new: bool);
    /// Rows that are edited from here on need not be those that were [`CachedRows`].
    fn invalidate_cached(&mut self) {}
}

/// One update of each row.
struct Gradients<'a, F> {
    format: F,
    layout: &'a Layout,
    steps: &'a [OptimizerStep],
    keys: &'a [u64],
    counts: &'a [u32],
    grads: &'a [f32],
    clock: u32,
    /// Memory for a row.
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

/// Edits the rows of a chunk and notes who has none.
struct InPlaceEditor<'a, E, V> {
    edit: E,
    vector: V,
    table: &'a Table,
    shared: &'a SharedGuard<'a>,
    absent: Vec<u32>,
}

impl<E: Edit, V: Vector> InPlaceEditor<'_, E, V> {
    /// For code that is not compiled for the machine.
    fn update_from_elsewhere(&mut self, at: usize, row: RowMut<'_>, is_new: bool) {
        simd::run(self.vector.width(), EditRow { edit: &mut self.edit, at, row, is_new });
    }
}

impl<E: Edit, V: Vector> Visit for InPlaceEditor<'_, E, V> {
    const HINT: PrefetchHint = PrefetchHint::Write;

    // Not a closure: it must be inlined to be compiled for the machine.
    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        if row == NO_ROW {
            self.absent.push(at as u32);
        } else {
            let writing = self.table.slab.write(row, self.shared);
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
        let writing = self.table.slab.write(row, self.shared);
        self.update_from_elsewhere(at, writing.row, false);
    }
}

/// One edit of a row, compiled for the machine.
struct EditRow<'a, E> {
    edit: &'a mut E,
    at: usize,
    row: RowMut<'a>,
    is_new: bool,
}

impl<E: Edit> Work for EditRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        self.edit.edit(vector, self.at, self.row, self.is_new);
    }
}

/// The same for tables whose rows are not changed in place. New rows come from `spare`; what has no room there waits.
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
    /// Updates a copy of the key's row and publishes it. False: the key has no row any more.
    fn update_elsewhere(&mut self, at: usize, to: u32, locked: &KeyLock<'_>) -> bool {
        let (table, index) = (self.updater.table, locked.index());
        // The one that was found may have been replaced before the key was locked.
        let from = index.find(self.hashes[at]);
        if from == NO_ROW {
            return false;
        }
        table.slab.read(from, &mut self.words);
        table.slab.write_unpublished(to, &self.words);
        self.updater.update_from_elsewhere(at, table.slab.unpublished(to), false);
        table.row_allocator.note_moved(self.keys[at], from, to, locked);
        index.replace(self.hashes[at], to);
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

impl Work for PushChunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        // Once per chunk, not per row.
        match self.table.layout.half {
            None => self.run_as(Singles, vector),
            Some(half) => self.run_as(half, vector),
        }
    }
}

impl PushChunk<'_> {
    #[inline(always)]
    fn run_as(self, format: impl Format, vector: impl Vector) {
        let PushChunk { table, lane, lookup, keys, counts, grads, clock, failures } = self;
        let (steps, mut before) = (std::mem::take(&mut lookup.steps), std::mem::take(&mut lookup.before));
        lookup.assign(keys);
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
        let full = edit_rows(table, lane, lookup, keys, None, edit, vector);
        failures.note_full(full);
        (lookup.steps, lookup.before) = (steps, before);
    }
}

/// Edits the rows of a chunk of keys, which `lookup` has and whose rows may be known; those without get one. How many keys
/// were left out because the table is full.
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
    let clock = edit.use_clock();
    if clock.is_some() {
        table.note(lane, lookup);
    }
    if let Some(cow_gate) = &table.cow_gate {
        let updater = InPlaceEditor { edit, vector: vector.width(), table, shared, absent };
        return edit_rows_cow(lane, lookup, keys, updater, cow_gate);
    }
    let mut updater = InPlaceEditor { edit, vector, table, shared, absent };
    let words = table.layout.words();
    if !cached.is_some_and(|cached| table.visit_cached(lane, cached, words, &mut updater)) {
        updater.edit.invalidate_cached();
        table.search(vector, lane, lookup, words, &mut updater);
    }
    lookup.absent = std::mem::take(&mut updater.absent);
    if lookup.absent.is_empty() {
        return 0;
    }
    if let Some(clock) = clock {
        table.admit(lane, lookup, clock);
    }
    updater.edit.invalidate_cached();
    table.create_absent(lane, lookup, keys, Some(shared), &mut updater)
}

/// [`edit_rows`] for a copy-on-write table.
fn edit_rows_cow(
    lane: usize,
    lookup: &mut Lookup,
    keys: &[u64],
    updater: InPlaceEditor<'_, impl Edit, Width>,
    cow_gate: &WriteGate,
) -> u64 {
    let (table, shared, clock) = (updater.table, updater.shared, updater.edit.use_clock());
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
    // For as long as it has rows in hand, be they spare or retired.
    let mut holding = Some(cow_gate.lock_shared(lane));
    let mut exclusive = None;
    take(keys.len(), &mut mover.spare);
    let vector = mover.updater.vector;
    table.search(vector, lane, lookup, table.layout.words(), &mut mover);
    // The table is all but full: as soon as rows are free, they serve the next, which free others.
    let have_spare = |mover: &mut CowEditor<'_, _>| {
        if mover.spare.is_empty() {
            let wanted = mover.retired.len().max(1);
            table.row_allocator.retire_now(lane, &table.slab, &table.directory, &mut mover.retired);
            take(wanted, &mut mover.spare);
        }
        while mover.spare.is_empty() && table.evict(lane, 1, shared) > 0 {
            take(1, &mut mover.spare);
        }
        !mover.spare.is_empty()
    };
    // Rows for those of `lookup.absent`.
    let create = |mover: &mut CowEditor<'_, _>, lookup: &mut Lookup| {
        // New rows come from the same memory, but for one: a key that has come meanwhile may need it, and if no thread
        // makes rows without, there is always one left to update the others by.
        if !have_spare(mover) {
            return table.reject_absent(lane, lookup);
        }
        table.row_allocator.give_back(lane, &table.slab, &mut mover.spare.split_off(1));
        table.create_absent(lane, lookup, keys, Some(shared), mover)
    };
    let mut rejected = 0;
    lookup.absent = std::mem::take(&mut mover.updater.absent);
    if let Some(clock) = clock {
        table.admit(lane, lookup, clock);
    }
    // More than one turn only if rows were evicted in the course of this, and perhaps made again by others.
    while !lookup.absent.is_empty() || !mover.waiting.is_empty() {
        if !lookup.absent.is_empty() {
            rejected += create(&mut mover, lookup);
        }
        let waiting = std::mem::take(&mut mover.waiting);
        for (done, &at) in waiting.iter().enumerate() {
            if !have_spare(&mut mover) && exclusive.is_none() {
                // Others have them all in hand. They have given them back when this one, which has none, is alone.
                drop(holding.take());
                exclusive = Some(cow_gate.lock_exclusive());
                take(waiting.len() - done, &mut mover.spare);
            }
            if mover.spare.is_empty() {
                // Rows of other tables were loaded into the last one. It is as if the key had none.
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
