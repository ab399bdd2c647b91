//! Workers that belong together: who has handed in what for the step that is going on, how far everybody is, and their
//! meetings. Knows neither time nor tables.

use std::collections::BTreeMap;

use crate::budget::Budget;
use crate::error::StepError;
use crate::limit::{MESSAGES_MAX, SPARE_BYTES_MAX, WORKERS_MAX};
use crate::meetings::{Meetings, Met};
use crate::part::{Part, StoredPart};
use crate::sum::{Accumulator, Complete};

/// One of the workers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Participant {
    /// Which, from 0.
    pub worker: u32,
    /// How many there are.
    pub workers: u32,
    /// Higher for each process that takes the place of a worker that died.
    pub attempt: u32,
}

/// A worker's report on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepReport {
    /// Nothing.
    Nothing,
    /// All places that it hands something in at have all of it; here it is so many messages.
    Whole {
        /// How many.
        messages: u32,
    },
    /// The step is decided at another place, with the part of an attempt before: then what that handed in here is whole, too.
    WholeBefore {
        /// Which attempt that was.
        attempt: u32,
    },
    /// It has finished the step, and does not wait for the others.
    Finished,
}

/// How far the workers are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The last step that is applied.
    pub applied: u64,
    /// The last step that is, or is about to be: nothing takes it back.
    pub decided: u64,
    /// The attempt of this worker whose part was in that.
    pub attempt: u32,
    /// The last step that all have finished.
    pub finished: u64,
    /// The first meeting for which this worker is awaited.
    pub round: u64,
    /// Workers whose part of the step is incomplete; after [`StepReport::Finished`], the slowest ones.
    pub missing: Vec<u32>,
}

#[derive(Debug, Default)]
struct WorkerState {
    attempt: u32,
    /// The attempt that handed in what there is.
    parts_of: u32,
    parts: BTreeMap<u32, StoredPart>,
    is_whole: bool,
    /// The attempt whose part was in the last step that was decided.
    decided_of: u32,
    finished: u64,
}

/// See the top of this file. `F` is how applying a step can fail.
#[derive(Debug)]
pub struct Group<F> {
    seats: Vec<WorkerState>,
    applied: u64,
    /// The step after it is being applied.
    is_decided: bool,
    failed: Option<(u64, F)>,
    rounds: Meetings,
    budget: Budget,
    accumulators: Vec<Accumulator>,
}

impl<F: Clone> Group<F> {
    /// A group of so many workers, of which none has come.
    pub fn new(workers: u32, budget: Budget) -> Result<Group<F>, StepError<F>> {
        if workers == 0 || workers > WORKERS_MAX {
            let (what, found, max) = ("workers of a group", workers.into(), WORKERS_MAX.into());
            return Err(StepError::TooLarge { what, found, max });
        }
        let seats = (0..workers).map(|_| WorkerState::default()).collect();
        let (rounds, accumulators) = (Meetings::default(), Vec::new());
        Ok(Group { seats, applied: 0, is_decided: false, failed: None, rounds, budget, accumulators })
    }

    fn decided(&self) -> u64 {
        self.applied + u64::from(self.is_decided)
    }

    /// A new attempt has not repeated the reports of the attempt before.
    fn admit(&mut self, participant: Participant) -> Result<(), StepError<F>> {
        let expected = self.seats.len() as u32;
        let Participant { worker, workers, attempt } = participant;
        let seat = self.seats.get_mut(worker as usize).filter(|_| workers == expected);
        let seat = seat.ok_or(StepError::Workers { worker, expected, found: workers })?;
        if attempt < seat.attempt {
            return Err(StepError::Replaced { worker, attempt, newest: seat.attempt });
        }
        if attempt > seat.attempt {
            (seat.attempt, seat.is_whole) = (attempt, false);
        }
        Ok(())
    }

