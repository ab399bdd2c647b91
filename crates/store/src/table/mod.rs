//! The table: construction, validation of requests, search, and exclusive operations.
//!
//! Pulls pin the index and neither wait nor write. Pushes and removals hold the write gate shared. A row is changed
//! under its sequence lock; a key is inserted, removed or moved under its key lock. A [`TableWriter`](crate::TableWriter) and
//! [`Table::clear`] hold the write gate exclusively.
//!
//! Lock order: write gate > copy-on-write gate > eviction cursor, hot keys or walk > index guard or free rows of a
//! lane > key lock. A thread with an index guard or a key lock must not wait for readers.

pub(crate) mod durability;
mod free_rows;
pub(crate) mod kept;
pub(crate) mod kept_bytes;
pub(crate) mod kept_folders;
pub(crate) mod removal_log;
mod replicas;
pub(crate) mod row;
pub(crate) mod sample;
pub(crate) mod stats;
#[cfg(all(test, not(loom)))]
mod touched;
pub(crate) mod walk;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use crate::changes::epochs::Changes;
use crate::index::directory::Directory;
use crate::index::fill::Fill;
use crate::index::hash::HashKey;
use crate::index::removals::RemovalCounter;
use crate::index::{Index, NO_ROW};
use crate::kept::Kept;
use crate::lookup::key_sampler::KeySampler;
use crate::lookup::{CachedRows, Distances, Lookup, Visit};
use crate::memory::address_space::budget_bytes_max;
use crate::memory::budget::Budget;
use crate::memory::granted_huge_bytes;
use crate::policy::admission::AdmissionFilter;
use crate::policy::clock::UseClock;
use crate::policy::cursor::EvictionCursor;
use crate::policy::hot_keys::HotKeys;
use crate::rows::allocator::RowAllocator;
use crate::rows::layout::Layout;
use crate::rows::slab::{NoSpace, Slab};
use crate::simd::{Vector, Width};
use crate::sync::lanes::{Lanes, lane};
use crate::sync::write_gate::WriteGate;
use crate::sync::{Mutex, lock};
use crate::table::free_rows::FreeRowSearch;
use crate::table::removal_log::RemovalLog;
use crate::table::stats::{Counters, TableStats};
use crate::{Eviction, StoreError, TableConfig, Writes};

/// Error of a valid configuration for which the process has no room.
const NO_SPACE: &str = "no memory or address space for an empty table: raise the process's limit (ulimit -v), or use fewer tables";

/// Error of a budget for which the process has no room.
pub(crate) fn no_address_space(wanted: u64, room: u64) -> String {
    format!(
        "budget_bytes requires {wanted} bytes of address space, but {room} are left beside threads and heap: raise the \
         limit (ulimit -v, vm.overcommit_ratio) or lower the budget"
    )
}

/// The memory of a table: private, or kept in files.
pub(crate) struct Memory {
    pub(crate) directory: Directory,
    pub(crate) slab: Slab,
    pub(crate) rows: RowAllocator,
    pub(crate) clock: UseClock,
    pub(crate) hash_key: HashKey,
    pub(crate) kept: Option<Arc<Kept>>,
}

/// An embedding table: 64-bit key -> row of `dim` weights with optimizer state.
///
/// All methods take `&self` and may be called by several threads. A pull sees each row before or after a push, and
/// does not wait. Every 64-bit key is valid.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    pub(crate) layout: Layout,
    pub(crate) hash_key: HashKey,
    pub(crate) directory: Directory,
    pub(crate) slab: Slab,
    pub(crate) row_allocator: RowAllocator,
    pub(crate) write_gate: WriteGate,
    /// Only with copy-on-write: held shared by pushes that own spare rows, so that an exclusive holder finds all of
    /// them free.
    pub(crate) cow_gate: Option<WriteGate>,
    pub(crate) removals: RemovalCounter,
    pub(crate) budget: Budget,
    pub(crate) clock: UseClock,
    pub(crate) admission_filter: AdmissionFilter,
    pub(crate) key_sampler: KeySampler,
    pub(crate) counters: Lanes<Counters>,
    pub(crate) eviction_cursor: Mutex<EvictionCursor>,
    /// Position of the cursor that bounds the age of rows.
    pub(crate) rebased_to: Mutex<u64>,
    /// Pushes have had to evict rows.
    pub(crate) under_pressure: AtomicBool,
    pub(crate) hot_keys: Mutex<HotKeys>,
    pub(crate) distances: Distances,
    /// Locked by a walk over all rows.
    pub(crate) walk: Mutex<()>,
    /// The part that outlives the process, if the table does.
    pub(crate) kept: Option<Arc<Kept>>,
    /// The search for free rows of an earlier process.
    pub(crate) search: Mutex<FreeRowSearch>,
    /// The stream of changes, from its first subscriber on.
    pub(crate) changes: OnceLock<Changes>,
    /// Numbered removals, if the table has followers.
    pub(crate) removal_log: RemovalLog,
    /// The table copies another one, and evicts nothing by itself.
    pub(crate) is_follower: AtomicBool,
}

