//! The arithmetic of the built-in models on one minibatch: logits from rows, gradients of rows from errors.
//!
//! A key's row is `[w, v_1 .. v_k]`; logistic regression is the case k = 0. With x the keys' values and b the bias
//! (Rendle 2010, equations 1 and 5):
//!
//! logit = b + sum_i w_i x_i + 1/2 sum_f ((sum_i v_if x_i)^2 - sum_i (v_if x_i)^2)
//!
//! d logit / d w_i = x_i,  d logit / d v_if = x_i (sum_j v_jf x_j - v_if x_i)
//!
//! A field-aware factorization machine has a row `[w, v_1 .. v_F]` instead, see [`field_aware`]. Knows no optimizer and no
//! table.

use sanderling_client::{Lookup, Online};
use sanderling_sample::Rows;
use sanderling_store::GRADIENT_ABS_MAX;

use crate::config::{Config, ModelKind};

mod contributions;
mod exact;
mod factors;
mod field_aware;

use field_aware::FieldAware;

pub(crate) use contributions::FeatureSums;

/// Scratch of one worker.
#[derive(Debug)]
pub(crate) struct Compute {
    /// Numbers per row beside its weight.
    factors: usize,
    field_aware: Option<FieldAware>,
    /// One per row of the minibatch.
    pub(crate) logits: Vec<f32>,
    /// Per row and factor: sum_i v_if x_i, and sum_i (v_if x_i)^2.
    sums: Vec<f32>,
    squares: Vec<f32>,
    /// Online learning: the gradients of the rows of a sample's feature. Field-aware: the gradient of a row.
    gradient: Vec<f32>,
    /// Derivative of the loss by the logit, one per row; the caller fills it between the two halves.
    pub(crate) errors: Vec<f32>,
}

