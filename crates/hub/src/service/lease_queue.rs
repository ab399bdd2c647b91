//! The lease table behind a lock, and the threads that wait for it. Decides nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::lock;

use super::leases::{LeaseTable, Minibatch};

/// Minibatches that are to be fed, by number.
type ToFeed = Vec<(u64, Arc<Minibatch>)>;

/// Interval at which a waiting thread checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// The lease table behind a lock.
#[derive(Debug)]
pub(crate) struct LeaseQueue {
    leases: Mutex<LeaseTable>,
    room: Condvar,
    to_feed: Condvar,
    to_write: Condvar,
}

impl LeaseQueue {
    pub(crate) fn new(leases: LeaseTable) -> Arc<LeaseQueue> {
        let (room, to_feed, to_write) = (Condvar::new(), Condvar::new(), Condvar::new());
        Arc::new(LeaseQueue { leases: Mutex::new(leases), room, to_feed, to_write })
    }

    pub(crate) fn leases(&self) -> MutexGuard<'_, LeaseTable> {
        lock(&self.leases)
    }

    /// Wakes the making thread: a trainer subscribed, took a minibatch, or found none.
    pub(crate) fn made_room(&self) {
        self.room.notify_one();
        self.to_feed.notify_one();
    }

    /// Wakes the journal thread: a change is to be written.
    pub(crate) fn changed(&self) {
        self.to_write.notify_one();
    }

    /// Waits until a change is to be written; `false` if stopped.
    pub(crate) fn to_write(&self, stopped: &AtomicBool) -> bool {
        let mut leases = self.leases();
        while !stopped.load(Ordering::Relaxed) {
            if leases.has_records() {
                return true;
            }
            leases = self.to_write.wait_timeout(leases, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Adds a minibatch once there is room; `false` if stopped before.
    pub(crate) fn offer(&self, minibatch: Minibatch, stopped: &AtomicBool) -> bool {
        let mut leases = self.leases();
        while !leases.has_room() {
            if stopped.load(Ordering::Relaxed) {
                return false;
            }
            leases = self.room.wait_timeout(leases, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        leases.offer(minibatch);
        self.to_feed.notify_one();
        true
    }

    /// Waits until minibatches are to be fed and returns at most `most` of them; `None` if stopped.
    pub(crate) fn to_feed(&self, most: usize, stopped: &AtomicBool) -> Option<ToFeed> {
        let mut leases = self.leases();
        while !stopped.load(Ordering::Relaxed) {
            let next = leases.next_to_feed(most);
            if !next.is_empty() {
                return Some(next);
            }
            leases = self.to_feed.wait_timeout(leases, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }
}
