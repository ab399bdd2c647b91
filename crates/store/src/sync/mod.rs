//! Atomics, locks and synchronization protocols: from the standard library or, under `--cfg loom`, from a model
//! checker that explores every interleaving.

pub(crate) mod epoch;
pub(crate) mod lanes;
#[cfg(all(test, loom))]
pub(crate) mod models;
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

/// Spins before yielding the processor.
#[cfg(not(loom))]
const SPINS: u32 = 64;

/// Locks, ignoring poison: a panic is reported by its own thread, and guarded data is consistent between the steps
/// of every operation.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks if the mutex is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Spins or yields; `spins` counts the calls.
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

/// A full fence after a sequentially consistent read-modify-write, which orders the plain loads after it. On
/// `x86_64` the instruction itself is such a fence.
#[inline(always)]
pub(crate) fn fence_after_write() {
    #[cfg(any(loom, miri, not(target_arch = "x86_64")))]
    fence(std::sync::atomic::Ordering::SeqCst);
}
