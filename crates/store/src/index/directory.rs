//! The index as threads share it: lock-free searches, changes under a key's lock, and growth.
//!
//! Hashes are divided into stripes, each with a lock. A thread with an [`IndexGuard`] or a lock knows that the index
//! it loads is not freed. While the index grows ([`crate::index::growth`]), a thread that moves a share of the hash
//! space holds the locks of one part, and a thread that holds a lock knows that its keys do not move. After the last
//! share the next index becomes the current one; the old one is freed after all guards and locks of that time.
//!
//! Lock order: replacement > index guard > key lock. The holder of a key lock must never wait for index guards.
#![allow(unsafe_code)] // pointers to the current and the next index, which the protocol above keeps alive

mod kept;

use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::index::growth::{IndexView, Moves, PARTS, hashes_of_share};
use crate::index::hash::part;
use crate::index::{Index, NO_ROW};
use crate::kept::Kept;
use crate::kept::live::Record;
use crate::memory::persist::Step;
use crate::memory::prefetch::PrefetchHint;
use crate::sync::epoch::{Epoch, EpochGuard};
use crate::sync::{AtomicPtr, AtomicUsize, Mutex, MutexGuard, fence_after_write, lock, pause, try_lock};

/// Locks of a part, a power of two. Neighbouring hashes have different locks, for threads that walk the index side
/// by side.
pub(crate) const STRIPES: usize = if cfg!(loom) { 2 } else { 8 };

/// The locks of a part.
#[derive(Debug)]
#[repr(align(64))]
struct Part([Mutex<()>; STRIPES]);

/// An index and, while it grows, its successor.
#[derive(Debug)]
struct Generation {
    index: Index,
    /// From `Box::into_raw`, or null. Set once, by the holder of [`Directory::replacement`].
    next: AtomicPtr<Generation>,
    moves: Moves,
}

#[derive(Debug)]
pub(crate) struct Directory {
    /// From `Box::into_raw`. Swapped when a growth ends, and by the holder of all locks.
    current: AtomicPtr<Generation>,
    epoch: Epoch,
    parts: Box<[Part]>,
    /// Keys in the index, including keys about to be inserted.
    claimed: AtomicUsize,
    /// Growths that have begun and not ended; a hint.
    growths: AtomicUsize,
    /// Locked by a thread that begins a growth or replaces the index.
    replacement: Mutex<()>,
    /// The part that outlives the process, if the index does.
    kept: Option<Arc<Kept>>,
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
    hash: u64,
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
    _guards: Vec<MutexGuard<'a, ()>>,
}

/// The part, and the number of the lock in that part.
fn stripe(hash: u64) -> (usize, usize) {
    (part(hash, PARTS) as usize, hash as usize & (STRIPES - 1))
}

impl Generation {
    fn boxed(index: Index) -> *mut Generation {
        let moves = Moves::new(&index);
        Box::into_raw(Box::new(Generation { index, next: AtomicPtr::new(null_mut()), moves }))
    }

    /// The next generation, if the index grows.
    ///
    /// # Safety
    ///
    /// The caller must hold an index guard or a lock from before it loaded this generation.
    unsafe fn next(&self) -> Option<&Generation> {
        // SAFETY: it is freed after this generation, or after it was replaced itself, and not before the guards and
        // locks of that time are gone.
        unsafe { self.next.load(SeqCst).as_ref() }
    }
}

impl Directory {
    pub(crate) fn new(index: Index) -> Directory {
        Directory {
            current: AtomicPtr::new(Generation::boxed(index)),
            epoch: Epoch::new(),
            parts: (0..PARTS).map(|_| Part(std::array::from_fn(|_| Mutex::new(())))).collect(),
            claimed: AtomicUsize::new(0),
            growths: AtomicUsize::new(0),
            replacement: Mutex::new(()),
            kept: None,
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

    /// The current generation.
    ///
    /// # Safety
    ///
    /// The caller must hold an index guard or a lock from before the call, and drop it after the last use of the
    /// result.
    #[inline(always)]
    unsafe fn generation(&self) -> &Generation {
        // SAFETY: the pointer came from `Box::into_raw`. A generation is freed only after it has been swapped out and
        // every guard and lock from before that is gone. The drop of the directory frees the last one.
        unsafe { &*self.current.load(SeqCst) }
    }

    /// The current index, two while it grows.
    ///
    /// # Safety
    ///
    /// As for [`Directory::generation`].
    #[inline(always)]
    unsafe fn view(&self) -> IndexView<'_> {
        // SAFETY: the contract of this function.
        let generation = unsafe { self.generation() };
        // SAFETY: the contract of this function.
        let next = unsafe { generation.next() };
        IndexView { index: &generation.index, growth: next.map(|next| (&next.index, &generation.moves)) }
    }

    /// Locks the key. The caller must not hold another lock.
    pub(crate) fn lock(&self, hash: u64) -> KeyLock<'_> {
        KeyLock { directory: self, hash, _guard: lock(self.mutex(stripe(hash))) }
    }

