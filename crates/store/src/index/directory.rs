//! The index as threads share it: lock-free searches, changes under a key's lock, and growth.
//!
//! Hashes are divided into stripes, each with a lock. A thread that holds a stripe lock knows that the index is not
//! replaced, because a replacement takes all of them. A thread with an [`IndexGuard`] knows that the index is not
//! freed. Lock order: a thread with an index guard may wait for a stripe lock, so the holder of a stripe lock must
//! never wait for index guards. A replacement releases its locks before it waits for them.
#![allow(unsafe_code)] // a pointer to the present index, which the protocol above keeps alive

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::index::Index;
use crate::index::hash::part;
use crate::sync::epoch::{Epoch, EpochGuard};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, lock, try_lock};

/// Parts of the index whose locks share no cache line, for threads that each change one part.
const PARTS: u32 = if cfg!(loom) { 1 } else { 32 };
/// Locks of a part, a power of two. Neighbouring hashes have different locks, for threads that walk the index side
/// by side.
const STRIPES: usize = if cfg!(loom) { 2 } else { 8 };

/// The locks of a part.
#[derive(Debug)]
#[repr(align(64))]
struct Part([Mutex<()>; STRIPES]);

#[derive(Debug)]
pub(crate) struct Directory {
    /// From `Box::into_raw`; swapped only by the holder of all stripe locks.
    index: AtomicPtr<Index>,
    epoch: Epoch,
    parts: Box<[Part]>,
    /// Keys in the index, including keys about to be inserted.
    claimed: AtomicUsize,
}

/// Keeps the index that a search uses alive. Short-lived.
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

/// The locks of all keys whose hashes are in one share of the hash space.
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

/// The part, and the number of the lock in that part.
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

    /// Bytes in addition to those of the index.
    pub(crate) fn bytes() -> usize {
        PARTS as usize * size_of::<Part>() + Epoch::bytes()
    }

    pub(crate) fn len(&self) -> usize {
        self.claimed.load(Relaxed)
    }

    /// Pins the index for a search.
    #[inline(always)]
    pub(crate) fn pin(&self, lane: usize) -> IndexGuard<'_> {
        IndexGuard { directory: self, _guard: self.epoch.pin(lane) }
    }

    /// Waits until all present index guards are dropped. The caller must have none and hold no lock.
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

    /// The number of equal shares of the hash space to use, at least `wanted`. Each share lies in one part.
    pub(crate) fn shares(wanted: usize) -> u32 {
        wanted.next_power_of_two().clamp(PARTS as usize, 1 << 31) as u32
    }

    /// Locks all keys of one of [`Directory::shares`] shares. The caller must not hold another lock.
    pub(crate) fn lock_share(&self, share: u32, shares: u32) -> ShareLock<'_> {
        debug_assert!(shares.is_power_of_two() && shares >= PARTS);
        let beyond_first = u64::MAX / u64::from(shares);
        let first = u64::from(share) * beyond_first.wrapping_add(1);
        let Part(mutexes) = &self.parts[part(first, PARTS) as usize];
        let _guards = std::array::from_fn(|at| lock(&mutexes[at]));
        ShareLock { directory: self, hashes: (first, first + beyond_first), _guards }
    }

    /// Locks every key. The caller must hold no lock and no index guard.
    pub(crate) fn lock_all(&self) -> IndexLock<'_> {
        IndexLock { directory: self, guards: self.parts.iter().flat_map(|part| &part.0).map(lock).collect() }
    }

    /// Reserves room for up to `keys` more keys while the total stays within `keys_max`; returns the number of
    /// keys.
    pub(crate) fn claim(&self, keys: usize, keys_max: usize) -> usize {
        let room = |len: usize| keys.min(keys_max.saturating_sub(len));
        self.claimed.fetch_update(Relaxed, Relaxed, |len| Some(len + room(len))).map_or(0, room)
    }

    /// Releases room that was reserved, or room of removed keys.
    pub(crate) fn unclaim(&self, keys: usize) {
        if keys > 0 {
            self.claimed.fetch_sub(keys, Relaxed);
        }
    }
}

impl IndexGuard<'_> {
    /// The current index. A concurrent growth may have replaced it since the last call.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: `replace` frees an index only after it has swapped it out and every guard that could have loaded
        // it is gone. This guard was pinned before the load, in the order of SeqCst. The drop of the directory
        // frees the last index, and the directory is borrowed.
        unsafe { &*self.directory.index.load(SeqCst) }
    }
}

impl KeyLock<'_> {
    /// The current index, in which keys of this stripe may be changed.
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: a replacement holds all stripe locks, including this one, and frees the old index after that.
        unsafe { &*self.directory.index.load(SeqCst) }
    }

    /// Locks another key too, if that is possible without waiting.
    pub(crate) fn try_another(&self, hash: u64) -> Option<Option<MutexGuard<'_, ()>>> {
        let stripe = stripe(hash);
        if stripe == self.stripe { Some(None) } else { try_lock(self.directory.mutex(stripe)).map(Some) }
    }
}

impl ShareLock<'_> {
    /// Calls `f` once for each hash of the share that is in the index.
    pub(crate) fn for_each_hash(&self, f: impl FnMut(u64)) {
        // SAFETY: see `KeyLock::index`.
        let index = unsafe { &*self.directory.index.load(SeqCst) };
        index.for_each_hash(self.hashes, f);
    }
}

impl IndexLock<'_> {
    pub(crate) fn index(&self) -> &Index {
        // SAFETY: see `KeyLock::index`.
        unsafe { &*self.directory.index.load(SeqCst) }
    }

    /// Replaces the index, and frees the old one after the last search in it.
    pub(crate) fn replace(self, index: Index) {
        let old = self.directory.index.swap(Box::into_raw(Box::new(index)), SeqCst);
        crate::sync::fence_after_write();
        drop(self.guards);
        self.directory.epoch.synchronize();
        // SAFETY: the pointer came from `Box::into_raw`, and only this call swapped it out. All locks were held, so
        // no lock guard refers to it; `synchronize` has waited for every index guard.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw`, and `&mut self` excludes guards.
        drop(unsafe { Box::from_raw(self.index.load(SeqCst)) });
    }
}
