//! The table: a request's way through validation, look-up and the rows. Knows nothing of files.
//!
//! Who may do what at the same time: pulls announce themselves as readers and otherwise neither wait nor write. Pushes
//! and removals share the right to change the table; a row is changed under its version, a key comes, goes or moves under
//! its lock. Only a [`TableWriter`] and [`Table::clear`] are alone. What is taken is taken in this order: the right to
//! change the table; that to have rows in hand; the hand, the heat or the walk; a view, or a lane's rows; the lock of a
//! key. Who has a view or a key's lock does not wait for readers.

pub(crate) mod stats;
pub(crate) mod walk;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::index::directory::Directory;
use crate::index::hash::index_hash;
use crate::index::removals::RemovalCounter;
use crate::index::{Index, NO_ROW};
use crate::lookup::key_sampler::KeySampler;
use crate::lookup::scratch::with_scratch;
use crate::lookup::{CachedRows, Distances, Lookup, Visit, with_lookup};
use crate::memory::address_space::budget_bytes_max;
use crate::memory::budget::Budget;
use crate::memory::granted_huge_bytes;
use crate::policy::clock::UseClock;
use crate::policy::evict::EvictionCursor;
use crate::policy::maintain::HotKeys;
use crate::pull::pool::{Pooler, check_offsets};
use crate::pull::{Copy, CopyOne, Pool, Pull, Sink};
use crate::rows::allocator::RowAllocator;
use crate::rows::layout::Layout;
use crate::rows::slab::{NoSpace, Slab};
use crate::simd::{self, PAD, Vector, Width};
use crate::sync::Mutex;
use crate::sync::lanes::{Lanes, lane};
use crate::sync::write_gate::WriteGate;
use crate::table::stats::{Counters, TableStats};
use crate::update::create::AdmissionFilter;
use crate::{Absent, Admission, Eviction, Pooling, PushScale, StoreError, TableConfig, TableWriter, Writes};

/// Why there is no table where its configuration asks for nothing impossible.
const NO_SPACE: &str = "no memory or address space for an empty table: raise the process's limit (ulimit -v), or have fewer tables";

/// An embedding table: 64-bit key -> row of `dim` weights with optimizer state.
///
/// All methods take `&self` and may run in several threads. A pull sees each row before or after a push, never
/// between, and waits for nobody. Every 64-bit key is legal.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    pub(crate) layout: Layout,
    pub(crate) directory: Directory,
    pub(crate) slab: Slab,
    pub(crate) row_allocator: RowAllocator,
    pub(crate) write_gate: WriteGate,
    /// Of copy-on-write tables: shared by pushes while they have rows in hand, so that who is alone finds all that there are.
    pub(crate) cow_gate: Option<WriteGate>,
    pub(crate) removals: RemovalCounter,
    pub(crate) budget: Budget,
    pub(crate) clock: UseClock,
    pub(crate) admission_filter: AdmissionFilter,
    pub(crate) key_sampler: KeySampler,
    pub(crate) counters: Lanes<Counters>,
    pub(crate) eviction_cursor: Mutex<EvictionCursor>,
    /// Up to which row the last look at rows that may be old came.
    pub(crate) rebased_to: Mutex<u64>,
    /// Pushes have had to evict rows.
    pub(crate) under_pressure: AtomicBool,
    pub(crate) hot_keys: Mutex<HotKeys>,
    pub(crate) distances: Distances,
    /// Held by who walks over all rows.
    pub(crate) walk: Mutex<()>,
}

impl Table {
    /// An empty table. Fails when the configuration is impossible, the budget is too small for an empty table or larger than
    /// [`budget_bytes_max`], or when the process has no address space for it.
    pub fn new(config: TableConfig) -> Result<Table, StoreError> {
        let (wanted, most) = (config.budget_bytes.unwrap_or(0), budget_bytes_max());
        if wanted > most {
            let reason = format!(
                "budget_bytes = {wanted} is more than the {most} bytes of memory and swap of this machine: lower it, or leave it \
                 out for no limit"
            );
            return Err(StoreError::Config { table: config.name, reason });
        }
        Table::of_any_budget(config)
    }

