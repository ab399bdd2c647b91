//! Which cycle a thread calls next, and when it is due. A function of the plan, the thread's number and, in a closed loop, of
//! when an earlier call ended. Knows no script.

use std::time::Duration;

use super::{Length, Plan, Schedule};
use crate::generate::{ArrivalTimes, GenerateError};

/// The part of a run that is a thread's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) number: usize,
    pub(super) threads: usize,
    pub(super) concurrency: usize,
}

/// A call that is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    pub(super) cycle: u64,
    /// Since the start of the run.
    pub(super) at: Duration,
}

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Pace {
    /// Next cycle of this thread, and the one that is no longer of this client.
    next: u64,
    end: u64,
    step: u64,
    /// The first cycle behind all that it took.
    taken_end: u64,
    /// Nothing is due from here on; `None` if calls are counted.
    until: Option<Duration>,
    /// Measured calls that are left, if they are counted.
    left: Option<u64>,
    warmup: Duration,
    /// In an open loop: the times of all cycles, and the one that is next on this thread.
    times: Option<(ArrivalTimes, Duration)>,
}

impl Pace {
    pub(super) fn new(plan: &Plan, share: Share) -> Result<Pace, GenerateError> {
        let (number, threads) = (share.number as u64, share.threads as u64);
        let (until, left) = match plan.length {
            Length::Time(window) => (Some(plan.warmup + window), None),
            Length::Calls(calls) => (None, Some(calls / threads + u64::from(number < calls % threads))),
        };
        let times = match plan.schedule {
            Schedule::Closed => None,
            Schedule::Open { per_s, arrivals } => {
                let mut times = ArrivalTimes::new(&arrivals, per_s, plan.seeds.arrivals, plan.cycles.start)?;
                let mut first = times.next();
                for _ in 0..number {
                    first = times.next();
                }
                Some((times, first))
            }
        };
        let next = plan.cycles.start.saturating_add(number);
        let (taken_end, end, warmup) = (plan.cycles.start, plan.cycles.end, plan.warmup);
        Ok(Pace { next, end, step: threads, taken_end, until, left, warmup, times })
    }

    /// The first cycle behind all that it took.
    pub(super) fn taken_end(&self) -> u64 {
        self.taken_end
    }

    /// When the next call is due: now, in a closed loop. `None`: never, all have been called.
    pub(super) fn next_at(&self, now: Duration) -> Option<Duration> {
        let at = self.times.as_ref().map_or(now, |(_, at)| *at);
        let over =
            self.next >= self.end || self.left == Some(0) || self.until.is_some_and(|until| at >= until);
        (!over).then_some(at)
    }

    /// The call that is due now, if one is.
    pub(super) fn take(&mut self, now: Duration) -> Option<Due> {
        let at = self.next_at(now).filter(|&at| at <= now)?;
        let due = Due { cycle: self.next, at };
        self.taken_end = self.next + 1;
        self.next = self.next.saturating_add(self.step);
        if at >= self.warmup
            && let Some(left) = &mut self.left
        {
            *left -= 1;
        }
        if let Some((times, next)) = &mut self.times {
            (0..self.step).for_each(|_| *next = times.next());
        }
        Some(due)
    }

    /// Have all cycles been called, though more calls were wanted? `now`: when the last of them had ended.
    pub(super) fn ran_out(&self, now: Duration) -> bool {
        self.next >= self.end && self.left != Some(0) && !self.is_after_end(now)
    }

    /// Is the time over in which calls are due?
    pub(super) fn is_after_end(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    /// Gives up the calls that are due and were not taken; how many there are.
    pub(super) fn count_left(&mut self, now: Duration) -> u64 {
        let mut left = 0;
        while self.times.is_some() && self.take(now).is_some() {
            left += 1;
        }
        left
    }
}
