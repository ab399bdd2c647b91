//! Who may change a table: many at a time, or one alone. A lock for readers and writers whose shared side touches
//! nothing but a line of the thread's own; and, for who only looks, whether anybody had the right to change anything
//! meanwhile. Knows nothing of what is changed.

use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::sync::lanes::{Lanes, lane};
use crate::sync::{AtomicU64, Mutex, MutexGuard, fence, fence_after_write, lock, pause};

/// A lane's word counts, in its low bits, who shares at present, and above them, who ever began to.
const BEGUN_SHIFT: u32 = 20;
const BEGUN: u64 = 1 << BEGUN_SHIFT;
const PRESENT_MASK: u64 = BEGUN - 1;

#[derive(Debug)]
pub(crate) struct WriteGate {
    shared: Lanes<AtomicU64>,
    /// Odd while somebody is alone, or waits to be.
    turns: AtomicU64,
    /// Held by whom that is.
    exclusive: Mutex<()>,
    /// Lane of the thread that is alone, plus one; 0 for none.
    owner: AtomicUsize,
}

/// The right to change things together with others.
#[derive(Debug)]
pub(crate) struct SharedGuard<'a> {
    counter: &'a AtomicU64,
    not_send: PhantomData<*const ()>,
}

/// A moment at which nobody had a right to change anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptimisticRead(u64);

/// The right to change things alone.
#[derive(Debug)]
pub(crate) struct ExclusiveGuard<'a> {
    gate: &'a WriteGate,
    _turn: MutexGuard<'a, ()>,
}

impl WriteGate {
    pub(crate) fn new() -> WriteGate {
        let (turns, owner) = (AtomicU64::new(0), AtomicUsize::new(0));
        WriteGate { shared: Lanes::new(), turns, exclusive: Mutex::new(()), owner }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<AtomicU64>::bytes()
    }

    /// Waits while somebody is alone.
    #[inline(always)]
    pub(crate) fn lock_shared(&self, lane: usize) -> SharedGuard<'_> {
        let counter = self.shared.get(lane);
        loop {
            counter.fetch_add(BEGUN + 1, SeqCst);
            fence_after_write();
            // Either this sees that somebody is alone, or they see this thread.
            if self.turns.load(SeqCst) & 1 == 0 {
                return SharedGuard { counter, not_send: PhantomData };
            }
            counter.fetch_sub(1, Release);
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        drop(lock(&self.exclusive));
    }

    /// Waits until nobody else is left. The caller must not share.
    pub(crate) fn lock_exclusive(&self) -> ExclusiveGuard<'_> {
        let turn = lock(&self.exclusive);
        self.turns.fetch_add(1, SeqCst);
        fence_after_write();
        for counter in self.shared.iter() {
            let mut spins = 0;
            while counter.load(SeqCst) & PRESENT_MASK != 0 {
                pause(&mut spins);
            }
        }
        self.owner.store(lane().wrapping_add(1), Relaxed);
        ExclusiveGuard { gate: self, _turn: turn }
    }

    /// Is the calling thread alone? Then it would wait for itself if it asked for a right.
    pub(crate) fn is_held_exclusively_here(&self) -> bool {
        // The model checker's threads are one to the system.
        !cfg!(loom) && self.turns.load(Relaxed) & 1 == 1 && self.owner.load(Relaxed) == lane().wrapping_add(1)
    }

    /// Marks this moment for [`WriteGate::validate`]; `None` while somebody may change things. What was changed before is
    /// seen by what is loaded after this.
    #[inline(always)]
    pub(crate) fn try_optimistic(&self) -> Option<OptimisticRead> {
        let mut sum = self.turns.load(Acquire);
        if sum & 1 != 0 {
            return None;
        }
        for counter in self.shared.iter() {
            let counter = counter.load(Acquire);
            if counter & PRESENT_MASK != 0 {
                return None;
            }
            sum = sum.wrapping_add(counter);
        }
        Some(OptimisticRead(sum))
    }

    /// Has nobody had a right to change anything since? Then what was loaded meanwhile, by atomics, is of one moment.
    #[inline(always)]
    pub(crate) fn validate(&self, optimistic: OptimisticRead) -> bool {
        // With the fence that follows every taking of a version: who saw a change sees that its maker began. None of the
        // summands ever falls but by who is present, so that the sum is the same only if all of them are.
        fence(Acquire);
        let now = self.shared.iter().map(|counter| counter.load(Relaxed));
        now.fold(self.turns.load(Relaxed), u64::wrapping_add) == optimistic.0
    }
}

impl Drop for SharedGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Release);
    }
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.gate.owner.store(0, Relaxed);
        self.gate.turns.fetch_add(1, Release);
    }
}
