//! Who may change a table: many at a time, or one alone. A lock for readers and writers whose shared side touches
//! nothing but a line of the thread's own. Knows nothing of what is changed.

use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Release, SeqCst};

use crate::lanes::Lanes;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, fence_after_write, lock, pause};

#[derive(Debug)]
pub(crate) struct Rights {
    sharing: Lanes<AtomicUsize>,
    /// Somebody is alone, or waits to be.
    excluded: AtomicBool,
    /// Held by whom that is.
    alone: Mutex<()>,
}

/// The right to change things together with others.
#[derive(Debug)]
pub(crate) struct Sharing<'a> {
    counter: &'a AtomicUsize,
    not_send: PhantomData<*const ()>,
}

/// The right to change things alone.
#[derive(Debug)]
pub(crate) struct Alone<'a> {
    rights: &'a Rights,
    _turn: MutexGuard<'a, ()>,
}

impl Rights {
    pub(crate) fn new() -> Rights {
        Rights { sharing: Lanes::new(), excluded: AtomicBool::new(false), alone: Mutex::new(()) }
    }

    pub(crate) fn bytes() -> usize {
        Lanes::<AtomicUsize>::bytes()
    }

    /// Waits while somebody is alone.
    #[inline(always)]
    pub(crate) fn share(&self, lane: usize) -> Sharing<'_> {
        let counter = self.sharing.get(lane);
        loop {
            counter.fetch_add(1, SeqCst);
            fence_after_write();
            // Either this sees that somebody is alone, or they see this thread.
            if !self.excluded.load(SeqCst) {
                return Sharing { counter, not_send: PhantomData };
            }
            counter.fetch_sub(1, Release);
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        drop(lock(&self.alone));
    }

    /// Waits until nobody else is left. The caller must not share.
    pub(crate) fn exclude(&self) -> Alone<'_> {
        let turn = lock(&self.alone);
        self.excluded.store(true, SeqCst);
        fence_after_write();
        for counter in self.sharing.iter() {
            let mut spins = 0;
            while counter.load(SeqCst) != 0 {
                pause(&mut spins);
            }
        }
        Alone { rights: self, _turn: turn }
    }
}

impl Drop for Sharing<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.counter.fetch_sub(1, Release);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.rights.excluded.store(false, Release);
    }
}
