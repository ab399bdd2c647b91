//! The table: a request's way through validation, look-up and the rows. Knows nothing of files.
//!
//! Who may do what at the same time: pulls announce themselves as readers and otherwise neither wait nor write. Pushes
//! share the right to change rows, each row under its version. Making rows, and growing the index, is for the holder of
//! `structure`; removing rows also excludes pushes, so that a push may keep row numbers. Locks are taken in the order
//! `slab.share()` or `slab.exclude()`, then `structure`; and never by a reader.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::budget::Budget;
use crate::hash::mix;
use crate::index::{Index, NO_ROW};
use crate::layout::{Header, Layout};
use crate::lookup::{CHUNK_KEYS, GROUP_KEYS, Lookup, Visit, with_lookup};
use crate::memory::granted_huge_bytes;
use crate::pool::{Pooler, check_offsets};
use crate::pull::{Copy, CopyOne, Pool, Pull, Sink};
use crate::push::Scatter;
use crate::readers::{self, Published};
use crate::slab::{Allocation, Shared, Slab};
use crate::words::{self, PAD, Width};
use crate::{Absent, Dedup, GRADIENT_ABS_MAX, Pooling, PushScale, StoreError, TableConfig, TableWriter};

/// A thread keeps at most this much memory for summing duplicates.
const SCRATCH_BYTES_MAX: usize = 16 << 20;

/// An embedding table: 64-bit key -> row of `dim` weights with optimizer state.
///
/// All methods take `&self` and may run in several threads. A pull sees each row before or after a push, never
/// between, and waits for nobody. Every 64-bit key is legal.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    pub(crate) layout: Layout,
    index: Published<Index>,
    slab: Slab,
    structure: Mutex<Structure>,
    budget: Budget,
    /// Number of pushes.
    clock: AtomicU64,
}

/// What makes and removes rows.
#[derive(Debug)]
struct Structure {
    /// The published one.
    index: Arc<Index>,
    rows: Allocation,
}

/// A copy of one row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes, saturating.
    pub frequency: u32,
    /// The table's use clock (its number of pushes, modulo 2^32) at the row's last push.
    pub last_use: u32,
    /// Updates of this row, saturating.
    pub version: u32,
    /// Weights, `dim` of them.
    pub weights: Vec<f32>,
    /// Optimizer state, block after block, slot after slot: Adagrad `a`, Adam `m v`, FTRL `z n`, `dims` values each.
    pub state: Vec<f32>,
}

/// A row in place, as [`Table::for_each_row`] shows it; fields as in [`Row`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowRef<'a> {
    /// The key.
    pub key: u64,
    /// Occurrences of the key in pushes, saturating.
    pub frequency: u32,
    /// The table's use clock at the row's last push.
    pub last_use: u32,
    /// Updates of this row, saturating.
    pub version: u32,
    /// Weights.
    pub weights: &'a [f32],
    /// Optimizer state.
    pub state: &'a [f32],
}

/// Sizes of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableStats {
    /// Rows.
    pub rows: u64,
    /// Rows that were removed and wait to be reused.
    pub free_rows: u64,
    /// Pushes so far.
    pub pushes: u64,
    /// Bytes of the index and of what else a table without rows has.
    pub index_bytes: u64,
    /// Bytes of the rows, free ones and their reserve included.
    pub slab_bytes: u64,
    /// Bytes of both that the system has put on huge pages. It counts them as it pleases: read this after loading,
    /// not per request.
    pub huge_bytes: u64,
}

/// What summing duplicates needs, kept by each thread.
#[derive(Default)]
struct Scratch {
    dedup: Dedup,
    floats: Vec<f32>,
}

