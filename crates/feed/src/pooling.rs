//! Pools rows of distinct keys to one row per sample and feature, and distributes the pooled row's gradient over its
//! keys. Sums floats in the order of keys; knows no table.

use sanderling_store::{Pooling, PrefetchHint, prefetch};

/// Samples that the pooled rows are asked for ahead. They are as far apart as a sample's rows of all features are long, where
/// the machine foresees nothing.
const AHEAD_SAMPLES: usize = 16;

/// How a sample's rows of one feature become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeaturePooling {
    /// A sum or a mean, which servers can make, too. A mean does not look at values.
    Linear(Pooling),
    /// The largest of each coordinate; values are not looked at. The gradient goes to the first key that has it.
    Max,
    /// Not at all: a row per key, for sequences.
    None,
}

impl FeaturePooling {
    /// The sum, each row times its key's value where the column has values.
    pub const SUM: FeaturePooling = FeaturePooling::Linear(Pooling::Sum);
    /// The mean.
    pub const MEAN: FeaturePooling = FeaturePooling::Linear(Pooling::Mean);

    const ALL: [FeaturePooling; 4] =
        [FeaturePooling::SUM, FeaturePooling::MEAN, FeaturePooling::Max, FeaturePooling::None];

    /// The name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FeaturePooling::Linear(pooling) => pooling.name(),
            FeaturePooling::Max => "max",
            FeaturePooling::None => "none",
        }
    }

    /// The pooling with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<FeaturePooling> {
        FeaturePooling::ALL.into_iter().find(|pooling| pooling.name() == name)
    }
}

/// The keys of one feature of a minibatch.
#[derive(Clone, Copy)]
pub(crate) struct Bags<'a> {
    /// Per key, which of the distinct rows is its.
    pub(crate) indices: &'a [u32],
    /// Where each sample's keys are, one more than samples; the first need not be 0.
    pub(crate) offsets: &'a [u32],
    /// A value per key.
    pub(crate) values: Option<&'a [f32]>,
}

/// Where a feature's pooled rows are in those of all: `dim` columns from `at` on, of `width`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) dim: usize,
    pub(crate) at: usize,
    pub(crate) width: usize,
}

impl Place {
    /// Asks for the first and the last line of a sample's row.
    #[inline(always)]
    fn prefetch(self, pooled: &[f32], sample: usize, hint: PrefetchHint) {
        let at = sample * self.width + self.at;
        prefetch(pooled, at, hint);
        prefetch(pooled, at + self.dim - 1, hint);
    }
}

