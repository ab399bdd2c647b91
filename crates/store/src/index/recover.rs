//! Mends an index whose last process died within changes, by the records of what was in hand ([`crate::kept::live`]).
//! No other thread uses the index meanwhile. Repeating it, from any point, gives the same index.

use crate::index::Index;
use crate::index::bucket::SLOTS;
use crate::index::growth::Moves;
use crate::kept::live::{Exchange, InHand, Live};

/// Mends an index, and the next one if it grows, but leaves the records as they are.
pub(crate) fn recover(index: &Index, next: Option<(&Index, &Moves)>, live: &Live, locks_per_part: usize) {
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
    in_hand.iter().for_each(|(_, record)| record.end());
}

impl Index {
    fn exchange_again(&self, exchange: Exchange) {
        let Exchange { hash, row, victim, victim_row, near, far, .. } = exchange;
        for ((bucket, slot), hash, row) in [(far, victim, victim_row), (near, hash, row)] {
            let bucket = &self.buckets[bucket as usize];
            bucket.set_slot(slot as usize, hash, row + 1);
            bucket.mend(bucket.overflow());
        }
    }

    /// Leaves the first of the slots with this hash: a key appears in its new bucket before it leaves the old one.
    fn mend_slots(&self, hash: u64) {
        let (mut at, mut is_found) = (self.home(hash), false);
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for slot in (0..SLOTS).filter(|&slot| bucket.hash(slot) == hash && bucket.row(slot) != 0) {
                if std::mem::replace(&mut is_found, true) {
                    bucket.set_slot(slot, hash, 0);
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
