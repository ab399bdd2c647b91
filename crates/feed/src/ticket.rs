//! Reports used-up minibatches to their hub, once they are unused and all of their pushes are applied; and reports
//! failed pushes to the loop, since those minibatches are not used up. Knows no rows and no queue.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sanderling_hub::Acknowledger;
use sanderling_observe::SpanContext;

use crate::error::FeedError;
use crate::step::Step;

/// The first minibatch of a queue that was lost, until the queue has said so.
#[derive(Debug, Default)]
pub(crate) struct Loss(Mutex<Option<FeedError>>);

impl Loss {
    /// Whether there is one that the queue has not said.
    pub(crate) fn is_some(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The error for the loop.
    pub(crate) fn take(&self) -> Option<FeedError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Held by those who are not done with a minibatch; the last to let go tells its hub. One that was never given to the trainer,
/// or of which a push is owed, is not used up: the hub hands it out again when this trainer has left.
#[derive(Debug)]
pub(crate) struct Ticket {
    acknowledger: Acknowledger,
    /// The hub, by its place and its address, and the minibatch's number there.
    hub: (usize, String),
    number: u64,
    given: AtomicBool,
    /// Pushes that were begun and are not applied.
    owed: AtomicUsize,
    /// A push was applied.
    pushed: AtomicBool,
    loss: Arc<Loss>,
    /// Its span, if it is traced.
    step: Option<Step>,
}

impl Ticket {
    pub(crate) fn new(
        acknowledger: Acknowledger,
        hub: (usize, String),
        number: u64,
        loss: Arc<Loss>,
        step: Option<Step>,
    ) -> Ticket {
        let (given, pushed) = (AtomicBool::new(false), AtomicBool::new(false));
        Ticket { acknowledger, hub, number, given, owed: AtomicUsize::new(0), pushed, loss, step }
    }

    /// The span of the minibatch, if it is traced.
    pub(crate) fn span(&self) -> Option<SpanContext> {
        self.step.as_ref().map(Step::context)
    }

    /// Ends a stage of the minibatch, if it is traced.
    fn end_stage(&self, name: &'static str) {
        if let Some(step) = &self.step {
            step.end_stage(name);
        }
    }

    /// Its rows were looked up.
    pub(crate) fn note_lookup(&self) {
        self.end_stage("lookup");
    }

    /// The trainer has it.
    pub(crate) fn give(&self) {
        self.end_stage("queue");
        self.given.store(true, Ordering::Relaxed);
    }

    /// The trainer had it and did not use it.
    pub(crate) fn take_back(&self) {
        self.given.store(false, Ordering::Relaxed);
    }

    /// Gradients of it are on their way.
    pub(crate) fn owe(&self) {
        self.end_stage("train");
        self.owed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records applied gradients that were not owed.
    pub(crate) fn note_pushed(&self) {
        self.pushed.store(true, Ordering::Relaxed);
    }

    /// Records that the owed push is applied.
    pub(crate) fn settle(&self) {
        self.end_stage("push");
        self.note_pushed();
        self.owed.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records a failed push: the minibatch stays unpushed, and the queue reports the error.
    pub(crate) fn lose(&self, error: &FeedError) {
        self.owe();
        let mut lost = self.loss.0.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| FeedError::Unpushed {
            hub: self.hub.1.clone(),
            number: self.number,
            cause: error.to_string(),
            refused: if let FeedError::Push(refused) = error { Some(Arc::clone(refused)) } else { None },
        });
    }

    /// Whether something was pushed of it, or is on its way.
    pub(crate) fn is_pushed(&self) -> bool {
        self.pushed.load(Ordering::Relaxed) || self.owed.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if *self.given.get_mut() && *self.owed.get_mut() == 0 {
            match &self.step {
                None => self.acknowledger.acknowledge(self.hub.0, self.number),
                Some(step) => {
                    step.end(&self.hub.1, &[("sanderling.minibatch", self.number)]);
                    self.acknowledger.acknowledge_traced(self.hub.0, self.number, step.context());
                }
            }
        }
    }
}
