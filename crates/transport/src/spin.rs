//! Busy-polling before a wait blocks: a wake-up costs tens of microseconds, a poll almost nothing.

use std::time::{Duration, Instant};

/// Default busy-poll limit, in microseconds: the cost of blocking and waking on a virtual machine. A wait then costs
/// at most twice the better choice.
pub const SPIN_US_DEFAULT: u32 = 50;
/// Busy-poll time before the first yield. An awake peer answers within it, and a yield costs more than many polls.
const BEFORE_YIELD: Duration = Duration::from_micros(20);
/// Polls per reading of the clock, which costs more than a poll.
const LOOKS_PER_CLOCK_LOOK: u32 = 4;
/// A yield that took this long let other threads run. Blocking is better then, and many waits block without another
/// try: a woken thread runs soon, but a yielding one waits for all others.
const CROWDED: Duration = Duration::from_micros(20);
const CROWDED_WAITS: u32 = 100;
/// Lower limit of the budget, as a divisor of the limit: enough to notice that polling pays again.
const FLOOR_PART: u32 = 16;

/// The busy-poll budget of one waiter, learned from its waits.
///
/// A wait that succeeds in the second half of its budget doubles it; a wait that blocks halves it; a block so short
/// that polling would have caught it restores the budget. So a waiter for a quick peer stays awake, and a rarely used
/// one leaves the processor to others. After a while the waiter yields between polls, for peers on the same processor.
/// A machine with one processor never polls.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    limit: Duration,
    budget: Duration,
    /// Remaining waits that do not yield, because other threads want the processor.
    crowded: u32,
}

impl Spin {
    /// A waiter that polls for at most `limit_us` microseconds.
    pub(crate) fn new(limit_us: u32) -> Spin {
        let alone = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) == 1;
        let limit = Duration::from_micros(if alone { 0 } else { limit_us.into() });
        Spin { limit, budget: limit, crowded: 0 }
    }

    /// Polls until `ready` or until the budget is spent. `true`: it became ready.
    ///
    /// `shared`: the awaited peer runs on this thread's processor, so that only a yield lets it answer.
    pub(crate) fn wait<E>(
        &mut self,
        shared: bool,
        mut ready: impl FnMut() -> Result<bool, E>,
    ) -> Result<bool, E> {
        if ready()? {
            return Ok(true);
        }
        if self.limit.is_zero() {
            return Ok(false);
        }
        let start = Instant::now();
        let before_yield = if shared { Duration::ZERO } else { self.budget.min(BEFORE_YIELD) };
        let mut elapsed = Duration::ZERO;
        while elapsed < before_yield {
            for _ in 0..LOOKS_PER_CLOCK_LOOK {
                std::hint::spin_loop();
                if ready()? {
                    return Ok(self.paid(elapsed));
                }
            }
            elapsed = start.elapsed();
        }
        while elapsed < self.budget && self.crowded == 0 {
            std::thread::yield_now();
            let before = std::mem::replace(&mut elapsed, start.elapsed());
            let is_ready = ready()?;
            // A long yield that let the awaited peer answer was not in vain.
            if elapsed - before > CROWDED && !(shared && is_ready) {
                self.crowded = CROWDED_WAITS;
            }
            if is_ready {
                return Ok(self.paid(elapsed));
            }
        }
        self.crowded = self.crowded.saturating_sub(1);
        self.budget = (self.budget / 2).max(self.limit / FLOOR_PART);
        Ok(false)
    }

    /// Learns from a successful wait: one that used much of the budget may need more next time.
    fn paid(&mut self, elapsed: Duration) -> bool {
        if elapsed > self.budget / 2 {
            self.budget = (self.budget * 2).min(self.limit);
        }
        true
    }

    /// Learns from a block after a wait in vain.
    pub(crate) fn slept(&mut self, duration: Duration) {
        if duration < self.limit {
            self.budget = self.limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_follows_what_paid() {
        let limit = Duration::from_micros(16);
        let mut spin = Spin { limit, budget: limit, crowded: 0 };
        for _ in 0..10 {
            // The test is independent of the machine's load.
            spin.crowded = 0;
            assert_eq!(spin.wait(false, || Ok::<_, ()>(false)), Ok(false));
        }
        assert_eq!(spin.budget, spin.limit / FLOOR_PART, "waits in vain shorten it to the floor");
        spin.slept(Duration::from_secs(1));
        assert_eq!(spin.budget, spin.limit / FLOOR_PART, "a long sleep was right");
        spin.slept(Duration::from_micros(1));
        assert_eq!(spin.budget, spin.limit, "a short one was not");
        let mut looks = 0;
        let ready = spin.wait(false, || {
            looks += 1;
            Ok::<_, ()>(looks == 3)
        });
        assert_eq!((ready, looks), (Ok(true), 3));
        assert_eq!(spin.wait(false, || Err(7)), Err(7));
    }

    /// A wait for a peer on the same processor neither polls without a yield nor yields to a crowd.
    #[test]
    fn a_shared_processor_is_left_at_once() {
        let limit = Duration::from_secs(1);
        for (shared, expected) in [(true, 1), (false, LOOKS_PER_CLOCK_LOOK + 1)] {
            let (mut spin, mut looks) = (Spin { limit, budget: Duration::from_nanos(1), crowded: 2 }, 0);
            let ready = spin.wait(shared, || {
                looks += 1;
                Ok::<_, ()>(false)
            });
            assert_eq!((ready, looks), (Ok(false), expected), "shared: {shared}");
        }
    }

    #[test]
    fn without_a_limit_it_looks_once() {
        let mut looks = 0;
        let ready = Spin::new(0).wait(false, || {
            looks += 1;
            Ok::<_, ()>(false)
        });
        assert_eq!((ready, looks), (Ok(false), 1));
    }
}
