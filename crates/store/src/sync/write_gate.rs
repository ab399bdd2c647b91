//! The write gate of a table: a reader-writer lock whose readers are the table's writers.
//!
//! Many threads may hold it shared, and only touch a cache line of their own lane, or one thread exclusively. It
//! also supports optimistic reads: a thread without the lock can validate that no other thread held it meanwhile.

use std::marker::PhantomData;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::sync::lanes::{Lanes, lane};
use crate::sync::{AtomicU64, Mutex, MutexGuard, fence, fence_after_write, lock, pause};

/// A lane's word counts present shared holders in the low bits, and all holders so far above them.
const BEGUN_SHIFT: u32 = 20;
const BEGUN: u64 = 1 << BEGUN_SHIFT;
const PRESENT_MASK: u64 = BEGUN - 1;

#[derive(Debug)]
pub(crate) struct WriteGate {
    shared: Lanes<AtomicU64>,
    /// Odd while the gate is held exclusively, or a thread waits for that.
    turns: AtomicU64,
    /// Locked by the exclusive holder.
    exclusive: Mutex<()>,
    /// Lane of the exclusive holder, plus one; 0 if there is none.
    owner: AtomicUsize,
}

/// Guard of a shared holder.
#[derive(Debug)]
pub(crate) struct SharedGuard<'a> {
    counter: &'a AtomicU64,
    not_send: PhantomData<*const ()>,
}

/// State of the gate while no thread held it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptimisticRead(u64);

/// Guard of the exclusive holder.
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

    /// The number of lanes, whose words an optimistic read loads.
    pub(crate) fn lanes(&self) -> usize {
        self.shared.len()
    }

    /// Locks the gate shared; waits while it is held exclusively.
    #[inline(always)]
    pub(crate) fn lock_shared(&self, lane: usize) -> SharedGuard<'_> {
        let counter = self.shared.get(lane);
        loop {
            counter.fetch_add(BEGUN + 1, SeqCst);
            fence_after_write();
            // Either this thread sees the exclusive holder, or that one sees this thread.
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

    /// Locks the gate exclusively. The caller must not hold it shared.
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

    /// Returns whether the calling thread holds the gate exclusively, and would deadlock if it locked it again.
    pub(crate) fn is_held_exclusively_here(&self) -> bool {
        // Loom's threads are one thread for the operating system.
        !cfg!(loom) && self.turns.load(Relaxed) & 1 == 1 && self.owner.load(Relaxed) == lane().wrapping_add(1)
    }

    /// Begins an optimistic read; `None` while a thread holds the gate. Later loads see all changes made before.
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

    /// Returns whether no thread has held the gate since. If so, the atomic loads since then are consistent.
    #[inline(always)]
    pub(crate) fn validate(&self, optimistic: OptimisticRead) -> bool {
        // Pairs with the fence after a version becomes odd: a load that saw a change implies that its writer is
        // counted here. A summand falls only with a present holder, so that an equal sum means equal summands.
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
