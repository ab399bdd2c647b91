//! Eviction: which rows make room for others. A hand goes round the rows, so that each is looked at once per round.
//! Knows nothing of requests.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::Eviction;
use crate::clock::age;
use crate::hash::mix;
use crate::index::NO_ROW;
use crate::layout::HEADER_WORDS;
use crate::prefetch::To;
use crate::rights::Sharing;
use crate::sync::lock;
use crate::table::Table;

/// By CLOCK, so many rows are looked at for each that is taken: those that were not used for longest go. With 2 to 16 as many
/// keys are found later on as with all rows looked at, whether popularity moves or not.
const LOOKED_AT_PER_ROW: usize = 4;
/// A table that has fewer rows than are to be looked at lets such a part of them go at once.
const SMALL_TABLE_PART: usize = 8;
/// Rows that are evicted together at least, so that it pays to wait for readers.
const EVICTED_MIN: usize = 256;
/// The part of all rows that is kept in reserve for keys to come, and at most so many.
const RESERVE_PART: u64 = 64;
const RESERVE_MAX: u64 = 1 << 14;
/// A table of which more than such a part is free has room again, wherever that is.
const ROOMY_PART: u64 = 16;
/// Rows that are looked at in one go, at most.
const SCANNED_MAX: usize = 1 << 16;
/// Rows whose headers are fetched together.
const GROUP: u64 = 32;

/// Where the next look begins, and what the last ones found.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    at: u64,
    found: Vec<Candidate>,
}

/// Whose the memory of evicted rows is to be.
#[derive(Debug, Clone, Copy)]
enum Heir {
    Lane,
    All,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    row: u32,
    key: u64,
    last_use: u32,
}

impl Table {
    /// Removes about `wanted` rows, at least one if the table's eviction finds any in the whole table; how many.
    ///
    /// The caller must have no view and no key locked.
    pub(crate) fn evict(&self, lane: usize, wanted: usize, sharing: &Sharing<'_>) -> usize {
        if self.config().eviction == Eviction::Never || self.rows.charged() == 0 {
            return 0;
        }
        if !self.pressed.load(Relaxed) {
            self.pressed.store(true, Relaxed);
        }
        self.note_use(sharing);
        self.evict_for(lane, Heir::Lane, wanted.max(EVICTED_MIN))
    }

    fn evict_for(&self, lane: usize, heir: Heir, wanted: usize) -> usize {
        let mut hand = lock(&self.hand);
        let removed = self.evict_next((lane, heir), &mut hand, wanted, SCANNED_MAX, |_| true);
        if removed * 2 > hand.found.len() {
            return removed;
        }
        // Most of what looked good is not in use (rows in reserve, of other threads, or free): to be told apart before
        // the choice, and in all rows if need be.
        removed
            + self.evict_next((lane, heir), &mut hand, wanted, usize::MAX, |row| self.is_in_use(lane, row))
    }

    /// The same among the next rows, `rows_max` at most, that are `good`.
    fn evict_next(
        &self,
        (lane, heir): (usize, Heir),
        hand: &mut Hand,
        wanted: usize,
        rows_max: usize,
        good: impl Fn(Candidate) -> bool,
    ) -> usize {
        match self.config().eviction {
            Eviction::Clock => {
                let window = (wanted * LOOKED_AT_PER_ROW).min(SCANNED_MAX);
                let rows = if rows_max == usize::MAX { rows_max } else { window };
                self.look(hand, rows, window, good);
                let now = self.clock.total() as u32;
                let found = &mut hand.found;
                let part = if found.len() < window { SMALL_TABLE_PART } else { LOOKED_AT_PER_ROW };
                let wanted = wanted.min(found.len().div_ceil(part));
                if wanted > 0 && wanted < found.len() {
                    found.select_nth_unstable_by_key(wanted - 1, |row| {
                        std::cmp::Reverse(age(now, row.last_use))
                    });
                    found.truncate(wanted);
                }
            }
            Eviction::Age { .. } | Eviction::Norm { .. } => {
                self.look(hand, rows_max, wanted, |row| self.is_stale(row) && good(row));
            }
            Eviction::Never => {}
        }
        self.remove_all(lane, heir, hand)
    }

