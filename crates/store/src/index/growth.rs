//! Growth of the index by shares of the hash space: while it lasts, a key is in the old index or in the next one.
//!
//! A thread that creates keys moves some shares, each under the locks of its keys, and then records the share as
//! moved. Moved keys stay in the old index as well, for searches that began before; changes go to the next one.
//! When all shares have moved, the next index takes the place of the old one ([`crate::index::directory`]).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::index::Index;
use crate::index::hash::part;
use crate::kept::fault::{self, Fault};
use crate::kept::live::{Live, Record};
use crate::memory::persist::Step;
use crate::memory::prefetch::PrefetchHint;
use crate::sync::{AtomicU32, AtomicUsize};

/// Parts of the index whose locks share no cache line, for threads that each change one part.
pub(crate) const PARTS: u32 = if cfg!(loom) { 1 } else { 32 };
/// Approximate number of buckets of the old index that are moved under one set of locks, for a few microseconds.
pub(crate) const SHARE_BUCKETS: usize = if cfg!(loom) { 1 } else { 256 };
/// Slots of the old index whose keys are moved per new key. The old index fills by 3 % meanwhile.
const SLOTS_PER_NEW_KEY: usize = 32;

/// The number of equal shares of the hash space to use, at least `wanted`; a power of two. Each share lies in one
/// part of the index.
pub(crate) fn shares(wanted: usize) -> u32 {
    wanted.next_power_of_two().clamp(PARTS as usize, 1 << 31) as u32
}

/// The hashes of one of [`shares`] shares, from the first to the last.
pub(crate) fn hashes_of_share(share: u32, shares: u32) -> (u64, u64) {
    debug_assert!(shares.is_power_of_two() && share < shares);
    let beyond_first = u64::MAX / u64::from(shares);
    let first = u64::from(share) * beyond_first.wrapping_add(1);
    (first, first + beyond_first)
}

/// The progress of a growth. The shares of a part move in ascending order.
#[derive(Debug)]
pub(crate) struct Moves {
    shares: u32,
    slots: usize,
    /// Shares of each part that have moved; changed only under all locks of the part.
    moved: [AtomicU32; PARTS as usize],
    /// Shares that a thread has begun and finished to move.
    begun: AtomicUsize,
    ended: AtomicUsize,
    /// Keys created since the growth began.
    new_keys: AtomicUsize,
}

impl Moves {
    /// The progress of a growth of an index that has not begun.
    pub(crate) fn new(index: &Index) -> Moves {
        Moves {
            shares: shares(index.len() / SHARE_BUCKETS),
            slots: index.slots(),
            moved: std::array::from_fn(|_| AtomicU32::new(0)),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            new_keys: AtomicUsize::new(0),
        }
    }

    /// The progress of an interrupted growth, by the moved shares of each part.
    pub(crate) fn resumed(index: &Index, moved: impl Fn(u32) -> u32) -> Moves {
        let moves = Moves::new(index);
        let all = (0..PARTS).map(|part| {
            let moved = moved(part).min(moves.shares_per_part());
            moves.moved[part as usize].store(moved, Relaxed);
            moved
        });
        // Parts take turns, so that each gets as many as the last one needs; those that are ahead skip some.
        let begun = all.min().unwrap_or(0) as usize * PARTS as usize;
        moves.begun.store(begun, Relaxed);
        moves.ended.store(begun, Relaxed);
        moves
    }

    /// Returns whether all shares have moved.
    pub(crate) fn is_complete(&self) -> bool {
        self.moved.iter().all(|moved| moved.load(Relaxed) == self.shares_per_part())
    }

    /// The hashes of the share of a part that is to move next, if any.
    pub(crate) fn next_hashes(&self, part: u32) -> Option<(u64, u64)> {
        let moved = self.moved[part as usize].load(Relaxed);
        let share = || part * self.shares_per_part() + moved;
        (moved < self.shares_per_part()).then(|| hashes_of_share(share(), self.shares))
    }

    fn shares_per_part(&self) -> u32 {
        self.shares / PARTS
    }

    /// Returns whether the share of a hash has moved.
    #[inline]
    pub(crate) fn has_moved(&self, hash: u64) -> bool {
        let (share, per_part) = (part(hash, self.shares), self.shares_per_part());
        share % per_part < self.moved[(share / per_part) as usize].load(Acquire)
    }

