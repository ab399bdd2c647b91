//! Decides which thread looks a minibatch up in small tables: one of the queue's, ahead of the trainer, or the trainer's
//! own. It tries both and keeps the faster. Knows no clock, no table and no thread.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Steps of each kind that a trial measures.
const TRIAL_STEPS: usize = 17;
/// Minibatches from the end of a trial to the next one.
const SETTLED_STEPS: u32 = 500;
/// The trainer looks up only where a step takes at most this share of one with a lookup ahead.
const TRAINER_SHARE: f64 = 0.97;

/// The faster place, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct LookupPlace(Mutex<Trial>);

#[derive(Debug, Default)]
struct Trial {
    at_trainer: bool,
    /// Times of steps: ahead, and at the trainer.
    steps: [Vec<Duration>; 2],
    /// Minibatches until the next trial.
    settled: u32,
    /// The minibatch before.
    last: Option<(bool, Instant)>,
}

impl LookupPlace {
    /// Whether the trainer is to look up the next minibatch.
    pub(crate) fn is_trainer(&self) -> bool {
        self.lock().at_trainer
    }

    /// Notes that the trainer got a minibatch, and who looked it up.
    pub(crate) fn note(&self, by_trainer: bool, now: Instant) {
        let mut trial = self.lock();
        let before = trial.last.replace((by_trainer, now));
        if trial.settled > 0 {
            trial.settled -= 1;
            return;
        }
        // A step between minibatches of both kinds says nothing.
        if let Some((was_by_trainer, then)) = before
            && was_by_trainer == by_trainer
            && trial.steps[usize::from(by_trainer)].len() < TRIAL_STEPS
        {
            trial.steps[usize::from(by_trainer)].push(now.saturating_duration_since(then));
        }
        let [ahead, at_trainer] = &mut trial.steps;
        if ahead.len() < TRIAL_STEPS {
            trial.at_trainer = false;
        } else if at_trainer.len() < TRIAL_STEPS {
            trial.at_trainer = true;
        } else {
            trial.at_trainer = median(at_trainer) <= median(ahead) * TRAINER_SHARE;
            trial.steps = Default::default();
            trial.settled = SETTLED_STEPS;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Trial> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The median in seconds; pauses of the trainer, such as an evaluation, do not move it.
fn median(steps: &mut [Duration]) -> f64 {
    steps.sort_unstable();
    steps.get(steps.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of the given times; returns how many of the last `counted` minibatches the trainer looked up. Minibatches
    /// wait in a line of 8, so that a decision takes effect later.
    fn check(steps: usize, counted: usize, millis: impl Fn(usize, bool) -> u64) -> usize {
        let (place, mut now) = (LookupPlace::default(), Instant::now());
        let mut line: std::collections::VecDeque<bool> = (0..8).map(|_| place.is_trainer()).collect();
        let mut at_trainer = 0;
        for step in 0..steps {
            line.push_back(place.is_trainer());
            let by_trainer = line.pop_front().unwrap_or_default();
            now += Duration::from_millis(millis(step, by_trainer));
            place.note(by_trainer, now);
            at_trainer += usize::from(by_trainer && step + counted >= steps);
        }
        at_trainer
    }

    #[test]
    fn the_faster_place_is_kept() {
        assert_eq!(check(500, 400, |_, by_trainer| if by_trainer { 36 } else { 47 }), 400);
        assert_eq!(check(500, 400, |_, by_trainer| if by_trainer { 41 } else { 31 }), 0);
        // As good as equal: ahead, where the trainer does not wait for a slow file either.
        assert_eq!(check(500, 400, |_, by_trainer| if by_trainer { 99 } else { 100 }), 0);
    }

    #[test]
    fn pauses_do_not_matter_and_changes_do() {
        let pause = |step: usize| if step.is_multiple_of(5) { 10_000 } else { 0 };
        assert_eq!(check(500, 400, |step, by_trainer| pause(step) + if by_trainer { 36 } else { 47 }), 400);
        // The trainer gets faster at its own lookups after the first trial.
        let changes = |step, by_trainer| if by_trainer { if step < 300 { 50 } else { 20 } } else { 40 };
        assert_eq!(check(1000, 300, changes), 300);
    }
}
