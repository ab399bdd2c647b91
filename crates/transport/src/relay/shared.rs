//! What the two ends of a relay share: a queue in each direction and who waits for it. Nothing that was put in is dropped
//! under its lock, since a piece may be another relay's, and give its memory back there.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use bytes::Bytes;

#[derive(Debug)]
pub(super) struct Shared {
    /// Readable while there is something to try, for who polls many connections.
    pub(super) event: OwnedFd,
    pub(super) peer: String,
    pub(super) queue_bytes: usize,
    state: Mutex<State>,
    /// For who waits for this one alone.
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) outgoing: Queue<Vec<u8>>,
    pub(super) incoming: Queue<Bytes>,
    /// Emptied pieces.
    pub(super) spare: Vec<Vec<u8>>,
    /// How the peer ended, or why nothing more can come.
    pub(super) end: Option<Result<(), String>>,
    /// Did the last attempt to write find no room?
    pub(super) blocked: bool,
    /// Is the event set?
    signalled: bool,
    /// Threads that wait for a change.
    waiting: u32,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Queue<Piece> {
    pub(super) pieces: VecDeque<Piece>,
    pub(super) bytes: usize,
    /// Will nothing more be put in?
    pub(super) closed: bool,
    /// Will nothing more be taken out?
    pub(super) abandoned: bool,
    /// The carrier's task, if it waits.
    pub(super) task: Option<Waker>,
}

impl<Piece> Default for Queue<Piece> {
    fn default() -> Queue<Piece> {
        Queue { pieces: VecDeque::new(), bytes: 0, closed: false, abandoned: false, task: None }
    }
}

impl Shared {
    pub(super) fn new(event: OwnedFd, peer: String, queue_bytes: usize) -> Shared {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Shared { event, peer, queue_bytes: queue_bytes.max(1), state, changed }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the event, or clears it, as there is something to try or not. It costs a system call only when that changes.
    pub(super) fn settle(&self, state: &mut State) {
        let worth_while = if state.blocked { self.can_write(state) } else { self.can_read(state) };
        if worth_while != state.signalled {
            state.signalled = worth_while;
            // Neither can fail: the counter is 0 or 1.
            let _ = match worth_while {
                true => rustix::io::write(&self.event, &1u64.to_ne_bytes()),
                false => rustix::io::read(&self.event, &mut [0; 8]),
            };
        }
    }

    pub(super) fn can_read(&self, state: &State) -> bool {
        !state.incoming.pieces.is_empty() || state.end.is_some()
    }

    pub(super) fn can_write(&self, state: &State) -> bool {
        state.outgoing.bytes < self.queue_bytes || state.outgoing.abandoned
    }

    /// The carrier has changed something: tells the connection's thread.
    pub(super) fn tell(&self, mut state: MutexGuard<'_, State>) {
        if !state.signalled {
            self.settle(&mut state);
        }
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    pub(super) fn wait(&self, deadline: Option<Instant>, done: impl Fn(&State) -> bool) -> bool {
        let mut state = self.state();
        state.waiting += 1;
        while !done(&state) {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.waiting -= 1;
        done(&state)
    }
}

pub(super) fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
