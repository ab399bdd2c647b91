//! Local copies of rows for online learning: fetched together for a run of samples, updated without access to the
//! table, and flushed together.
//!
//! It supports FTRL only, whose state is additive. If a row was not updated meanwhile, the flush overwrites it with
//! the copy. Otherwise it adds the changes of z and n, and recomputes the weight. So several workers learn at once,
//! and rows that all of them use travel between processors once per run, or a few times if they are in most samples.
//! A single worker gets the result of pushes one by one, bit for bit.

mod exchange;
mod flush;
mod ftrl;

use crate::index::NO_ROW;
use crate::index::removals::RemovalStamp;
use crate::lookup::dedup::Dedup;
use crate::lookup::{CHUNK_KEYS, Lookup, Visit, with_lookup};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::WholeRowReader;
use crate::rows::layout::{Layout, VERSION};
use crate::rows::placement::HEADER_WORDS;
use crate::simd::{self, Vector, Work};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::update::kernel::{FtrlStep, OptimizerStep};
use crate::{Admission, PushScale, RowHandle, StoreError, Writes};
use ftrl::Constants;

/// Values of a copy per coordinate: first all weights, then all z, all n, and the roots of all n.
const PARTS: usize = 4;

/// Buffers of a [`LocalCache`], reused from run to run. A worker has one per table.
#[derive(Debug, Default)]
pub struct CacheBuffers {
    dedup: Dedup,
    /// Per distinct key [`PARTS`] times `dim` words, then padding of at least [`ftrl::LANES`] rows for idle vector
    /// lanes.
    rows: Vec<f32>,
    /// The fetched values per distinct key: `dim` of z, then `dim` of n; and the row's number of updates.
    fetched: Vec<f32>,
    versions: Vec<u32>,
    /// The row it was fetched from, [`NO_ROW`] for a key without a row.
    places: Vec<u32>,
    frequent: exchange::Frequent,
}

/// A block of a row.
#[derive(Debug, Clone, Copy)]
struct CachedBlock {
    /// First coordinate, and number of coordinates.
    first: usize,
    dims: usize,
    /// Positions of z and n after the weights.
    z_at: usize,
    n_at: usize,
    step: FtrlStep,
}

/// Copies of the rows of a run of samples, by handle.
///
/// [`LocalCache::flush`] writes them back and reports errors. A cache that is dropped without a flush or
/// [`LocalCache::discard`] is flushed, and panics on errors.
#[derive(Debug)]
pub struct LocalCache<'a> {
    table: &'a Table,
    lane: usize,
    dim: usize,
    blocks: Vec<CachedBlock>,
    constants: Vec<Constants>,
    buffers: &'a mut CacheBuffers,
    /// Taken before the first row was fetched; `None` if rows were being removed.
    since: Option<RemovalStamp>,
    is_flushed: bool,
}

impl Table {
    /// Returns whether [`Table::local_cache`] supports this table.
    ///
    /// It requires FTRL for every block, f32 weights, admission of every key, and updates in place.
    #[must_use]
    pub fn supports_local_cache(&self) -> bool {
        let is_ftrl = |block: &crate::Block| matches!(block.optimizer, crate::Optimizer::Ftrl { .. });
        let config = self.config();
        config.blocks.iter().all(is_ftrl)
            && (config.admission, config.writes) == (Admission::Always, Writes::InPlace)
            && self.layout.half.is_none()
    }

