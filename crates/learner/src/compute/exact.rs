//! Gradients of a minibatch in fixed point, for steps that several workers make together: the sums have the same bits
//! however rows were shared out. Knows no worker.

use sanderling_client::{Adding, Fixed, Lookup, OutOfRange};
use sanderling_sample::Rows;

use super::Compute;

impl Compute {
    /// As [`Compute::backward`], into the sums in `lookup`. The gradient of each key of each sample is computed as there
    /// and rounded once.
    pub(crate) fn backward_exact(
        &mut self,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
        fixed: Fixed,
    ) -> Result<(), OutOfRange> {
        let mut adding = fixed.adding();
        lookup.clear_sums();
        if self.field_aware.is_some() {
            self.add_field_aware(rows, lookup, Lookup::backward_sums, |sum, gradient| {
                adding.add(sum, gradient);
            });
        } else {
            self.sums_by_column(rows, lookup, &mut adding);
        }
        if let Some(sum) = lookup.constant_sum().first_mut() {
            self.errors.iter().for_each(|&error| adding.add(sum, error));
        }
        adding.end()
    }

    fn sums_by_column(&self, rows: &Rows<'_>, lookup: &mut Lookup, adding: &mut Adding) {
        for column in 0..rows.columns() {
            let (indices, table, sums) = lookup.backward_sums(column);
            let offsets = rows.offsets(column);
            match (self.factors, rows.values(column)) {
                (0, None) => self.linear_sums(offsets, indices, |_| 1.0, sums, adding),
                (0, Some(values)) => self.linear_sums(offsets, indices, |at| values[at], sums, adding),
                (_, None) => self.factorized_sums(offsets, indices, |_| 1.0, table, sums, adding),
                (_, Some(values)) => {
                    self.factorized_sums(offsets, indices, |at| values[at], table, sums, adding);
                }
            }
        }
    }

    fn linear_sums(
        &self,
        offsets: &[u32],
        indices: &[u32],
        value: impl Fn(usize) -> f32,
        sums: &mut [i64],
        adding: &mut Adding,
    ) {
        for (error, span) in self.errors.iter().zip(offsets.windows(2)) {
            for at in (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize {
                adding.add(&mut sums[indices[at] as usize], error * value(at));
            }
        }
    }

    fn factorized_sums(
        &self,
        offsets: &[u32],
        indices: &[u32],
        value: impl Fn(usize) -> f32,
        table: &[f32],
        sums: &mut [i64],
        adding: &mut Adding,
    ) {
        let factors = self.factors;
        let per_row = self.sums.chunks_exact(factors).zip(&self.errors);
        for ((row_sums, error), span) in per_row.zip(offsets.windows(2)) {
            let keys = (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize;
            for (at, index) in keys.clone().zip(&indices[keys]) {
                let x = value(at);
                let start = *index as usize * (factors + 1);
                let row = &table[start + 1..start + factors + 1];
                let sum = &mut sums[start..start + factors + 1];
                let scale = error * x;
                adding.add(&mut sum[0], scale);
                for ((sum, v), row_sum) in sum[1..].iter_mut().zip(row).zip(row_sums) {
                    adding.add(sum, scale * (row_sum - v * x));
                }
            }
        }
    }
}
