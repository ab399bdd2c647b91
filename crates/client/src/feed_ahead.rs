//! Feeds the keys of minibatches to the servers for trainers elsewhere, which then pull pooled rows by the number of
//! the batch. Knows no trainer.

use std::sync::Arc;

use sanderling_observe::unique;
use sanderling_store::{Dedup, Pooling};

use crate::cluster::Cluster;
use crate::engine::PooledKeys;
use crate::error::ClientError;
use crate::fed::Feedable;
use crate::remote::RemoteTable;
use crate::session::{FedBatch, Session};

/// One feature of a minibatch, to be fed.
#[derive(Debug, Clone, Copy)]
pub struct FeedFeature<'a> {
    /// Its table, of the servers that are fed.
    pub table: &'a RemoteTable,
    /// Its number at the servers.
    pub feature: u32,
    /// Its keys, sample after sample.
    pub keys: &'a [u64],
    /// Where each sample's keys are, one more than samples, counted from the first.
    pub offsets: &'a [u32],
    /// A value per key.
    pub values: Option<&'a [f32]>,
    /// How a sample's rows become one. A mean does not look at values.
    pub pooling: Pooling,
}

/// The connections of one thread that feeds for others.
#[derive(Debug)]
pub struct FeedAhead {
    session: Session,
    batches: u64,
    dedup: Dedup,
    offsets: Vec<u32>,
    weights: Vec<f32>,
    fed: FedBatch,
}

impl FeedAhead {
    /// Connects when something is fed.
    pub fn new(cluster: &Arc<Cluster>) -> Result<FeedAhead, ClientError> {
        Ok(FeedAhead {
            session: cluster.session()?,
            batches: unique(),
            dedup: Dedup::new(),
            offsets: Vec::new(),
            weights: Vec::new(),
            fed: FedBatch::default(),
        })
    }

    /// A batch number that no other client uses. Its keys are shared out by [`FeedAhead::placement_version`].
    pub fn next_batch(&mut self) -> u64 {
        self.session.follow_placement();
        self.batches = self.batches.wrapping_add(1);
        self.batches
    }

    /// Version of the placement by which the batch is shared out.
    #[must_use]
    pub fn placement_version(&self) -> u64 {
        self.session.engine.placement.version()
    }

    /// Feeds a feature of a batch without waiting for the answers; returns the number of keys per server.
    ///
    /// Returns `None` if the feature does not fit into a frame, its rows may be more than a server pools at once, or
    /// `choose` rejects it. An earlier feed of the same number is replaced.
    pub fn begin(
        &mut self,
        batch: u64,
        of: &FeedFeature<'_>,
        choose: Option<&dyn Fn(&Feedable) -> bool>,
    ) -> Result<Option<&[u32]>, ClientError> {
        let &FeedFeature { table, feature, keys, offsets, values, pooling } = of;
        let samples = offsets.len() - 1;
        if !self.session.has_room_for(keys.len(), samples, table.dim()) {
            return Ok(None);
        }
        let servers = table.servers().count();
        if let Some(choose) = choose {
            self.dedup.assign(keys);
            let feedable = Feedable {
                feature: feature as usize,
                keys: keys.len(),
                distinct: self.dedup.unique.len(),
                samples,
                dim: table.dim(),
                servers,
                has_values: values.is_some(),
                fits: true,
            };
            if !choose(&feedable) {
                return Ok(None);
            }
        }
        let FeedAhead { session, offsets: rebased, weights, fed, .. } = self;
        rebased.clear();
        rebased.extend(offsets.iter().map(|offset| offset - offsets[0]));
        let (pooling, values) = match pooling {
            Pooling::Sum => (Pooling::Sum, values),
            Pooling::Mean if session.mean_there() == Pooling::Mean => (Pooling::Mean, None),
            Pooling::Mean => {
                // A server knows only its share of a sample's keys, and the trainer none of them.
                weights.clear();
                for pair in rebased.windows(2) {
                    let count = (pair[1] - pair[0]) as usize;
                    weights.extend(std::iter::repeat_n(1.0 / count.max(1) as f32, count));
                }
                (Pooling::Sum, Some(&weights[..]))
            }
        };
        let keys = PooledKeys { keys, offsets: rebased, values, pooling };
        session.begin_feed(table, (batch, feature), &keys, fed)?;
        Ok(Some(fed.keys()))
    }

    /// Waits until the servers have what was fed.
    pub fn finish(&mut self) -> Result<(), ClientError> {
        self.session.finish()
    }
}
