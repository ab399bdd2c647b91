//! Keeps rows from growing so old that they would seem new: a cursor goes round the rows and sets those that are too old to
//! the greatest age that matters. Knows nothing of requests.

use std::ops::Range;

use crate::index::hash::index_hash;
use crate::policy::clock::{ImportClock, OLD, UseClock, age};
use crate::sync::lanes::lane;
use crate::sync::lock;
use crate::sync::write_gate::SharedGuard;
use crate::table::Table;

/// Rows that are looked at while others wait for readers.
const GROUP: u64 = 1024;

impl Table {
    /// Counts a push; the reading after it. Now and then, and in tables of more than 2^31 pushes only, it looks at a few rows
    /// that may be old.
    ///
    /// The caller must have no right to change the table, no view and no key locked.
    pub(crate) fn tick(&self, lane: usize) -> u32 {
        let (reading, is_time) = self.clock.tick_and_tell(lane);
        if is_time {
            self.rebase_next(lane);
        }
        reading
    }

    /// Looks at the next rows.
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

    /// Gives the rows that are in use another reading of their last use.
    fn rebase(&self, lane: usize, rows: Range<u64>, shared: &SharedGuard<'_>, rebased: impl Fn(u32) -> u32) {
        let view = self.directory.pin(lane);
        let at = self.layout.header_at() + 3;
        for row in rows.start as u32..rows.end as u32 {
            let is_off = || {
                let last_use = self.slab.word(row, at);
                rebased(last_use) != last_use
            };
            // A row is in use if its key leads to it, and is not used for another key while there is a view.
            if is_off() && view.index().find(index_hash(self.key_of(row))) == row {
                let writing = self.slab.write(row, shared);
                // It may have been used at this moment.
                writing.row.set(at, rebased(self.slab.word(row, at)));
            }
        }
    }

    /// Moves the clock on to a number of pushes. Rows keep their age by the clock, and become no older than [`OLD`].
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
