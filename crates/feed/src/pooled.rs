//! The rows of a minibatch as the model gets them: pooled, side by side, or per key. They are made feature by feature, as
//! the distinct rows come, so that these are still in a near cache. Knows neither gradients nor where tables are.

use sanderling_client::{Floats, Lookup};
use sanderling_sample::Rows;

use crate::embedding::Embedding;
use crate::pooling::{Bags, Pooling, copy_columns, pool, spread};
use crate::recycle::Recycled;

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Pooled {
    /// [samples, [`Embedding::width`]].
    pub(crate) rows: Recycled<Floats>,
    /// [keys, dim] of each feature that is not pooled, in their order.
    pub(crate) sequences: Vec<Recycled<Floats>>,
}

impl Pooled {
    /// Room for a minibatch, whose features read these columns.
    pub(crate) fn new(embedding: &Embedding, samples: &Rows<'_>, columns: &[usize]) -> Pooled {
        let floats = |length: usize| {
            let mut floats = embedding.floats.take(Floats::default);
            // All of it will be written.
            floats.resize(length);
            floats
        };
        let features = embedding.features().iter().enumerate();
        let sequences = features.filter(|(_, feature)| feature.pooling == Pooling::None);
        let sequences =
            sequences.map(|(at, _)| floats(samples.keys(columns[at]).len() * embedding.dim(at))).collect();
        Pooled { rows: floats(samples.len() * embedding.width()), sequences }
    }

    /// Writes what a feature makes of its rows.
    pub(crate) fn add(
        &mut self,
        embedding: &Embedding,
        samples: &Rows<'_>,
        columns: &[usize],
        lookup: &Lookup,
        at: usize,
    ) {
        let (place, from, indices) = (embedding.place(at), lookup.table(at).rows(), lookup.indices(at));
        match embedding.features()[at].pooling {
            Pooling::None => {
                spread(indices, from, place.dim, &mut self.sequences[embedding.sequence(at)]);
            }
            pooling => pool(pooling, bags(samples, columns[at], indices), from, place, &mut self.rows),
        }
    }

    /// Writes what the servers pooled.
    pub(crate) fn add_fed(&mut self, embedding: &Embedding, lookup: &Lookup) {
        for fed in lookup.fed() {
            copy_columns(fed.rows(), embedding.place(fed.feature()), &mut self.rows);
        }
    }
}

/// The keys of a feature.
pub(crate) fn bags<'a>(samples: &Rows<'a>, column: usize, indices: &'a [u32]) -> Bags<'a> {
    Bags { indices, offsets: samples.offsets(column), values: samples.values(column) }
}