    /// Begins a run of samples in which one worker updates copies of rows.
    ///
    /// `scale` is validated but has no effect, because FTRL ignores it ([`PushScale`]).
    ///
    /// # Errors
    ///
    /// [`StoreError::Config`] if [`Table::supports_local_cache`] is false.
    pub fn local_cache<'a>(
        &'a self,
        scale: PushScale,
        buffers: &'a mut CacheBuffers,
    ) -> Result<LocalCache<'a>, StoreError> {
        scale.check(self.name())?;
        if !self.supports_local_cache() {
            let reason = "a local cache requires FTRL, admission = always, writes = in_place and dtype = f32";
            return Err(StoreError::Config { table: self.name().to_string(), reason: reason.to_string() });
        }
        buffers.dedup.clear();
        buffers.versions.clear();
        buffers.places.clear();
        buffers.frequent.clear();
        let blocks = self.layout.blocks.iter().filter_map(|block| {
            let OptimizerStep::Ftrl(step) = block.kernel.step(scale.lr_scale) else { return None };
            let z_at = HEADER_WORDS + block.state.start;
            Some(CachedBlock { first: block.first, dims: block.dims, z_at, n_at: z_at + block.dims, step })
        });
        let (dim, blocks) = (self.layout.dim, blocks.collect::<Vec<_>>());
        let constants = Constants::of_row(&blocks, dim);
        let since = self.removals.stamp();
        Ok(LocalCache {
            table: self,
            lane: lane(),
            dim,
            blocks,
            constants,
            buffers,
            since,
            is_flushed: false,
        })
    }
}

impl LocalCache<'_> {
    /// Fetches the rows of all keys that are not cached yet, and appends a handle per key.
    ///
    /// A key without a row gets a copy with its initial weights. Keys may repeat.
    pub fn resolve(&mut self, keys: &[u64], handles: &mut Vec<RowHandle>) {
        let buffers = &mut *self.buffers;
        let range = buffers.dedup.add(keys);
        handles.extend(buffers.dedup.inverse[range].iter().map(|&unique| RowHandle(unique)));
        let (first, distinct) = (buffers.versions.len(), buffers.dedup.unique.len());
        make_room(&mut buffers.rows, (distinct + ftrl::LANES) * PARTS * self.dim);
        make_room(&mut buffers.fetched, distinct * 2 * self.dim);
        buffers.versions.resize(distinct, 0);
        buffers.places.resize(distinct, NO_ROW);
        buffers.frequent.clear();
        let (table, lane, blocks) = (self.table, self.lane, self.blocks.as_slice());
        with_lookup(|lookup| {
            let mut from = first;
            for keys in buffers.dedup.unique[first..].chunks(CHUNK_KEYS) {
                let rows = &mut buffers.rows[from * PARTS * self.dim..];
                let (fetched, versions) =
                    (&mut buffers.fetched[from * 2 * self.dim..], &mut buffers.versions[from..]);
                let places = &mut buffers.places[from..];
                from += keys.len();
                let into = Target { layout: &table.layout, blocks, keys, rows, fetched, versions, places };
                simd::run(table.width(), Fetch { table, lane, lookup, into });
            }
        });
    }

    /// Announces that a row gets `more` updates in addition to one per resolved occurrence of its key.
    pub fn expect_updates(&mut self, handle: RowHandle, more: u32) {
        let count = &mut self.buffers.dedup.counts[handle.0 as usize];
        *count = count.saturating_add(more);
    }

    /// The weights of a row.
    #[inline]
    #[must_use]
    pub fn weights(&self, handle: RowHandle) -> &[f32] {
        &self.buffers.rows[handle.0 as usize * PARTS * self.dim..][..self.dim]
    }

    /// The first weight of a row, for logistic regression.
    #[inline]
    #[must_use]
    pub fn first_weight(&self, handle: RowHandle) -> f32 {
        self.buffers.rows[handle.0 as usize * PARTS * self.dim]
    }

    /// Applies the optimizer to a row, like a push of this gradient. The gradient must be finite.
    ///
    /// # Panics
    ///
    /// If the gradient's length is not the table's dim.
    pub fn update(&mut self, handle: RowHandle, gradient: &[f32]) {
        self.update_all(std::slice::from_ref(&handle), gradient);
    }

    /// Applies the optimizer to several rows in order, with `dim` gradient values each.
    ///
    /// A repeated row is updated repeatedly.
    ///
    /// # Panics
    ///
    /// If there are not `dim` gradient values per handle.
    pub fn update_all(&mut self, handles: &[RowHandle], gradients: &[f32]) {
        assert_eq!(handles.len() * self.dim, gradients.len(), "a gradient has one value per weight");
        let (width, rows) = (self.table.width(), self.buffers.rows.as_mut_slice());
        match self.blocks.as_slice() {
            [block] if block.dims == 1 => {
                ftrl::update_ones(width, block.step, rows.as_chunks_mut().0, handles, gradients);
            }
            blocks => {
                ftrl::update_rows(width, (blocks, &self.constants), self.dim, rows, handles, gradients);
            }
        }
    }
}