    /// The last hash of a part that has moved, if any has.
    pub(crate) fn last_moved(&self, part: u32) -> Option<u64> {
        let moved = self.moved[part as usize].load(Acquire).checked_sub(1)?;
        Some(hashes_of_share(part * self.shares_per_part() + moved, self.shares).1)
    }

    /// Counts new keys; returns the number of shares that should have moved by now.
    pub(crate) fn due(&self, keys: usize) -> usize {
        let new_keys = self.new_keys.fetch_add(keys, Relaxed) + keys;
        let due = (new_keys * SLOTS_PER_NEW_KEY) as u128 * u128::from(self.shares) / self.slots as u128;
        usize::try_from(due).unwrap_or(usize::MAX)
    }

    /// Begins to move a share if fewer than `due` have begun; returns the part whose next share is to move.
    ///
    /// Neighbouring calls get different parts, so that a thread that waits for a part waits for one share only.
    pub(crate) fn begin(&self, due: usize) -> Option<u32> {
        let due = due.min(self.shares as usize);
        let next = |begun: usize| (begun < due).then_some(begun + 1);
        let begun = self.begun.fetch_update(Relaxed, Relaxed, next).ok()?;
        Some((begun % PARTS as usize) as u32)
    }

    /// Copies the next share of a part to the next index. The caller must hold all locks of the part, one of which
    /// has this record.
    pub(crate) fn move_next(
        &self,
        part: u32,
        index: &Index,
        next: &Index,
        kept: Option<(&Live, Record<'_>)>,
    ) {
        let Some(hashes) = self.next_hashes(part) else { return };
        let moved = self.moved[part as usize].load(Relaxed) + 1;
        if let Some((live, record)) = kept {
            if fault::is(Fault::MovedEarly) {
                live.set_moved(next.number, part, moved);
            }
            index.for_each(hashes, |hash, row| {
                record.begin_move(hash);
                next.insert_kept(hash, row, Step::Copies);
            });
            if let Some(persist) = live.persist() {
                persist.fence(Step::Copies);
            }
            live.set_moved(next.number, part, moved);
            record.end();
        } else {
            index.for_each(hashes, |hash, row| next.insert(hash, row));
        }
        self.moved[part as usize].store(moved, Release);
    }

    /// Ends the move of a share; returns whether all shares have moved.
    pub(crate) fn end(&self) -> bool {
        self.ended.fetch_add(1, AcqRel) + 1 == self.shares as usize
    }
}

/// The index at some time: one, or two while it grows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexView<'a> {
    /// The index, or the old one.
    pub(crate) index: &'a Index,
    /// The next index, and the shares that have moved there.
    pub(crate) growth: Option<(&'a Index, &'a Moves)>,
}

impl<'a> IndexView<'a> {
    /// The index where changes of this hash go. While the hash is not locked, the answer may be stale.
    #[inline]
    pub(crate) fn of(self, hash: u64) -> &'a Index {
        match self.growth {
            Some((next, moves)) if moves.has_moved(hash) => next,
            _ => self.index,
        }
    }

    /// The next index if it grows, otherwise the only one.
    pub(crate) fn latest(self) -> &'a Index {
        self.growth.map_or(self.index, |(next, _)| next)
    }

    /// The old index if it has a copy of the hash, whose slot is needed when the key is gone.
    pub(crate) fn with_copy(self, hash: u64) -> Option<&'a Index> {
        self.growth.is_some_and(|(_, moves)| moves.has_moved(hash)).then_some(self.index)
    }

    /// Finds the rows of a step of hashes while the index grows, and prefetches the buckets of a later step.
    #[cold]
    #[inline(never)]
    pub(crate) fn find_step<const N: usize>(
        self,
        hashes: &[u64; N],
        later: Option<&[u64; N]>,
        rows: &mut [u32; N],
    ) {
        self.prefetch_step(later);
        rows.iter_mut().zip(hashes).for_each(|(row, &hash)| *row = self.of(hash).find(hash));
    }

    /// Prefetches the buckets of a step of hashes.
    pub(crate) fn prefetch_step<const N: usize>(self, hashes: Option<&[u64; N]>) {
        for &hash in hashes.into_iter().flatten() {
            self.of(hash).prefetch(hash, PrefetchHint::Read);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
