//! Pulls: search every key, and copy its weights out or add them to their sample.

pub(crate) mod gather;
pub(crate) mod hold;
pub(crate) mod pool;
mod requests;

use crate::Absent;
use crate::index::NO_ROW;
use crate::lookup::{CHUNK_KEYS, Lookup, STEP, Visit};
use crate::memory::prefetch::PrefetchHint;
use crate::pull::pool::Pooler;
use crate::rows::access::RowReader;
use crate::rows::layout::Layout;
use crate::simd::halves::{Format, Singles};
use crate::simd::{Vector, Work};
use crate::table::Table;

/// The minimum number of keys for an optimistic read of the table instead of checking every row's version.
const OPTIMISTIC_KEYS_MIN: usize = 32;
/// The minimum per writer, because an optimistic read loads a word of every writer twice. An estimate: 64 lines that
/// other processors have just changed arrive in 700 ns, ten at a time; row versions of 250 keys take 3 ns each.
const OPTIMISTIC_KEYS_PER_WRITER: usize = 4;

/// Destination of the weights of a request.
pub(crate) trait Sink {
    /// Whether a position may first get another key's row if [`Sink::absent`] then overwrites it.
    const OVERWRITES: bool = false;

    /// Takes the rows in the order of the keys.
    fn row<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        at: usize,
        row: u32,
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    );
    /// Takes the rows of consecutive keys from position `first` on.
    #[inline(always)]
    fn rows<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        first: usize,
        rows: &[u32],
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        one_by_one(self, first, rows, reader);
    }
    /// Takes a key without a row.
    fn absent(&mut self, at: usize, key: u64);
    /// Saves the present position.
    fn mark(&mut self) {}
    /// Returns to the saved position, before the same keys are passed again.
    fn rewind(&mut self) {}
}

/// The default of [`Sink::rows`], one row after another.
#[inline(always)]
fn one_by_one<S: Sink + ?Sized, F: Format, V: Vector, const OPTIMISTIC: bool>(
    sink: &mut S,
    first: usize,
    rows: &[u32],
    reader: RowReader<'_, F, V, OPTIMISTIC>,
) {
    for (at, &row) in rows.iter().enumerate() {
        sink.row(first + at, row, reader);
    }
}

/// A pull request; its output is the number of keys without a row.
pub(crate) struct Pull<'a, S> {
    pub(crate) table: &'a Table,
    pub(crate) lane: usize,
    pub(crate) lookup: &'a mut Lookup,
    pub(crate) keys: &'a [u64],
    pub(crate) sink: S,
    /// Receives the positions of keys without a row, ascending.
    pub(crate) missing: Option<&'a mut Vec<u32>>,
    /// Receives the row of each key, or [`NO_ROW`].
    pub(crate) rows: Option<&'a mut [u32]>,
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
        let Pull { table, lane, lookup, keys, mut sink, mut missing, mut rows } = self;
        if let Some(missing) = &mut missing {
            missing.clear();
        }
        let (mut first, mut absent_keys) = (0, 0);
        let optimistic_keys_min =
            OPTIMISTIC_KEYS_MIN.max(OPTIMISTIC_KEYS_PER_WRITER * table.write_gate.writers());
        for keys in keys.chunks(CHUNK_KEYS) {
            lookup.assign(table.hash_key, keys);
            let mut part = Part {
                table,
                lane,
                lookup,
                keys,
                first,
                sink: &mut sink,
                missing: missing.as_deref_mut(),
                rows: rows.as_deref_mut().map(|rows| &mut rows[first..first + keys.len()]),
            };
            let mut absent = None;
            if keys.len() >= optimistic_keys_min
                && let Some(optimistic) = table.write_gate.try_optimistic()
            {
                part.sink.mark();
                let missing_before = part.missing.as_ref().map_or(0, |missing| missing.len());
                absent = Some(part.visit::<true>(format, vector));
                if !table.write_gate.validate(optimistic) {
                    absent = None;
                    part.sink.rewind();
                    if let Some(missing) = &mut part.missing {
                        missing.truncate(missing_before);
                    }
                }
            }
            absent_keys += match absent {
                Some(absent) => absent,
                None => part.visit::<false>(format, vector),
            };
            first += keys.len();
        }
        absent_keys
    }
}

