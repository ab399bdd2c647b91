//! Bounds the age of rows, so that their 32-bit readings stay unambiguous: a cursor sets rows older than [`OLD`] to
//! that age.

use std::ops::Range;

use crate::policy::clock::{ImportClock, OLD, UseClock, age};
use crate::rows::layout::LAST_USE;
use crate::sync::lanes::lane;
use crate::sync::lock;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Rows checked under one index guard.
const GROUP: u64 = 1024;

impl Table {
    /// Counts a push; returns the reading after it. In tables with more than 2^31 pushes it sometimes checks a few
    /// rows.
    ///
    /// The caller must hold no write gate, no index guard and no key lock.
    pub(crate) fn tick(&self, lane: usize) -> u32 {
        let (reading, is_time) = self.clock.tick_and_tell(lane);
        if is_time {
            self.rebase_next(lane);
        }
        reading
    }

    /// Checks the next rows.
    #[cold]
    fn rebase_next(&self, lane: usize) {
        let shared = self.write_gate.lock_shared(lane);
        let mut at = lock(&self.rebased_to);
        let charged = self.row_allocator.charged();
        let mut left = UseClock::rows_to_rebase(charged).min(charged);
        while left > 0 {
            if *at >= charged {
                *at = 0;
            }
            let rows = left.min(GROUP).min(charged - *at);
            let now = self.clock.now();
            let rebased = |last_use| if age(now, last_use) > OLD { now.wrapping_sub(OLD) } else { last_use };
            self.rebase(lane, *at..*at + rows, &shared, rebased);
            *at += rows;
            left -= rows;
        }
    }

    /// Changes the last use of the rows in use to `rebased` of it.
    fn rebase(&self, lane: usize, rows: Range<u64>, shared: &SharedGuard<'_>, rebased: impl Fn(u32) -> u32) {
        let view = self.directory.pin(lane);
        for row in rows.start as u32..rows.end as u32 {
            let is_off = || {
                let last_use = self.slab.header_word(row, LAST_USE);
                rebased(last_use) != last_use
            };
            // A row is in use if its key leads to it. It is not reused during the index guard.
            if is_off() && view.find(self.hash_key.hash(self.key_of(row))) == row {
                let writing = self.write_row(row, shared, self.notes());
                // Reads again, because the row may just have been used.
                writing.row.set(LAST_USE, rebased(self.slab.header_word(row, LAST_USE)));
            }
        }
    }

    /// Advances the clock to `clock`. Rows keep their readings, with ages of at most [`OLD`].
    pub(crate) fn set_clock(&mut self, clock: u64) {
        let (lane, now) = (lane(), self.clock.now_whole());
        if clock > now && !self.is_empty() {
            let shared = self.write_gate.lock_shared(lane);
            self.rebase(lane, 0..self.row_allocator.charged(), &shared, |last_use| {
                ImportClock::since(clock, now, last_use)
            });
        }
        self.clock.set(clock);
        self.resume_scan();
    }
}