impl Compute {
    /// Scratch for the model of a configuration.
    #[must_use]
    pub(crate) fn new(config: &Config) -> Self {
        let is_field_aware = config.model.kind == ModelKind::Ffm;
        Compute {
            factors: config.factors(),
            field_aware: is_field_aware.then(|| FieldAware::new(&config.model, config.feature.len())),
            logits: Vec::new(),
            sums: Vec::new(),
            squares: Vec::new(),
            gradient: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// Fills `logits` from the rows in `lookup`.
    pub(crate) fn forward(&mut self, rows: &Rows<'_>, lookup: &Lookup) {
        let bias = lookup.constant().first().copied().unwrap_or(0.0);
        self.logits.clear();
        self.logits.resize(rows.len(), bias);
        if let Some(sample) = &mut self.field_aware {
            let logits = self.logits.iter_mut().enumerate();
            return logits.for_each(|(row, logit)| *logit += sample.look_up(rows, row, lookup, |_, _| ()));
        }
        self.begin_sums(rows.len());
        for column in 0..rows.columns() {
            let (indices, weights) = (lookup.indices(column), lookup.table(column).rows());
            let offsets = rows.offsets(column);
            match (self.factors, rows.values(column)) {
                (0, None) => linear(offsets, indices, |_| 1.0, weights, &mut self.logits),
                (0, Some(values)) => linear(offsets, indices, |at| values[at], weights, &mut self.logits),
                (_, None) => self.factorized(offsets, indices, |_| 1.0, weights),
                (_, Some(values)) => self.factorized(offsets, indices, |at| values[at], weights),
            }
        }
        if self.factors > 0 {
            let per_row = self.sums.chunks_exact(self.factors).zip(self.squares.chunks_exact(self.factors));
            for (logit, (sums, squares)) in self.logits.iter_mut().zip(per_row) {
                *logit += factors::pairs(sums, squares);
            }
        }
    }

    fn begin_sums(&mut self, rows: usize) {
        for sums in [&mut self.sums, &mut self.squares] {
            sums.clear();
            sums.resize(rows * self.factors, 0.0);
        }
    }

    fn factorized(&mut self, offsets: &[u32], indices: &[u32], value: impl Fn(usize) -> f32, table: &[f32]) {
        let (factors, dim) = (self.factors, self.factors + 1);
        let per_row = self.sums.chunks_exact_mut(factors).zip(self.squares.chunks_exact_mut(factors));
        for (((sums, squares), logit), span) in per_row.zip(&mut self.logits).zip(offsets.windows(2)) {
            let (first, last) = ((span[0] - offsets[0]) as usize, (span[1] - offsets[0]) as usize);
            let indices = &indices[first..last];
            let row = |at: usize| &table[indices[at] as usize * dim..][..dim];
            *logit += factors::add(indices.len(), row, |at| value(first + at), sums, squares);
        }
    }

    /// Adds the gradients of the minibatch, scaled by `errors`, to those in `lookup`.
    pub(crate) fn backward(&mut self, rows: &Rows<'_>, lookup: &mut Lookup) {
        if self.field_aware.is_some() {
            self.add_field_aware(rows, lookup, Lookup::backward, |sum, gradient| *sum += gradient);
            return self.constant_grad(lookup);
        }
        for column in 0..rows.columns() {
            let (indices, table, grads) = lookup.backward(column);
            let offsets = rows.offsets(column);
            match (self.factors, rows.values(column)) {
                (0, None) => linear_grads(offsets, indices, |_| 1.0, &self.errors, grads),
                (0, Some(values)) => linear_grads(offsets, indices, |at| values[at], &self.errors, grads),
                (_, None) => self.factorized_grads(offsets, indices, |_| 1.0, table, grads),
                (_, Some(values)) => self.factorized_grads(offsets, indices, |at| values[at], table, grads),
            }
        }
        self.constant_grad(lookup);
    }

    fn constant_grad(&self, lookup: &mut Lookup) {
        if let Some(grad) = lookup.constant_grad().first_mut() {
            *grad += self.errors.iter().sum::<f32>();
        }
    }

    /// Passes the gradient of each key of each sample to `add`, coordinate by coordinate, with its place among the sums
    /// that `backward` lends.
    fn add_field_aware<T>(
        &mut self,
        rows: &Rows<'_>,
        lookup: &mut Lookup,
        backward: impl Fn(&mut Lookup, usize) -> (&[u32], &[f32], &mut [T]),
        mut add: impl FnMut(&mut T, f32),
    ) {
        let Compute { field_aware: Some(sample), factors, errors, gradient, .. } = self else { return };
        let dim = *factors + 1;
        gradient.resize(dim, 0.0);
        for (row, &error) in errors.iter().enumerate() {
            sample.look_up(rows, row, lookup, |_, _| ());
            for column in 0..rows.columns() {
                let (indices, table, sums) = backward(lookup, column);
                let (span, values) = (span(rows.offsets(column), row), rows.values(column));
                for at in span {
                    let x = values.map_or(1.0, |values| values[at]);
                    let start = indices[at] as usize * dim;
                    sample.gradient(column, error, x, &table[start..][..dim], gradient);
                    sums[start..][..dim]
                        .iter_mut()
                        .zip(&*gradient)
                        .for_each(|(sum, &gradient)| add(sum, gradient));
                }
            }
        }
    }

    fn factorized_grads(
        &self,
        offsets: &[u32],
        indices: &[u32],
        value: impl Fn(usize) -> f32,
        table: &[f32],
        grads: &mut [f32],
    ) {
        let factors = self.factors;
        let per_row = self.sums.chunks_exact(factors).zip(&self.errors);
        for ((sums, error), span) in per_row.zip(offsets.windows(2)) {
            let keys = (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize;
            for (at, index) in keys.clone().zip(&indices[keys]) {
                let x = value(at);
                let start = *index as usize * (factors + 1);
                let row = &table[start + 1..start + factors + 1];
                let grad = &mut grads[start..start + factors + 1];
                let scale = error * x;
                grad[0] += scale;
                for ((g, v), sum) in grad[1..].iter_mut().zip(row).zip(sums) {
                    *g += scale * (sum - v * x);
                }
            }
        }
    }
}

/// Terms of a sum that are added side by side: their order is the same on every machine.
const LANES: usize = 8;

/// Online learning: one sample at a time, on the tables' present rows.
impl Compute {
    /// The logit of one sample of `rows`.
    pub(crate) fn forward_row(&mut self, rows: &Rows<'_>, row: usize, online: &Online<'_>) -> f32 {
        let mut logit = online.constant();
        if let Some(sample) = &mut self.field_aware {
            return logit + sample.read(rows, row, online);
        }
        self.begin_sums(1);
        for column in 0..rows.columns() {
            let (handles, table) = online.column(column);
            let (span, values) = (span(rows.offsets(column), row), rows.values(column));
            let handles = &handles[span.clone()];
            let (len, values) = (handles.len(), values.map(|values| &values[span]));
            let (sums, squares) = (self.sums.as_mut_slice(), self.squares.as_mut_slice());
            let (weight, weights) = (|at| table.first_weight(handles[at]), |at| table.weights(handles[at]));
            logit += match (self.factors, values) {
                (0, None) => sum(len, weight),
                (0, Some(values)) => sum(len, |at| weight(at) * values[at]),
                (_, None) => factors::add(len, weights, |_| 1.0, sums, squares),
                (_, Some(values)) => factors::add(len, weights, |at| values[at], sums, squares),
            };
        }
        logit + factors::pairs(&self.sums, &self.squares)
    }

    /// Updates the rows of the sample whose logit was computed last, by gradients at the weights that it was computed
    /// from; a key that occurs twice in a feature is updated twice. False at a gradient that a table would refuse in a
    /// push: it and what comes after it were not applied.
    #[must_use]
    pub(crate) fn update_row(
        &mut self,
        rows: &Rows<'_>,
        row: usize,
        error: f32,
        online: &mut Online<'_>,
    ) -> bool {
        let dim = self.factors + 1;
        for column in 0..rows.columns() {
            let (handles, table) = online.column_mut(column);
            let (span, values) = (span(rows.offsets(column), row), rows.values(column));
            let handles = &handles[span.clone()];
            self.gradient.clear();
            match (self.factors, values) {
                (0, Some(values)) => self.gradient.extend(values[span].iter().map(|x| error * x)),
                (0, None) => self.gradient.resize(handles.len(), error),
                (_, values) => {
                    self.gradient.resize(handles.len() * dim, 0.0);
                    let gradients = self.gradient.chunks_exact_mut(dim);
                    for (at, (&handle, gradient)) in handles.iter().zip(gradients).enumerate() {
                        let x = values.map_or(1.0, |values| values[span.start + at]);
                        let weights = table.weights(handle);
                        match &self.field_aware {
                            None => factors::gradient(error * x, x, weights, &self.sums, gradient),
                            Some(sample) => sample.gradient(column, error, x, weights, gradient),
                        }
                    }
                }
            }
            // Without a branch per value, so that it vectorises. NaN is not below it either.
            let applies = self.gradient.iter().fold(true, |all, g| all & (g.abs() < GRADIENT_ABS_MAX));
            if !applies {
                return false;
            }
            table.update_all(handles, &self.gradient);
        }
        online.update_constant(error);
        true
    }
}

/// The sum of so many terms, eight side by side: in an order that is the same on every machine, and for a sample alone or
/// among others.
#[inline(always)]
fn sum(len: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let whole = len - len % LANES;
    for first in (0..whole).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(first + lane);
        }
    }
    let rest: f32 = (whole..len).map(term).sum();
    if whole == 0 { rest } else { sums.iter().sum::<f32>() + rest }
}

/// Where the keys of a row lie among those of all rows.
fn span(offsets: &[u32], row: usize) -> std::ops::Range<usize> {
    (offsets[row] - offsets[0]) as usize..(offsets[row + 1] - offsets[0]) as usize
}

fn linear(
    offsets: &[u32],
    indices: &[u32],
    value: impl Fn(usize) -> f32,
    weights: &[f32],
    logits: &mut [f32],
) {
    for (logit, span) in logits.iter_mut().zip(offsets.windows(2)) {
        let (first, len) = ((span[0] - offsets[0]) as usize, (span[1] - span[0]) as usize);
        *logit += sum(len, |at| weights[indices[first + at] as usize] * value(first + at));
    }
}

fn linear_grads(
    offsets: &[u32],
    indices: &[u32],
    value: impl Fn(usize) -> f32,
    errors: &[f32],
    grads: &mut [f32],
) {
    for (error, span) in errors.iter().zip(offsets.windows(2)) {
        for at in (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize {
            grads[indices[at] as usize] += error * value(at);
        }
    }
}
