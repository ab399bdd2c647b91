//! The write gate of a table: a reader-writer lock whose readers are the table's writers.
//!
//! Many threads may hold it shared, and only touch a cache line of their own lane, or one thread exclusively. It
//! also supports optimistic reads: a thread without the lock can validate that no other thread held it meanwhile.
//!
//! An optimistic read loads the words of all lanes whose threads have ever held the gate, before and after. With many
//! processors that can be 64 cache lines, each of which a writer may just have taken. So lanes without a writer are
//! left out ([`WriteGate::writers`]), and a request with too few keys per writer checks row versions instead.

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
    /// A bit per lane that has held the gate shared, set before its first change. Bits are never cleared, so that the
    /// line stays in all caches.
    writers: AtomicU64,
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

/// State of the gate while no thread held it: the writers, and the sum of their words and the turns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OptimisticRead {
    writers: u64,
    sum: u64,
}

/// Guard of the exclusive holder.
#[derive(Debug)]
pub(crate) struct ExclusiveGuard<'a> {
    gate: &'a WriteGate,
    _turn: MutexGuard<'a, ()>,
}

impl WriteGate {
    pub(crate) fn new() -> WriteGate {
        let (turns, writers, owner) = (AtomicU64::new(0), AtomicU64::new(0), AtomicUsize::new(0));
        WriteGate { shared: Lanes::new(), writers, turns, exclusive: Mutex::new(()), owner }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<AtomicU64>::bytes()
    }

    /// The number of lanes whose words an optimistic read loads.
    #[inline(always)]
    pub(crate) fn writers(&self) -> usize {
        self.writers.load(Relaxed).count_ones() as usize
    }

    /// Marks a lane as a writer's.
    #[cold]
    fn add_writer(&self, writer: u64) {
        self.writers.fetch_or(writer, SeqCst);
    }

    /// Locks the gate shared; waits while it is held exclusively.
    #[inline(always)]
    pub(crate) fn lock_shared(&self, lane: usize) -> SharedGuard<'_> {
        let (counter, writer) = (self.shared.get(lane), self.shared.bit(lane));
        // Acquire: a reader that sees a change of this thread then sees the bit, whichever thread has set it.
        if self.writers.load(Acquire) & writer == 0 {
            self.add_writer(writer);
        }
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
        let (writers, mut sum) = (self.writers.load(Acquire), self.turns.load(Acquire));
        if sum & 1 != 0 {
            return None;
        }
        for counter in self.shared.of_bits(writers) {
            let counter = counter.load(Acquire);
            if counter & PRESENT_MASK != 0 {
                return None;
            }
            sum = sum.wrapping_add(counter);
        }
        Some(OptimisticRead { writers, sum })
    }

    /// Returns whether no thread has held the gate since. If so, the atomic loads since then are consistent.
    #[inline(always)]
    pub(crate) fn validate(&self, optimistic: OptimisticRead) -> bool {
        // Pairs with the fence after a version becomes odd: a load that saw a change implies that its writer is
        // counted here, among the writers if it is a new one. A summand falls only with a present holder, so that an
        // equal sum means equal summands.
        fence(Acquire);
        let OptimisticRead { writers, sum } = optimistic;
        let now = self.shared.of_bits(writers).map(|counter| counter.load(Relaxed));
        self.writers.load(Relaxed) == writers && now.fold(self.turns.load(Relaxed), u64::wrapping_add) == sum
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_writers_are_read_and_a_new_one_is_noticed() {
        let gate = WriteGate::new();
        for lane in 0..gate.shared.iter().count() {
            assert_eq!(gate.writers(), lane);
            let before = gate.try_optimistic().expect("no thread holds the gate");
            assert!(gate.validate(before));
            let shared = gate.lock_shared(lane);
            assert!(gate.try_optimistic().is_none() && !gate.validate(before));
            drop(shared);
            assert!(!gate.validate(before));
            // Its word shows that the writer is back.
            let before = gate.try_optimistic().expect("no thread holds the gate");
            drop(gate.lock_shared(lane));
            assert!(!gate.validate(before));
        }
        let before = gate.try_optimistic().expect("no thread holds the gate");
        drop(gate.lock_exclusive());
        assert!(!gate.validate(before));
    }
}
