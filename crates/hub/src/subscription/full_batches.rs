//! Requests, from any thread, for the full version of minibatches that came without their fed keys. The owner of the
//! subscription moves the frames. Knows neither frames nor the use of the keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use sanderling_sample::PackedBatch;
use sanderling_transport::Waker;

use crate::lock::lock;

use super::{HubError, Subscription};

/// Wait before a thread checks whether it has to move the frames itself.
const LOOK: Duration = Duration::from_millis(10);

/// The outcome of a request: the minibatch, or `None` if another trainer holds it now.
pub(super) type Answer = Option<PackedBatch>;

#[derive(Debug, Default)]
struct State {
    tickets: u64,
    /// Requests not sent yet: ticket, hub, number.
    asked: Vec<(u64, usize, u64)>,
    /// Outcomes by ticket; `None` without an answer yet.
    answers: BTreeMap<u64, Option<Answer>>,
}

/// State shared by the requesting threads and the owner of the subscription.
#[derive(Debug, Default)]
pub(super) struct Questions {
    state: Mutex<State>,
    changed: Condvar,
}

impl Questions {
    /// Takes the requests to be sent.
    pub(super) fn take_asked(&self) -> Vec<(u64, usize, u64)> {
        std::mem::take(&mut lock(&self.state).asked)
    }

    /// Stores an outcome; drops it if the ticket's owner has gone.
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

/// A thread that waits for an answer.
struct Waiting<'a> {
    questions: &'a Questions,
    ticket: u64,
}

impl Waiting<'_> {
    fn take(&self) -> Option<Answer> {
        lock(&self.questions.state).answers.get_mut(&self.ticket)?.take()
    }

    /// Waits briefly for a change.
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
    /// The minibatch of this number, which this trainer holds, with all its keys; `None` if it is another trainer's
    /// by now.
    ///
    /// Waits for the hub, also while another thread waits in [`Subscription::next`]. Do not call it with the
    /// subscription locked.
    ///
    /// # Errors
    /// As [`Subscription::next`]; also if the hub did not answer within the time-out.
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