/// A chunk of a request's keys.
struct Part<'a, S> {
    table: &'a Table,
    lane: usize,
    lookup: &'a Lookup,
    keys: &'a [u64],
    /// Position of the chunk in the request.
    first: usize,
    sink: &'a mut S,
    missing: Option<&'a mut Vec<u32>>,
    rows: Option<&'a mut [u32]>,
}

impl<S: Sink> Part<'_, S> {
    /// Passes all rows to the sink; returns the number of keys without one. See [`RowReader`] for `OPTIMISTIC`.
    #[inline(always)]
    fn visit<const OPTIMISTIC: bool>(&mut self, format: impl Format, vector: impl Vector) -> usize {
        let reader = self.table.slab.view().reader::<_, _, OPTIMISTIC>(format, vector);
        let (table, lane, lookup) = (self.table, self.lane, self.lookup);
        let mut visitor = Visitor { part: self, reader, absent_keys: 0 };
        table.walk(vector, lane, lookup, &mut visitor);
        visitor.absent_keys
    }
}

struct Visitor<'a, 'b, S, F, V, const OPTIMISTIC: bool> {
    part: &'a mut Part<'b, S>,
    reader: RowReader<'a, F, V, OPTIMISTIC>,
    absent_keys: usize,
}

// Not closures: everything must be inlined to be compiled for the detected instructions.
impl<S: Sink, F: Format, V: Vector, const OPTIMISTIC: bool> Visit for Visitor<'_, '_, S, F, V, OPTIMISTIC> {
    const HINT: PrefetchHint = PrefetchHint::Read;
    const WHOLE: bool = false;
    const OPTIMISTIC: bool = OPTIMISTIC;

    #[inline(always)]
    fn visit(&mut self, at: usize, row: u32) {
        let key = self.part.keys[at];
        let at = self.part.first + at;
        if row != NO_ROW {
            return self.part.sink.row(at, row, self.reader);
        }
        self.absent_keys += 1;
        if let Some(missing) = &mut self.part.missing {
            missing.push(at as u32);
        }
        self.part.sink.absent(at, key);
    }

    #[inline(always)]
    fn visit_all(&mut self, first: usize, rows: &[u32]) {
        if let Some(found) = &mut self.part.rows {
            found[first..][..rows.len()].copy_from_slice(rows);
        }
        // No branch per row, so that it vectorizes.
        if rows.iter().fold(true, |all, &row| all & (row != NO_ROW)) {
            return self.part.sink.rows(self.part.first + first, rows, self.reader);
        }
        let present = rows.iter().find(|&&row| row != NO_ROW);
        if let (true, Some(&present)) = (S::OVERWRITES, present) {
            // Absent keys first get any row, because a whole step is faster than single rows.
            let mut all = [present; STEP];
            let some = rows.iter().map(|&row| if row == NO_ROW { present } else { row });
            all.iter_mut().zip(some).for_each(|(to, row)| *to = row);
            self.part.sink.rows(self.part.first + first, &all[..rows.len()], self.reader);
        }
        for (at, &row) in rows.iter().enumerate() {
            if row == NO_ROW || !S::OVERWRITES {
                self.visit(first + at, row);
            }
        }
    }
}

/// Copies weights to `out`, row after row.
pub(crate) struct Copy<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) out: &'a mut [f32],
}

impl Copy<'_> {
    /// Rows of a dim known at compile time.
    #[inline(always)]
    fn rows_of<const DIM: usize, F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        first: usize,
        rows: &[u32],
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        let (out, _) = self.out[first * DIM..][..rows.len() * DIM].as_chunks_mut::<DIM>();
        // Whole steps, the usual case, without a loop.
        let (out, rest) = out.as_chunks_mut::<STEP>();
        let (rows, rows_rest) = rows.as_chunks::<STEP>();
        for (out, rows) in out.iter_mut().zip(rows) {
            for (out, &row) in out.iter_mut().zip(rows) {
                reader.weights(row, out);
            }
        }
        for (out, &row) in rest.iter_mut().zip(rows_rest) {
            reader.weights(row, out);
        }
    }
}

