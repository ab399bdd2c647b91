//! The index of a table as threads share it: searches in the present one, changes under the lock of the key that is
//! changed, and growth, which replaces it while searches go on in the old one. Knows nothing of rows or budgets.
//!
//! Locks belong to stripes of the hashes. Whoever holds one knows that the index is not replaced, because that takes
//! all of them; whoever searches knows that it is not freed. Order: a searcher may wait for a lock, so the holder of a
//! lock must never wait for searchers; replacing unlocks before it does.
#![allow(unsafe_code)] // a pointer to the present index, which the protocol above keeps alive

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::index::Index;
use crate::index::hash::part;
use crate::sync::epoch::{Epoch, EpochGuard};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, lock, try_lock};

/// Parts of the index whose locks share no cache line, for threads that change a part each.
const PARTS: u32 = if cfg!(loom) { 1 } else { 32 };
/// Locks of a part, a power of two: neighbours in the index have different ones, for threads that go through it side by side.
const STRIPES: usize = if cfg!(loom) { 2 } else { 8 };

/// The locks of a part.
#[derive(Debug)]
#[repr(align(64))]
struct Part([Mutex<()>; STRIPES]);

#[derive(Debug)]
pub(crate) struct Directory {
    /// From `Box::into_raw`; swapped only by the holder of all stripes.
    index: AtomicPtr<Index>,
    epoch: Epoch,
    parts: Box<[Part]>,
    /// Keys in the index, those included that are about to be inserted.
    claimed: AtomicUsize,
}

/// A searcher's presence: the index that it sees is not freed. Short-lived.
#[derive(Debug)]
pub(crate) struct IndexGuard<'a> {
    directory: &'a Directory,
    _guard: EpochGuard<'a>,
}

/// The lock of a key.
#[derive(Debug)]
pub(crate) struct KeyLock<'a> {
    directory: &'a Directory,
    stripe: (usize, usize),
    _guard: MutexGuard<'a, ()>,
}

/// The locks of all keys whose hashes are in one share.
#[derive(Debug)]
pub(crate) struct ShareLock<'a> {
    directory: &'a Directory,
    hashes: (u64, u64),
    _guards: [MutexGuard<'a, ()>; STRIPES],
}

/// The locks of all keys.
#[derive(Debug)]
pub(crate) struct IndexLock<'a> {
    directory: &'a Directory,
    guards: Vec<MutexGuard<'a, ()>>,
}

/// Part, and number of the lock there.
fn stripe(hash: u64) -> (usize, usize) {
    (part(hash, PARTS) as usize, hash as usize & (STRIPES - 1))
}

impl Directory {
    pub(crate) fn new(index: Index) -> Directory {
        Directory {
            index: AtomicPtr::new(Box::into_raw(Box::new(index))),
            epoch: Epoch::new(),
            parts: (0..PARTS).map(|_| Part(std::array::from_fn(|_| Mutex::new(())))).collect(),
            claimed: AtomicUsize::new(0),
        }
    }

    /// Bytes beside those of the index.
    pub(crate) fn bytes() -> usize {
        PARTS as usize * size_of::<Part>() + Epoch::bytes()
    }

    pub(crate) fn len(&self) -> usize {
        self.claimed.load(Relaxed)
    }

