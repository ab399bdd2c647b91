//! Acknowledgements of minibatches by other threads than that of the subscription. Sends nothing.

use std::sync::{Arc, Mutex};

use sanderling_observe::SpanContext;
use sanderling_transport::Waker;

use crate::lock::lock;

/// A minibatch that is used up: its hub, its number there, and the trainer's span of it.
pub(super) type Used = (usize, u64, Option<SpanContext>);

/// Acknowledges minibatches of a [`Subscription`](crate::Subscription), from any thread, also while another waits in
/// [`Subscription::next`](crate::Subscription::next).
#[derive(Debug, Clone)]
pub struct Acknowledger {
    used: Arc<Mutex<Vec<Used>>>,
    waker: Waker,
}

impl Acknowledger {
    pub(super) fn new(waker: Waker) -> Acknowledger {
        Acknowledger { used: Arc::default(), waker }
    }

    /// Takes what was acknowledged.
    pub(super) fn take(&self) -> Vec<Used> {
        std::mem::take(&mut *lock(&self.used))
    }

    /// Acknowledges a minibatch. The hub is told by the next or current call of
    /// [`Subscription::next`](crate::Subscription::next).
    pub fn acknowledge(&self, hub: usize, number: u64) {
        self.tell(hub, number, None);
    }

    /// Acknowledges a minibatch, and tells its hub the trainer's span of it, below which the hub adds its own.
    pub fn acknowledge_traced(&self, hub: usize, number: u64, span: SpanContext) {
        self.tell(hub, number, Some(span));
    }

    fn tell(&self, hub: usize, number: u64, span: Option<SpanContext>) {
        lock(&self.used).push((hub, number, span));
        self.waker.wake();
    }
}
