//! Waiting awake for a little before sleeping: being woken costs tens of microseconds, a poll almost none. It knows
//! what it waits for only as a question that answers yes or no.

use std::time::{Duration, Instant};

/// How long a wait stays awake at most, unless an option says otherwise: what being put to sleep and woken costs on a
/// virtual machine, so that a wait costs at most twice what the better choice would have.
pub const SPIN_US_DEFAULT: u32 = 50;
/// How long at most the processor is not offered to others: a peer that is awake answers before, and a yield costs more than
/// many looks.
const BEFORE_YIELD: Duration = Duration::from_micros(20);
/// Looks from one to the next look at the clock, which takes longer than a look into memory.
const LOOKS_PER_CLOCK_LOOK: u32 = 4;
/// A yield that took so long let somebody else run. Then a sleep is better, since who is woken is served soon, and who
/// yields waits for a whole turn of the others: so many waits go to sleep without another try.
const CROWDED: Duration = Duration::from_micros(20);
const CROWDED_WAITS: u32 = 100;
/// The least that a wait stays awake, as a part of the limit: enough to notice that it pays again.
const FLOOR_PART: u32 = 16;

/// How long one waiter stays awake, learned from how its waits went.
///
/// A wait that ended awake doubles the budget if it took half of it, one that went to sleep halves it, and a sleep so short that
/// staying awake would have caught it restores it: who waits for a peer that answers at once stays awake, who is asked now
/// and then does not take the processor from those who would ask. After a while the processor is yielded between looks, so that
/// a peer that shares it runs; on a machine with one processor nobody waits awake.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    limit: Duration,
    budget: Duration,
    /// Waits that are not to yield, since others want the processor.
    crowded: u32,
}

impl Spin {
    /// A waiter that stays awake for at most `limit_us`.
    pub(crate) fn new(limit_us: u32) -> Spin {
        let alone = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) == 1;
        let limit = Duration::from_micros(if alone { 0 } else { limit_us.into() });
        Spin { limit, budget: limit, crowded: 0 }
    }

    /// Looks until `ready` or the budget is spent. `true`: it became ready.
    pub(crate) fn wait<E>(&mut self, mut ready: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
        if ready()? {
            return Ok(true);
        }
        if self.limit.is_zero() {
            return Ok(false);
        }
        let start = Instant::now();
        let before_yield = self.budget.min(BEFORE_YIELD);
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
            if elapsed - before > CROWDED {
                self.crowded = CROWDED_WAITS;
            }
            if ready()? {
                return Ok(self.paid(elapsed));
            }
        }
        self.crowded = self.crowded.saturating_sub(1);
        self.budget = (self.budget / 2).max(self.limit / FLOOR_PART);
        Ok(false)
    }

    /// Learns from a wait that ended awake: one that took a good part of the budget may be longer another time.
    fn paid(&mut self, elapsed: Duration) -> bool {
        if elapsed > self.budget / 2 {
            self.budget = (self.budget * 2).min(self.limit);
        }
        true
    }

    /// Learns from a sleep that followed a wait in vain.
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
            // Whether this machine is busy is not what is tested.
            spin.crowded = 0;
            assert_eq!(spin.wait(|| Ok::<_, ()>(false)), Ok(false));
        }
        assert_eq!(spin.budget, spin.limit / FLOOR_PART, "waits in vain shorten it to the floor");
        spin.slept(Duration::from_secs(1));
        assert_eq!(spin.budget, spin.limit / FLOOR_PART, "a long sleep was right");
        spin.slept(Duration::from_micros(1));
        assert_eq!(spin.budget, spin.limit, "a short one was not");
        let mut looks = 0;
        let ready = spin.wait(|| {
            looks += 1;
            Ok::<_, ()>(looks == 3)
        });
        assert_eq!((ready, looks), (Ok(true), 3));
        assert_eq!(spin.wait(|| Err(7)), Err(7));
    }

    #[test]
    fn without_a_limit_it_looks_once() {
        let mut looks = 0;
        let ready = Spin::new(0).wait(|| {
            looks += 1;
            Ok::<_, ()>(false)
        });
        assert_eq!((ready, looks), (Ok(false), 1));
    }
}