/// Fetches the rows of a chunk of keys.
struct Fetch<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a mut Lookup,
    into: Target<'a>,
}

/// Destination of a chunk's rows.
struct Target<'a> {
    layout: &'a Layout,
    blocks: &'a [CachedBlock],
    keys: &'a [u64],
    rows: &'a mut [f32],
    fetched: &'a mut [f32],
    versions: &'a mut [u32],
    places: &'a mut [u32],
}

impl Target<'_> {
    /// Stores a row of the table, or the initial row of a key.
    #[inline(always)]
    fn take(&mut self, at: usize, words: &[f32]) {
        let dim = self.layout.dim;
        let (weights, rest) = words.split_at(dim);
        if let ([block], 1) = (self.blocks, dim) {
            let (z, n) = (rest[block.z_at], rest[block.n_at]);
            self.rows.as_chunks_mut::<PARTS>().0[at] = [weights[0], z, n, n.sqrt()];
            self.fetched.as_chunks_mut::<2>().0[at] = [z, n];
            self.versions[at] = rest[VERSION].to_bits();
            return;
        }
        let copy = &mut self.rows[at * PARTS * dim..][..PARTS * dim];
        let fetched = &mut self.fetched[at * 2 * dim..][..2 * dim];
        copy_few(&mut copy[..dim], weights);
        for block in self.blocks {
            let (z, n) = (&rest[block.z_at..][..block.dims], &rest[block.n_at..][..block.dims]);
            copy_few(&mut copy[dim + block.first..][..block.dims], z);
            copy_few(&mut copy[2 * dim + block.first..][..block.dims], n);
            let roots = &mut copy[3 * dim + block.first..][..block.dims];
            roots.iter_mut().zip(n).for_each(|(root, n)| *root = n.sqrt());
            copy_few(&mut fetched[block.first..][..block.dims], z);
            copy_few(&mut fetched[dim + block.first..][..block.dims], n);
        }
        self.versions[at] = rest[VERSION].to_bits();
    }
}

/// Grows the buffer to at least `len` values and keeps the old ones: every fetched row is written whole.
fn make_room(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.resize(len, 0.0);
    }
}

/// Copies a short part of a row without a call, which would cost more than the copy.
#[inline(always)]
fn copy_few(to: &mut [f32], from: &[f32]) {
    const TOGETHER: usize = 8;
    if let ([to], [from]) = (&mut *to, from) {
        *to = *from;
        return;
    }
    if let Some(end) = from.last_chunk::<TOGETHER>() {
        let whole = to.as_chunks_mut::<TOGETHER>().0;
        whole.iter_mut().zip(from.as_chunks().0).for_each(|(to, from)| *to = *from);
        // Overlaps the chunk before it where less than a whole chunk is left.
        if let Some(to) = to.last_chunk_mut() {
            *to = *end;
        }
    } else {
        to.copy_from_slice(from);
    }
}

/// Fetches the rows of a chunk one after another.
struct Fetcher<'a, V> {
    reader: WholeRowReader<'a, V>,
    into: Target<'a>,
    words: &'a mut [f32],
}

impl<V: Vector> Visit for Fetcher<'_, V> {
    const HINT: PrefetchHint = PrefetchHint::Read;

    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        let layout = self.into.layout;
        self.into.places[at] = row;
        if row == NO_ROW {
            let words = layout.init_row(self.into.keys[at], self.words);
            self.into.take(at, words);
        } else {
            self.reader.row(row, self.words);
            self.into.take(at, self.words);
        }
    }
}

impl Work for Fetch<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let Fetch { table, lane, lookup, into } = self;
        lookup.assign(table.hash_key, into.keys);
        let mut words = std::mem::take(&mut lookup.words);
        // Rows of f32 are as long packed as unpacked.
        words.resize(table.layout.unpacked(), 0.0);
        let mut fetcher = Fetcher { reader: table.slab.whole_reader(vector), into, words: &mut words };
        table.search(vector, lane, lookup, &mut fetcher);
        lookup.words = words;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
