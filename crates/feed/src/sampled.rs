//! A minibatch of samples on its own, with the names of its columns and its place in the input. Knows no rows of tables.

use std::sync::Arc;

use sanderling_sample::Batch;

use crate::error::FeedError;

/// A minibatch.
#[derive(Debug)]
pub struct Sampled {
    /// Names of the columns, in order.
    pub names: Arc<[String]>,
    /// The samples.
    pub batch: Batch,
    /// Number of the minibatch in its source, from 0 on.
    pub number: u64,
    /// Number of the pass, from 0 on.
    pub pass: u64,
}

impl Sampled {
    /// Where a column stands.
    pub fn column(&self, feature: &str) -> Result<usize, FeedError> {
        column(&self.names, feature)
    }
}

/// Where a column stands among others.
pub(crate) fn column(names: &[String], feature: &str) -> Result<usize, FeedError> {
    names
        .iter()
        .position(|name| name == feature)
        .ok_or_else(|| FeedError::UnknownFeature { feature: feature.to_owned(), columns: names.join(", ") })
}