    /// Is something to be done for this step, or is it decided?
    fn is_open(&self, step: u64) -> Result<bool, StepError<F>> {
        if let Some((step, failure)) = &self.failed {
            return Err(StepError::Failed { step: *step, failure: failure.clone() });
        }
        if step == 0 || step > self.decided() + 1 || (self.is_decided && step > self.decided()) {
            return Err(StepError::Step { step, applied: self.applied });
        }
        Ok(step > self.decided())
    }

    /// Takes a message of a worker's part of a step, replacing one of the same number.
    ///
    /// Messages of a decided step are ignored.
    pub fn take(
        &mut self,
        participant: Participant,
        step: u64,
        number: u32,
        part: Part,
    ) -> Result<(), StepError<F>> {
        self.admit(participant)?;
        if !self.is_open(step)? {
            return Ok(());
        }
        if number >= MESSAGES_MAX {
            let (what, found, max) = ("messages of a step", number.into(), MESSAGES_MAX.into());
            return Err(StepError::TooLarge { what, found, max });
        }
        let seat = &mut self.seats[participant.worker as usize];
        if seat.is_whole {
            // It comes late, over another connection.
            return Ok(());
        }
        seat.make_parts_of(participant.attempt);
        let full =
            || StepError::Full { what: "all that workers have handed in and is not applied yet".to_owned() };
        seat.parts.remove(&number);
        seat.parts.insert(number, part.keep(&self.budget).ok_or_else(full)?);
        Ok(())
    }

    /// A worker says something of a step, and is told how far everybody is.
    pub fn say(
        &mut self,
        participant: Participant,
        step: u64,
        said: StepReport,
    ) -> Result<Progress, StepError<F>> {
        self.admit(participant)?;
        let seat = participant.worker as usize;
        match said {
            StepReport::Nothing => {}
            StepReport::Finished => self.seats[seat].finished = self.seats[seat].finished.max(step),
            StepReport::Whole { messages } => {
                if self.is_open(step)? {
                    self.seats[seat].set_whole(participant, step, messages)?;
                }
            }
            StepReport::WholeBefore { attempt } => {
                if self.is_open(step)? {
                    // That attempt may have had nothing for this place, so that what is here is of an earlier one.
                    self.seats[seat].make_parts_of(attempt);
                    self.seats[seat].is_whole = true;
                }
            }
        }
        Ok(self.progress(participant, step, said))
    }

    /// How far everybody is, as this worker sees it that has said this.
    #[must_use]
    pub fn progress(&self, participant: Participant, step: u64, said: StepReport) -> Progress {
        let least = self.seats.iter().map(|seat| seat.finished).min().unwrap_or_default();
        let is_open = step > self.decided();
        let is_missing = |seat: &WorkerState| match said {
            StepReport::Finished => seat.finished == least && least < step,
            _ => is_open && !seat.is_whole,
        };
        let missing = (0..).zip(&self.seats).filter(|(_, seat)| is_missing(seat)).map(|(worker, _)| worker);
        Progress {
            applied: self.applied,
            decided: self.decided(),
            attempt: self.seats.get(participant.worker as usize).map_or(0, |seat| seat.decided_of),
            finished: least,
            round: self.rounds.next(participant.worker),
            missing: missing.collect(),
        }
    }

    /// How a step failed, if one has.
    pub fn check(&self) -> Result<(), StepError<F>> {
        match &self.failed {
            Some((step, failure)) => Err(StepError::Failed { step: *step, failure: failure.clone() }),
            None => Ok(()),
        }
    }

    /// Takes the messages of the next step once all are there and no other thread has begun the step.
    /// The caller applies the step and calls [`Group::end`].
    pub fn begin(&mut self) -> Option<Complete> {
        if self.failed.is_some() || self.is_decided || !self.seats.iter().all(|seat| seat.is_whole) {
            return None;
        }
        self.is_decided = true;
        let mut kept = Vec::new();
        for seat in &mut self.seats {
            seat.decided_of = seat.parts_of;
            kept.extend(std::mem::take(&mut seat.parts).into_values());
        }
        Some(Complete { step: self.applied + 1, kept, accumulators: std::mem::take(&mut self.accumulators) })
    }

