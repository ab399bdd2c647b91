//! Contributions of each feature to the logits of a minibatch: the parts that a logit is the sum of. Knows no
//! average.

use sanderling_client::Lookup;
use sanderling_sample::Rows;

use super::{Compute, factors, sum};

/// Reused from minibatch to minibatch: per factor, sums over the keys of one feature of one row.
#[derive(Debug, Default)]
pub(crate) struct FeatureSums {
    sums: Vec<f32>,
    squares: Vec<f32>,
    /// Field-aware: per feature, its contribution to one row.
    parts: Vec<f64>,
}

impl Compute {
    /// Calls `each` with feature, row and contribution, for all rows of which [`Compute::forward`] was called last.
    pub(crate) fn contributions(
        &mut self,
        rows: &Rows<'_>,
        lookup: &Lookup,
        scratch: &mut FeatureSums,
        mut each: impl FnMut(usize, usize, f64),
    ) {
        if let Some(sample) = &mut self.field_aware {
            let parts = &mut scratch.parts;
            for row in 0..rows.len() {
                parts.clear();
                parts.resize(rows.columns(), 0.0);
                sample.look_up(rows, row, lookup, |field, part| parts[field] = f64::from(part));
                sample.each_pair(|one, other, pairs| {
                    // Half for each of the two.
                    parts[one] += 0.5 * f64::from(pairs);
                    parts[other] += 0.5 * f64::from(pairs);
                });
                parts.iter().enumerate().for_each(|(field, part)| each(field, row, *part));
            }
            return;
        }
        let (factors, dim) = (self.factors, self.factors + 1);
        for column in 0..rows.columns() {
            let (indices, table) = (lookup.indices(column), lookup.table(column).rows());
            let (offsets, values) = (rows.offsets(column), rows.values(column));
            for (row, span) in offsets.windows(2).enumerate() {
                let keys = (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize;
                let (indices, values) = (&indices[keys.clone()], values.map(|values| &values[keys]));
                let value = |at: usize| values.map_or(1.0, |values| values[at]);
                let weights = |at: usize| &table[indices[at] as usize * dim..][..dim];
                if factors == 0 {
                    let linear = sum(indices.len(), |at| weights(at)[0] * value(at));
                    each(column, row, f64::from(linear));
                    continue;
                }
                let FeatureSums { sums, squares, .. } = scratch;
                for sums in [&mut *sums, &mut *squares] {
                    sums.clear();
                    sums.resize(factors, 0.0);
                }
                let linear = factors::add(indices.len(), weights, value, sums, squares);
                let all = &self.sums[row * factors..][..factors];
                let pairs: f64 = (sums.iter().zip(all).zip(&*squares))
                    .map(|((own, all), squares)| f64::from(*own) * f64::from(*all) - f64::from(*squares))
                    .sum();
                each(column, row, f64::from(linear) + 0.5 * pairs);
            }
        }
    }
}