impl Table {
    /// Creates an empty table.
    ///
    /// # Errors
    ///
    /// The configuration is invalid, the budget is below [`Table::least_bytes`] or above [`budget_bytes_max`], or
    /// the process has no address space for the table.
    pub fn new(config: TableConfig) -> Result<Table, StoreError> {
        let (wanted, most) = (config.budget_bytes.unwrap_or(0), budget_bytes_max());
        if wanted > most {
            let reason = format!(
                "budget_bytes = {wanted} is more than the {most} bytes of memory and swap of this machine: lower it, or omit it \
                 for no limit"
            );
            return Err(StoreError::Config { table: config.name, reason });
        }
        Table::of_any_budget(config)
    }

    /// Creates a table with any budget, because a checkpoint may come from a larger machine.
    pub(crate) fn of_any_budget(config: TableConfig) -> Result<Table, StoreError> {
        Table::build(config, |config, layout, budget| {
            let fail = |reason: String| Err(StoreError::Config { table: config.name.clone(), reason });
            let slab = match Slab::new(layout.placement, config.budget_bytes) {
                Ok(slab) => slab,
                Err(NoSpace::Budget { bytes, room }) => {
                    return fail(no_address_space(bytes as u64, room as u64));
                }
                Err(NoSpace::Share) => return fail(NO_SPACE.to_string()),
            };
            let (Some(index), Some(rows)) = (Index::new(), RowAllocator::new(&slab)) else {
                return fail(NO_SPACE.to_string());
            };
            // Without a budget, the share of the address space limits the rows.
            let wanted = Slab::rows_wanted(slab.row_bytes(), budget.limit_bytes()) as u64;
            if config.budget_bytes.is_some() && rows.rows_max() < wanted {
                let [granted, wanted] = [rows.rows_max(), wanted].map(|rows| rows * slab.row_bytes() as u64);
                return fail(no_address_space(wanted, granted));
            }
            let directory = Directory::new(index.with_fill(Fill::of(config.packing)));
            Ok(Memory { directory, slab, rows, clock: UseClock::new(), hash_key: HashKey::get(), kept: None })
        })
    }

    /// Creates a table whose memory `make` provides.
    pub(crate) fn build(
        config: TableConfig,
        make: impl FnOnce(&TableConfig, &Layout, &Budget) -> Result<Memory, StoreError>,
    ) -> Result<Table, StoreError> {
        config.check()?;
        let fail = |reason: String| Err(StoreError::Config { table: config.name.clone(), reason });
        let budget = Budget::new(config.budget_bytes);
        let cow_gate = (config.writes == Writes::CopyOnWrite).then(WriteGate::new);
        let bytes = Table::least_bytes(config.writes);
        if !budget.take(bytes) {
            return fail(format!("budget_bytes is below the {bytes} bytes of an empty table: raise it"));
        }
        let admission_filter = match AdmissionFilter::new(config.admission, config.seed, &budget) {
            Ok(admission_filter) => admission_filter,
            Err(bytes) => {
                return fail(format!(
                    "no room for the {bytes} bytes of its admission filter: raise budget_bytes or lower filter_bytes"
                ));
            }
        };
        let layout = Layout::new(&config);
        let Memory { directory, slab, rows, clock, hash_key, kept } = make(&config, &layout, &budget)?;
        let hot_keys = HotKeys::new(&budget);
        Ok(Table {
            config,
            layout,
            hash_key,
            directory,
            slab,
            row_allocator: rows,
            write_gate: WriteGate::new(),
            cow_gate,
            removals: RemovalCounter::new(),
            budget,
            clock,
            admission_filter,
            key_sampler: KeySampler::new(),
            counters: Lanes::new(),
            eviction_cursor: Mutex::default(),
            rebased_to: Mutex::default(),
            under_pressure: AtomicBool::new(false),
            hot_keys: Mutex::new(hot_keys),
            distances: Distances::default(),
            walk: Mutex::default(),
            kept,
            search: Mutex::default(),
            changes: OnceLock::new(),
            removal_log: RemovalLog::new(),
            is_follower: AtomicBool::new(false),
        })
    }

    /// The minimum `budget_bytes`: the size of an empty table without its admission filter.
    #[must_use]
    pub fn least_bytes(writes: Writes) -> usize {
        let hands_bytes = if writes == Writes::CopyOnWrite { WriteGate::bytes() } else { 0 };
        Index::NEW_BYTES + Table::new_bytes() + hands_bytes
    }