    /// Begins a search.
    #[inline(always)]
    pub(crate) fn pin(&self, lane: usize) -> IndexGuard<'_> {
        IndexGuard { directory: self, _guard: self.epoch.pin(lane) }
    }

    /// Waits until all views of now are gone. The caller must neither have one nor hold a lock.
    pub(crate) fn synchronize(&self) {
        self.epoch.synchronize();
    }

    /// Locks the key. The caller must not hold another lock.
    pub(crate) fn lock(&self, hash: u64) -> KeyLock<'_> {
        let stripe = stripe(hash);
        KeyLock { directory: self, stripe, _guard: lock(self.mutex(stripe)) }
    }

    fn mutex(&self, (part, at): (usize, usize)) -> &Mutex<()> {
        &self.parts[part].0[at]
    }

    /// A number of equal shares of the hashes of which each is in one part: so many, or a few more.
    pub(crate) fn shares(wanted: usize) -> u32 {
        wanted.next_power_of_two().clamp(PARTS as usize, 1 << 31) as u32
    }

    /// Locks all keys of a share, of as many as [`Directory::shares`] says. The caller must not hold another lock.
    pub(crate) fn lock_share(&self, share: u32, shares: u32) -> ShareLock<'_> {
        debug_assert!(shares.is_power_of_two() && shares >= PARTS);
        let beyond_first = u64::MAX / u64::from(shares);
        let first = u64::from(share) * beyond_first.wrapping_add(1);
        let Part(mutexes) = &self.parts[part(first, PARTS) as usize];
        let _guards = std::array::from_fn(|at| lock(&mutexes[at]));
        ShareLock { directory: self, hashes: (first, first + beyond_first), _guards }
    }

    /// Locks every key. The caller must neither hold a lock nor have a view.
    pub(crate) fn lock_all(&self) -> IndexLock<'_> {
        IndexLock { directory: self, guards: self.parts.iter().flat_map(|part| &part.0).map(lock).collect() }
    }

    /// Claims room for up to `keys` further keys of at most `keys_max`; how many.
    pub(crate) fn claim(&self, keys: usize, keys_max: usize) -> usize {
        let room = |len: usize| keys.min(keys_max.saturating_sub(len));
        self.claimed.fetch_update(Relaxed, Relaxed, |len| Some(len + room(len))).map_or(0, room)
    }

    /// Gives up room that was claimed, or that a removed key leaves.
    pub(crate) fn unclaim(&self, keys: usize) {
        if keys > 0 {
            self.claimed.fetch_sub(keys, Relaxed);
        }
    }
}

impl IndexGuard<'_> {
    /// The present index: another one, perhaps, than that of a moment ago.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: the pointer is to an index that is freed by `replace` only after it was swapped out and every view that
        // could have loaded it is gone (this one entered before it loads, in the order of SeqCst), or by the drop
        // of the directory, which is borrowed.
        unsafe { &*self.directory.index.load(SeqCst) }
    }
}

impl KeyLock<'_> {
    /// The present index, in which keys of this stripe may be changed.
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: whoever swaps the pointer holds all stripes, this one included, and frees the index after that.
        unsafe { &*self.directory.index.load(SeqCst) }
    }

    /// Locks another key besides, if that is possible without waiting.
    pub(crate) fn try_another(&self, hash: u64) -> Option<Option<MutexGuard<'_, ()>>> {
        let stripe = stripe(hash);
        if stripe == self.stripe { Some(None) } else { try_lock(self.directory.mutex(stripe)).map(Some) }
    }
}

impl ShareLock<'_> {
    /// Calls `f` on all hashes of the share that are in the index, once each.
    pub(crate) fn for_each_hash(&self, f: impl FnMut(u64)) {
        // SAFETY: as for `KeyLock`.
        let index = unsafe { &*self.directory.index.load(SeqCst) };
        index.for_each_hash(self.hashes, f);
    }
}

impl IndexLock<'_> {
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: as for `KeyLock`.
        unsafe { &*self.directory.index.load(SeqCst) }
    }

    /// Replaces the index, and frees the old one when no search can be in it any more.
    pub(crate) fn replace(self, index: Index) {
        let old = self.directory.index.swap(Box::into_raw(Box::new(index)), SeqCst);
        crate::sync::fence_after_write();
        drop(self.guards);
        self.directory.epoch.synchronize();
        // SAFETY: it came from `Box::into_raw` and was swapped out by this call alone. Locks that saw it are gone since all
        // were held; every view that saw it has been waited for.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: it comes from `Box::into_raw`, and `&mut self` excludes views and locks.
        drop(unsafe { Box::from_raw(self.index.load(SeqCst)) });
    }
}
