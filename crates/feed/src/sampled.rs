//! A minibatch of samples, with the names of its columns and its position in the input. Knows no rows of tables.

use std::sync::{Arc, Weak};

use sanderling_sample::{Batch, PackedBatch, Rows};

use crate::ahead::Ahead;
use crate::error::FeedError;
use crate::ticket::Ticket;

/// A minibatch.
#[derive(Debug)]
pub struct Sampled {
    /// Names of the columns, in order.
    pub names: Arc<[String]>,
    /// Its samples.
    pub samples: Samples,
    /// Number of the minibatch in its source, from 0 on.
    pub number: u64,
    /// Number of the pass, from 0 on.
    pub pass: u64,
    /// Tells the hub when it was used up; held while the minibatch is in use.
    pub(crate) ticket: Weak<Ticket>,
    /// The features that its hub has fed; its columns lack their keys.
    pub(crate) ahead: Option<Ahead>,
}

/// Where the columns lie.
#[derive(Debug)]
pub enum Samples {
    /// In columns of their own.
    Batch(Batch),
    /// As they came from a hub.
    Packed(PackedBatch),
}

impl Sampled {
    /// A minibatch without an input.
    #[must_use]
    pub fn new(names: Arc<[String]>, batch: Batch) -> Sampled {
        Sampled {
            names,
            samples: Samples::Batch(batch),
            number: 0,
            pass: 0,
            ticket: Weak::new(),
            ahead: None,
        }
    }

    /// The samples.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        match &self.samples {
            Samples::Batch(batch) => Rows::all(batch),
            Samples::Packed(packed) => packed.rows(),
        }
    }

    /// Where a column stands.
    pub fn column(&self, feature: &str) -> Result<usize, FeedError> {
        column(&self.names, feature)
    }

    /// Memory behind the samples.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.samples {
            Samples::Batch(batch) => batch.bytes(),
            Samples::Packed(packed) => packed.bytes().len(),
        }
    }
}

/// Where a column stands among others.
pub(crate) fn column(names: &[String], feature: &str) -> Result<usize, FeedError> {
    names
        .iter()
        .position(|name| name == feature)
        .ok_or_else(|| FeedError::UnknownFeature { feature: feature.to_owned(), columns: names.join(", ") })
}