    /// A step is applied, or failed; then the group has no further one.
    pub fn end(&mut self, complete: Complete, result: Result<(), F>) {
        assert!(self.is_decided && complete.step == self.applied + 1, "it was begun");
        self.is_decided = false;
        self.accumulators = complete.accumulators;
        while self.spare_bytes() > SPARE_BYTES_MAX {
            self.accumulators.pop();
        }
        self.seats.iter_mut().for_each(|seat| seat.is_whole = false);
        match result {
            Ok(()) => self.applied = complete.step,
            Err(failure) => self.failed = Some((complete.step, failure)),
        }
    }

    /// Gives back what is kept to sum up the next step with.
    pub(crate) fn release_spare(&mut self) {
        self.accumulators = Vec::new();
    }

    /// Bytes that are kept to sum up the next step with.
    pub(crate) fn spare_bytes(&self) -> usize {
        self.accumulators.iter().map(Accumulator::bytes).sum()
    }

    /// A worker comes to a meeting, or asks again. Meetings are numbered from 1 without gaps, and a worker comes to the next
    /// when it was given all of this one.
    pub fn meet(
        &mut self,
        participant: Participant,
        round: u64,
        name: &str,
        bytes: &[u8],
    ) -> Result<Met<'_>, StepError<F>> {
        self.admit(participant)?;
        self.rounds.meet((participant.worker, participant.workers), (round, name), bytes, &self.budget)
    }
}

impl WorkerState {
    /// Drops the messages of another attempt.
    fn make_parts_of(&mut self, attempt: u32) {
        if self.parts_of != attempt {
            self.parts.clear();
            self.parts_of = attempt;
        }
    }

    fn set_whole<F>(
        &mut self,
        participant: Participant,
        step: u64,
        messages: u32,
    ) -> Result<(), StepError<F>> {
        if self.is_whole {
            return Ok(());
        }
        self.make_parts_of(participant.attempt);
        // Further messages are from an earlier try of the same process.
        drop(self.parts.split_off(&messages));
        let found = self.parts.len() as u32;
        if found < messages {
            return Err(StepError::Incomplete {
                step,
                worker: participant.worker,
                found,
                expected: messages,
            });
        }
        self.is_whole = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::part::Gradients;

    #[test]
    fn memory_of_a_large_step_is_given_back_and_that_of_a_small_one_is_kept() {
        const DIM: usize = 1 << 12;
        for (keys, is_kept) in [(4, true), (SPARE_BYTES_MAX / size_of::<i64>() / DIM + 1, false)] {
            let mut group = Group::<()>::new(2, Budget::new(1 << 30)).expect("a group");
            for worker in 0..2 {
                let participant = Participant { worker, workers: 2, attempt: 0 };
                let part = Part {
                    table: 0,
                    lr_scale: 1.0,
                    dim: DIM,
                    keys: (0..keys as u64).collect(),
                    counts: vec![1; keys],
                    gradients: Gradients::Fixed { unit_log2: -10, sums: vec![3; keys * DIM] },
                };
                group.take(participant, 1, 0, part).expect("it is taken");
                group.say(participant, 1, StepReport::Whole { messages: 1 }).expect("it is whole");
            }
            let mut complete = group.begin().expect("all is there");
            complete.check().expect("they agree");
            let mut of_table = complete.take_table().expect("a table");
            assert_eq!(of_table.sums().keys.len(), keys);
            drop(complete.give_back(of_table));
            group.end(complete, Ok(()));
            let spare_bytes = group.spare_bytes();
            assert_eq!(spare_bytes > 0, is_kept, "{keys} keys leave {spare_bytes} bytes");
            group.release_spare();
            assert_eq!(group.spare_bytes(), 0);
        }
    }
}
