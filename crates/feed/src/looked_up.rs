//! A minibatch with its pooled rows, and room for their gradients. Knows no thread.

use std::sync::Arc;

use sanderling_client::{FED_AGE_MAX, FedRows, Lookup};

use crate::ahead::AHEAD_AGE_MAX;
use crate::embedding::Embedding;
use crate::error::FeedError;
use crate::minibatch::Minibatch;
use crate::pooled::{Pooled, bags};
use crate::pooling::{FeaturePooling, Place, add_columns, gather_grads, scatter};
use crate::pushes::Scales;
use crate::recycle::Recycled;
use crate::sampled::Sampled;

/// The rows of one minibatch. A push takes the gradients away; what was pooled stays.
#[derive(Debug)]
pub struct LookedUp {
    embedding: Arc<Embedding>,
    minibatch: Minibatch,
    /// Until the push.
    lookup: Option<Recycled<Lookup>>,
    pooled: Pooled,
    missing: usize,
    unique_keys: usize,
    /// Pushes that had been applied when this was looked up.
    applied: u64,
    /// Pushes that were applied in between, once this is pushed.
    staleness: Option<u64>,
}

impl LookedUp {
    pub(crate) fn new(
        embedding: Arc<Embedding>,
        minibatch: Minibatch,
        lookup: Recycled<Lookup>,
        pooled: Pooled,
        (missing, applied): (usize, u64),
    ) -> LookedUp {
        let unique_keys = lookup.unique_keys();
        LookedUp {
            embedding,
            minibatch,
            lookup: Some(lookup),
            pooled,
            missing,
            unique_keys,
            applied,
            staleness: None,
        }
    }

    /// The minibatch.
    #[must_use]
    pub fn sampled(&self) -> &Arc<Recycled<Sampled>> {
        &self.minibatch.sampled
    }

    /// The embedding that it was looked up in.
    #[must_use]
    pub fn embedding(&self) -> &Arc<Embedding> {
        &self.embedding
    }

    /// The pooled rows, [samples, [`Embedding::width`]].
    pub fn pooled(&mut self) -> &mut [f32] {
        &mut self.pooled.rows
    }

    /// Rows of a feature that is not pooled, [keys, dim]; None for one that is.
    pub fn rows(&mut self, feature: usize) -> Option<&mut [f32]> {
        let LookedUp { embedding, pooled, .. } = self;
        let is_sequence =
            embedding.features().get(feature).is_some_and(|it| it.pooling == FeaturePooling::None);
        is_sequence.then(|| &mut pooled.sequences[embedding.layout().sequence(feature)][..])
    }

