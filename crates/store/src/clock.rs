//! The use clock of a table: its number of pushes. Knows nothing of what was pushed.
//!
//! Every lane counts its own pushes and publishes them by the block, so that pushes of several threads do not write to
//! one counter. A reading is exact in one thread; among several it lags by what others have not published, and so do all
//! others: ages are right but for a block, while the number of all pushes is exact.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::lanes::Lanes;
use crate::sync::{Mutex, lock};

/// Pushes that a lane counts before it publishes them.
const BLOCK: u64 = 64;

/// The greatest age there is: half of the readings are a later one's past, the others its future.
pub(crate) const AGE_MAX: u32 = u32::MAX / 2;

#[derive(Debug)]
pub(crate) struct Clock {
    /// Whole blocks of the lanes, and where the clock began.
    published: AtomicU64,
    /// All pushes of each.
    lanes: Lanes<AtomicU64>,
    /// Where the clock began: pushes of another one.
    base: AtomicU64,
    /// All pushes when it last went by the readings of another clock.
    followed: Mutex<Option<u64>>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        let (published, base) = (AtomicU64::new(0), AtomicU64::new(0));
        Clock { published, lanes: Lanes::new(), base, followed: Mutex::default() }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<AtomicU64>::bytes()
    }

    /// Counts a push; the reading after it, modulo 2^32.
    pub(crate) fn tick(&self, lane: usize) -> u32 {
        let own = self.lanes.get(lane).fetch_add(1, Relaxed) + 1;
        if own.is_multiple_of(BLOCK) {
            self.published.fetch_add(BLOCK, Relaxed);
        }
        (self.published.load(Relaxed) + own % BLOCK) as u32
    }

    /// All pushes; never fewer than before. Ahead of every reading by what other lanes have not published, and so not for ages.
    pub(crate) fn total(&self) -> u64 {
        // Not from what is published, which a lane may do between two looks.
        self.base.load(Relaxed) + self.lanes.iter().map(|own| own.load(Relaxed)).sum::<u64>()
    }

    /// The latest reading, modulo 2^32, for ages: however many lanes there are, that of a push of now is less than a block
    /// behind it.
    pub(crate) fn now(&self) -> u32 {
        self.now_from(self.published.load(Relaxed)) as u32
    }

    fn now_from(&self, published: u64) -> u64 {
        published + self.lanes.iter().map(|own| own.load(Relaxed) % BLOCK).max().unwrap_or(0)
    }

    /// To be called before rows come that another clock has these readings of. If nobody depends on this one, because the
    /// table is empty or has only had such rows since it was, it moves on to the latest where it is behind, and they may keep
    /// theirs: a whole table comes in parts. Otherwise it stays, and the result is the latest that they may have.
    pub(crate) fn follow(&self, readings: &[u32], is_empty: bool) -> Option<u32> {
        let followed = &mut *lock(&self.followed);
        if !is_empty && *followed != Some(self.total()) {
            return Some(self.now());
        }
        readings.iter().for_each(|&reading| self.catch_up(reading));
        *followed = Some(self.total());
        None
    }

    /// Moves on to a reading if it is behind.
    fn catch_up(&self, reading: u32) {
        let mut behind = 0;
        let catch_up = |published| {
            behind = u64::from(age(reading, self.now_from(published) as u32));
            Some(published + behind).filter(|_| behind > 0)
        };
        // Nobody else needs to see it at a certain moment.
        if self.published.fetch_update(Relaxed, Relaxed, catch_up).is_ok() {
            self.base.fetch_add(behind, Relaxed);
        }
    }

    pub(crate) fn set(&mut self, total: u64) {
        self.lanes.iter_mut().for_each(|own| *own.get_mut() = 0);
        *self.published.get_mut() = total;
        *self.base.get_mut() = total;
        *lock(&self.followed) = None;
    }
}

/// Pushes from one reading to a later one; 0 if the first is not earlier, as it may be by another thread's.
pub(crate) fn age(now: u32, last_use: u32) -> u32 {
    let age = now.wrapping_sub(last_use);
    if age > AGE_MAX { 0 } else { age }
}

