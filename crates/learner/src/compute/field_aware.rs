//! Field-aware factorization machines (Juan et al. 2016, equation 4), one sample at a time. The fields are the features.
//!
//! A key's row is `[w, v_1 .. v_F]`: a weight, and a factor of `rank` numbers for every field. With f(i) the field of key
//! i, a pair of keys adds `<v_i,f(j), v_j,f(i)> x_i x_j` to the logit. The sums `S_f,g` of `v_i,g x_i` over the keys i of
//! a field f make that linear in the number of keys:
//!
//! pairs = sum_{f < g} <S_f,g, S_g,f> + 1/2 sum_f (<S_f,f, S_f,f> - sum_{i in f} <v_i,f, v_i,f> x_i^2)
//!
//! d pairs / d v_i,g = x_i S_g,f(i), and for g = f(i) less v_i,g x_i^2
//!
//! Normalized samples have their values divided by the root of the sum of their squares, as LIBFFM does it.

use sanderling_client::{Lookup, Online};
use sanderling_sample::Rows;

use super::{span, sum};
use crate::config::Model;

/// Numbers that are multiplied and added up side by side.
const LANES: usize = 4;

/// A field of the sample that has keys.
#[derive(Clone, Copy, Debug)]
struct Present {
    field: usize,
    /// Whether it has several keys, which interact with each other.
    has_pairs: bool,
    /// The sum over pairs of its own keys.
    pairs: f32,
}

/// The sums of one sample.
#[derive(Debug)]
pub(super) struct FieldAware {
    rank: usize,
    fields: usize,
    normalizes: bool,
    /// Factor on the values of the sample.
    scale: f32,
    /// In the order of the fields.
    present: Vec<Present>,
    /// Per present field f, `S_f,g` for every field g.
    sums: Vec<f32>,
}

impl FieldAware {
    pub(super) fn new(model: &Model, fields: usize) -> Self {
        let (rank, normalizes) = (model.rank, model.normalizes());
        FieldAware { rank, fields, normalizes, scale: 1.0, present: Vec::new(), sums: Vec::new() }
    }

    /// Takes a sample of a minibatch; its logit without the constant. `linear` gets the part of each field.
    pub(super) fn look_up(
        &mut self,
        rows: &Rows<'_>,
        row: usize,
        lookup: &Lookup,
        mut linear: impl FnMut(usize, f32),
    ) -> f32 {
        self.begin(rows, row);
        let dim = self.fields * self.rank + 1;
        let mut logit = 0.0;
        for column in 0..rows.columns() {
            let span = span(rows.offsets(column), row);
            let (indices, table) = (&lookup.indices(column)[span.clone()], lookup.table(column).rows());
            let weights = |at: usize| &table[indices[at] as usize * dim..][..dim];
            let part = match rows.values(column) {
                None => self.add(column, indices.len(), weights, |_| 1.0),
                Some(values) => self.add(column, indices.len(), weights, |at| values[span.start + at]),
            };
            linear(column, part);
            logit += part;
        }
        logit + self.pairs()
    }

    /// Takes a sample whose rows are read in their tables; its logit without the constant.
    pub(super) fn read(&mut self, rows: &Rows<'_>, row: usize, online: &Online<'_>) -> f32 {
        self.begin(rows, row);
        let mut logit = 0.0;
        for column in 0..rows.columns() {
            let (handles, table) = online.column(column);
            let span = span(rows.offsets(column), row);
            let handles = &handles[span.clone()];
            let weights = |at: usize| table.weights(handles[at]);
            logit += match rows.values(column) {
                None => self.add(column, handles.len(), weights, |_| 1.0),
                Some(values) => self.add(column, handles.len(), weights, |at| values[span.start + at]),
            };
        }
        logit + self.pairs()
    }

    fn begin(&mut self, rows: &Rows<'_>, row: usize) {
        self.present.clear();
        self.scale = 1.0;
        if self.normalizes {
            let squares = |column: usize| {
                let span = span(rows.offsets(column), row);
                match rows.values(column) {
                    None => span.len() as f32,
                    Some(values) => values[span].iter().map(|x| x * x).sum(),
                }
            };
            let squares: f32 = (0..rows.columns()).map(squares).sum();
            // Without keys, and with values of zero, there is nothing to divide.
            self.scale = if squares > 0.0 { squares.sqrt().recip() } else { 1.0 };
        }
    }

