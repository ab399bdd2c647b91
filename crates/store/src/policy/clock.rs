//! The use clock of a table: its number of pushes.
//!
//! Each lane counts its own pushes and publishes them in blocks, so that concurrent pushes do not contend for one
//! counter. A reading is exact with one thread. With several it lags by their unpublished pushes, but so do all
//! other readings: ages are correct to within a block. The total number of pushes is exact.
//!
//! The clock has 64 bits. A row stores the lower 32 bits of the reading at its last use, which suffices as long as
//! no row is older than [`PAST_MAX`]. A cursor ([`crate::policy::rebase`]) sets the age of rows older than [`OLD`]
//! to [`OLD`], long before that.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::kept::Kept;
use crate::sync::lanes::Lanes;
use crate::sync::{Mutex, lock};

/// Pushes that a lane counts before it publishes them.
const BLOCK: u64 = 64;

/// The maximum age for eviction.
pub(crate) const AGE_MAX: u32 = OLD - 1;
/// The age that older rows are set to.
pub(crate) const OLD: u32 = 1 << 31;
/// A reading that is farther back than this is in the future: from another thread, or from a clock that is ahead.
pub(crate) const PAST_MAX: u32 = u32::MAX / 4 * 3;
/// Pushes of a lane between two rebase steps; a multiple of a block.
const REBASE_EVERY: u64 = 1 << 14;
/// The minimum number of rows per rebase step.
const REBASED_MIN: u64 = 1024;

#[derive(Debug)]
pub(crate) struct UseClock {
    /// Published blocks of all lanes, plus `base`.
    published: AtomicU64,
    /// Pushes per lane.
    lanes: Lanes<AtomicU64>,
    /// Initial reading: the pushes of another table's clock.
    base: AtomicU64,
    /// The total when the clock last followed an imported one.
    followed: Mutex<Option<u64>>,
    /// The part that outlives the process, if the readings do.
    kept: Option<Arc<Kept>>,
}

impl UseClock {
    pub(crate) fn new() -> UseClock {
        let (published, base) = (AtomicU64::new(0), AtomicU64::new(0));
        UseClock { published, lanes: Lanes::new(), base, followed: Mutex::default(), kept: None }
    }

    /// The clock of a kept table, which goes on where it was.
    pub(crate) fn of_kept(kept: Arc<Kept>) -> UseClock {
        let (published, base) = (AtomicU64::new(kept.live.clock()), AtomicU64::new(kept.live.clock()));
        UseClock { published, base, kept: Some(kept), ..UseClock::new() }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<AtomicU64>::bytes()
    }

    /// Counts a push; returns the reading after it, modulo 2^32.
    #[cfg(all(test, not(loom)))]
    fn tick(&self, lane: usize) -> u32 {
        self.tick_and_tell(lane).0
    }

    /// Counts a push; returns the reading after it, modulo 2^32, and whether a rebase step is due.
    pub(crate) fn tick_and_tell(&self, lane: usize) -> (u32, bool) {
        let own = self.lanes.get(lane).fetch_add(1, Relaxed) + 1;
        if let Some(kept) = &self.kept {
            kept.live.tick(lane, 1);
        }
        let mut is_time = false;
        if own.is_multiple_of(BLOCK) {
            let before = self.published.fetch_add(BLOCK, Relaxed);
            is_time = own.is_multiple_of(REBASE_EVERY) && before >= u64::from(OLD);
        }
        ((self.published.load(Relaxed) + own % BLOCK) as u32, is_time)
    }

    /// The rows to check per rebase step, so that each row is checked before it is older than [`PAST_MAX`].
    pub(crate) fn rows_to_rebase(rows: u64) -> u64 {
        // A quarter of the available steps, because lanes that seldom push take theirs late.
        let times = u64::from(PAST_MAX - OLD) / REBASE_EVERY / 4;
        (rows / times + 1).max(REBASED_MIN)
    }

    /// The total number of pushes; it never decreases. It includes unpublished pushes and so does not compare with
    /// readings.
    pub(crate) fn total(&self) -> u64 {
        // Not from the published count, which may change between two loads.
        self.base.load(Relaxed) + self.lanes.iter().map(|own| own.load(Relaxed)).sum::<u64>()
    }

    /// The latest reading modulo 2^32, for ages: at most a block ahead of the reading of a simultaneous push.
    pub(crate) fn now(&self) -> u32 {
        self.now_whole() as u32
    }

    /// The latest reading, all 64 bits.
    pub(crate) fn now_whole(&self) -> u64 {
        self.now_from(self.published.load(Relaxed))
    }