    fn mutex(&self, (part, at): (usize, usize)) -> &Mutex<()> {
        &self.parts[part].0[at]
    }

    /// Locks all keys of a part.
    fn lock_part(&self, part: u32) -> [MutexGuard<'_, ()>; STRIPES] {
        let Part(mutexes) = &self.parts[part as usize];
        std::array::from_fn(|at| lock(&mutexes[at]))
    }

    /// Locks all keys of one of [`crate::index::growth::shares`] shares. The caller must not hold another lock.
    pub(crate) fn lock_share(&self, share: u32, shares: u32) -> ShareLock<'_> {
        let hashes = hashes_of_share(share, shares);
        ShareLock { directory: self, hashes, _guards: self.lock_part(part(hashes.0, PARTS)) }
    }

    /// Locks every key. The caller must hold no lock and no index guard.
    pub(crate) fn lock_all(&self) -> IndexLock<'_> {
        IndexLock { _guards: self.parts.iter().flat_map(|part| &part.0).map(lock).collect() }
    }

    /// Reserves room for up to `keys` more keys while the total stays within `keys_max`; returns the number of
    /// keys.
    pub(crate) fn claim(&self, keys: usize, keys_max: usize) -> usize {
        let room = |len: usize| keys.min(keys_max.saturating_sub(len));
        let claimed =
            self.claimed.fetch_update(Relaxed, Relaxed, |len| Some(len + room(len))).map_or(0, room);
        if let Some(kept) = &self.kept {
            kept.live.add_keys(claimed);
        }
        claimed
    }

    /// Releases room that was reserved, or room of removed keys.
    pub(crate) fn unclaim(&self, keys: usize) {
        if keys > 0 {
            self.claimed.fetch_sub(keys, Relaxed);
            if let Some(kept) = &self.kept {
                kept.live.subtract_keys(keys);
            }
        }
    }

    /// Begins to grow to the index that `make` returns, if that is one. Returns `None` if a growth has not ended
    /// yet. The caller must hold no lock.
    pub(crate) fn begin_growth<E>(
        &self,
        lane: usize,
        make: impl FnOnce(&Index) -> Result<Index, E>,
    ) -> Option<Result<(), E>> {
        let _one_at_a_time = lock(&self.replacement);
        let _pinned = self.epoch.pin(lane);
        // SAFETY: pinned until the end of this function.
        let generation = unsafe { self.generation() };
        if !generation.next.load(SeqCst).is_null() {
            return None;
        }
        Some(make(&generation.index).map(|next| {
            self.growths.fetch_add(1, Relaxed);
            if let Some(kept) = &self.kept {
                kept.begin_growth(generation.index.name(), next.name());
            }
            generation.next.store(Generation::boxed(next), SeqCst);
        }))
    }

    /// Moves the shares that are due after `keys` new keys, and at least one, if the index grows. The caller must
    /// hold no index guard and no lock.
    #[inline]
    pub(crate) fn advance_growth(&self, lane: usize, keys: usize) {
        if self.growths.load(Relaxed) > 0 {
            self.advance(lane, keys);
        }
    }

    #[cold]
    fn advance(&self, lane: usize, keys: usize) {
        let due = self.pin(lane).view().growth.map_or(0, |(_, moves)| moves.due(keys));
        // One in any case, so that pushes to present keys end a growth, too.
        let mut moves = self.move_share(lane, usize::MAX);
        while moves {
            moves = self.move_share(lane, due);
        }
    }

    /// Moves up to `shares` shares if the index grows; returns their number. The caller must hold no index guard and
    /// no lock.
    pub(crate) fn move_shares(&self, lane: usize, shares: usize) -> usize {
        (0..shares).take_while(|_| self.move_share(lane, usize::MAX)).count()
    }

    /// Ends the growth if the index grows; returns whether it did. The caller must hold no index guard and no lock.
    pub(crate) fn finish_growth(&self, lane: usize) -> bool {
        let (mut has_grown, mut spins) = (false, 0);
        while self.pin(lane).view().growth.is_some() {
            has_grown = true;
            if !self.move_share(lane, usize::MAX) {
                // Other threads move the last shares.
                pause(&mut spins);
            }
        }
        has_grown
    }

    /// Moves a share if fewer than `due` have begun to move; returns whether it did.
    fn move_share(&self, lane: usize, due: usize) -> bool {
        let old = {
            let _pinned = self.epoch.pin(lane);
            // SAFETY: pinned until the end of this block.
            let generation = unsafe { self.generation() };
            // SAFETY: the same.
            let Some(next) = (unsafe { generation.next() }) else { return false };
            let Some(part) = generation.moves.begin(due) else { return false };
            let locks = self.lock_part(part);
            if !ptr::eq(self.current.load(SeqCst), generation) {
                // The index was replaced by an empty one meanwhile.
                return false;
            }
            let kept = self.kept.as_ref();
            let kept = kept.map(|kept| (&kept.live, kept.live.record(part as usize * STRIPES)));
            generation.moves.move_next(part, &generation.index, &next.index, kept);
            drop(locks);
            if !generation.moves.end() {
                return true;
            }
            let old = ptr::from_ref(generation).cast_mut();
            if self.current.compare_exchange(old, ptr::from_ref(next).cast_mut(), SeqCst, SeqCst).is_err() {
                return true;
            }
            self.growths.fetch_sub(1, Relaxed);
            if let Some(kept) = &self.kept {
                kept.end_growth(next.index.name());
            }
            old
        };
        // SAFETY: the pointer came from `Box::into_raw`, and only this call swapped it out.
        unsafe { self.free(old) };
        true
    }

    /// Frees a generation after all uses.
    ///
    /// # Safety
    ///
    /// The generation was swapped out by the caller, who must hold no index guard and no lock.
    unsafe fn free(&self, old: *mut Generation) {
        fence_after_write();
        // The holder of a lock may have loaded it before it was swapped out.
        for mutex in self.parts.iter().flat_map(|part| &part.0) {
            drop(lock(mutex));
        }
        self.epoch.synchronize();
        // SAFETY: no guard or lock remains that could refer to it.
        let old = unsafe { Box::from_raw(old) };
        self.remove_file(&old.index);
    }

    /// Replaces the index by one without keys and forgets all keys. Returns the bytes of the former one. The caller
    /// must hold no index guard and no lock.
    pub(crate) fn clear(&self, index: Index) -> usize {
        let (old, next) = {
            let _one_at_a_time = lock(&self.replacement);
            let _all = self.lock_all();
            let name = index.name();
            let old = self.current.swap(Generation::boxed(index), SeqCst);
            if let Some(kept) = &self.kept {
                kept.replace_index(name);
                kept.live.set_keys(0);
            }
            // SAFETY: `free` below comes after this, and no other thread can swap it out any more.
            let next = unsafe { (*old).next.load(SeqCst) };
            if !next.is_null() {
                self.growths.fetch_sub(1, Relaxed);
            }
            self.claimed.store(0, Relaxed);
            (old, next)
        };
        // SAFETY: swapped out by this call.
        let bytes = unsafe { next.as_ref().unwrap_or(&*old).index.bytes() };
        // SAFETY: swapped out by this call. After it, no thread can reach the next one either.
        unsafe { self.free(old) };
        if !next.is_null() {
            // SAFETY: the pointer came from `Box::into_raw`, and only the generation before it led to it.
            let next = unsafe { Box::from_raw(next) };
            self.remove_file(&next.index);
        }
        bytes
    }
}