impl Sink for Copy<'_> {
    const OVERWRITES: bool = true;

    #[inline(always)]
    fn rows<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        first: usize,
        rows: &[u32],
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        // Common dims, dispatched once per step instead of per row.
        match self.layout.dim {
            8 => self.rows_of::<8, _, _, _>(first, rows, reader),
            16 => self.rows_of::<16, _, _, _>(first, rows, reader),
            32 => self.rows_of::<32, _, _, _>(first, rows, reader),
            64 => self.rows_of::<64, _, _, _>(first, rows, reader),
            128 => self.rows_of::<128, _, _, _>(first, rows, reader),
            _ => one_by_one(self, first, rows, reader),
        }
    }

    #[inline(always)]
    fn row<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        at: usize,
        row: u32,
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        let dim = self.layout.dim;
        reader.weights(row, &mut self.out[at * dim..][..dim]);
    }

    #[inline(always)]
    fn absent(&mut self, at: usize, key: u64) {
        let dim = self.layout.dim;
        self.layout.fill_absent(self.absent, key, &mut self.out[at * dim..][..dim]);
    }
}

/// Copies rows of a single weight.
pub(crate) struct CopyOne<'a>(pub(crate) Copy<'a>);

impl Sink for CopyOne<'_> {
    #[inline(always)]
    fn row<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        at: usize,
        row: u32,
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        self.0.out[at] = reader.one(row);
    }

    #[inline(always)]
    fn absent(&mut self, at: usize, key: u64) {
        self.0.absent(at, key);
    }
}

/// Adds weights to the sums of their samples.
pub(crate) struct Pool<'a, 'b> {
    pub(crate) layout: &'a Layout,
    pub(crate) absent: Absent,
    pub(crate) pooler: &'a mut Pooler<'b>,
    /// The weights of one row, padded, in the nearest cache; and the sum to restore on a rewind.
    pub(crate) weights: &'a mut [f32],
    pub(crate) sum_before: &'a mut [f32],
    pub(crate) out: &'a mut [f32],
}

impl Pool<'_, '_> {
    /// Rows of a dim known at compile time: the sum stays in registers while the keys belong to one sample.
    #[inline(always)]
    fn rows_of<const DIM: usize, F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        mut rows: &[u32],
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        let (out, _) = self.out.as_chunks_mut::<DIM>();
        let mut weights = [0.0; DIM];
        while !rows.is_empty() {
            let (sample, keys) = self.pooler.take(rows.len());
            let mut sum = out[sample];
            let (of_sample, others) = rows.split_at(keys.len());
            for (&row, at) in of_sample.iter().zip(keys) {
                reader.weights(row, &mut weights);
                let value = self.pooler.value(at);
                sum.iter_mut().zip(&weights).for_each(|(sum, weight)| *sum += value * weight);
            }
            out[sample] = sum;
            rows = others;
        }
    }
}

impl Sink for Pool<'_, '_> {
    #[inline(always)]
    fn rows<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        first: usize,
        rows: &[u32],
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        match self.layout.dim {
            8 => self.rows_of::<8, _, _, _>(rows, reader),
            16 => self.rows_of::<16, _, _, _>(rows, reader),
            32 => self.rows_of::<32, _, _, _>(rows, reader),
            64 => self.rows_of::<64, _, _, _>(rows, reader),
            _ => one_by_one(self, first, rows, reader),
        }
    }

    #[inline(always)]
    fn row<F: Format, V: Vector, const OPTIMISTIC: bool>(
        &mut self,
        _at: usize,
        row: u32,
        reader: RowReader<'_, F, V, OPTIMISTIC>,
    ) {
        reader.padded(row, self.layout.dim, self.weights);
        self.pooler.add(&self.weights[..self.layout.dim], self.out);
    }

    #[inline(always)]
    fn absent(&mut self, _at: usize, key: u64) {
        let weights = &mut self.weights[..self.layout.dim];
        self.layout.fill_absent(self.absent, key, weights);
        self.pooler.add(weights, self.out);
    }

    fn mark(&mut self) {
        self.pooler.mark(self.out, self.sum_before);
    }

    fn rewind(&mut self) {
        self.pooler.rewind(self.sum_before, self.out);
    }
}
