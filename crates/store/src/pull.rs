//! The inside of a pull: every key is looked up, and its weights are copied out or added to their sample. Knows nothing
//! of how keys are found.

use crate::Absent;
use crate::index::NO_ROW;
use crate::layout::Layout;
use crate::lookup::{CHUNK_KEYS, Lookup, Visit};
use crate::pool::Pooler;
use crate::prefetch::To;
use crate::slab::RowsView;
use crate::table::Table;
use crate::words::halves::{Format, Singles};
use crate::words::{Vector, Work};

/// Where the weights of a request's keys go.
pub(crate) trait Sink {
    /// Gets the rows in the order of the keys.
    fn row(&mut self, at: usize, row: u32, format: impl Format, vector: impl Vector);
    /// The same for some in a row, from position `first` on.
    #[inline(always)]
    fn rows(&mut self, first: usize, rows: &[u32], format: impl Format, vector: impl Vector) {
        for (at, &row) in rows.iter().enumerate() {
            self.row(first + at, row, format, vector);
        }
    }
    /// A key has no row.
    fn absent(&mut self, at: usize, key: u64);
}

/// A request. Its result is the number of keys without a row.
pub(crate) struct Pull<'a, S> {
    pub(crate) table: &'a Table,
    pub(crate) lane: usize,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) sink: S,
    /// Gets the positions of keys without a row, ascending.
    pub(crate) missing: Option<&'a mut Vec<u32>>,
}

impl<S: Sink> Work for Pull<'_, S> {
    type Output = usize;

    #[inline(always)]
    fn run(self, vector: impl Vector) -> usize {
        // Once per request, not per row.
        match self.table.layout.half {
            None => self.run_as(Singles, vector),
            Some(half) => self.run_as(half, vector),
        }
    }
}

impl<S: Sink> Pull<'_, S> {
    #[inline(always)]
    fn run_as(self, format: impl Format, vector: impl Vector) -> usize {
        let Pull { table, lane, lookup, keys, sink, missing } = self;
        let mut visitor = Visitor { sink, format, vector, missing, keys, first: 0, absent_keys: 0 };
        if let Some(missing) = &mut visitor.missing {
            missing.clear();
        }
        for keys in keys.chunks(CHUNK_KEYS) {
            lookup.assign(keys);
            table.walk(vector, lane, lookup, table.layout.weight_words, &mut visitor);
            visitor.first += keys.len();
        }
        visitor.absent_keys
    }
}

struct Visitor<'a, S, F, V> {
    sink: S,
    format: F,
    vector: V,
    missing: Option<&'a mut Vec<u32>>,
    keys: &'a [u64],
    /// Position of the chunk in the request.
    first: usize,
    absent_keys: usize,
}

// Not closures: all of it must be inlined to be compiled for the machine.
impl<S: Sink, F: Format, V: Vector> Visit for Visitor<'_, S, F, V> {
    const TO: To = To::Read;

    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        let at = self.first + at;
        if row != NO_ROW {
            return self.sink.row(at, row, self.format, self.vector);
        }
        self.absent_keys += 1;
        if let Some(missing) = &mut self.missing {
            missing.push(at as u32);
        }
        self.sink.absent(at, self.keys[at]);
    }

    #[inline(always)]
    fn visit_all(&mut self, first: usize, rows: &[u32]) {
        // Without a branch per row, so that it vectorises.
        if rows.iter().fold(true, |all, &row| all & (row != NO_ROW)) {
            return self.sink.rows(self.first + first, rows, self.format, self.vector);
        }
        for (at, &row) in rows.iter().enumerate() {
            self.visit(first + at, row);
        }
    }
}

/// Copies weights out, row after row.
pub(crate) struct Copy<'a> {
    pub(crate) slab: RowsView<'a>,
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) out: &'a mut [f32],
}

impl Copy<'_> {
    /// Rows of a dim that the compiler knows.
    #[inline(always)]
    fn rows_of<const DIM: usize>(
        &mut self,
        first: usize,
        rows: &[u32],
        format: impl Format,
        vector: impl Vector,
    ) {
        let (out, _) = self.out[first * DIM..].as_chunks_mut::<DIM>();
        for (out, &row) in out.iter_mut().zip(rows) {
            self.slab.read_weights(vector, row, format, out);
        }
    }
}

impl Sink for Copy<'_> {
    #[inline(always)]
    fn rows(&mut self, first: usize, rows: &[u32], format: impl Format, vector: impl Vector) {
        // The usual dims, once per step and not per row.
        match self.layout.dim {
            8 => self.rows_of::<8>(first, rows, format, vector),
            16 => self.rows_of::<16>(first, rows, format, vector),
            32 => self.rows_of::<32>(first, rows, format, vector),
            64 => self.rows_of::<64>(first, rows, format, vector),
            128 => self.rows_of::<128>(first, rows, format, vector),
            _ => {
                for (at, &row) in rows.iter().enumerate() {
                    self.row(first + at, row, format, vector);
                }
            }
        }
    }

    #[inline(always)]
    fn row(&mut self, at: usize, row: u32, format: impl Format, vector: impl Vector) {
        let dim = self.layout.dim;
        self.slab.read_weights(vector, row, format, &mut self.out[at * dim..][..dim]);
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
    fn row(&mut self, at: usize, row: u32, format: impl Format, _vector: impl Vector) {
        // One word is never half old, half new.
        self.0.out[at] = format.one(self.0.slab.word(row, 0));
    }

    #[inline(always)]
    fn absent(&mut self, at: usize, key: u64) {
        self.0.absent(at, key);
    }
}

/// Adds weights to their samples.
pub(crate) struct Pool<'a, 'b> {
    pub(crate) slab: RowsView<'a>,
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) pooler: &'a mut Pooler<'b>,
    /// One row at a time, padded, which stays in the nearest cache.
    pub(crate) weights: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl Sink for Pool<'_, '_> {
    #[inline(always)]
    fn row(&mut self, _at: usize, row: u32, format: impl Format, vector: impl Vector) {
        self.slab.read_padded(vector, row, format, self.layout.dim, self.weights);
        self.pooler.add(&self.weights[..self.layout.dim], self.out);
    }

    #[inline(always)]
    fn absent(&mut self, _at: usize, key: u64) {
        let weights = &mut self.weights[..self.layout.dim];
        self.layout.fill_absent(self.absent, key, weights);
        self.pooler.add(weights, self.out);
    }
}