    /// Bytes of an empty table without its index and its admission filter.
    fn new_bytes() -> usize {
        Directory::bytes()
            + RowAllocator::new_bytes()
            + WriteGate::bytes()
            + UseClock::bytes()
            + KeySampler::bytes()
            + Lanes::<Counters>::bytes()
    }

    /// Sets the prefetch distances, for benchmarks that search better ones.
    #[cfg(any(test, feature = "bench"))]
    pub fn set_distances(&mut self, distances: Distances) {
        self.distances = distances;
    }

    /// The table's configuration.
    #[must_use]
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// The table's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Weights per row.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.layout.dim
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.directory.len()
    }

    /// Returns whether the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocated bytes of index and slab.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// Sizes and counters.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let index = self.directory.pin(lane()).view().latest().addresses();
        let rows = self.slab.addresses(self.row_allocator.charged());
        let ranges: Vec<(usize, usize)> = std::iter::once(index).chain(rows).collect();
        TableStats { huge_bytes: granted_huge_bytes(&ranges), ..self.quick_stats() }
    }

    /// Sizes and counters, without the huge pages, which the system counts slowly: they are 0.
    #[must_use]
    pub fn quick_stats(&self) -> TableStats {
        let slab_bytes = self.row_allocator.bytes() as u64;
        TableStats {
            rows: self.directory.len() as u64,
            free_rows: self.row_allocator.free_rows() as u64,
            pushes: self.clock.total(),
            index_bytes: self.budget.used_bytes().saturating_sub(slab_bytes),
            slab_bytes,
            ..TableStats::default()
        }
        .count(&self.counters)
    }

    /// How full the index may be.
    fn fill(&self) -> Fill {
        Fill::of(self.config.packing)
    }

    /// The widest supported vector width.
    pub(crate) fn width(&self) -> Width {
        self.slab.width()
    }

    /// Searches a chunk like [`Table::search`] and records some of its keys as used.
    #[inline(always)]
    pub(crate) fn walk(&self, vector: impl Vector, lane: usize, lookup: &Lookup, f: &mut impl Visit) {
        self.note(lane, lookup);
        self.search(vector, lane, lookup, f);
    }

    /// Records some of the chunk's keys as used.
    #[inline(always)]
    pub(crate) fn note(&self, lane: usize, lookup: &Lookup) {
        self.key_sampler.note(lane, lookup.hashes());
    }

    /// Searches a chunk and passes every key's row, or [`NO_ROW`], to `f` in order, with the row, or its weights, in
    /// the cache. Rows are not reused before this returns.
    #[inline(always)]
    pub(crate) fn search<F: Visit>(&self, vector: impl Vector, lane: usize, lookup: &Lookup, f: &mut F) {
        let view = self.directory.pin(lane);
        lookup.walk(vector, view.view(), self.slab.prefetcher(F::WHOLE), self.distances, f);
    }

    /// Passes cached rows to `f` without a search. Returns false and does nothing if rows may have been removed or
    /// replaced since. The caller must hold the write gate shared.
    #[inline(always)]
    pub(crate) fn visit_cached<F: Visit>(&self, lane: usize, cached: CachedRows<'_>, f: &mut F) -> bool {
        let _view = self.directory.pin(lane);
        if !self.removals.unchanged_since(cached.since) {
            return false;
        }
        cached.walk(self.slab.prefetcher(F::WHOLE), self.distances, f);
        true
    }

    /// Begins to replace the index by one of `wanted` bytes; 0 keeps it. Returns false without budget or memory.
    ///
    /// The caller must hold no index guard and no key lock. An earlier growth is ended first.
    pub(crate) fn grow(&self, wanted: impl Fn(&Index) -> usize) -> bool {
        let (lane, more_bytes) = (lane(), |index: &Index| wanted(index).saturating_sub(index.bytes()));
        loop {
            // A full table gets here often, and must not wait just to find the budget exhausted.
            match more_bytes(self.directory.pin(lane).view().latest()) {
                0 => return true,
                bytes if !self.budget.has_room(bytes) => return false,
                _ => {}
            }
            let begun = self.directory.begin_growth(lane, |index| {
                let more_bytes = more_bytes(index);
                if more_bytes == 0 || !self.budget.take(more_bytes) {
                    return Err(more_bytes == 0);
                }
                self.new_index(index.bytes() + more_bytes)
                    .map(|index| index.with_fill(self.fill()))
                    .ok_or_else(|| {
                        self.budget.give_back(more_bytes);
                        false
                    })
            });
            match begun {
                Some(begun) => return begun.map_or_else(|has_room| has_room, |()| true),
                None => _ = self.directory.finish_growth(lane),
            }
        }
    }

    /// Returns whether eviction depends on the last use of rows.
    pub(crate) fn evicts_by_use(&self) -> bool {
        matches!(self.config.eviction, Eviction::Clock | Eviction::Age { .. })
    }

    /// Rejects a change by a thread that holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub(crate) fn check_not_writing(&self) -> Result<(), StoreError> {
        if self.write_gate.is_held_exclusively_here() {
            return Err(StoreError::Writing { table: self.config.name.clone() });
        }
        Ok(())
    }

    /// Panics if this thread holds a [`TableWriter`](crate::TableWriter) of the table.
    pub(crate) fn assert_not_writing(&self) {
        if let Err(error) = self.check_not_writing() {
            panic!("{error}");
        }
    }

    /// Removes the key's row; returns whether there was one. Later rows reuse its memory.
    ///
    /// # Panics
    ///
    /// If this thread holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub fn remove(&self, key: u64) -> bool {
        self.assert_not_writing();
        let (lane, hash) = (lane(), self.hash_key.hash(key));
        let shared = self.write_gate.lock_shared(lane);
        let _removing = self.removals.begin();
        let locked = self.directory.lock(hash);
        let row = locked.remove();
        if row != NO_ROW {
            self.row_allocator.note_inherited(row);
            if let Some(notes) = self.notes() {
                notes.note_removed(lane, hash);
            }
            self.removal_log.note(&self.slab, row, key, &shared);
        }
        drop(locked);
        if row != NO_ROW {
            self.directory.unclaim(1);
            self.row_allocator.retire(lane, &self.slab, &self.directory, &mut vec![row]);
        }
        row != NO_ROW
    }

    /// Removes all rows and frees their memory.
    ///
    /// Without memory for an empty index, or after a [`Table::hold`], it removes row by row, and the memory stays.
    ///
    /// # Panics
    ///
    /// If this thread holds a [`TableWriter`](crate::TableWriter) of the table, which would deadlock.
    pub fn clear(&self) {
        self.assert_not_writing();
        let alone = self.write_gate.lock_exclusive();
        let searching = lock(&self.search);
        let removing = self.removals.begin();
        let may_discard = self.row_allocator.held.close();
        let Some(index) = may_discard.then(|| self.new_index(Index::NEW_BYTES)).flatten() else {
            self.row_allocator.held.open();
            drop((removing, searching, alone));
            return self.remove_each();
        };
        let index = index.with_fill(self.fill());
        // From here on no thread can find a row.
        let bytes = self.directory.clear(index);
        if let Some(notes) = self.notes() {
            notes.set_incomplete();
        }
        self.budget.give_back(bytes - Index::NEW_BYTES);
        self.row_allocator.clear(&self.slab, &self.budget);
        self.row_allocator.held.open();
        self.admission_filter.clear();
        self.under_pressure.store(false, Relaxed);
        self.resume_scan();
    }

    /// Removes all rows one by one, where there is no memory for an empty index.
    fn remove_each(&self) {
        let mut keys = Vec::new();
        self.for_each_key(|_| true, |key| keys.push(key));
        keys.into_iter().for_each(|key| _ = self.remove(key));
    }

    /// Grows the index to hold `rows` rows in total, so that it does not grow step by step.
    ///
    /// Returns false if the budget, the memory or the row numbers do not suffice.
    pub fn reserve(&self, rows: u64) -> bool {
        // Row numbers have 32 bits.
        let Some(rows) = u32::try_from(rows).ok().filter(|&rows| rows < NO_ROW) else { return false };
        let rows = rows as usize;
        let has_room = self.grow(|index| index.reserved_bytes(rows, self.fill().reserved));
        self.directory.finish_growth(lane());
        has_room
    }

    pub(crate) fn state_len(&self) -> usize {
        self.layout.state
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock.total()
    }

    pub(crate) fn full(&self, rejected: u64) -> StoreError {
        let is_file_system_full = self.kept.as_ref().is_some_and(|kept| kept.is_file_system_full());
        let budget_bytes = if is_file_system_full { u64::MAX } else { self.budget.limit_bytes() };
        let (table, rows) = (self.config.name.clone(), self.len() as u64);
        StoreError::TableFull { table, rows, budget_bytes, rejected }
    }

    pub(crate) fn check_length(
        &self,
        what: &'static str,
        expected: usize,
        found: usize,
    ) -> Result<(), StoreError> {
        if expected == found {
            return Ok(());
        }
        Err(StoreError::Length { table: self.config.name.clone(), what, expected, found })
    }
}
