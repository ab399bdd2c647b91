//! Minibatches that a trainer has without the keys that were fed, asked for with them, from any thread. Whoever has the
//! subscription moves the frames; knows neither frames nor what the keys are needed for.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use sanderling_sample::PackedBatch;
use sanderling_transport::Waker;

use crate::lock::lock;

use super::{HubError, Subscription};

/// How long one waits before it looks whether it has to move the frames itself.
const LOOK: Duration = Duration::from_millis(10);

/// What became of a question: the minibatch, or None if it is not this trainer's any more.
pub(super) type Answer = Option<PackedBatch>;

#[derive(Debug, Default)]
struct State {
    tickets: u64,
    /// Not yet told to the hubs: ticket, hub, number.
    asked: Vec<(u64, usize, u64)>,
    /// By ticket, of those who wait: None as long as there is no answer.
    answers: BTreeMap<u64, Option<Answer>>,
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

    /// Of a ticket whose owner has gone it is forgotten.
    pub(super) fn answer(&self, ticket: u64, answer: Answer) {
        if let Some(place) = lock(&self.state).answers.get_mut(&ticket) {
            *place = Some(answer);
        }
        self.changed.notify_all();
    }

    fn ask(&self, hub: usize, number: u64) -> Waiting<'_> {
        let mut state = lock(&self.state);
        state.tickets += 1;
        let ticket = state.tickets;
        state.asked.push((ticket, hub, number));
        state.answers.insert(ticket, None);
        Waiting { questions: self, ticket }
    }
}

/// Somebody waits for an answer.
struct Waiting<'a> {
    questions: &'a Questions,
    ticket: u64,
}

impl Waiting<'_> {
    fn take(&self) -> Option<Answer> {
        lock(&self.questions.state).answers.get_mut(&self.ticket)?.take()
    }

    /// Waits for news, not for long.
    fn look(&self) {
        let state = lock(&self.questions.state);
        if state.answers.get(&self.ticket).is_some_and(Option::is_none) {
            drop(self.questions.changed.wait_timeout(state, LOOK).map_err(PoisonError::into_inner));
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.questions.state);
        state.answers.remove(&self.ticket);
        state.asked.retain(|(ticket, _, _)| *ticket != self.ticket);
    }
}

/// Asks for minibatches of a [`Subscription`] with the keys that were fed, from any thread.
#[derive(Debug, Clone)]
pub struct FullBatches {
    pub(super) questions: Arc<Questions>,
    pub(super) waker: Waker,
    pub(super) patience: Duration,
}

impl FullBatches {
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
        let waiting = self.questions.ask(hub, number);
        self.waker.wake();
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(answer) = waiting.take() {
                return Ok(answer);
            }
            match subscription.try_lock() {
                Ok(mut subscription) => subscription.move_frames(LOOK)?,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().move_frames(LOOK)?,
                Err(TryLockError::WouldBlock) => waiting.look(),
            }
            if Instant::now() >= deadline {
                let cause = format!("it does not say which keys minibatch {number} has");
                let hub = lock(subscription).hub(hub).to_owned();
                return Err(HubError::Gone { hub, waited: self.patience, cause });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_is_not_kept() {
        let questions = Questions::default();
        let (first, second) = (questions.ask(0, 7), questions.ask(1, 8));
        assert_eq!(questions.take_asked(), [(1, 0, 7), (2, 1, 8)]);
        questions.answer(2, None);
        assert!(matches!((first.take(), second.take()), (None, Some(None))));
        drop(first);
        questions.answer(1, None);
        drop((second, questions.ask(0, 9)));
        assert!(questions.take_asked().is_empty() && lock(&questions.state).answers.is_empty());
    }
}
