//! Read-copy-update: readers announce themselves in a line of their own, and what they may still hold is freed only
//! after they have left. Knows nothing of what is read.
//!
//! A reader adds one to a counter that (nearly) only its thread touches, then loads the pointer; a writer swaps the
//! pointer, then waits until every counter has been seen at zero. There are two counters per thread, and new readers
//! use the one that is not being waited for, so that a steady stream of readers cannot hold up a writer (the scheme of
//! Linux's sleepable RCU, McKenney 2006).
#![allow(unsafe_code)] // pointers whose lifetime the protocol below guarantees

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicUsize, fence};
use std::sync::{Arc, Mutex};

/// Counters of one process; threads beyond share them.
const SLOTS: usize = 64;
/// Rounds of waiting before the processor is left to others.
const SPINS: u32 = 100;

#[repr(align(128))]
#[derive(Debug)]
struct Slot([AtomicUsize; 2]);

static READERS: [Slot; SLOTS] = [const { Slot([AtomicUsize::new(0), AtomicUsize::new(0)]) }; SLOTS];
/// Which of the two counters new readers use.
static PHASE: AtomicUsize = AtomicUsize::new(0);
/// Threads that have read so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// One writer waits at a time.
static WAITING: Mutex<()> = Mutex::new(());

thread_local! {
    static SLOT: &'static Slot = &READERS[THREADS.fetch_add(1, Relaxed) % SLOTS];
}

/// A reader's presence. While it lives, [`synchronize`] does not return: keep it short, and never wait for a lock.
#[derive(Debug)]
pub(crate) struct Reading {
    counter: &'static AtomicUsize,
    /// Not to be sent to another thread, so that the slot stays the thread's.
    not_send: PhantomData<*const ()>,
}

/// Announces this thread as a reader.
#[inline]
pub(crate) fn enter() -> Reading {
    let counter = SLOT.with(|slot| &slot.0[PHASE.load(Relaxed) & 1]);
    // Before every load of a pointer, in the one order that writers agree with.
    counter.fetch_add(1, SeqCst);
    Reading { counter, not_send: PhantomData }
}

impl Drop for Reading {
    #[inline]
    fn drop(&mut self) {
        // After every use of what was read.
        self.counter.fetch_sub(1, Release);
    }
}

/// Waits until every reader that was present has left. The caller must not be one.
pub(crate) fn synchronize() {
    let _one_at_a_time = WAITING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fence(SeqCst);
    for _ in 0..2 {
        // A reader may have loaded the phase long ago and counted just now, in either counter: both are waited for.
        let old = PHASE.fetch_xor(1, SeqCst) & 1;
        let used = THREADS.load(SeqCst).min(SLOTS);
        for slot in &READERS[..used] {
            let mut rounds = 0;
            while slot.0[old].load(SeqCst) != 0 {
                rounds += 1;
                if rounds < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
    }
    fence(SeqCst);
}

/// A value that readers see whole, before or after it is replaced.
#[derive(Debug)]
pub(crate) struct Published<T> {
    /// From `Arc::into_raw`.
    pointer: AtomicPtr<T>,
    owned: PhantomData<Arc<T>>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: Arc<T>) -> Published<T> {
        Published { pointer: AtomicPtr::new(Arc::into_raw(value).cast_mut()), owned: PhantomData }
    }

    /// The present value, for as long as the reader is present.
    #[inline(always)]
    pub(crate) fn get<'a>(&'a self, _reading: &'a Reading) -> &'a T {
        // SAFETY: the pointer holds a reference count that is given up by `replace` (after this reader has left: it
        // entered before it loaded the pointer, both in the order of SeqCst) or by the drop of `self`, which is
        // borrowed.
        unsafe { &*self.pointer.load(SeqCst) }
    }

    /// Replaces the value and lets go of the old one when no reader can hold it any more. The caller must not be a
    /// reader.
    pub(crate) fn replace(&self, value: Arc<T>) {
        let old = self.pointer.swap(Arc::into_raw(value).cast_mut(), SeqCst);
        synchronize();
        // SAFETY: it came from `Arc::into_raw` and was swapped out, so that this call alone gives it up; every reader
        // that loaded it had entered before the swap and has left since.
        drop(unsafe { Arc::from_raw(old) });
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: it comes from `Arc::into_raw`, and `&mut self` excludes readers and `replace`.
        drop(unsafe { Arc::from_raw(*self.pointer.get_mut()) });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// A value that readers would see broken after its drop.
    struct Canary(Box<[u64; 8]>);
    impl Drop for Canary {
        fn drop(&mut self) {
            *self.0 = [0; 8];
        }
    }

    #[test]
    fn readers_never_see_a_freed_value() {
        let published = Published::new(Arc::new(Canary(Box::new([1; 8]))));
        let done = AtomicBool::new(false);
        let rounds = if cfg!(miri) { 20 } else { 5000 };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        let reading = enter();
                        let value = published.get(&reading);
                        assert!(value.0[0] > 0 && value.0.iter().all(|&word| word == value.0[0]));
                    }
                });
            }
            for round in 2..rounds {
                published.replace(Arc::new(Canary(Box::new([round; 8]))));
            }
            done.store(true, Relaxed);
        });
    }
}
