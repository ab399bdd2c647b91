//! The inside of a pull: every key is looked up, and its weights are copied out or added to their sample. Knows nothing
//! of how keys are found.

use crate::Absent;
use crate::index::NO_ROW;
use crate::layout::Layout;
use crate::lookup::{CHUNK_KEYS, Lookup, Visit};
use crate::pool::Pooler;
use crate::slab::Slab;
use crate::table::Table;
use crate::words::Work;

/// Where the weights of a request's keys go.
pub(crate) trait Sink {
    /// Gets the rows in the order of the keys.
    fn row(&mut self, at: usize, row: u32);
    /// A key has no row.
    fn absent(&mut self, at: usize, key: u64);
}

/// A request. Its result is the number of keys without a row.
pub(crate) struct Pull<'a, S> {
    pub(crate) table: &'a Table,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) sink: S,
    /// Gets the positions of keys without a row, ascending.
    pub(crate) missing: Option<&'a mut Vec<u32>>,
}

impl<S: Sink> Work for Pull<'_, S> {
    type Output = usize;

    #[inline(always)]
    fn run(self) -> usize {
        let Pull { table, lookup, keys, sink, missing } = self;
        let mut visitor = Visitor { sink, missing, keys, first: 0, absent_keys: 0 };
        if let Some(missing) = &mut visitor.missing {
            missing.clear();
        }
        for keys in keys.chunks(CHUNK_KEYS) {
            lookup.assign(keys);
            table.walk(lookup, table.layout.dim, &mut visitor);
            visitor.first += keys.len();
        }
        visitor.absent_keys
    }
}

struct Visitor<'a, S> {
    sink: S,
    missing: Option<&'a mut Vec<u32>>,
    keys: &'a [u64],
    /// Position of the chunk in the request.
    first: usize,
    absent_keys: usize,
}

// Not closures: all of it must be inlined to be compiled for the machine.
impl<S: Sink> Visit for Visitor<'_, S> {
    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        let at = self.first + at;
        if row != NO_ROW {
            return self.sink.row(at, row);
        }
        self.absent_keys += 1;
        if let Some(missing) = &mut self.missing {
            missing.push(at as u32);
        }
        self.sink.absent(at, self.keys[at]);
    }
}

/// Copies weights out, row after row.
pub(crate) struct Copy<'a> {
    pub(crate) slab: &'a Slab,
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) out: &'a mut [f32],
}

impl Sink for Copy<'_> {
    #[inline(always)]
    fn row(&mut self, at: usize, row: u32) {
        let dim = self.layout.dim;
        self.slab.read(row, &mut self.out[at * dim..][..dim]);
    }

    #[inline(always)]
    fn absent(&mut self, at: usize, key: u64) {
        let dim = self.layout.dim;
        self.layout.fill_absent(self.absent, key, &mut self.out[at * dim..][..dim]);
    }
}

/// The same for rows of one weight.
pub(crate) struct CopyOne<'a>(pub(crate) Copy<'a>);

impl Sink for CopyOne<'_> {
    #[inline(always)]
    fn row(&mut self, at: usize, row: u32) {
        // One word is never half old, half new.
        self.0.out[at] = f32::from_bits(self.0.slab.word(row, 0));
    }

    #[inline(always)]
    fn absent(&mut self, at: usize, key: u64) {
        self.0.absent(at, key);
    }
}

/// Adds weights to their samples.
pub(crate) struct Pool<'a, 'b> {
    pub(crate) slab: &'a Slab,
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) pooler: &'a mut Pooler<'b>,
    /// One row at a time, padded, which stays in the nearest cache.
    pub(crate) weights: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl Sink for Pool<'_, '_> {
    #[inline(always)]
    fn row(&mut self, _at: usize, row: u32) {
        self.slab.read_padded(row, self.layout.dim, self.weights);
        self.pooler.add(&self.weights[..self.layout.dim], self.out);
    }

    #[inline(always)]
    fn absent(&mut self, _at: usize, key: u64) {
        let weights = &mut self.weights[..self.layout.dim];
        self.layout.fill_absent(self.absent, key, weights);
        self.pooler.add(weights, self.out);
    }
}
