//! The lease table behind a lock, and the threads that wait for it. Decides nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::lock;

use super::desk::{Desk, Minibatch};

/// Minibatches that are to be fed, by number.
type ToFeed = Vec<(u64, Arc<Minibatch>)>;

/// Interval at which a waiting thread checks whether to stop.
const POLL: Duration = Duration::from_millis(50);

/// The lease table behind a lock.
#[derive(Debug)]
pub(crate) struct Hall {
    desk: Mutex<Desk>,
    room: Condvar,
    to_feed: Condvar,
    to_write: Condvar,
}

impl Hall {
    pub(crate) fn new(desk: Desk) -> Arc<Hall> {
        let (room, to_feed, to_write) = (Condvar::new(), Condvar::new(), Condvar::new());
        Arc::new(Hall { desk: Mutex::new(desk), room, to_feed, to_write })
    }

    pub(crate) fn desk(&self) -> MutexGuard<'_, Desk> {
        lock(&self.desk)
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
        let mut desk = self.desk();
        while !stopped.load(Ordering::Relaxed) {
            if desk.has_records() {
                return true;
            }
            desk = self.to_write.wait_timeout(desk, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Adds a minibatch once there is room; `false` if stopped before.
    pub(crate) fn offer(&self, minibatch: Minibatch, stopped: &AtomicBool) -> bool {
        let mut desk = self.desk();
        while !desk.has_room() {
            if stopped.load(Ordering::Relaxed) {
                return false;
            }
            desk = self.room.wait_timeout(desk, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        desk.offer(minibatch);
        self.to_feed.notify_one();
        true
    }

    /// Waits until minibatches are to be fed and returns at most `most` of them; `None` if stopped.
    pub(crate) fn to_feed(&self, most: usize, stopped: &AtomicBool) -> Option<ToFeed> {
        let mut desk = self.desk();
        while !stopped.load(Ordering::Relaxed) {
            let next = desk.next_to_feed(most);
            if !next.is_empty() {
                return Some(next);
            }
            desk = self.to_feed.wait_timeout(desk, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
        None
    }
}
