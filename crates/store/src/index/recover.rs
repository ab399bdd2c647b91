//! Mends an index whose last process died within changes, by the records of what was in hand ([`crate::kept::live`]).
//! No other thread uses the index meanwhile. Repeating it, from any point, gives the same index.

use std::cell::Cell;

use crate::index::bucket::{Bucket, SLOTS};
use crate::index::growth::Moves;
use crate::index::{Index, NO_ROW};
use crate::kept::fault::{self, Fault};
use crate::kept::in_order;
use crate::kept::live::{Exchange, InHand, Live};
use crate::memory::persist::Step;

/// Mends an index, and the next one if it grows, and ends the records.
pub(crate) fn recover(index: &Index, next: Option<(&Index, &Moves)>, live: &Live, locks_per_part: usize) {
    // Otherwise a loss of power could take the record of an exchange, and leave a part of what it is done again.
    live.write_back_found();
    let in_hand = live.in_hand(locks_per_part);
    let both = [Some(index), next.map(|(next, _)| next)];
    // First all slots, then all counts, which depend on the slots of other keys.
    for (in_hand, _) in &in_hand {
        match *in_hand {
            InHand::Exchange(exchange) => {
                let of = both.into_iter().flatten().find(|index| index.number == exchange.index);
                of.into_iter().for_each(|index| index.exchange_again(exchange));
            }
            InHand::Key { hash, .. } => both.into_iter().flatten().for_each(|index| index.mend_slots(hash)),
            InHand::Move { hash, .. } => next.into_iter().for_each(|(next, _)| next.mend_slots(hash)),
        }
    }
    for (in_hand, _) in &in_hand {
        match *in_hand {
            InHand::Exchange(_) => {}
            InHand::Key { hash, last_bucket } => {
                both.into_iter().flatten().for_each(|index| index.mend_path(hash, last_bucket));
            }
            InHand::Move { hash, last_bucket, .. } => {
                next.into_iter().for_each(|(next, _)| next.mend_path(hash, last_bucket));
            }
        }
    }
    // From here on the indexes are whole. Copies of a share that was not moved completely go.
    for (in_hand, record) in &in_hand {
        if let (InHand::Move { part, .. }, Some((next, moves))) = (in_hand, next)
            && let Some(hashes) = moves.next_hashes(*part)
        {
            let mut copies = Vec::new();
            next.for_each(hashes, |hash, _| copies.push(hash));
            for hash in copies {
                record.begin_move(hash);
                next.remove_if(hash, |_| true, Some(*record));
            }
        }
    }
    // Changes that were in hand are durable; the rest of the index follows before rows become free.
    index.fence(Step::Mended);
    live.end_all();
}

/// Mends an index, and the next one if it grows, after a loss of power; returns an error if they are damaged.
///
/// Slots are as they were stored, a little earlier or later than those of other buckets. Everything else is made anew
/// of them: versions, overflow counts, and the number of keys. Repeating it, from any point, gives the same index.
pub(crate) fn recover_power(
    index: &Index,
    next: Option<(&Index, &Moves)>,
    live: &Live,
    locks_per_part: usize,
) -> Result<usize, String> {
    let both = [Some(index), next.map(|(next, _)| next)];
    let mut mended = 0;
    for (in_hand, _) in live.in_hand(locks_per_part) {
        if let InHand::Exchange(exchange) = in_hand {
            let of = both.into_iter().flatten().find(|index| index.number == exchange.index);
            of.into_iter().for_each(|index| index.exchange_again(exchange));
            mended += 1;
        }
    }
    for index in both.into_iter().flatten() {
        index.check_rows(live.rows())?;
    }
    if let Some((next, moves)) = next {
        // Copies of shares that had not moved, which will be made again.
        mended += next.keep_slots(|hash| moves.has_moved(hash));
        next.count_overflows();
        mended += next.drop_repeated();
        // Copies of keys that were removed after they had moved.
        mended += index.keep_slots(|hash| !moves.has_moved(hash) || next.find(hash) != NO_ROW);
    }
    index.count_overflows();
    mended += index.drop_repeated();
    let of_index = index.count(|hash| next.is_none_or(|(_, moves)| !moves.has_moved(hash)));
    live.set_keys(of_index + next.map_or(0, |(next, _)| next.count(|_| true)));
    if fault::is(Fault::RecordsEndFirst) {
        live.end_all();
        in_order();
    }
    both.into_iter().flatten().for_each(|index| index.write_back(Step::Mended, 0..usize::MAX));
    live.end_all();
    Ok(mended)
}

impl Index {
    /// The used slots of all buckets: bucket, slot, hash, row number plus one.
    fn used(&self) -> impl Iterator<Item = (usize, usize, u64, u32)> {
        (0..self.buckets.len()).flat_map(move |at| {
            let bucket = &self.buckets[at];
            let slots = (0..SLOTS).map(move |slot| (at, slot, bucket.hash(slot), bucket.row(slot)));
            slots.filter(|(.., row)| *row != 0)
        })
    }

    /// Returns an error if a slot has a row that was never charged.
    fn check_rows(&self, rows: u64) -> Result<(), String> {
        match self.used().find(|(.., row)| u64::from(*row) > rows) {
            Some((at, _, _, row)) => {
                Err(format!("bucket {at} of index {} has row {}, of {rows}", self.number, row - 1))
            }
            None => Ok(()),
        }
    }