    /// Once pushes have had to make room themselves: evicts up to `budget` rows for keys to come, as far as the reserve
    /// lacks them, so that pushes need not wait for it; how many. What [`crate::Maintenance`] does.
    ///
    /// The caller must share the right to change rows, have no view and no key locked.
    pub(crate) fn refill(&self, lane: usize, budget: usize, _: &Sharing<'_>) -> usize {
        if self.config().eviction != Eviction::Clock || !self.pressed.load(Relaxed) {
            return 0;
        }
        let rows = self.rows.charged();
        // A key needs a place in the index and a row.
        let places = || self.directory.view(lane).index().keys_max().saturating_sub(self.directory.len());
        if places().min(self.rows.free_rows()) as u64 > rows / ROOMY_PART {
            self.pressed.store(false, Relaxed);
            return 0;
        }
        let enough = (rows / RESERVE_PART).min(RESERVE_MAX) as usize;
        // In turns: pushes that have to make room themselves wait for the hand meanwhile.
        let turn = (enough / 4).clamp(1, EVICTED_MIN);
        let mut refilled = 0;
        while refilled < budget && places().min(self.rows.reserved_rows()) + turn <= enough {
            match self.evict_for(lane, Heir::All, turn.min(budget - refilled)) {
                0 => break,
                rows => refilled += rows,
            }
        }
        refilled
    }

    /// Does its key lead to the row? By the time of the answer perhaps no more.
    fn is_in_use(&self, lane: usize, row: Candidate) -> bool {
        self.directory.view(lane).index().find(mix(row.key)) == row.row
    }

    /// Looks at the next `rows` rows and removes those that are too old or too small to stay; how many. What
    /// [`crate::Maintenance`] does now and then, so that such rows go before they are in the way.
    pub(crate) fn sweep(&self, lane: usize, rows: usize) -> usize {
        if !matches!(self.config().eviction, Eviction::Age { .. } | Eviction::Norm { .. }) {
            return 0;
        }
        let mut hand = lock(&self.hand);
        self.look(&mut hand, rows.min(SCANNED_MAX), usize::MAX, |row| self.is_stale(row));
        self.remove_all(lane, Heir::All, &mut hand)
    }

    fn is_stale(&self, row: Candidate) -> bool {
        match self.config().eviction {
            Eviction::Age { pushes } => age(self.clock.total() as u32, row.last_use) >= pushes,
            Eviction::Norm { below } => {
                let mut words = vec![0.0; self.layout.unpacked()];
                self.layout.read_row(&self.slab, row.row, &mut words);
                let weights = self.layout.parts(&words).weights;
                weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>() < f64::from(below).powi(2)
            }
            Eviction::Never | Eviction::Clock => false,
        }
    }

    /// Moves the hand on by up to `rows` rows, or until `enough` of them are found good.
    fn look(&self, hand: &mut Hand, rows: usize, enough: usize, good: impl Fn(Candidate) -> bool) {
        hand.found.clear();
        let charged = self.rows.charged();
        let mut left = (rows as u64).min(charged);
        let header = self.layout.header_at();
        let ask_for = |rows: Range<u64>| {
            for row in rows.start as u32..rows.end.min(charged) as u32 {
                self.slab.prefetch_word(row, header, To::ReadOnce);
                self.slab.prefetch_word(row, header + HEADER_WORDS - 1, To::ReadOnce);
            }
        };
        ask_for(hand.at..hand.at + left.min(GROUP));
        while left > 0 && hand.found.len() < enough {
            if hand.at >= charged {
                hand.at = 0;
            }
            let group = left.min(GROUP).min(charged - hand.at);
            let next = hand.at + group;
            // While these are looked at, the ones after them are on their way.
            ask_for(next..next + GROUP.min(left - group));
            for row in hand.at as u32..next as u32 {
                let word = |at: usize| self.slab.word(row, header + at);
                let key = u64::from(word(0)) | u64::from(word(1)) << 32;
                let candidate = Candidate { row, key, last_use: word(3) };
                if good(candidate) {
                    hand.found.push(candidate);
                }
            }
            hand.at = next;
            left -= group;
        }
    }

    /// Removes what was found, except rows that are not in use (anything may be in those) or were used meanwhile.
    fn remove_all(&self, lane: usize, heir: Heir, hand: &mut Hand) -> usize {
        let mut retired = Vec::with_capacity(hand.found.len());
        let _removing = self.removals.begin();
        for group in hand.found.chunks(GROUP as usize) {
            {
                let view = self.directory.view(lane);
                group.iter().for_each(|row| view.index().prefetch_two(mix(row.key)));
            }
            for row in group {
                let hash = mix(row.key);
                let locked = self.directory.lock(hash);
                let is_unused = || self.slab.word(row.row, self.layout.header_at() + 3) == row.last_use;
                if locked.index().remove_if(hash, |found| found == row.row && is_unused()) != NO_ROW {
                    retired.push(row.row);
                }
            }
        }
        let removed = retired.len();
        self.directory.unclaim(removed);
        self.counters.get(lane).evicted.fetch_add(removed as u64, Relaxed);
        match heir {
            Heir::Lane => self.rows.retire(lane, &self.slab, &self.directory, &mut retired),
            Heir::All => self.rows.retire_for_all(&self.directory, &mut retired),
        }
        removed
    }
}
