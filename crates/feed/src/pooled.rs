//! The rows of a minibatch for the model: pooled side by side, or per key. They are made feature by feature while the
//! distinct rows are still in the cache. Knows neither gradients nor where tables are.

use std::sync::Arc;

use sanderling_client::{Floats, Lookup};
use sanderling_sample::Rows;

use crate::features::Features;
use crate::pooling::{Bags, FeaturePooling, copy_columns, pool, spread};
use crate::recycle::{Recycled, Recycler};

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Pooled {
    /// [samples, [`Features::width`]].
    pub(crate) rows: Recycled<Floats>,
    /// [keys, dim] of each feature that is not pooled, in their order.
    pub(crate) sequences: Vec<Recycled<Floats>>,
}

impl Pooled {
    /// Room for a minibatch, whose features read these columns.
    pub(crate) fn new(
        features: &Features,
        floats: &Arc<Recycler<Floats>>,
        samples: &Rows<'_>,
        columns: &[usize],
    ) -> Pooled {
        let floats = |length: usize| {
            let mut floats = floats.take(Floats::default);
            // All of it will be written.
            floats.resize(length);
            floats
        };
        let sequences = features.all().iter().enumerate();
        let sequences = sequences.filter(|(_, feature)| feature.pooling == FeaturePooling::None);
        let sequences =
            sequences.map(|(at, _)| floats(samples.keys(columns[at]).len() * features.dim(at))).collect();
        Pooled { rows: floats(samples.len() * features.width()), sequences }
    }

    /// Writes what a feature makes of its rows.
    pub(crate) fn add(
        &mut self,
        features: &Features,
        samples: &Rows<'_>,
        columns: &[usize],
        lookup: &Lookup,
        at: usize,
    ) {
        let (place, from, indices) = (features.place(at), lookup.table(at).rows(), lookup.indices(at));
        match features.all()[at].pooling {
            FeaturePooling::None => {
                spread(indices, from, place.dim, &mut self.sequences[features.sequence(at)]);
            }
            pooling => pool(pooling, bags(samples, columns[at], indices), from, place, &mut self.rows),
        }
    }

    /// Writes what the servers pooled.
    pub(crate) fn add_fed(&mut self, features: &Features, lookup: &Lookup) {
        for fed in lookup.fed() {
            copy_columns(fed.rows(), features.place(fed.feature()), &mut self.rows);
        }
    }
}

/// The keys of a feature.
pub(crate) fn bags<'a>(samples: &Rows<'a>, column: usize, indices: &'a [u32]) -> Bags<'a> {
    Bags { indices, offsets: samples.offsets(column), values: samples.values(column) }
}
