//! Features of a minibatch whose keys are fed to the servers and pooled there: the choice, the pooled rows and their
//! gradients. Does not know what rows mean, nor which way is better.

use std::time::{Duration, Instant};

use crate::session::FedBatch;

/// A feature that could be fed: the only reader of its table in the minibatch.
///
/// Each of its rows has one update either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feedable {
    /// Which feature.
    pub feature: usize,
    /// Its keys, repetitions included.
    pub keys: usize,
    /// Its distinct keys.
    pub distinct: usize,
    /// Samples of the minibatch.
    pub samples: usize,
    /// Weights per row.
    pub dim: usize,
    /// Servers that have rows of its table.
    pub servers: usize,
    /// Whether its keys have values.
    pub has_values: bool,
    /// Whether it fits in one frame and in what a server pools at once; otherwise it is not fed.
    pub fits: bool,
}

/// Age from which fed batches are pushed by their distinct rows ([`Lookup::unfeed`](crate::Lookup::unfeed)).
///
/// Servers forget a fed batch after 300 s, and a push may have to wait.
pub const FED_AGE_MAX: Duration = Duration::from_secs(60);

/// A feature that was fed: its pooled rows, and room for their gradients.
#[derive(Debug, Default)]
pub struct FedRows {
    pub(crate) feature: usize,
    pub(crate) batch: FedBatch,
    pub(crate) rows: Vec<f32>,
    pub(crate) grads: Vec<f32>,
    /// Positions of keys without a row.
    pub(crate) missing: Vec<u32>,
    pub(crate) since: Option<Instant>,
    /// A hub has fed it, and has its keys.
    pub(crate) is_ahead: bool,
    /// The servers forget it by themselves.
    pub(crate) is_pushed: bool,
}

/// A feature of a minibatch that a hub has fed.
#[derive(Debug, Clone, Copy)]
pub struct AheadFeature<'a> {
    /// Which feature.
    pub feature: usize,
    /// The batch's number at the servers, and the feature's.
    pub number: (u64, u32),
    /// Per server, how many keys it got, repetitions included.
    pub keys: &'a [u32],
    /// Version of the placement by which they were shared out.
    pub placement_version: u64,
    /// When they were fed.
    pub since: Instant,
}

impl FedRows {
    /// Which feature.
    #[must_use]
    pub fn feature(&self) -> usize {
        self.feature
    }

    /// Whether a hub has fed it, so that its keys are not here.
    #[must_use]
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// How long ago.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Room for so many values of a feature, whose gradients are 0.
    pub(crate) fn begin(&mut self, feature: usize, floats: usize, since: Instant) {
        (self.feature, self.since, self.is_ahead, self.is_pushed) = (feature, Some(since), false, false);
        self.rows.resize(floats, 0.0);
        self.grads.clear();
        self.grads.resize(floats, 0.0);
    }

    /// The pooled rows, [samples, dim].
    #[must_use]
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Their gradients, [samples, dim].
    #[must_use]
    pub fn grads(&self) -> &[f32] {
        &self.grads
    }

    /// The gradients of the pooled rows, to be changed.
    pub fn grads_mut(&mut self) -> &mut [f32] {
        &mut self.grads
    }
}