    /// Adds up the rows of the keys of a field, and returns the field's linear part.
    #[inline(always)]
    fn add<'a>(
        &mut self,
        field: usize,
        keys: usize,
        row: impl Fn(usize) -> &'a [f32],
        value: impl Fn(usize) -> f32,
    ) -> f32 {
        if keys == 0 {
            return 0.0;
        }
        let (rank, scale) = (self.rank, self.scale);
        let width = self.fields * rank;
        let start = self.present.len() * width;
        if self.sums.len() < start + width {
            self.sums.resize(start + width, 0.0);
        }
        let sums = &mut self.sums[start..start + width];
        let own = field * rank..(field + 1) * rank;
        let mut squares = 0.0;
        for key in 0..keys {
            let (x, factors) = (value(key) * scale, &row(key)[1..]);
            match key {
                0 => sums.iter_mut().zip(factors).for_each(|(sum, v)| *sum = v * x),
                _ => sums.iter_mut().zip(factors).for_each(|(sum, v)| *sum += v * x),
            }
            if keys > 1 {
                squares += x * x * product(&factors[own.clone()], &factors[own.clone()]);
            }
        }
        let has_pairs = keys > 1;
        let pairs = if has_pairs { 0.5 * (product(&sums[own.clone()], &sums[own]) - squares) } else { 0.0 };
        self.present.push(Present { field, has_pairs, pairs });
        scale * sum(keys, |key| row(key)[0] * value(key))
    }

    /// The sum over all pairs of the sample's keys.
    fn pairs(&self) -> f32 {
        // Of a constant, the loops over a factor are unrolled.
        match self.rank {
            4 => self.pairs_of(4),
            8 => self.pairs_of(8),
            16 => self.pairs_of(16),
            rank => self.pairs_of(rank),
        }
    }

    #[inline(always)]
    fn pairs_of(&self, rank: usize) -> f32 {
        let width = self.fields * rank;
        let mut total = 0.0;
        for (at, one) in self.present.iter().enumerate() {
            let sums = &self.sums[at * width..][..width];
            let others = self.sums[(at + 1) * width..].chunks_exact(width);
            // A sum for each field, so that several are under way at a time.
            let mut lanes = [0.0; LANES];
            for (other, others) in self.present[at + 1..].iter().zip(others) {
                let (one, other) = (&sums[other.field * rank..][..rank], &others[one.field * rank..][..rank]);
                add_products(&mut lanes, one, other);
            }
            total += one.pairs + total_of(lanes);
        }
        total
    }

    /// Calls `each` with two fields and what the pairs of their keys add to the logit; with a field itself, too.
    pub(super) fn each_pair(&self, mut each: impl FnMut(usize, usize, f32)) {
        let (rank, width) = (self.rank, self.fields * self.rank);
        for (at, one) in self.present.iter().enumerate() {
            each(one.field, one.field, one.pairs);
            for (other_at, other) in self.present.iter().enumerate().skip(at + 1) {
                let first = &self.sums[at * width + other.field * rank..][..rank];
                let second = &self.sums[other_at * width + one.field * rank..][..rank];
                each(one.field, other.field, product(first, second));
            }
        }
    }

    /// The gradient of the row of a key, from the derivative of the loss by the logit and the key's value.
    #[inline]
    pub(super) fn gradient(&self, field: usize, error: f32, x: f32, weights: &[f32], gradient: &mut [f32]) {
        match self.rank {
            4 => self.gradient_of(4, field, error, x, weights, gradient),
            8 => self.gradient_of(8, field, error, x, weights, gradient),
            16 => self.gradient_of(16, field, error, x, weights, gradient),
            rank => self.gradient_of(rank, field, error, x, weights, gradient),
        }
    }

    #[inline(always)]
    fn gradient_of(
        &self,
        rank: usize,
        field: usize,
        error: f32,
        x: f32,
        weights: &[f32],
        gradient: &mut [f32],
    ) {
        let (x, width) = (x * self.scale, self.fields * rank);
        let factor = error * x;
        let own = field * rank..(field + 1) * rank;
        gradient[0] = factor;
        let (factors, gradient) = (&weights[1..], &mut gradient[1..]);
        if self.present.len() < self.fields {
            gradient.fill(0.0);
        }
        for (other, sums) in self.present.iter().zip(self.sums.chunks_exact(width)) {
            let to = &mut gradient[other.field * rank..][..rank];
            to.iter_mut().zip(&sums[own.clone()]).for_each(|(to, sum)| *to = factor * sum);
            if other.field == field {
                match other.has_pairs {
                    false => to.fill(0.0),
                    true => {
                        to.iter_mut().zip(&factors[own.clone()]).for_each(|(to, v)| *to -= factor * (v * x));
                    }
                }
            }
        }
    }
}

/// Adds the products of two factors to sums, as many side by side as there are.
#[inline(always)]
fn add_products(sums: &mut [f32; LANES], one: &[f32], other: &[f32]) {
    let ((ones, one_rest), (others, other_rest)) = (one.as_chunks::<LANES>(), other.as_chunks::<LANES>());
    for (one, other) in ones.iter().zip(others) {
        for lane in 0..LANES {
            sums[lane] += one[lane] * other[lane];
        }
    }
    for ((sum, one), other) in sums.iter_mut().zip(one_rest).zip(other_rest) {
        *sum += one * other;
    }
}

#[inline(always)]
fn product(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    add_products(&mut sums, one, other);
    total_of(sums)
}

#[inline(always)]
fn total_of(sums: [f32; LANES]) -> f32 {
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}
