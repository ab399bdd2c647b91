//! The arithmetic of the built-in models on one minibatch: logits from rows, gradients of rows from errors.
//!
//! A key's row is `[w, v_1 .. v_k]`; logistic regression is the case k = 0. With x the keys' values and b the bias
//! (Rendle 2010, equations 1 and 5):
//!
//! logit = b + sum_i w_i x_i + 1/2 sum_f ((sum_i v_if x_i)^2 - sum_i (v_if x_i)^2)
//!
//! d logit / d w_i = x_i,  d logit / d v_if = x_i (sum_j v_jf x_j - v_if x_i)
//!
//! Knows no optimizer and no table.

use sanderling_client::{Lookup, Online};
use sanderling_sample::Rows;
use sanderling_store::GRADIENT_ABS_MAX;

mod exact;

/// Scratch of one worker.
#[derive(Debug)]
pub(crate) struct Compute {
    factors: usize,
    /// One per row of the minibatch.
    pub(crate) logits: Vec<f32>,
    /// Per row and factor: sum_i v_if x_i.
    sums: Vec<f32>,
    /// Online learning: the gradient of one row, or without factors those of all rows of a sample.
    gradient: Vec<f32>,
    /// Derivative of the loss by the logit, one per row; the caller fills it between the two halves.
    pub(crate) errors: Vec<f32>,
}

impl Compute {
    /// Scratch for a model with so many factors.
    #[must_use]
    pub(crate) fn new(factors: usize) -> Self {
        Compute {
            factors,
            logits: Vec::new(),
            sums: Vec::new(),
            gradient: vec![0.0; factors + 1],
            errors: Vec::new(),
        }
    }

    /// Fills `logits` from the rows in `lookup`.
    pub(crate) fn forward(&mut self, rows: &Rows<'_>, lookup: &Lookup) {
        let bias = lookup.constant().first().copied().unwrap_or(0.0);
        self.logits.clear();
        self.logits.resize(rows.len(), bias);
        self.sums.clear();
        self.sums.resize(rows.len() * self.factors, 0.0);
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
            for (logit, sums) in self.logits.iter_mut().zip(self.sums.chunks_exact(self.factors)) {
                *logit += 0.5 * sums.iter().map(|sum| sum * sum).sum::<f32>();
            }
        }
    }

    fn factorized(&mut self, offsets: &[u32], indices: &[u32], value: impl Fn(usize) -> f32, table: &[f32]) {
        let factors = self.factors;
        let per_row = self.sums.chunks_exact_mut(factors).zip(&mut self.logits);
        for ((sums, logit), span) in per_row.zip(offsets.windows(2)) {
            let keys = (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize;
            for (at, index) in keys.clone().zip(&indices[keys]) {
                let x = value(at);
                let start = *index as usize * (factors + 1);
                let row = &table[start..start + factors + 1];
                let mut squares = 0.0;
                for (sum, v) in sums.iter_mut().zip(&row[1..]) {
                    let vx = v * x;
                    *sum += vx;
                    squares += vx * vx;
                }
                *logit += row[0] * x - 0.5 * squares;
            }
        }
    }

    /// Adds the gradients of the minibatch, scaled by `errors`, to those in `lookup`.
    pub(crate) fn backward(&self, rows: &Rows<'_>, lookup: &mut Lookup) {
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
        if let Some(grad) = lookup.constant_grad().first_mut() {
            *grad += self.errors.iter().sum::<f32>();
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

/// Online learning: one sample at a time, on the tables' present rows.
impl Compute {
    /// The logit of one sample of `rows`.
    pub(crate) fn forward_row(&mut self, rows: &Rows<'_>, row: usize, online: &Online<'_>) -> f32 {
        let mut logit = online.constant();
        self.sums.clear();
        self.sums.resize(self.factors, 0.0);
        for column in 0..rows.columns() {
            let (handles, table) = online.column(column);
            let (span, values) = (span(rows.offsets(column), row), rows.values(column));
            let handles = &handles[span.clone()];
            let value = |at: usize| values.map_or(1.0, |values| values[span.start + at]);
            if self.factors == 0 {
                let parts =
                    handles.iter().enumerate().map(|(at, handle)| table.first_weight(*handle) * value(at));
                logit += parts.sum::<f32>();
                continue;
            }
            for (at, handle) in handles.iter().enumerate() {
                let (x, weights) = (value(at), table.weights(*handle));
                let mut squares = 0.0;
                for (sum, v) in self.sums.iter_mut().zip(&weights[1..]) {
                    let vx = v * x;
                    *sum += vx;
                    squares += vx * vx;
                }
                logit += weights[0] * x - 0.5 * squares;
            }
        }
        logit + 0.5 * self.sums.iter().map(|sum| sum * sum).sum::<f32>()
    }

    /// Updates the rows of the sample whose logit was computed last. A key that occurs twice in it is updated twice.
    /// False at a gradient that a table would refuse in a push: it and what comes after it were not applied.
    #[must_use]
    pub(crate) fn update_row(
        &mut self,
        rows: &Rows<'_>,
        row: usize,
        error: f32,
        online: &mut Online<'_>,
    ) -> bool {
        for column in 0..rows.columns() {
            let (handles, table) = online.column_mut(column);
            let (span, values) = (span(rows.offsets(column), row), rows.values(column));
            let handles = &handles[span.clone()];
            let value = |at: usize| values.map_or(1.0, |values| values[span.start + at]);
            if self.factors == 0 {
                self.gradient.clear();
                self.gradient.extend((0..handles.len()).map(|at| error * value(at)));
                // NaN is not below it either.
                if !self.gradient.iter().all(|gradient| gradient.abs() < GRADIENT_ABS_MAX) {
                    return false;
                }
                table.update_ones(handles, &self.gradient);
                continue;
            }
            for (at, &handle) in handles.iter().enumerate() {
                let x = value(at);
                let scale = error * x;
                self.gradient[0] = scale;
                let weights = &table.weights(handle)[1..];
                // Without a branch per factor, so that it vectorises.
                let mut applies = scale.abs() < GRADIENT_ABS_MAX;
                for ((g, v), sum) in self.gradient[1..].iter_mut().zip(weights).zip(&self.sums) {
                    *g = scale * (sum - v * x);
                    applies &= g.abs() < GRADIENT_ABS_MAX;
                }
                if !applies {
                    return false;
                }
                table.update(handle, &self.gradient);
            }
        }
        online.update_constant(error);
        true
    }
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
        let mut sum = 0.0;
        for at in (span[0] - offsets[0]) as usize..(span[1] - offsets[0]) as usize {
            sum += weights[indices[at] as usize] * value(at);
        }
        *logit += sum;
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