    fn now_from(&self, published: u64) -> u64 {
        published + self.lanes.iter().map(|own| own.load(Relaxed) % BLOCK).max().unwrap_or(0)
    }

    /// Prepares for the import of rows with these readings of another clock.
    ///
    /// If no row depends on this clock, because the table is empty or has had only imported rows since it was, the
    /// clock advances to the latest reading, and the rows keep theirs; a table may be imported in parts. Otherwise
    /// it stays.
    pub(crate) fn follow(&self, readings: &[u32], is_empty: bool) -> ImportClock {
        let followed = &mut *lock(&self.followed);
        if !is_empty && *followed != Some(self.total()) {
            let now = self.now_whole();
            return ImportClock {
                now: now as u32,
                past: u32::try_from(now).unwrap_or(u32::MAX).min(PAST_MAX),
            };
        }
        if self.total() == 0 {
            self.begin_at(readings);
        }
        readings.iter().for_each(|&reading| self.catch_up(reading));
        *followed = Some(self.total());
        ImportClock { now: self.now(), past: PAST_MAX }
    }

    /// Advances to the clock of a table with `pushes` pushes, for rows that keep its readings.
    pub(crate) fn reach(&self, pushes: u64) -> ImportClock {
        self.move_on(pushes.saturating_sub(self.total()));
        ImportClock { now: self.now(), past: PAST_MAX }
    }

    /// Starts at another clock's latest reading. The readings span less than half of the 32-bit range; later parts
    /// of the import may have earlier ones.
    fn begin_at(&self, readings: &[u32]) {
        let Some(&first) = readings.first() else { return };
        let latest =
            readings.iter().fold(first, |latest, &one| if ahead(one, latest) > 0 { one } else { latest });
        // Larger readings precede the 32-bit overflow.
        let turns = u64::from(readings.iter().any(|&reading| reading > latest));
        self.move_on((turns << 32) + u64::from(latest));
    }

    /// Advances to a reading that is less than half of the 32-bit range ahead.
    fn catch_up(&self, reading: u32) {
        self.move_on(u64::from(ahead(reading, self.now())));
    }

    fn move_on(&self, pushes: u64) {
        // No other thread depends on the moment.
        if pushes > 0 {
            self.published.fetch_add(pushes, Relaxed);
            self.base.fetch_add(pushes, Relaxed);
            if let Some(kept) = &self.kept {
                kept.live.tick(0, pushes);
            }
        }
    }

    pub(crate) fn set(&mut self, total: u64) {
        self.lanes.iter_mut().for_each(|own| *own.get_mut() = 0);
        *self.published.get_mut() = total;
        *self.base.get_mut() = total;
        *lock(&self.followed) = None;
        if let Some(kept) = &self.kept {
            kept.live.set_clock(total);
        }
    }
}

/// Maps readings of imported rows to this clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImportClock {
    now: u32,
    /// Readings farther back are from the future of this clock.
    past: u32,
}

impl ImportClock {
    /// The reading, at `now`, of a row saved when the clock was at `then`. Rows older than [`OLD`] get that age.
    pub(crate) fn since(now: u64, then: u64, last_use: u32) -> u32 {
        let back = u64::from(age(then as u32, last_use)) + now.saturating_sub(then);
        if back > u64::from(OLD) { (now as u32).wrapping_sub(OLD) } else { last_use }
    }

    /// The reading of a row here: not in the future, and at most [`OLD`] pushes back.
    pub(crate) fn reading(self, last_use: u32) -> u32 {
        match self.now.wrapping_sub(last_use) {
            back if back > self.past => self.now,
            back if back > OLD => self.now.wrapping_sub(OLD),
            _ => last_use,
        }
    }
}

/// Pushes since a reading; 0 for readings in the future, which other threads may produce.
pub(crate) fn age(now: u32, last_use: u32) -> u32 {
    let age = now.wrapping_sub(last_use);
    if age > PAST_MAX { 0 } else { age }
}

