//! The connection's end of a relay: one attempt to read or write at a time, and waiting until another is worth while, as
//! a socket offers it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use bytes::{Buf, Bytes};

use super::PIECE_BYTES_MAX;
use super::shared::{Shared, State, wake};
use crate::error::Error;
use crate::memory::reserve;
use crate::socket::Read;

/// The connection's end, shared by its two halves.
#[derive(Debug)]
pub(crate) struct NearEnd {
    shared: Arc<Shared>,
    /// The piece that is being read; for the receiving half only.
    reading: Mutex<Bytes>,
}

impl NearEnd {
    pub(super) fn new(shared: &Arc<Shared>) -> NearEnd {
        NearEnd { shared: Arc::clone(shared), reading: Mutex::default() }
    }

    pub(crate) fn peer(&self) -> &str {
        &self.shared.peer
    }

    /// One attempt to read.
    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> Result<Read, Error> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = 0;
        while read < buffer.len() {
            if reading.is_empty() {
                match self.next_piece() {
                    Some(piece) => *reading = piece,
                    None if read > 0 => break,
                    None => return self.why_nothing(),
                }
            }
            let bytes = reading.len().min(buffer.len() - read);
            reading.copy_to_slice(&mut buffer[read..read + bytes]);
            read += bytes;
        }
        Ok(Read::Bytes(read))
    }

    fn next_piece(&self) -> Option<Bytes> {
        let mut state = self.shared.state();
        let piece = state.incoming.pieces.pop_front()?;
        state.incoming.bytes -= piece.len();
        let task = state.incoming.task.take();
        drop(state);
        wake(task);
        Some(piece)
    }

    fn why_nothing(&self) -> Result<Read, Error> {
        let mut state = self.shared.state();
        if !state.incoming.pieces.is_empty() {
            // It has come just now, and the event is set.
            return Ok(Read::Nothing);
        }
        match &state.end {
            Some(Ok(())) => Ok(Read::End),
            Some(Err(reason)) => {
                Err(Error::Carrier { peer: self.shared.peer.clone(), reason: reason.clone() })
            }
            None => {
                self.shared.settle(&mut state);
                Ok(Read::Nothing)
            }
        }
    }

    /// One attempt to write: how much was taken, `None` when nothing fits now.
    pub(crate) fn try_write(&self, pieces: &[IoSlice<'_>]) -> Result<Option<usize>, Error> {
        let mut state = self.shared.state();
        if state.outgoing.abandoned {
            let peer = self.shared.peer.clone();
            return Err(match &state.end {
                Some(Err(reason)) => Error::Carrier { peer, reason: reason.clone() },
                _ => Error::Closed { peer },
            });
        }
        let State { outgoing, spare, .. } = &mut *state;
        let mut taken = 0;
        for piece in pieces {
            let room = self.shared.queue_bytes - outgoing.bytes;
            let piece = &piece[..piece.len().min(room)];
            append(&mut outgoing.pieces, piece, spare, &self.shared.peer)?;
            outgoing.bytes += piece.len();
            taken += piece.len();
        }
        let was_blocked = std::mem::replace(&mut state.blocked, taken == 0);
        if state.blocked || was_blocked {
            self.shared.settle(&mut state);
        }
        let task = state.outgoing.task.take();
        drop(state);
        wake(task);
        Ok((taken > 0).then_some(taken))
    }

    /// Sleeps until there is something to read. `false`: the deadline came first.
    pub(crate) fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        self.shared.wait(deadline, |state| self.shared.can_read(state))
    }

    /// Sleeps until something can be written. `false`: the deadline came first.
    pub(crate) fn wait_writable(&self, deadline: Option<Instant>) -> bool {
        self.shared.wait(deadline, |state| self.shared.can_write(state))
    }

    /// Nothing more will be written; what was, still goes.
    pub(crate) fn shut_write(&self) {
        let mut state = self.shared.state();
        state.outgoing.closed = true;
        let task = state.outgoing.task.take();
        drop(state);
        wake(task);
    }
}

/// Appends bytes to the last piece, and to new ones.
fn append(
    pieces: &mut VecDeque<Vec<u8>>,
    mut bytes: &[u8],
    spare: &mut Vec<Vec<u8>>,
    peer: &str,
) -> Result<(), Error> {
    while !bytes.is_empty() {
        if pieces.back().is_none_or(|last| last.len() >= PIECE_BYTES_MAX) {
            pieces.push_back(spare.pop().unwrap_or_default());
        }
        if let Some(last) = pieces.back_mut() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES_MAX - last.len()));
            if last.capacity() - last.len() < now.len() {
                // As far as it would grow by itself.
                reserve(last, now.len().max(last.len()).min(PIECE_BYTES_MAX - last.len()), peer)?;
            }
            last.extend_from_slice(now);
            bytes = later;
        }
    }
    Ok(())
}

impl AsFd for NearEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl Drop for NearEnd {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.incoming.abandoned = true;
        let unread = std::mem::take(&mut state.incoming.pieces);
        state.incoming.bytes = 0;
        let task = state.incoming.task.take();
        drop(state);
        drop(unread);
        wake(task);
    }
}
