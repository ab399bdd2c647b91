//! Copies whole rows of many keys, with their cache misses overlapped. Each row is consistent.

use crate::index::NO_ROW;
use crate::lookup::{CHUNK_KEYS, Lookup, Visit, with_lookup};
use crate::memory::prefetch::PrefetchHint;
use crate::rows::access::WholeRowReader;
use crate::simd::{self, Vector, Work};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::update::whole::RowColumns;

impl Table {
    /// Appends the rows of the keys, in order; absent keys are skipped. Does not count as use.
    pub fn copy_rows(&self, keys: &[u64], rows: &mut RowColumns) {
        let lane = lane();
        with_lookup(|lookup| {
            let mut copied = std::mem::take(&mut lookup.words);
            copied.resize(self.layout.unpacked(), 0.0);
            for keys in keys.chunks(CHUNK_KEYS) {
                lookup.assign(self.hash_key, keys);
                simd::run(self.width(), CopyRows { table: self, lane, lookup, copied: &mut copied, rows });
            }
            lookup.words = copied;
        });
    }
}

/// Copies the rows of a chunk of keys.
struct CopyRows<'a> {
    table: &'a Table,
    lane: usize,
    lookup: &'a Lookup,
    /// Buffer for one row.
    copied: &'a mut [f32],
    rows: &'a mut RowColumns,
}

impl Work for CopyRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self, vector: impl Vector) {
        let CopyRows { table, lane, lookup, copied, rows } = self;
        let reader = table.slab.whole_reader(vector);
        // A row in the slab has this layout except for 16-bit weights.
        let packed = table.layout.dim - table.layout.weight_words;
        table.search(vector, lane, lookup, &mut Copying { table, reader, copied, packed, rows });
    }
}

struct Copying<'a, V> {
    table: &'a Table,
    reader: WholeRowReader<'a, V>,
    copied: &'a mut [f32],
    packed: usize,
    rows: &'a mut RowColumns,
}

impl<V: Vector> Visit for Copying<'_, V> {
    const HINT: PrefetchHint = PrefetchHint::Read;

    #[inline(always)]
    fn visit(&mut self, _at: usize, row: u32) {
        if row == NO_ROW {
            return;
        }
        let layout = &self.table.layout;
        self.reader.row(row, &mut self.copied[self.packed..]);
        if let Some(half) = layout.half {
            half.unpack(&mut self.copied[..layout.dim]);
        }
        self.rows.push(layout.parts(self.copied));
    }
}