    /// The same for a table that comes from elsewhere, perhaps from a larger machine: as many rows as it has may find room.
    pub(crate) fn of_any_budget(config: TableConfig) -> Result<Table, StoreError> {
        config.check()?;
        let fail = |reason: String| Err(StoreError::Config { table: config.name.clone(), reason });
        let budget = Budget::new(config.budget_bytes);
        let cow_gate = (config.writes == Writes::CopyOnWrite).then(WriteGate::new);
        let bytes = Table::least_bytes(config.writes);
        if !budget.take(bytes) {
            return fail(format!("budget_bytes is below the {bytes} bytes of an empty table"));
        }
        let admission_filter = match AdmissionFilter::new(config.admission, config.seed, &budget) {
            Ok(admission_filter) => admission_filter,
            Err(bytes) => return fail(format!("no room for the {bytes} bytes of its admission filter")),
        };
        let layout = Layout::new(&config);
        let no_space = |wanted: u64, room: u64| {
            fail(format!(
                "budget_bytes asks for {wanted} bytes of address space, and {room} are left beside threads and heap: raise the \
                 limit (ulimit -v, vm.overcommit_ratio) or lower it"
            ))
        };
        let slab = match Slab::new(layout.stride, config.budget_bytes) {
            Ok(slab) => slab,
            Err(NoSpace::Budget { bytes, room }) => return no_space(bytes as u64, room as u64),
            Err(NoSpace::Share) => return fail(NO_SPACE.to_string()),
        };
        let (Some(index), Some(rows)) = (Index::new(), RowAllocator::new(&slab)) else {
            return fail(NO_SPACE.to_string());
        };
        // Without a budget, rows end where the table's share of the address space does.
        let wanted = Slab::rows_wanted(layout.stride, budget.limit_bytes()) as u64;
        if config.budget_bytes.is_some() && rows.rows_max() < wanted {
            let [granted, wanted] = [rows.rows_max(), wanted].map(|rows| rows * slab.row_bytes() as u64);
            return no_space(wanted, granted);
        }
        let hot_keys = HotKeys::new(&budget);
        Ok(Table {
            config,
            layout,
            directory: Directory::new(index),
            slab,
            row_allocator: rows,
            write_gate: WriteGate::new(),
            cow_gate,
            removals: RemovalCounter::new(),
            budget,
            clock: UseClock::new(),
            admission_filter,
            key_sampler: KeySampler::new(),
            counters: Lanes::new(),
            eviction_cursor: Mutex::default(),
            rebased_to: Mutex::default(),
            under_pressure: AtomicBool::new(false),
            hot_keys: Mutex::new(hot_keys),
            distances: Distances::default(),
            walk: Mutex::default(),
        })
    }

    /// Bytes of a table that is written to so and has no rows, beside those of its admission filter: the least that
    /// `budget_bytes` may be.
    #[must_use]
    pub fn least_bytes(writes: Writes) -> usize {
        let hands_bytes = if writes == Writes::CopyOnWrite { WriteGate::bytes() } else { 0 };
        Index::NEW_BYTES + Table::new_bytes() + hands_bytes
    }

    /// Bytes of a table without rows beside those of its index and its admission filter.
    fn new_bytes() -> usize {
        Directory::bytes()
            + RowAllocator::new_bytes()
            + WriteGate::bytes()
            + UseClock::bytes()
            + KeySampler::bytes()
            + Lanes::<Counters>::bytes()
    }

    /// Makes look-ups run ahead otherwise than by default: for benchmarks that look for better distances.
    #[doc(hidden)]
    pub fn set_distances(&mut self, distances: Distances) {
        self.distances = distances;
    }

    /// What the table was made from.
    #[must_use]
    pub fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Its name.
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

