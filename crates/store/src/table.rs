//! The table: a request's way through validation, routing, locks and shards. Knows nothing of files.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::budget::Budget;
use crate::hash::mix;
use crate::index::{Index, NO_ROW};
use crate::kernel::Step;
use crate::layout::Layout;
use crate::pool::{Pooler, check_offsets};
use crate::request::{CHUNK_KEYS, SHARDS, shard_of, with_route};
use crate::shard::{Shard, Update, fill_absent, parts};
use crate::slab::{HEADER_WORDS, Header};
use crate::{Absent, Dedup, GRADIENT_ABS_MAX, Pooling, PushScale, StoreError, TableConfig, TableWriter};

/// A thread keeps at most this much memory for summing duplicates and for pooling.
const SCRATCH_BYTES_MAX: usize = 16 << 20;
/// Weights that a pooled pull materialises at once.
const POOL_FLOATS: usize = 64 * 1024;

/// On its own cache lines, so that threads in different shards do not disturb each other.
#[repr(align(128))]
#[derive(Debug)]
struct Lock(RwLock<Shard>);

impl Lock {
    // A panic of another thread inside a shard is a bug that its own thread reports; the shard's invariants hold
    // between the steps of every operation, so the others go on.
    fn read(&self) -> RwLockReadGuard<'_, Shard> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Shard> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An embedding table: 64-bit key -> row of `dim` weights with optimizer state.
///
/// All methods take `&self` and may run in several threads. Within one shard (a sixteenth of the keys) a request is
/// atomic: a pull sees each row before or after a push, never between. Every 64-bit key is legal.
#[derive(Debug)]
pub struct Table {
    config: TableConfig,
    pub(crate) layout: Layout,
    shards: Box<[Lock]>,
    pub(crate) budget: Budget,
    /// Number of pushes.
    clock: AtomicU64,
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
    /// Bytes of all indexes.
    pub index_bytes: u64,
    /// Bytes of all slabs.
    pub slab_bytes: u64,
}

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

/// Rows that a visit of all rows asks the cache for at once.
const VISIT_ROWS: usize = 32;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Table {
    /// An empty table. Fails when the configuration is impossible or the budget is too small for an empty table.
    pub fn new(config: TableConfig) -> Result<Table, StoreError> {
        config.check()?;
        let layout = Layout::new(&config);
        let budget = Budget::new(config.budget_bytes);
        if !budget.take(Index::NEW_BYTES * SHARDS) {
            let reason =
                format!("budget_bytes is below the {} bytes of an empty table", Index::NEW_BYTES * SHARDS);
            return Err(StoreError::Config { table: config.name, reason });
        }
        let shards = (0..SHARDS).map(|_| Lock(RwLock::new(Shard::new(layout.stride)))).collect();
        Ok(Table { config, layout, shards, budget, clock: AtomicU64::new(0) })
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
        self.shards.iter().map(|shard| shard.read().index.len()).sum()
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
        let pushes = self.clock.load(Ordering::Relaxed);
        let mut stats = TableStats { rows: 0, free_rows: 0, pushes, index_bytes: 0, slab_bytes: 0 };
        for shard in &self.shards {
            let shard = shard.read();
            stats.rows += shard.index.len() as u64;
            stats.free_rows += shard.slab.free_rows() as u64;
            stats.index_bytes += shard.index.bytes() as u64;
            stats.slab_bytes += shard.slab.bytes() as u64;
        }
        stats
    }

    /// Copies the weights of `keys` to `out` (`keys.len() * dim`, row-major). Keys may repeat. Returns how many of
    /// the keys have no row; their weights are what `absent` says, and their positions, ascending, replace the
    /// content of `missing`.
    pub fn pull(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        mut missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, StoreError> {
        self.check_length("out", keys.len() * self.layout.dim, out.len())?;
        if let Some(missing) = missing.as_deref_mut() {
            missing.clear();
        }
        let absent_keys = self.gather(keys, 0, absent, out, missing.as_deref_mut());
        if let Some(missing) = missing {
            missing.sort_unstable();
        }
        Ok(absent_keys)
    }

    /// The inside of a pull; `first` is the position of the first key in the caller's request.
    fn gather(
        &self,
        keys: &[u64],
        first: usize,
        absent: Absent,
        out: &mut [f32],
        mut missing: Option<&mut Vec<u32>>,
    ) -> usize {
        let dim = self.layout.dim;
        let mut absent_keys = 0;
        with_route(|route| {
            for (chunk, (keys, out)) in
                keys.chunks(CHUNK_KEYS).zip(out.chunks_mut(CHUNK_KEYS * dim)).enumerate()
            {
                route.assign(keys);
                route.absent.clear();
                for (number, shard) in self.shards.iter().enumerate() {
                    let part = route.shard(number);
                    if !part.entries.is_empty() {
                        shard.read().pull(&self.layout, part.entries, part.rows, out, part.absent);
                    }
                }
                for &position in &route.absent {
                    let at = position as usize;
                    fill_absent(&self.layout, absent, keys[at], &mut out[at * dim..][..dim]);
                }
                absent_keys += route.absent.len();
                if let Some(missing) = missing.as_deref_mut() {
                    let first = (first + chunk * CHUNK_KEYS) as u32;
                    missing.extend(route.absent.iter().map(|position| first + position));
                }
            }
        });
        absent_keys
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
        mut missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, StoreError> {
        let dim = self.layout.dim;
        let samples = check_offsets(self.name(), offsets, keys.len())?;
        self.check_length("out", samples * dim, out.len())?;
        if let Some(values) = values {
            self.check_length("values", keys.len(), values.len())?;
        }
        if let Some(missing) = missing.as_deref_mut() {
            missing.clear();
        }
        out.fill(0.0);
        let mut pooler = Pooler::new(offsets, values, dim);
        let mut absent_keys = 0;
        SCRATCH.with_borrow_mut(|scratch| {
            let chunk_keys = (POOL_FLOATS / dim).max(1);
            for (chunk, keys) in keys.chunks(chunk_keys).enumerate() {
                scratch.floats.resize((keys.len() * dim).max(scratch.floats.len()), 0.0);
                let rows = &mut scratch.floats[..keys.len() * dim];
                absent_keys += self.gather(keys, chunk * chunk_keys, absent, rows, missing.as_deref_mut());
                pooler.add(rows, out);
            }
            scratch.trim();
        });
        pooler.finish(pooling, out);
        if let Some(missing) = missing {
            missing.sort_unstable();
        }
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
        let mut rejected = 0;
        with_route(|route| {
            let mut steps = std::mem::take(&mut route.steps);
            steps.clear();
            steps.extend(self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr)));
            rejected = self.scatter(route, keys, counts, grads, &steps, clock);
            route.steps = steps;
        });
        if rejected > 0 {
            return Err(self.full(rejected));
        }
        Ok(())
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

    /// Exclusive access to the rows, for updates one by one: until the writer is dropped, every other access to the
    /// table waits. `scale` holds for all its updates.
    pub fn writer(&self, scale: PushScale) -> Result<TableWriter<'_>, StoreError> {
        self.check_scale(scale)?;
        let shards = std::array::from_fn(|number| self.shards[number].write());
        let steps = self.layout.blocks.iter().map(|block| block.kernel.step(scale.lr)).collect();
        Ok(TableWriter::new(self, shards, steps, self.tick()))
    }

    fn scatter(
        &self,
        route: &mut crate::request::Route,
        keys: &[u64],
        counts: &[u32],
        grads: &[f32],
        steps: &[Step],
        clock: u32,
    ) -> u64 {
        let dim = self.layout.dim;
        let mut rejected = 0;
        let chunks =
            keys.chunks(CHUNK_KEYS).zip(counts.chunks(CHUNK_KEYS)).zip(grads.chunks(CHUNK_KEYS * dim));
        for ((keys, counts), gradients) in chunks {
            route.assign(keys);
            let update = Update { keys, counts, gradients, steps, clock };
            for (number, shard) in self.shards.iter().enumerate() {
                let part = route.shard(number);
                if !part.entries.is_empty() {
                    let mut shard = shard.write();
                    rejected += shard.push(&self.layout, &self.budget, part.entries, part.rows, &update);
                }
            }
        }
        rejected
    }

    /// A copy of the key's row.
    #[must_use]
    pub fn get(&self, key: u64) -> Option<Row> {
        let hash = mix(key);
        let shard = self.shards[shard_of(hash)].read();
        let row = shard.index.find(hash);
        if row == NO_ROW {
            return None;
        }
        let (header, weights, state) = parts(&self.layout, shard.slab.row(row));
        let Header { key, frequency, last_use, version } = header;
        Some(Row { key, frequency, last_use, version, weights: weights.to_vec(), state: state.to_vec() })
    }

    /// Calls `f` on every row, in no particular order (the same for the same history). A shard's rows are read under
    /// its lock: `f` must not call this table. Rows that are pushed meanwhile may be seen before or after.
    pub fn for_each_row(&self, mut f: impl FnMut(RowRef<'_>)) {
        for shard in &self.shards {
            let shard = shard.read();
            // Neighbours in the index lie anywhere in the slab: ask for some rows at a time.
            let mut rows = shard.index.rows();
            let mut group = [0; VISIT_ROWS];
            loop {
                let found = group.iter_mut().zip(&mut rows).map(|(place, row)| *place = row).count();
                let group = &group[..found];
                group.iter().for_each(|&row| shard.slab.prefetch(row, self.layout.words()));
                for &row in group {
                    let (header, weights, state) = parts(&self.layout, shard.slab.row(row));
                    let Header { key, frequency, last_use, version } = header;
                    f(RowRef { key, frequency, last_use, version, weights, state });
                }
                if found < VISIT_ROWS {
                    break;
                }
            }
        }
    }

    /// Removes the key's row; was there one? Its memory is reused by later rows.
    pub fn remove(&self, key: u64) -> bool {
        let hash = mix(key);
        self.shards[shard_of(hash)].write().remove(hash)
    }

    /// Removes all rows and frees their memory.
    pub fn clear(&self) {
        for shard in &self.shards {
            let mut shard = shard.write();
            let old = std::mem::replace(&mut *shard, Shard::new(self.layout.stride));
            self.budget.give_back(old.bytes() - shard.bytes());
        }
    }

    /// Room in the indexes for `rows` rows in all, as evenly as the hash spreads them. Ends silently at the budget.
    pub(crate) fn reserve(&mut self, rows: u64) {
        let per_shard = rows.div_ceil(SHARDS as u64) as usize;
        for shard in &self.shards {
            let mut shard = shard.write();
            let extra = per_shard.saturating_sub(shard.index.len());
            shard.reserve(&self.budget, extra);
        }
    }

    /// Inserts a row as a checkpoint holds it: `values` are weights, then state. False when the key is there.
    pub(crate) fn restore_row(&mut self, header: Header, values: &[f32]) -> Result<bool, StoreError> {
        let hash = mix(header.key);
        let shard = self.shards[shard_of(hash)].0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if shard.index.find(hash) != NO_ROW {
            return Ok(false);
        }
        let Some(row) = shard.create_unwritten(&self.budget, hash) else { return Err(self.full(1)) };
        let row = shard.slab.row_mut(row);
        header.write(row);
        row[HEADER_WORDS..][..values.len()].copy_from_slice(values);
        Ok(true)
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
        self.full_with(self.len(), rejected)
    }

    /// The same for a caller that holds the shards' locks and has counted the rows.
    pub(crate) fn full_with(&self, rows: usize, rejected: u64) -> StoreError {
        let (rows, budget_bytes) = (rows as u64, self.budget.limit_bytes());
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
