//! Read-copy-update: readers announce themselves in a line of their own, and what they may still hold is freed only
//! after they have left. Knows nothing of what is read.
//!
//! A reader adds one to a counter that (nearly) only its thread touches, then loads pointers; a writer swaps a
//! pointer, then waits until every counter has been seen at zero. There are two counters per lane, and new readers
//! use the one that is not being waited for, so that a steady stream of readers cannot hold up a writer (the scheme of
//! Linux's sleepable RCU, McKenney 2006).

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::sync::lanes::Lanes;
use crate::sync::{AtomicUsize, Mutex, fence, fence_after_write, lock, pause};

/// Who reads at present.
#[derive(Debug)]
pub(crate) struct Epoch {
    lanes: Lanes<[AtomicUsize; 2]>,
    /// Which of the two counters new readers use.
    phase: AtomicUsize,
    /// One writer waits at a time.
    waiting: Mutex<()>,
}

/// A reader's presence. While it lives, [`Epoch::synchronize`] does not return: keep it short, and never wait for a
/// lock whose holder synchronizes.
#[derive(Debug)]
pub(crate) struct EpochGuard<'a> {
    counter: &'a AtomicUsize,
    /// Not to be sent to another thread, so that the lane stays the thread's.
    not_send: PhantomData<*const ()>,
}

impl Epoch {
    pub(crate) fn new() -> Epoch {
        Epoch { lanes: Lanes::new(), phase: AtomicUsize::new(0), waiting: Mutex::new(()) }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<[AtomicUsize; 2]>::bytes()
    }

    /// Announces the thread of this lane as a reader.
    #[inline(always)]
    pub(crate) fn pin(&self, lane: usize) -> EpochGuard<'_> {
        let counter = &self.lanes.get(lane)[self.phase.load(Relaxed) & 1];
        // Before every load of a pointer, in the one order that writers agree with.
        counter.fetch_add(1, SeqCst);
        fence_after_write();
        EpochGuard { counter, not_send: PhantomData }
    }

    /// Waits until every reader that was present has left. The caller must not be one.
    pub(crate) fn synchronize(&self) {
        let _one_at_a_time = lock(&self.waiting);
        fence(SeqCst);
        for _ in 0..2 {
            // A reader may have loaded the phase long ago and counted just now, in either counter: both are waited for.
            let old = self.phase.fetch_xor(1, SeqCst) & 1;
            fence_after_write();
            for counters in self.lanes.iter() {
                let mut spins = 0;
                while counters[old].load(SeqCst) != 0 {
                    pause(&mut spins);
                }
            }
        }
        fence(SeqCst);
    }
}

impl Drop for EpochGuard<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // After every use of what was read.
        self.counter.fetch_sub(1, Release);
    }
}
