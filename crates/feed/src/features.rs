//! The features of an embedding: the table of each, its pooling, and its position among the pooled columns. Knows
//! neither tables nor minibatches.

use crate::pooling::{FeaturePooling, Place};

/// A feature that is looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// Name of the column of the minibatch.
    pub name: String,
    /// Which of the tables.
    pub table: usize,
    /// How a sample's rows become one.
    pub pooling: FeaturePooling,
}

/// All of them, in order.
#[derive(Debug)]
pub(crate) struct Features {
    all: Vec<Feature>,
    places: Vec<Place>,
    table_dims: Vec<usize>,
    width: usize,
}

impl Features {
    /// Over tables of these widths, which all of them are.
    pub(crate) fn new(all: Vec<Feature>, table_dims: Vec<usize>) -> Features {
        let mut width = 0;
        let mut places = Vec::with_capacity(all.len());
        for feature in &all {
            let dim = table_dims[feature.table];
            places.push(Place { dim, at: width, width: 0 });
            width += if feature.pooling == FeaturePooling::None { 0 } else { dim };
        }
        places.iter_mut().for_each(|place| place.width = width);
        Features { all, places, table_dims, width }
    }

    pub(crate) fn all(&self) -> &[Feature] {
        &self.all
    }

    /// The width of a feature's rows.
    pub(crate) fn dim(&self, feature: usize) -> usize {
        self.places[feature].dim
    }

    /// The width of each table's rows.
    pub(crate) fn table_dims(&self) -> &[usize] {
        &self.table_dims
    }

    /// Columns of the pooled rows.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Where a feature's pooled rows lie among those columns.
    pub(crate) fn place(&self, feature: usize) -> Place {
        self.places[feature]
    }

    /// Of a feature that is not pooled, its place among those.
    pub(crate) fn sequence(&self, feature: usize) -> usize {
        self.all[..feature].iter().filter(|before| before.pooling == FeaturePooling::None).count()
    }
}