impl Bags<'_> {
    /// Positions of a sample's keys.
    fn of(&self, sample: usize) -> std::ops::Range<usize> {
        let first = self.offsets[0];
        (self.offsets[sample] - first) as usize..(self.offsets[sample + 1] - first) as usize
    }

    fn samples(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// Calls a function with the width as a constant where it is a usual one, so that its loops are unrolled.
macro_rules! with_dim {
    ($dim:expr, $function:ident($($argument:expr),*)) => {
        match $dim {
            8 => $function::<8>($($argument),*),
            16 => $function::<16>($($argument),*),
            32 => $function::<32>($($argument),*),
            64 => $function::<64>($($argument),*),
            _ => $function::<0>($($argument),*),
        }
    };
}

/// Writes the pooled row of every sample.
pub(crate) fn pool(pooling: FeaturePooling, bags: Bags<'_>, rows: &[f32], place: Place, out: &mut [f32]) {
    with_dim!(place.dim, pool_dim(pooling, bags, rows, place, out));
}

fn pool_dim<const DIM: usize>(
    pooling: FeaturePooling,
    bags: Bags<'_>,
    rows: &[f32],
    place: Place,
    out: &mut [f32],
) {
    let dim = if DIM == 0 { place.dim } else { DIM };
    let row = |key: usize| &rows[bags.indices[key] as usize * dim..][..dim];
    for sample in 0..bags.samples() {
        place.prefetch(out, sample + AHEAD_SAMPLES, PrefetchHint::Write);
        let out = &mut out[sample * place.width + place.at..][..dim];
        let keys = bags.of(sample);
        let Some(first) = keys.clone().next() else {
            out.fill(0.0);
            continue;
        };
        let values = if pooling == FeaturePooling::SUM { bags.values } else { None };
        let value = |key: usize| values.map_or(1.0, |values| values[key]);
        match values {
            None => out.copy_from_slice(row(first)),
            Some(values) => out.iter_mut().zip(row(first)).for_each(|(out, row)| *out = values[first] * row),
        }
        for key in first + 1..keys.end {
            let row = row(key).iter();
            if pooling == FeaturePooling::Max {
                out.iter_mut().zip(row).for_each(|(out, row)| *out = if *row > *out { *row } else { *out });
            } else {
                let value = value(key);
                out.iter_mut().zip(row).for_each(|(out, row)| *out += value * row);
            }
        }
        if pooling == FeaturePooling::MEAN && keys.len() > 1 {
            let share = 1.0 / keys.len() as f32;
            out.iter_mut().for_each(|out| *out *= share);
        }
    }
}

/// Adds to the gradients of the distinct rows what those of the pooled rows say.
pub(crate) fn scatter(
    pooling: FeaturePooling,
    bags: Bags<'_>,
    rows: &[f32],
    place: Place,
    pooled: &[f32],
    grads: &mut [f32],
) {
    with_dim!(place.dim, scatter_dim(pooling, bags, rows, place, pooled, grads));
}

fn scatter_dim<const DIM: usize>(
    pooling: FeaturePooling,
    bags: Bags<'_>,
    rows: &[f32],
    place: Place,
    pooled: &[f32],
    grads: &mut [f32],
) {
    let dim = if DIM == 0 { place.dim } else { DIM };
    for sample in 0..bags.samples() {
        place.prefetch(pooled, sample + AHEAD_SAMPLES, PrefetchHint::Read);
        let grad = &pooled[sample * place.width + place.at..][..dim];
        let keys = bags.of(sample);
        if pooling == FeaturePooling::Max {
            for (coordinate, grad) in grad.iter().enumerate() {
                let at = |key: usize| bags.indices[key] as usize * dim + coordinate;
                let largest =
                    keys.clone().reduce(|best, key| if rows[at(key)] > rows[at(best)] { key } else { best });
                if let Some(key) = largest {
                    grads[at(key)] += grad;
                }
            }
            continue;
        }
        let share = if pooling == FeaturePooling::MEAN { 1.0 / keys.len().max(1) as f32 } else { 1.0 };
        let values = if pooling == FeaturePooling::SUM { bags.values } else { None };
        for key in keys {
            let value = values.map_or(share, |values| values[key]);
            let to = &mut grads[bags.indices[key] as usize * dim..][..dim];
            to.iter_mut().zip(grad).for_each(|(to, grad)| *to += value * grad);
        }
    }
}

/// Copies the row of every key.
pub(crate) fn spread(indices: &[u32], rows: &[f32], dim: usize, out: &mut [f32]) {
    for (out, &index) in out.chunks_exact_mut(dim).zip(indices) {
        out.copy_from_slice(&rows[index as usize * dim..][..dim]);
    }
}

/// Adds the gradient of every key's row to that of its distinct row.
pub(crate) fn gather_grads(indices: &[u32], dim: usize, of_keys: &[f32], grads: &mut [f32]) {
    for (grad, &index) in of_keys.chunks_exact(dim).zip(indices) {
        let to = &mut grads[index as usize * dim..][..dim];
        to.iter_mut().zip(grad).for_each(|(to, grad)| *to += grad);
    }
}

/// Copies a feature's pooled rows to their place among those of all.
pub(crate) fn copy_columns(rows: &[f32], place: Place, out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(place.dim).zip(out.chunks_exact_mut(place.width)) {
        out[place.at..][..place.dim].copy_from_slice(row);
    }
}

/// Adds the gradients of a feature's pooled rows, from their place among those of all.
pub(crate) fn add_columns(pooled: &[f32], place: Place, grads: &mut [f32]) {
    for (grads, pooled) in grads.chunks_exact_mut(place.dim).zip(pooled.chunks_exact(place.width)) {
        grads.iter_mut().zip(&pooled[place.at..]).for_each(|(sum, grad)| *sum += grad);
    }
}