/// The earlier of two readings.
pub(crate) fn earlier(one: u32, other: u32) -> u32 {
    if age(one, other) > 0 { other } else { one }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread::ScopedJoinHandle;

    use super::*;

    #[test]
    fn every_push_is_counted_in_every_lane() {
        let mut clock = Clock::new();
        clock.set(1000);
        for push in 1..=500 {
            assert_eq!(clock.tick(0), 1000 + push);
            assert_eq!(clock.total(), 1000 + u64::from(push));
        }
        let other = (0..100).map(|_| clock.tick(1)).collect::<Vec<_>>();
        assert!(other.is_sorted_by(|a, b| a < b) && other[99] > 1500);
        assert_eq!(clock.total(), 1600);
        clock.set(3);
        assert_eq!((clock.total(), clock.tick(1), clock.tick(1)), (3, 4, 5));
    }

    /// Whoever reads it while others push sees it grow, or a counter of it would seem to start again.
    #[test]
    fn the_number_of_all_pushes_never_falls() {
        let clock = Clock::new();
        let pushes = if cfg!(miri) { 300 } else { 300_000 };
        std::thread::scope(|scope| {
            let pushers: Vec<_> = (0..2)
                .map(|lane| {
                    let clock = &clock;
                    scope.spawn(move || (0..pushes).for_each(|_| _ = clock.tick(lane)))
                })
                .collect();
            let mut last = 0;
            while !pushers.iter().all(ScopedJoinHandle::is_finished) {
                let total = clock.total();
                assert!(total >= last, "{total} after {last}");
                last = total;
            }
        });
        assert_eq!(clock.total(), 2 * pushes);
    }

    /// A row that was pushed a moment ago is not old because many lanes have pushes that they have not published.
    #[test]
    fn a_push_of_now_is_less_than_a_block_old_however_many_lanes_there_are() {
        let clock = Clock::new();
        let lanes = clock.lanes.iter().count();
        for push in 0..lanes * 1000 {
            // Of uneven shares.
            let lane = push * push % lanes;
            let pushed = clock.tick(lane);
            let now = clock.now();
            assert!(now >= pushed && u64::from(now - pushed) < BLOCK, "{pushed} of lane {lane}, now {now}");
        }
        // Every lane has some.
        clock.lanes.iter().for_each(|own| own.store(BLOCK - 1, Relaxed));
        let now = clock.now();
        clock.catch_up(now + 5);
        assert_eq!((clock.now(), age(clock.now(), now)), (now + 5, 5));
    }

    #[test]
    fn it_catches_up_and_never_goes_back() {
        let mut clock = Clock::new();
        for (total, reading, expected) in [
            (0, 70, 70),
            (70, 70, 70),
            (70, 3, 70),
            ((1 << 32) - 5, 10, (1 << 32) + 10),
            ((1 << 32) + 10, u32::MAX, (1 << 32) + 10),
            (5, 6 + (1 << 31), 6),
        ] {
            clock.set(total);
            clock.tick(0);
            clock.catch_up(reading);
            assert_eq!(clock.total(), expected.max(total + 1), "{total} {reading}");
        }
    }

    #[test]
    fn it_follows_another_until_somebody_pushes() {
        let mut clock = Clock::new();
        let check = |clock: &Clock, readings: &[u32], is_empty, expected, total| {
            assert_eq!((clock.follow(readings, is_empty), clock.total()), (expected, total), "{readings:?}");
        };
        check(&clock, &[70, 5], true, None, 70);
        check(&clock, &[3], false, None, 70);
        check(&clock, &[90], false, None, 90);
        clock.tick(0);
        check(&clock, &[100], false, Some(91), 91);
        check(&clock, &[100], true, None, 100);
        // That of a table that was loaded is not another's.
        clock.set(100);
        check(&clock, &[200], false, Some(100), 100);
    }

    #[test]
    fn ages_pass_the_end_of_the_clock_and_are_never_negative() {
        assert_eq!([age(10, 3), age(2, u32::MAX), age(3, 3), age(3, 5)], [7, 3, 0, 0]);
        assert_eq!(
            [earlier(10, 3), earlier(3, 10), earlier(3, 3), earlier(2, u32::MAX)],
            [3, 3, 3, u32::MAX]
        );
    }
}
