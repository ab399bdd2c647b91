//! The desk behind a lock, and who waits at it. Decides nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::lock;

use super::desk::{Desk, Minibatch};

/// Minibatches that are to be fed, by number.
type ToFeed = Vec<(u64, Arc<Minibatch>)>;

/// How often who waits for room looks whether it is to stop.
const POLL: Duration = Duration::from_millis(50);

/// See the top of this file.
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

    /// Somebody has come, or took a minibatch, or found that there is none.
    pub(crate) fn made_room(&self) {
        self.room.notify_one();
        self.to_feed.notify_one();
    }

    /// Something has changed that is to be written down.
    pub(crate) fn changed(&self) {
        self.to_write.notify_one();
    }

    /// Waits until something is to be written down; false: it was stopped.
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

    /// Puts a minibatch onto the desk once there is room; false if it was stopped before.
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

    /// Waits until something is to be fed; at most so many. None: it was stopped.
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