impl IndexGuard<'_> {
    /// The current index, two while it grows. A growth may go on, begin or end before the next call.
    #[inline(always)]
    pub(crate) fn view(&self) -> IndexView<'_> {
        // SAFETY: this guard was pinned before, and is borrowed.
        unsafe { self.directory.view() }
    }

    /// The row of the hash, or [`NO_ROW`].
    pub(crate) fn find(&self, hash: u64) -> u32 {
        self.view().of(hash).find(hash)
    }

    /// Prefetches the bucket of a hash.
    pub(crate) fn prefetch(&self, hash: u64, hint: PrefetchHint) {
        self.view().of(hash).prefetch(hash, hint);
    }
}

impl KeyLock<'_> {
    /// The current index, which decides where the key is as long as it is locked.
    fn view(&self) -> IndexView<'_> {
        // SAFETY: this lock is held, and borrowed.
        unsafe { self.directory.view() }
    }

    fn index(&self) -> &Index {
        self.view().of(self.hash)
    }

    /// The row of the key, or [`NO_ROW`].
    pub(crate) fn find(&self) -> u32 {
        self.index().find(self.hash)
    }

    /// Changes the index, and keeps the key recorded meanwhile if the index outlives the process.
    fn change<R>(&self, change: impl FnOnce(Option<Record<'_>>) -> R) -> R {
        let Some(record) = self.directory.record(stripe(self.hash)) else { return change(None) };
        record.begin_key(self.hash);
        let changed = change(Some(record));
        record.end();
        changed
    }

    /// Inserts the absent key. There must be room.
    pub(crate) fn insert(&self, row: u32) {
        self.change(|record| match record {
            Some(_) => self.index().insert_kept(self.hash, row, Step::Slots),
            None => self.index().insert(self.hash, row),
        });
    }

    /// Replaces the row of the key; returns the old row, or [`NO_ROW`] if the key is absent.
    pub(crate) fn replace(&self, row: u32) -> u32 {
        self.change(|record| self.index().replace_by(self.hash, row, record))
    }

    /// Removes the key; returns its row, or [`NO_ROW`] if it is absent.
    pub(crate) fn remove(&self) -> u32 {
        self.remove_if(|_| true)
    }

    /// Removes the key if `may_go` accepts its row; returns the row, or [`NO_ROW`] if nothing was removed.
    pub(crate) fn remove_if(&self, may_go: impl FnOnce(u32) -> bool) -> u32 {
        let view = self.view();
        self.change(|record| {
            let row = view.of(self.hash).remove_if(self.hash, may_go, record);
            if let (true, Some(old)) = (row != NO_ROW, view.with_copy(self.hash)) {
                old.remove_if(self.hash, |_| true, record);
            }
            row
        })
    }

    /// Moves the key to its home bucket, see [`Index::promote`].
    pub(crate) fn promote(&self, hotness: impl Fn(u64) -> u32) -> bool {
        self.change(|record| {
            self.index().promote(self.hash, hotness, |victim| self.try_another(victim), record)
        })
    }

    /// Locks another key too, if that is possible without waiting.
    fn try_another(&self, hash: u64) -> Option<Option<MutexGuard<'_, ()>>> {
        let another = stripe(hash);
        if another == stripe(self.hash) {
            return Some(None);
        }
        try_lock(self.directory.mutex(another)).map(Some)
    }

    /// Prefetches the bucket of another hash for a change.
    pub(crate) fn prefetch_to_change(&self, hash: u64) {
        self.view().of(hash).prefetch(hash, PrefetchHint::Write);
    }
}

impl ShareLock<'_> {
    /// Calls `f` once for each hash of the share that is in the index.
    pub(crate) fn for_each_hash(&self, mut f: impl FnMut(u64)) {
        self.for_each(|hash, _| f(hash));
    }

    /// Calls `f` once for each hash of the share that is in the index, with its row.
    pub(crate) fn for_each(&self, mut f: impl FnMut(u64, u32)) {
        // SAFETY: this lock is held, and borrowed.
        let view = unsafe { self.directory.view() };
        let (mut first, last) = self.hashes;
        if let Some((next, moves)) = view.growth
            && let Some(moved) = moves.last_moved(part(first, PARTS)).filter(|&moved| moved >= first)
        {
            next.for_each((first, last.min(moved)), &mut f);
            if moved >= last {
                return;
            }
            first = moved + 1;
        }
        view.index.for_each((first, last), f);
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let mut generation = self.current.load(SeqCst);
        while !generation.is_null() {
            // SAFETY: the pointers came from `Box::into_raw`, and `&mut self` excludes guards and locks.
            let last = unsafe { Box::from_raw(generation) };
            generation = last.next.load(SeqCst);
        }
    }
}