    /// Empties the slots of hashes that `keep` refuses; returns their number.
    fn keep_slots(&self, keep: impl Fn(u64) -> bool) -> usize {
        let refused = self.used().filter(|(_, _, hash, _)| !keep(*hash));
        refused.map(|(at, slot, hash, _)| self.buckets[at].set_slot(slot, hash, 0)).count()
    }

    fn count(&self, counts: impl Fn(u64) -> bool) -> u64 {
        self.used().filter(|(_, _, hash, _)| counts(*hash)).count() as u64
    }

    /// Makes all versions even, and all overflow counts anew from the slots.
    fn count_overflows(&self) {
        self.buckets.iter().for_each(|bucket| bucket.mend(0));
        for (last, _, hash, _) in self.used() {
            self.pass(hash, last, |bucket| bucket.mend(bucket.overflow() + 1));
        }
    }

    /// Calls `f` for each bucket that a hash passes before bucket `last`.
    fn pass(&self, hash: u64, last: usize, f: impl Fn(&Bucket)) {
        let mut at = self.home(hash);
        while at != last {
            f(&self.buckets[at]);
            at = self.after(at);
        }
    }

    /// Empties slots of keys that are in an earlier bucket of their search as well; returns their number.
    fn drop_repeated(&self) -> usize {
        let displaced = self.used().filter(|(at, _, hash, _)| self.home(*hash) != *at);
        let is_earlier = |hash: u64, last: usize| {
            let found = Cell::new(false);
            let has =
                |bucket: &Bucket| (0..SLOTS).any(|slot| bucket.hash(slot) == hash && bucket.row(slot) != 0);
            self.pass(hash, last, |bucket| found.set(found.get() || has(bucket)));
            found.get()
        };
        let repeated = displaced.filter(|(at, _, hash, _)| is_earlier(*hash, *at));
        let dropped = repeated.map(|(at, slot, hash, _)| self.buckets[at].set_slot(slot, hash, 0)).count();
        if dropped > 0 {
            self.count_overflows();
        }
        dropped
    }

    fn exchange_again(&self, exchange: Exchange) {
        let Exchange { hash, row, victim, victim_row, near, far, .. } = exchange;
        for ((bucket, slot), hash, row) in [(far, victim, victim_row), (near, hash, row)] {
            let bucket = &self.buckets[bucket as usize];
            bucket.set_slot(slot as usize, hash, row + 1);
            bucket.mend(bucket.overflow());
        }
        [far, near].into_iter().for_each(|(bucket, _)| self.flush(Step::Mended, bucket as usize));
    }

    /// Leaves the first of the slots with this hash: a key appears in its new bucket before it leaves the old one.
    fn mend_slots(&self, hash: u64) {
        let (mut at, mut is_found) = (self.home(hash), false);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for slot in (0..SLOTS).filter(|&slot| bucket.hash(slot) == hash && bucket.row(slot) != 0) {
                if std::mem::replace(&mut is_found, true) {
                    bucket.set_slot(slot, hash, 0);
                    self.flush(Step::Mended, at);
                }
            }
            if bucket.overflow() == 0 {
                return;
            }
            at = self.after(at);
        }
    }

    /// Makes versions even and overflow counts exact where a change of this hash may have ended: in the buckets of its
    /// search, and up to the bucket that it was to be removed from.
    fn mend_path(&self, hash: u64, last_bucket: Option<(u64, usize)>) {
        let mut at = self.home(hash);
        let is_here = |&(index, last): &(u64, usize)| index == self.number && last < self.buckets.len();
        let last = last_bucket.filter(is_here).map(|(_, last)| last);
        let mut is_before_last = last.is_some();
        for _ in 0..self.buckets.len() {
            let goes_on = self.buckets[at].overflow() > 0;
            self.buckets[at].mend(self.overflow_of(at));
            self.flush(Step::Mended, at);
            is_before_last &= last != Some(at);
            if !goes_on && !is_before_last {
                return;
            }
            at = self.after(at);
        }
    }

    /// The number of keys that passed a bucket, by the slots of later ones.
    fn overflow_of(&self, passed: usize) -> u32 {
        let (mut at, mut keys) = (passed, 0);
        // Counts are never too low. So no key is beyond a bucket whose count is 0.
        for steps in 1..self.buckets.len() {
            if self.buckets[at].overflow() == 0 {
                break;
            }
            at = self.after(at);
            let bucket = &self.buckets[at];
            let found = (0..SLOTS).filter(|&slot| bucket.row(slot) != 0).map(|slot| bucket.hash(slot));
            keys += found.filter(|&hash| self.steps(self.home(hash), at) >= steps).count() as u32;
        }
        keys
    }

    /// Describes the first defect: an odd version, an inexact count, a key that is there twice or not found.
    #[cfg(test)]
    pub(crate) fn defect(&self) -> Option<String> {
        let mut seen = std::collections::HashSet::new();
        if let Some(at) = self.buckets.iter().position(|bucket| bucket.version() & 1 == 1) {
            return Some(format!("bucket {at} is locked"));
        }
        for (at, bucket) in self.buckets.iter().enumerate() {
            let (overflow, exact) = (bucket.overflow(), self.overflow_of(at));
            if overflow != exact {
                return Some(format!("bucket {at}: {overflow} keys overflowed, not {exact}"));
            }
            for slot in (0..SLOTS).filter(|&slot| bucket.row(slot) != 0) {
                let (hash, row) = (bucket.hash(slot), bucket.row(slot) - 1);
                if !seen.insert(hash) || self.find(hash) != row {
                    return Some(format!("bucket {at}: hash {hash:x} is there twice, or is not found"));
                }
            }
        }
        None
    }
}
