//! Minibatches that a trainer has without the keys that were fed, asked for with them, from any thread. Whoever has the
//! subscription moves the frames; knows neither frames nor what the keys are needed for.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use sanderling_sample::PackedBatch;
use sanderling_transport::Waker;

use super::{HubError, Subscription};
use crate::decoding::lock;

/// How long one waits before it looks whether it has to move the frames itself.
const LOOK: Duration = Duration::from_millis(10);

/// What became of a question: the minibatch, or None if it is not this trainer's any more.
pub(super) type Answer = Option<PackedBatch>;

#[derive(Debug, Default)]
struct State {
    tickets: u64,
    /// Not yet told to the hubs: ticket, hub, number.
    asked: Vec<(u64, usize, u64)>,
    answered: BTreeMap<u64, Answer>,
}

/// What those who ask and who moves the frames share.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<State>,
    changed: Condvar,
}

impl Questions {
    /// What the hubs are to be asked.
    pub(super) fn take_asked(&self) -> Vec<(u64, usize, u64)> {
        std::mem::take(&mut lock(&self.state).asked)
    }

    pub(super) fn answer(&self, ticket: u64, answer: Answer) {
        lock(&self.state).answered.insert(ticket, answer);
        self.changed.notify_all();
    }
}

/// Asks for minibatches of a [`Subscription`] with the keys that were fed, from any thread.
#[derive(Debug, Clone)]
pub struct Wholes {
    pub(super) questions: Arc<Questions>,
    pub(super) waker: Waker,
    pub(super) patience: Duration,
}

impl Wholes {
    /// The minibatch of this number, which the trainer has, with all its keys; None if it is another trainer's by now, so that
    /// nobody needs it here. Waits for the hub, also while another thread waits in [`Subscription::next`]; not to be called
    /// by who has the lock.
    ///
    /// # Errors
    /// As [`Subscription::next`], or the hub did not answer for as long as it is waited for.
    pub fn get(
        &self,
        subscription: &Mutex<Subscription>,
        hub: usize,
        number: u64,
    ) -> Result<Option<PackedBatch>, HubError> {
        let ticket = {
            let mut state = lock(&self.questions.state);
            state.tickets += 1;
            let ticket = state.tickets;
            state.asked.push((ticket, hub, number));
            ticket
        };
        self.waker.wake();
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(answer) = lock(&self.questions.state).answered.remove(&ticket) {
                return Ok(answer);
            }
            match subscription.try_lock() {
                Ok(mut subscription) => subscription.move_frames(LOOK)?,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().move_frames(LOOK)?,
                Err(TryLockError::WouldBlock) => {
                    let state = lock(&self.questions.state);
                    if !state.answered.contains_key(&ticket) {
                        drop(
                            self.questions.changed.wait_timeout(state, LOOK).map_err(PoisonError::into_inner),
                        );
                    }
                }
            }
            if Instant::now() >= deadline {
                let cause = format!("it does not say which keys minibatch {number} has");
                let hub = lock(subscription).hub(hub).to_owned();
                return Err(HubError::Gone { hub, waited: self.patience, cause });
            }
        }
    }
}
