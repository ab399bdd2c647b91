//! The atomics and locks that the concurrent parts are made of: the standard library's or, under `--cfg loom`, those of
//! a model checker that tries every interleaving. Knows nothing of what they guard.

pub(crate) mod epoch;
pub(crate) mod lanes;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod seqlock;
pub(crate) mod write_gate;

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

/// Spins on something that is being changed before the processor is left to others.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Locks. A panic of another thread is a bug that its own thread reports; what locks guard here is whole between the
/// steps of every operation, so the others go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if nobody else has.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Waits a little for another thread; `spins` counts how often.
#[cold]
pub(crate) fn pause(spins: &mut u32) {
    *spins += 1;
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    if *spins < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// A full fence after a sequentially consistent read-modify-write, so that the plain loads after it are part of the one
/// order, too. On `x86_64` the instruction is such a fence by itself.
#[inline(always)]
pub(crate) fn fence_after_write() {
    #[cfg(any(loom, miri, not(target_arch = "x86_64")))]
    fence(std::sync::atomic::Ordering::SeqCst);
}
