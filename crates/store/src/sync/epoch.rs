//! Epoch-based reclamation (read-copy-update): memory that readers may use is freed only after they have left.
//!
//! A reader increments a counter of its lane, then loads pointers. A writer swaps a pointer, then waits until it
//! has seen every counter at zero. There are two counters per lane, and new readers use the one that is not being
//! waited for, so that a steady stream of readers cannot starve a writer (sleepable RCU of Linux, McKenney 2006).

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use crate::sync::lanes::Lanes;
use crate::sync::{AtomicUsize, Mutex, fence, fence_after_write, lock, pause};

/// The present readers.
#[derive(Debug)]
pub(crate) struct Epoch {
    lanes: Lanes<[AtomicUsize; 2]>,
    /// Selects the counter that new readers use.
    phase: AtomicUsize,
    /// Only one writer waits at a time.
    waiting: Mutex<()>,
}

/// Guard of a reader. [`Epoch::synchronize`] waits for it: keep it short, and never wait for a lock whose holder
/// synchronizes.
#[derive(Debug)]
pub(crate) struct EpochGuard<'a> {
    counter: &'a AtomicUsize,
    /// Not `Send`, so that the lane remains the thread's.
    not_send: PhantomData<*const ()>,
}

impl Epoch {
    pub(crate) fn new() -> Epoch {
        Epoch { lanes: Lanes::new(), phase: AtomicUsize::new(0), waiting: Mutex::new(()) }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<[AtomicUsize; 2]>::bytes()
    }

    /// Enters as a reader.
    #[inline(always)]
    pub(crate) fn pin(&self, lane: usize) -> EpochGuard<'_> {
        let counter = &self.lanes.get(lane)[self.phase.load(Relaxed) & 1];
        // Precedes every load of a pointer in the total order of SeqCst.
        counter.fetch_add(1, SeqCst);
        fence_after_write();
        EpochGuard { counter, not_send: PhantomData }
    }

    /// Waits until all present readers have left. The caller must not be a reader.
    pub(crate) fn synchronize(&self) {
        let _one_at_a_time = lock(&self.waiting);
        fence(SeqCst);
        for _ in 0..2 {
            // A reader may have loaded the phase long ago and incremented either counter just now: wait for both.
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
        // Follows every use of the data.
        self.counter.fetch_sub(1, Release);
    }
}