impl Scratch {
    fn trim(&mut self) {
        if self.dedup.bytes() > SCRATCH_BYTES_MAX {
            self.dedup = Dedup::new();
        }
        if self.floats.capacity() * size_of::<f32>() > SCRATCH_BYTES_MAX {
            self.floats = Vec::new();
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Table {
    /// An empty table. Fails when the configuration is impossible or the budget is too small for an empty table.
    pub fn new(config: TableConfig) -> Result<Table, StoreError> {
        config.check()?;
        let fail = |reason: String| Err(StoreError::Config { table: config.name.clone(), reason });
        let budget = Budget::new(config.budget_bytes);
        let bytes = Index::NEW_BYTES + Slab::NEW_BYTES;
        if !budget.take(bytes) {
            return fail(format!("budget_bytes is below the {bytes} bytes of an empty table"));
        }
        let layout = Layout::new(&config);
        let (Some(index), Some(slab)) = (Index::new(), Slab::new(layout.stride, budget.limit_bytes())) else {
            return fail("no memory for an empty table".to_string());
        };
        let index = Arc::new(index);
        let structure = Mutex::new(Structure { index: Arc::clone(&index), rows: Allocation::new() });
        let index = Published::new(index);
        Ok(Table { config, layout, index, slab, structure, budget, clock: AtomicU64::new(0) })
    }

    // A panic of another thread is a bug that its own thread reports; the structure's invariants hold between the
    // steps of every operation, so the others go on.
    fn structure(&self) -> MutexGuard<'_, Structure> {
        self.structure.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.index.get(&readers::enter()).len()
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

    /// Sizes.
    #[must_use]
    pub fn stats(&self) -> TableStats {
        let structure = self.structure();
        let index = &structure.index;
        TableStats {
            rows: index.len() as u64,
            free_rows: structure.rows.free_rows() as u64,
            pushes: self.clock.load(Ordering::Relaxed),
            index_bytes: (index.bytes() + Slab::NEW_BYTES) as u64,
            slab_bytes: structure.rows.bytes() as u64,
            huge_bytes: granted_huge_bytes(&[index.addresses(), self.slab.addresses(&structure.rows)]),
        }
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
        let copy = Copy { slab: &self.slab, layout: &self.layout, absent, out };
        Ok(if self.layout.dim == 1 {
            self.pull_into(keys, missing, CopyOne(copy))
        } else {
            self.pull_into(keys, missing, copy)
        })
    }

    fn pull_into(&self, keys: &[u64], missing: Option<&mut Vec<u32>>, sink: impl Sink) -> usize {
        with_lookup(|lookup| words::run(self.width(), Pull { table: self, lookup, keys, sink, missing }))
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
        let absent_keys = SCRATCH.with_borrow_mut(|scratch| {
            scratch.floats.clear();
            scratch.floats.resize(dim.next_multiple_of(PAD), 0.0);
            let (weights, pooler, out) = (scratch.floats.as_mut_slice(), &mut pooler, &mut *out);
            let sink = Pool { slab: &self.slab, layout: &self.layout, absent, pooler, weights, out };
            self.pull_into(keys, missing, sink)
        });
        pooler.finish(pooling, out);
        Ok(absent_keys)
    }

    /// Applies the optimizer. `grads` is `keys.len() * dim`, row-major. Gradients of a key that occurs more than
    /// once are summed first (f32, in order) and its row is updated once. Keys without a row get one.
    pub fn push(&self, keys: &[u64], grads: &[f32], scale: PushScale) -> Result<(), StoreError> {
        let dim = self.layout.dim;
        self.check_length("grads", keys.len() * dim, grads.len())?;
        SCRATCH.with_borrow_mut(|scratch| {
            let Scratch { dedup, floats } = scratch;
            dedup.assign(keys);
            let result = if dedup.unique.len() == keys.len() {
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
            };
            scratch.trim();
            result
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
        let dim = self.layout.dim;
        self.check_length("grads", keys.len() * dim, grads.len())?;
        self.check_length("counts", keys.len(), counts.len())?;
        self.check_gradients(keys, grads)?;
        self.check_scale(scale)?;
        let clock = self.tick();
        let rejected = with_lookup(|lookup| {
            lookup.steps.clear();
            lookup.steps.extend(self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr)));
            let chunks =
                keys.chunks(CHUNK_KEYS).zip(counts.chunks(CHUNK_KEYS)).zip(grads.chunks(CHUNK_KEYS * dim));
            let scatter = |((keys, counts), grads)| {
                words::run(self.width(), Scatter { table: self, lookup, keys, counts, grads, clock })
            };
            chunks.map(scatter).sum()
        });
        if rejected > 0 {
            return Err(self.full(rejected));
        }
        Ok(())
    }

    /// The widest copy that the machine can do.
    pub(crate) fn width(&self) -> Width {
        self.slab.width()
    }

    /// The right to change rows.
    pub(crate) fn share(&self) -> Shared<'_> {
        self.slab.share()
    }

    /// Looks the chunk up; the caller gets the row of every key, or [`NO_ROW`], in order, with the rows' first `words`
    /// words in the cache. Once this has
    /// returned, rows may be removed, unless the caller holds a right to change them.
    #[inline(always)]
    pub(crate) fn walk(&self, lookup: &Lookup, words: usize, f: &mut impl Visit) {
        let reading = readers::enter();
        lookup.walk(self.index.get(&reading), &self.slab, words, f);
    }

    /// Makes rows for the keys at the positions `absent`, unless they have one by now, and puts them into
    /// `lookup.rows`, in their order. How many were left out because the budget has no room: their row stays [`NO_ROW`].
    /// The caller must not be a reader.
    pub(crate) fn create_absent(&self, lookup: &mut Lookup, keys: &[u64], absent: &[u32]) -> u64 {
        let mut structure = self.structure();
        let mut words = std::mem::take(&mut lookup.words);
        words.resize(self.layout.words(), 0.0);
        lookup.rows.clear();
        let mut rejected = 0;
        for &at in absent {
            let hash = lookup.hash(at as usize);
            // Somebody else, or an earlier place in the request, may have made it.
            let mut row = structure.index.find(hash);
            if row == NO_ROW {
                self.layout.init_row(keys[at as usize], &mut words);
                row = self.insert(&mut structure, hash, &words).unwrap_or(NO_ROW);
            }
            rejected += u64::from(row == NO_ROW);
            lookup.rows.push(row);
        }
        lookup.words = words;
        rejected
    }

    /// A row of these words for a hash that has none. `None`: the budget is used up, nothing has changed but perhaps
    /// the size of the index. The caller must not be a reader.
    fn insert(&self, structure: &mut Structure, hash: u64, words: &[f32]) -> Option<u32> {
        let grown_bytes = structure.index.grown_bytes();
        if grown_bytes > 0 && !self.grow(structure, grown_bytes) && !structure.index.has_room() {
            return None;
        }
        let row = structure.rows.allocate(&self.slab, &self.budget)?;
        self.slab.write_unseen(row, words);
        structure.index.insert(hash, row);
        Some(row)
    }

    /// Replaces the index by one of `bytes`; false when there is no budget or memory for it. Searches go on in the old
    /// one meanwhile. The caller must not be a reader.
    fn grow(&self, structure: &mut Structure, bytes: usize) -> bool {
        let more_bytes = bytes - structure.index.bytes();
        if !self.budget.take(more_bytes) {
            return false;
        }
        let Some(grown) = structure.index.grown(bytes) else {
            self.budget.give_back(more_bytes);
            return false;
        };
        self.publish(structure, grown);
        true
    }

    fn publish(&self, structure: &mut Structure, index: Index) {
        structure.index = Arc::new(index);
        self.index.replace(Arc::clone(&structure.index));
    }

    /// The next reading of the use clock.
    fn tick(&self) -> u32 {
        self.clock.fetch_add(1, Ordering::Relaxed).wrapping_add(1) as u32
    }

    fn check_scale(&self, scale: PushScale) -> Result<(), StoreError> {
        if scale.lr.is_finite() && scale.lr > 0.0 {
            return Ok(());
        }
        Err(StoreError::BadScale { table: self.config.name.clone(), lr: scale.lr })
    }

    /// Exclusive access to the rows, for updates one by one: until the writer is dropped, every other change of the
    /// table waits. `scale` holds for all its updates.
    pub fn writer(&self, scale: PushScale) -> Result<TableWriter<'_>, StoreError> {
        self.check_scale(scale)?;
        let steps = self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr)).collect();
        Ok(TableWriter::new(self, self.slab.exclude(), steps, self.tick()))
    }

    /// A copy of the key's row.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Row> {
        let reading = readers::enter();
        let row = self.index.get(&reading).find(mix(key));
        if row == NO_ROW {
            return None;
        }
        let mut words = vec![0.0; self.layout.words()];
        self.slab.read(row, &mut words);
        let (weights, header, state) = self.layout.parts(&words);
        let Header { key, frequency, last_use, version } = header;
        Some(Row { key, frequency, last_use, version, weights: weights.to_vec(), state: state.to_vec() })
    }

    /// Calls `f` on every row, in no particular order (the same for the same history). Rows that are pushed meanwhile
    /// may be seen before or after, new rows may be seen or not. `f` may pull from this table but must not change it:
    /// removals wait until this is done.
    pub fn for_each_row(&self, mut f: impl FnMut(RowRef<'_>)) {
        // Without removals no key can have two rows, one after the other.
        let _shared = self.slab.share();
        let made = self.structure().rows.made();
        let (mut keys, mut lookup, mut found) = (Vec::new(), Lookup::default(), Vec::new());
        let mut words = vec![0.0; self.layout.words()];
        for first in (0..made).step_by(GROUP_KEYS) {
            let rows = first..(first + GROUP_KEYS as u32).min(made);
            let dim = self.layout.dim;
            keys.clear();
            keys.extend(rows.clone().map(|row| {
                u64::from(self.slab.word(row, dim)) | u64::from(self.slab.word(row, dim + 1)) << 32
            }));
            lookup.assign(&keys);
            found.clear();
            self.walk(&lookup, 0, &mut |_: usize, row: u32| found.push(row));
            // A row is in use if its key leads to it.
            for (row, _) in rows.zip(&found).filter(|(row, found)| row == *found) {
                self.slab.read(row, &mut words);
                let (weights, header, state) = self.layout.parts(&words);
                let Header { key, frequency, last_use, version } = header;
                f(RowRef { key, frequency, last_use, version, weights, state });
            }
        }
    }

    /// Removes the key's row; was there one? Its memory is reused by later rows.
    pub fn remove(&self, key: u64) -> bool {
        let _exclusive = self.slab.exclude();
        let mut structure = self.structure();
        let row = structure.index.remove(mix(key));
        if row != NO_ROW {
            structure.rows.release(&self.slab, row);
        }
        row != NO_ROW
    }

    /// Removes all rows and frees their memory.
    pub fn clear(&self) {
        let _exclusive = self.slab.exclude();
        let mut structure = self.structure();
        let bytes = structure.index.bytes();
        let Some(index) = Index::new() else { return };
        // Once the index is replaced, nobody finds a row any more.
        self.publish(&mut structure, index);
        self.budget.give_back(bytes - Index::NEW_BYTES);
        structure.rows.clear(&self.slab, &self.budget);
    }

    /// Room in the index for `rows` rows in all. Ends silently at the budget.
    pub(crate) fn reserve(&mut self, rows: u64) {
        let mut structure = self.structure();
        let bytes = structure.index.reserved_bytes(rows as usize);
        if bytes > 0 {
            self.grow(&mut structure, bytes);
        }
    }

    /// Inserts a row as a checkpoint holds it: `values` are weights, then state. False when the key is there.
    pub(crate) fn restore_row(&mut self, header: Header, values: &[f32]) -> Result<bool, StoreError> {
        let hash = mix(header.key);
        let mut structure = self.structure();
        if structure.index.find(hash) != NO_ROW {
            return Ok(false);
        }
        let restored = with_lookup(|lookup| {
            lookup.words.resize(self.layout.words(), 0.0);
            self.layout.join_row(header, values, &mut lookup.words);
            self.insert(&mut structure, hash, &lookup.words)
        });
        drop(structure);
        restored.map(|_| true).ok_or_else(|| self.full(1))
    }

    pub(crate) fn state_len(&self) -> usize {
        self.layout.state
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    pub(crate) fn set_clock(&mut self, clock: u64) {
        *self.clock.get_mut() = clock;
    }

    pub(crate) fn full(&self, rejected: u64) -> StoreError {
        let (rows, budget_bytes) = (self.len() as u64, self.budget.limit_bytes());
        StoreError::TableFull { table: self.config.name.clone(), rows, budget_bytes, rejected }
    }

    fn check_length(&self, what: &'static str, expected: usize, found: usize) -> Result<(), StoreError> {
        if expected == found {
            return Ok(());
        }
        Err(StoreError::Length { table: self.config.name.clone(), what, expected, found })
    }

    fn check_gradients(&self, keys: &[u64], grads: &[f32]) -> Result<(), StoreError> {
        // Without a branch per value, so that it vectorises; the comparison is false for NaN.
        let good = |g: &f32| g.abs() < GRADIENT_ABS_MAX;
        if grads.iter().fold(true, |all, g| all & good(g)) {
            return Ok(());
        }
        let at = grads.iter().position(|g| !good(g)).unwrap_or_default();
        let (key, coordinate) = (keys[at / self.layout.dim], at % self.layout.dim);
        Err(StoreError::BadGradient { table: self.config.name.clone(), key, coordinate, value: grads[at] })
    }
}