    /// Memory behind the samples, the rows and their gradients.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let rows = self.lookup.as_ref().map_or(0, |lookup| lookup.bytes());
        let sequences: usize = self.pooled.sequences.iter().map(|sequence| sequence.bytes()).sum();
        self.minibatch.sampled.bytes() + rows + self.pooled.rows.bytes() + sequences
    }

    /// Distinct keys.
    #[must_use]
    pub fn unique_keys(&self) -> usize {
        self.unique_keys
    }

    /// How many of them had no row.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// Pushes of other minibatches that were applied between this one's lookup and its push, or until now.
    #[must_use]
    pub fn staleness(&self) -> u64 {
        self.staleness.unwrap_or_else(|| self.embedding.pushes().applied() - self.applied)
    }

    /// Adds to the gradients: pooled rows [samples, width], and keys' rows [keys, dim] per other feature.
    ///
    /// # Errors
    /// Another number of values, a feature that is pooled, or a lookup that was pushed; nothing was added.
    pub fn add_grads(
        &mut self,
        pooled: Option<&[f32]>,
        of_keys: &[(usize, &[f32])],
    ) -> Result<(), FeedError> {
        let LookedUp { embedding, minibatch, lookup, .. } = self;
        let lookup = lookup.as_mut().ok_or(FeedError::Pushed)?;
        let rows = minibatch.rows();
        let check = |what: &str, expected: usize, found: usize| {
            if expected == found {
                return Ok(());
            }
            Err(FeedError::Length { what: what.to_owned(), expected, found })
        };
        if let Some(pooled) = pooled {
            check("the pooled rows", rows.len() * embedding.width(), pooled.len())?;
        }
        for (at, grads) in of_keys {
            let Some(feature) = embedding.features().get(*at).filter(|it| it.pooling == FeaturePooling::None)
            else {
                let reason = format!("feature number {at} is none that has a row per key");
                return Err(FeedError::Option { option: "rows", reason });
            };
            check(&feature.name, lookup.indices(*at).len() * embedding.dim(*at), grads.len())?;
        }
        for (at, feature) in embedding.features().iter().enumerate() {
            if let (Some(pooled), true) = (pooled, feature.pooling != FeaturePooling::None) {
                let column = minibatch.columns[at];
                let place: Place = embedding.layout().place(at);
                if let Some(fed) = lookup.fed_mut().iter_mut().find(|fed| fed.feature() == at) {
                    add_columns(pooled, place, fed.grads_mut());
                    continue;
                }
                let (indices, from, grads) = lookup.backward(at);
                scatter(feature.pooling, bags(&rows, column, indices), from, place, pooled, grads);
            }
        }
        for (at, of_keys) in of_keys {
            let dim = embedding.dim(*at);
            let (indices, _, grads) = lookup.backward(*at);
            gather_grads(indices, dim, of_keys, grads);
        }
        Ok(())
    }

    /// The sum of the squares of the gradients of all distinct rows.
    pub fn grad_norm_squared(&mut self) -> Result<f64, FeedError> {
        self.spread_fed()?;
        let lookup = self.lookup.as_mut().ok_or(FeedError::Pushed)?;
        Ok(lookup.grads().flat_map(|grads| grads.iter()).map(|&grad| f64::from(grad) * f64::from(grad)).sum())
    }

    /// Multiplies the gradients.
    pub fn scale_grads(&mut self, factor: f32) -> Result<(), FeedError> {
        let lookup = self.lookup.as_mut().ok_or(FeedError::Pushed)?;
        lookup.grads().for_each(|grads| grads.iter_mut().for_each(|grad| *grad *= factor));
        let fed = lookup.fed_mut().iter_mut();
        fed.for_each(|fed| fed.grads_mut().iter_mut().for_each(|grad| *grad *= factor));
        Ok(())
    }

    fn spread_fed(&mut self) -> Result<(), FeedError> {
        let LookedUp { embedding, minibatch, lookup, .. } = self;
        minibatch.spread_fed(embedding.layout(), lookup.as_mut().ok_or(FeedError::Pushed)?)
    }

    /// Has the push send distinct rows' gradients, wherever they were pooled.
    fn push_from_here(&mut self) -> Result<(), FeedError> {
        self.spread_fed()?;
        self.lookup.as_mut().ok_or(FeedError::Pushed)?.unfeed();
        Ok(())
    }

    /// Takes the gradients for a synchronous step instead of a push.
    ///
    /// Per table: the distinct keys, their counts, and a row of gradients each. Keys without a row that are to stay
    /// so are left out.
    pub fn take_gradients(
        &mut self,
        mut each: impl FnMut(usize, &[u64], &[u32], &[f32]),
    ) -> Result<(), FeedError> {
        self.spread_fed()?;
        let mut lookup = self.lookup.take().ok_or(FeedError::Pushed)?;
        if self.embedding.forgets_missing() {
            lookup.forget_missing();
        }
        let tables = lookup.gradients().enumerate();
        tables.for_each(|(table, (keys, counts, grads))| each(table, keys, counts, grads));
        self.staleness = Some(self.embedding.pushes().begun() - self.applied);
        Ok(())
    }

    /// Marks the gradients taken away as applied: the minibatch counts as pushed.
    pub fn note_applied(&self) {
        if let Some(ticket) = self.minibatch.sampled.ticket.upgrade() {
            ticket.note_pushed();
        }
    }

    /// Hands the gradients over, to be applied in the background. Waits only while too many pushes are outstanding; with
    /// [`crate::EmbeddingOptions::pushes`] 0 until this one has been applied. An error may be that of an earlier push.
    ///
    /// If the keys were fed by a hub so long ago that they must be asked for, and the minibatch is another trainer's by now,
    /// nothing is pushed, as that one does it; [`Embedding::pooled_at`] counts that.
    ///
    /// The minibatch's hub does not hear that it was used up before all of this is applied. If it fails, now or later, the
    /// queue ends with [`FeedError::Unpushed`], and the hub hands the minibatch out again to a trainer that is started anew.
    pub fn push(&mut self, scales: impl Into<Scales>) -> Result<(), FeedError> {
        let (ready, ticket) = (self.ready_to_push(), self.minibatch.sampled.ticket.upgrade());
        if let (Err(error), Some(ticket), Some(_)) = (&ready, &ticket, &self.lookup) {
            ticket.lose(error);
        }
        if !ready? {
            return Ok(());
        }
        let lookup = self.lookup.take().ok_or(FeedError::Pushed)?;
        let pushes = self.embedding.pushes();
        // Pushes handed over before will be applied before.
        self.staleness = Some(pushes.begun() - self.applied);
        // A server may have forgotten what was fed.
        let fed = (!lookup.fed().is_empty()).then(|| self.minibatch.take());
        pushes.push(lookup, scales.into(), self.embedding.forgets_missing(), ticket, fed)?;
        if self.embedding.waits_for_pushes() { pushes.finish() } else { Ok(()) }
    }

    /// Sees to it that what the servers may have forgotten is pushed by its keys; false if it is another trainer's to push.
    fn ready_to_push(&mut self) -> Result<bool, FeedError> {
        if self.lookup.is_none() {
            return Err(FeedError::Pushed);
        }
        let age_max = |fed: &FedRows| if fed.is_ahead() { AHEAD_AGE_MAX } else { FED_AGE_MAX };
        let fed = self.lookup.as_ref().map_or(&[][..], |lookup| lookup.fed());
        if self.embedding.forgets_missing() && fed.iter().any(FedRows::is_ahead) {
            let reason = "keys without a row are to stay without one, and the servers would make rows of those that the hub has \
                          fed: push nothing, or have absent \"init\", or start the hub without --feed";
            return Err(FeedError::Option { option: "absent", reason: reason.to_owned() });
        }
        if fed.iter().any(|fed| fed.age() >= age_max(fed)) {
            let ahead = fed.iter().filter(|fed| fed.is_ahead()).count();
            match self.push_from_here() {
                Err(FeedError::Late { .. }) => {
                    self.embedding.note_late(ahead);
                    self.lookup = None;
                    self.staleness = Some(self.embedding.pushes().begun() - self.applied);
                    return Ok(false);
                }
                done => done?,
            }
        }
        Ok(true)
    }
}
