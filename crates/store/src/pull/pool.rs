//! Pooling: combines the rows of a sample into one.

use std::ops::Range;

use crate::{Pooling, StoreError};

/// Iterates over the samples of a pooled pull while rows arrive in chunks.
pub(crate) struct Pooler<'a> {
    offsets: &'a [u32],
    values: Option<&'a [f32]>,
    dim: usize,
    /// The sample of the next key, unless that sample has ended.
    sample: usize,
    /// Keys added so far.
    done: usize,
    /// The saved `sample` and `done`.
    marked: (usize, usize),
}

impl<'a> Pooler<'a> {
    pub(crate) fn new(offsets: &'a [u32], values: Option<&'a [f32]>, dim: usize) -> Pooler<'a> {
        Pooler { offsets, values, dim, sample: 0, done: 0, marked: (0, 0) }
    }

    /// Takes the next keys of one sample, at most `keys`; returns the sample and the keys' positions in the
    /// request.
    #[inline(always)]
    pub(crate) fn take(&mut self, keys: usize) -> (usize, Range<usize>) {
        while self.done >= self.offsets[self.sample + 1] as usize {
            self.sample += 1;
        }
        let first = self.done;
        self.done = (first + keys).min(self.offsets[self.sample + 1] as usize);
        (self.sample, first..self.done)
    }

    /// The factor of the key at this position of the request.
    #[inline(always)]
    pub(crate) fn value(&self, at: usize) -> f32 {
        self.values.map_or(1.0, |values| values[at])
    }

    /// Adds the next row, `dim` weights, to its sample in `out`.
    #[inline(always)]
    pub(crate) fn add(&mut self, weights: &[f32], out: &mut [f32]) {
        let (sample, keys) = self.take(1);
        let value = self.value(keys.start);
        let sum = &mut out[sample * self.dim..][..self.dim];
        sum.iter_mut().zip(weights).for_each(|(sum, &weight)| *sum += value * weight);
    }

    /// Saves the position, and the partial sum of the current sample in `sum_before`, of `dim` weights.
    pub(crate) fn mark(&mut self, out: &[f32], sum_before: &mut [f32]) {
        self.marked = (self.sample, self.done);
        sum_before.copy_from_slice(&out[self.sample * self.dim..][..self.dim]);
    }

    /// Returns to the saved position.
    pub(crate) fn rewind(&mut self, sum_before: &[f32], out: &mut [f32]) {
        let (first, last) = (self.marked.0, self.sample);
        (self.sample, self.done) = self.marked;
        let (sum, others) = out[first * self.dim..(last + 1) * self.dim].split_at_mut(self.dim);
        sum.copy_from_slice(sum_before);
        others.fill(0.0);
    }

    /// Divides by the number of keys for a mean.
    pub(crate) fn finish(self, pooling: Pooling, out: &mut [f32]) {
        if pooling == Pooling::Mean {
            for (pair, sum) in self.offsets.windows(2).zip(out.chunks_exact_mut(self.dim)) {
                let keys = pair[1] - pair[0];
                if keys > 1 {
                    for sum in sum {
                        *sum /= keys as f32;
                    }
                }
            }
        }
    }
}

/// Checks that offsets start at 0, never decrease, and end at the number of keys; returns the number of samples.
pub(crate) fn check_offsets(table: &str, offsets: &[u32], keys: usize) -> Result<usize, StoreError> {
    let fail = |reason: String| Err(StoreError::Offsets { table: table.to_string(), reason });
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return fail("there are none, but n samples need n + 1".to_string());
    };
    if first != 0 {
        return fail(format!("the first is {first}, not 0"));
    }
    if let Some(at) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return fail(format!(
            "number {} is {}, below the {} before it",
            at + 1,
            offsets[at + 1],
            offsets[at]
        ));
    }
    if last as usize != keys {
        return fail(format!("the last is {last}, not the number of keys, {keys}"));
    }
    Ok(offsets.len() - 1)
}
