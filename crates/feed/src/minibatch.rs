//! The keys of a minibatch whose rows were looked up, with those that its hub has fed, once they are needed. Knows no
//! rows.

use std::sync::Arc;

use sanderling_client::{FedRows, Lookup};
use sanderling_sample::{PackedBatch, Rows};

use crate::error::FeedError;
use crate::features::Features;
use crate::pooled::bags;
use crate::pooling::{Place, scatter};
use crate::recycle::Recycled;
use crate::sampled::Sampled;

/// See the top of this file.
#[derive(Debug)]
pub(crate) struct Minibatch {
    pub(crate) sampled: Arc<Recycled<Sampled>>,
    /// It with the keys that its hub has fed, once they were needed.
    pub(crate) whole: Option<PackedBatch>,
    /// Which columns the features read.
    pub(crate) columns: Arc<[usize]>,
}

impl Minibatch {
    /// The rows with the keys that are here.
    pub(crate) fn rows(&self) -> Rows<'_> {
        self.whole.as_ref().map_or_else(|| self.sampled.rows(), PackedBatch::rows)
    }

    /// Hands the fed keys, if they are here, to a push that may need them.
    pub(crate) fn take(&mut self) -> Minibatch {
        let (sampled, columns) = (Arc::clone(&self.sampled), Arc::clone(&self.columns));
        Minibatch { sampled, whole: self.whole.take(), columns }
    }

    /// Writes the gradients of distinct rows that the servers would make of those of the rows that they pooled. A push
    /// sends nothing of them.
    ///
    /// # Errors
    /// [`FeedError::Late`]: keys that a hub has fed are not to be had any more.
    pub(crate) fn spread_fed(&mut self, features: &Features, lookup: &mut Lookup) -> Result<(), FeedError> {
        self.fetch_keys(lookup)?;
        let rows = self.rows();
        for number in 0..lookup.fed().len() {
            let at = lookup.fed()[number].feature();
            let (fed, indices, grads) = lookup.backward_fed(number);
            let dim = features.dim(at);
            let place = Place { dim, at: 0, width: dim };
            grads.fill(0.0);
            let pooling = features.all()[at].pooling;
            scatter(pooling, bags(&rows, self.columns[at], indices), &[], place, fed.grads(), grads);
        }
        Ok(())
    }

    /// Asks the hub for the keys that it has fed, if they are not here.
    fn fetch_keys(&mut self, lookup: &mut Lookup) -> Result<(), FeedError> {
        let lacks_keys = lookup.fed().iter().any(FedRows::is_ahead) && self.whole.is_none();
        if let (true, Some(ahead)) = (lacks_keys, &self.sampled.ahead) {
            lookup.assign_ahead(&self.whole.insert(ahead.whole()?).rows());
        }
        Ok(())
    }
}