    /// Has it no rows?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory: indexes and slabs, as allocated.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// Sizes, and what has happened.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let slab_bytes = self.row_allocator.bytes() as u64;
        let index = self.directory.pin(lane()).index().addresses();
        TableStats {
            rows: self.directory.len() as u64,
            free_rows: self.row_allocator.free_rows() as u64,
            pushes: self.clock.total(),
            index_bytes: self.budget.used_bytes().saturating_sub(slab_bytes),
            slab_bytes,
            huge_bytes: granted_huge_bytes(&[index, self.slab.addresses(self.row_allocator.charged())]),
            ..TableStats::default()
        }
        .count(&self.counters)
    }

    /// Copies the weights of `keys` to `out` (`keys.len() * dim`, row-major). Keys may repeat. Returns how many of
    /// the keys have no row; their weights are what `absent` says, and their positions, ascending, replace the
    /// content of `missing`.
    pub fn pull(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, StoreError> {
        self.check_length("out", keys.len() * self.layout.dim, out.len())?;
        let copy = Copy { layout: &self.layout, absent, out };
        Ok(if self.layout.dim == 1 {
            self.pull_into(keys, missing, CopyOne(copy))
        } else {
            self.pull_into(keys, missing, copy)
        })
    }

    fn pull_into(&self, keys: &[u64], missing: Option<&mut Vec<u32>>, sink: impl Sink) -> usize {
        let lane = lane();
        with_lookup(|lookup| simd::run(self.width(), Pull { table: self, lane, lookup, keys, sink, missing }))
    }

    /// Pulls and pools: sample `s` has the keys `offsets[s]..offsets[s + 1]`, each weighted by its value (1 when
    /// there are none); `out` has `(offsets.len() - 1) * dim` floats and is overwritten. Returns the number of keys
    /// without a row and their positions as [`Table::pull`] does. Sums run in f32 in the order of the keys.
    #[expect(clippy::too_many_arguments, reason = "a ragged batch is keys, values and offsets")]
    pub fn pull_pooled(
        &self,
        keys: &[u64],
        values: Option<&[f32]>,
        offsets: &[u32],
        pooling: Pooling,
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, StoreError> {
        let dim = self.layout.dim;
        let samples = check_offsets(self.name(), offsets, keys.len())?;
        self.check_length("out", samples * dim, out.len())?;
        if let Some(values) = values {
            self.check_length("values", keys.len(), values.len())?;
        }
        out.fill(0.0);
        let mut pooler = Pooler::new(offsets, values, dim);
        let absent_keys = with_scratch(|scratch| {
            scratch.floats.clear();
            scratch.floats.resize(dim.next_multiple_of(PAD) + dim, 0.0);
            let (weights, sum_before) = scratch.floats.split_at_mut(dim.next_multiple_of(PAD));
            let (pooler, out) = (&mut pooler, &mut *out);
            let sink = Pool { layout: &self.layout, absent, pooler, weights, sum_before, out };
            self.pull_into(keys, missing, sink)
        });
        pooler.finish(pooling, out);
        Ok(absent_keys)
    }

    /// The widest copy that the machine can do.
    pub(crate) fn width(&self) -> Width {
        self.slab.width()
    }

    /// Looks the chunk up, which is a use of its keys; the rest as [`Table::search`].
    #[inline(always)]
    pub(crate) fn walk(
        &self,
        vector: impl Vector,
        lane: usize,
        lookup: &Lookup,
        words: usize,
        f: &mut impl Visit,
    ) {
        self.note(lane, lookup);
        self.search(vector, lane, lookup, words, f);
    }

    /// Samples the keys of the chunk as used.
    #[inline(always)]
    pub(crate) fn note(&self, lane: usize, lookup: &Lookup) {
        self.key_sampler.note(lane, lookup.hashes());
    }

    /// Looks the chunk up; the caller gets the row of every key, or [`NO_ROW`], in order, with the rows' first `words`
    /// words in the cache. A row that it gets is not used for another key before it returns.
    #[inline(always)]
    pub(crate) fn search(
        &self,
        vector: impl Vector,
        lane: usize,
        lookup: &Lookup,
        words: usize,
        f: &mut impl Visit,
    ) {
        let view = self.directory.pin(lane);
        lookup.walk(vector, view.index(), self.slab.view(), words, self.distances, f);
    }

    /// The same for rows that are remembered, without looking anything up; `false`, and nothing is done, if some may have left
    /// the table or been replaced since. The caller must share the right to change the table.
    #[inline(always)]
    pub(crate) fn visit_cached(
        &self,
        lane: usize,
        cached: CachedRows<'_>,
        words: usize,
        f: &mut impl Visit,
    ) -> bool {
        let _view = self.directory.pin(lane);
        if !self.removals.unchanged_since(cached.since) {
            return false;
        }
        cached.walk(self.slab.view(), words, self.distances, f);
        true
    }

    /// Replaces the index by one of as many bytes as `wanted` says of the present one, or leaves it where that is 0;
    /// false when there is no budget or memory for it. Searches go on in the old one meanwhile. The caller must neither have a
    /// view nor a key locked.
    pub(crate) fn grow(&self, wanted: impl Fn(&Index) -> usize) -> bool {
        let more_bytes = |index: &Index| wanted(index).saturating_sub(index.bytes());
        // A full table comes here again and again: to hear that there is no budget, nobody else is stopped.
        if !self.budget.has_room(more_bytes(self.directory.pin(lane()).index())) {
            return false;
        }
        let all = self.directory.lock_all();
        let bytes = wanted(all.index());
        if bytes == 0 {
            return true;
        }
        let more_bytes = bytes - all.index().bytes();
        if !self.budget.take(more_bytes) {
            return false;
        }
        let Some(grown) = all.index().grown(bytes) else {
            self.budget.give_back(more_bytes);
            return false;
        };
        all.replace(grown);
        true
    }

    /// Does eviction go by when a row was last used?
    pub(crate) fn evicts_by_use(&self) -> bool {
        matches!(self.config.eviction, Eviction::Clock | Eviction::Age { .. })
    }

    /// Exclusive access to the rows, for updates one by one: until the writer is dropped, every other change of the
    /// table waits. `scale` holds for all its updates.
    ///
    /// Fails for tables that do not give every key a row of its own place for good: those with an admission, with
    /// copy-on-write, or whose weights are not f32.
    pub fn writer(&self, scale: PushScale) -> Result<TableWriter<'_>, StoreError> {
        self.check_scale(scale)?;
        self.check_not_writing()?;
        let (admission, writes) = (self.config.admission, self.config.writes);
        if admission != Admission::Always || writes != Writes::InPlace || self.layout.half.is_some() {
            let reason =
                "updates row by row need rows that are made at once, stay in place and show their weights: \
                          admission = always, writes = in_place, dtype = f32; push to this table"
                    .to_string();
            return Err(StoreError::Config { table: self.config.name.clone(), reason });
        }
        let steps = self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr_scale)).collect();
        let lane = lane();
        let clock = self.tick(lane);
        Ok(TableWriter::new(self, lane, self.write_gate.lock_exclusive(), steps, clock))
    }

    /// Refuses what would wait for ever: a change of the table by a thread that has a [`TableWriter`] of it.
    pub(crate) fn check_not_writing(&self) -> Result<(), StoreError> {
        if self.write_gate.is_held_exclusively_here() {
            return Err(StoreError::Writing { table: self.config.name.clone() });
        }
        Ok(())
    }

    /// The same for changes that cannot fail otherwise.
    pub(crate) fn assert_not_writing(&self) {
        if let Err(error) = self.check_not_writing() {
            panic!("{error}");
        }
    }

    /// Removes the key's row; was there one? Its memory is reused by later rows.
    ///
    /// # Panics
    /// If this thread has a [`TableWriter`] of the table, which it would wait for.
    pub fn remove(&self, key: u64) -> bool {
        self.assert_not_writing();
        let (lane, hash) = (lane(), index_hash(key));
        let _sharing = self.write_gate.lock_shared(lane);
        let _removing = self.removals.begin();
        let row = self.directory.lock(hash).index().remove(hash);
        if row != NO_ROW {
            self.directory.unclaim(1);
            self.row_allocator.retire(lane, &self.slab, &self.directory, &mut vec![row]);
        }
        row != NO_ROW
    }

    /// Removes all rows and frees their memory. Without memory for an empty index nothing is done, and the rows stay.
    ///
    /// # Panics
    /// If this thread has a [`TableWriter`] of the table, which it would wait for.
    pub fn clear(&self) {
        self.assert_not_writing();
        let _alone = self.write_gate.lock_exclusive();
        let _removing = self.removals.begin();
        let Some(index) = Index::new() else { return };
        let all = self.directory.lock_all();
        let bytes = all.index().bytes();
        // Once the index is replaced, nobody finds a row any more.
        all.replace(index);
        self.directory.unclaim(self.directory.len());
        self.budget.give_back(bytes - Index::NEW_BYTES);
        self.row_allocator.clear(&self.slab, &self.budget);
        self.admission_filter.clear();
        self.under_pressure.store(false, Relaxed);
        self.resume_scan();
    }

    /// Makes room in the index for `rows` rows in all, so that it need not grow step by step while they come. False when
    /// the budget or the memory has none, or no table has so many.
    pub fn reserve(&self, rows: u64) -> bool {
        // Rows have numbers of 32 bits.
        let Some(rows) = u32::try_from(rows).ok().filter(|&rows| rows < NO_ROW) else { return false };
        let rows = rows as usize;
        self.grow(|index| index.reserved_bytes(rows, *Index::RESERVED_PERCENTS.start()))
    }

    pub(crate) fn state_len(&self) -> usize {
        self.layout.state
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock.total()
    }

    pub(crate) fn full(&self, rejected: u64) -> StoreError {
        let (rows, budget_bytes) = (self.len() as u64, self.budget.limit_bytes());
        StoreError::TableFull { table: self.config.name.clone(), rows, budget_bytes, rejected }
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
