//! Pull requests: validation, and the choice of how rows are copied.

use crate::lookup::scratch::with_scratch;
use crate::lookup::with_lookup;
use crate::pull::pool::{Pooler, check_offsets};
use crate::pull::{Copy, CopyOne, Pool, Pull, Sink};
use crate::simd::{self, PAD};
use crate::sync::lanes::lane;
use crate::table::Table;
use crate::{Absent, Pooling, PulledRows, StoreError};

impl Table {
    /// Copies the weights of `keys` to `out` (`keys.len() * dim`, row-major). Keys may repeat.
    ///
    /// Returns the number of keys without a row. Their weights are as `absent` says, and `missing` is replaced with
    /// their positions, ascending.
    pub fn pull(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
    ) -> Result<usize, StoreError> {
        self.check_length("out", keys.len() * self.layout.dim, out.len())?;
        Ok(self.copy_into(keys, absent, out, missing, None))
    }

    /// Pulls like [`Table::pull`], and appends the rows of the keys to `rows` for the push of the same keys.
    pub fn pull_for_push(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
        rows: &mut PulledRows,
    ) -> Result<usize, StoreError> {
        self.check_length("out", keys.len() * self.layout.dim, out.len())?;
        let rows = rows.extend(self, keys.len());
        Ok(self.copy_into(keys, absent, out, missing, Some(rows)))
    }

    fn copy_into(
        &self,
        keys: &[u64],
        absent: Absent,
        out: &mut [f32],
        missing: Option<&mut Vec<u32>>,
        rows: Option<&mut [u32]>,
    ) -> usize {
        let copy = Copy { layout: &self.layout, absent, out };
        if self.layout.dim == 1 {
            self.pull_into(keys, missing, rows, CopyOne(copy))
        } else {
            self.pull_into(keys, missing, rows, copy)
        }
    }

    /// Pulls and pools the keys `offsets[s]..offsets[s + 1]` of every sample `s`.
    ///
    /// Rows are weighted by `values` (default 1). `out` has `(offsets.len() - 1) * dim` values and is overwritten.
    /// Sums are f32, in the order of the keys. Returns the number of keys without a row and their positions like
    /// [`Table::pull`].
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
            self.pull_into(keys, missing, None, sink)
        });
        pooler.finish(pooling, out);
        Ok(absent_keys)
    }

    fn pull_into(
        &self,
        keys: &[u64],
        missing: Option<&mut Vec<u32>>,
        rows: Option<&mut [u32]>,
        sink: impl Sink,
    ) -> usize {
        let lane = lane();
        with_lookup(|lookup| {
            simd::run(self.width(), Pull { table: self, lane, lookup, keys, sink, missing, rows })
        })
    }
}