/// Pushes by which a reading is ahead; 0 beyond half of the 32-bit range.
fn ahead(reading: u32, now: u32) -> u32 {
    let ahead = reading.wrapping_sub(now);
    if ahead < OLD { ahead } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread::ScopedJoinHandle;

    use super::*;

    #[test]
    fn every_push_is_counted_in_every_lane() {
        let mut clock = UseClock::new();
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

    /// A metric of the total would otherwise seem to restart.
    #[test]
    fn the_number_of_all_pushes_never_falls() {
        let clock = UseClock::new();
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

    /// Unpublished pushes of many lanes do not age a row that was just pushed.
    #[test]
    fn a_push_of_now_is_less_than_a_block_old_however_many_lanes_there_are() {
        let clock = UseClock::new();
        let lanes = clock.lanes.iter().count();
        for push in 0..lanes * 1000 {
            // Uneven shares.
            let lane = push * push % lanes;
            let pushed = clock.tick(lane);
            let now = clock.now();
            assert!(now >= pushed && u64::from(now - pushed) < BLOCK, "{pushed} of lane {lane}, now {now}");
        }
        // Unpublished pushes in every lane.
        clock.lanes.iter().for_each(|own| own.store(BLOCK - 1, Relaxed));
        let now = clock.now();
        clock.catch_up(now + 5);
        assert_eq!((clock.now(), age(clock.now(), now)), (now + 5, 5));
    }

    #[test]
    fn it_catches_up_and_never_goes_back() {
        let mut clock = UseClock::new();
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
        let mut clock = UseClock::new();
        let check = |clock: &UseClock, readings: &[u32], is_empty, past, total: u64| {
            let expected = ImportClock { now: total as u32, past };
            assert_eq!((clock.follow(readings, is_empty), clock.total()), (expected, total), "{readings:?}");
        };
        check(&clock, &[70, 5], true, PAST_MAX, 70);
        check(&clock, &[3], false, PAST_MAX, 70);
        check(&clock, &[90], false, PAST_MAX, 90);
        clock.tick(0);
        check(&clock, &[100], false, 91, 91);
        check(&clock, &[100], true, PAST_MAX, 100);
        // A loaded clock is not followed.
        clock.set(100);
        check(&clock, &[200], false, 100, 100);
    }

    /// In both halves of the 32-bit range, and across its overflow.
    #[test]
    fn a_new_clock_begins_where_another_is() {
        const HALF: u32 = 1 << 31;
        for (readings, total) in [
            (&[HALF + 50, 100, HALF - 1][..], u64::from(HALF + 50)),
            (&[u32::MAX - 9, 5, 3], (1 << 32) + 5),
            (&[u32::MAX], u64::from(u32::MAX)),
            (&[0, 0], 0),
        ] {
            let clock = UseClock::new();
            let uses = clock.follow(readings, true);
            assert_eq!(clock.total(), total, "{readings:?}");
            let kept: Vec<u32> = readings.iter().map(|&reading| uses.reading(reading)).collect();
            assert_eq!(kept, readings);
        }
    }

    #[test]
    fn rows_from_elsewhere_are_neither_of_the_future_nor_too_old() {
        let uses = ImportClock { now: 1000, past: 1000 };
        assert_eq!([0, 999, 1000, 1001, u32::MAX].map(|use_| uses.reading(use_)), [0, 999, 1000, 1000, 1000]);
        let uses = ImportClock { now: 7, past: PAST_MAX };
        let old = 7_u32.wrapping_sub(OLD);
        assert_eq!([u32::MAX, old, old - 5, 8].map(|use_| uses.reading(use_)), [u32::MAX, old, old, 7]);
        // Two clocks, one far ahead.
        assert_eq!(ImportClock::since(5000, 1000, 900), 900);
        assert_eq!(ImportClock::since(1 << 33, 1000, 900), OLD);
        assert_eq!(ImportClock::since((1 << 33) + 7, (1 << 33) + 2, u32::MAX), u32::MAX);
    }

    #[test]
    fn ages_pass_the_end_of_the_clock_and_are_never_negative() {
        assert_eq!([age(10, 3), age(2, u32::MAX), age(3, 3), age(3, 5)], [7, 3, 0, 0]);
        // A row unused for more than half of the range stays old.
        assert_eq!([age(OLD + 5, 4), age(4, 10)], [OLD + 1, 0]);
    }

    /// Rows are checked often enough, and not too often.
    #[test]
    fn every_row_is_looked_at_before_it_can_seem_new() {
        for rows in [1, 1000, 1 << 20, 1 << 32] {
            let times = u64::from(PAST_MAX - OLD) / REBASE_EVERY;
            let scanned = UseClock::rows_to_rebase(rows) * times;
            assert!(scanned >= 2 * rows, "{rows}: {scanned}");
            assert!(UseClock::rows_to_rebase(rows) <= REBASED_MIN + rows / 4096, "{rows}");
        }
        let mut clock = UseClock::new();
        let told = |clock: &UseClock| (0..3 * REBASE_EVERY).filter(|_| clock.tick_and_tell(0).1).count();
        assert_eq!(told(&clock), 0);
        clock.set(u64::from(OLD));
        assert_eq!(told(&clock), 3);
    }
}
