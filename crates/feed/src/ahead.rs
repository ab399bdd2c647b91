//! Features of a minibatch that a hub has fed: their number at the servers, and how to get the keys after all. Knows
//! no rows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};
use std::time::{Duration, Instant};

use sanderling_hub::{FedBatch, FullBatches, Subscription};
use sanderling_sample::PackedBatch;

use crate::error::FeedError;

/// Features fed longer ago are looked up and pushed by their keys: servers forget them after 300 s. The hub hands out
/// nothing that it fed more than 60 s before.
pub(crate) const AHEAD_AGE_MAX: Duration = Duration::from_secs(180);

/// The fed features of a minibatch.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) fed: FedBatch,
    pub(crate) since: Instant,
    /// A lookup has it: a push of one would take it away from another.
    is_claimed: AtomicBool,
    full_batches: FullBatches,
    /// The queue's, while there is a queue.
    subscription: Weak<Mutex<Subscription>>,
    /// The hub, by its place and its address, and the minibatch's number there.
    hub: (usize, String),
    number: u64,
}

impl Ahead {
    pub(crate) fn new(
        fed: FedBatch,
        full_batches: FullBatches,
        subscription: Weak<Mutex<Subscription>>,
        hub: (usize, String),
        number: u64,
    ) -> Ahead {
        let now = Instant::now();
        let since = now.checked_sub(fed.age).unwrap_or(now);
        Ahead { fed, since, is_claimed: AtomicBool::new(false), full_batches, subscription, hub, number }
    }

    /// Whether a lookup may use what was fed: the first one, while the servers surely have it.
    pub(crate) fn claim(&self) -> bool {
        self.since.elapsed() < AHEAD_AGE_MAX && !self.is_claimed.swap(true, Ordering::Relaxed)
    }

    /// The minibatch with all its keys.
    ///
    /// # Errors
    /// [`FeedError::Late`]: it is another trainer's by now, or was used up; or the hub cannot be asked.
    pub(crate) fn whole(&self) -> Result<PackedBatch, FeedError> {
        let late = || FeedError::Late { hub: self.hub.1.clone(), number: self.number };
        let subscription = self.subscription.upgrade().ok_or_else(late)?;
        self.full_batches.get(&subscription, self.hub.0, self.number)?.ok_or_else(late)
    }
}
