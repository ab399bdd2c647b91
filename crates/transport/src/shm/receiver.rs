//! The reading side of a ring: checks the peer's indexes and lengths, lends frames and releases their slots.
//!
//! The accepting side copies frames to private memory first; the connecting side reads them in place.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::control::Sleep;
use super::memory::{RingMemory, SLOT_ALIGN_BYTES};
use super::sender::{SKIP, slot_bytes};
use super::wake;
use crate::error::Error;
use crate::memory::grow;
use crate::options::Framing;
use crate::received::Received;
use crate::socket::{Read, Socket};
use crate::spin::Spin;

/// Number of wake-ups read from the socket at once.
const WAKEUPS_MAX: usize = 64;

/// The receiving half of a ring.
#[derive(Debug)]
pub(crate) struct RingReceiver {
    memory: RingMemory,
    socket: Arc<Socket>,
    framing: Framing,
    spin: Spin,
    /// Bytes ever released, and the writer's last known index.
    head: u64,
    tail: u64,
    /// Length of the slot that is borrowed in place.
    lent_slot: usize,
    /// Private memory for copies, in words. `None`: frames are read in place.
    copy: Option<Vec<u64>>,
    /// The peer has sent its last frame.
    closed: bool,
    /// The peer's end of the socket is closed.
    gone: bool,
}

/// A frame that was found: the place of its slot, and its length.
struct Found {
    at: usize,
    bytes: usize,
}

impl RingReceiver {
    pub(super) fn new(
        memory: RingMemory,
        socket: Arc<Socket>,
        framing: Framing,
        spin: Spin,
        copies: bool,
    ) -> RingReceiver {
        let copy = copies.then(Vec::new);
        let (head, tail, lent_slot) = (0, 0, 0);
        RingReceiver {
            memory,
            socket,
            framing,
            spin,
            head,
            tail,
            lent_slot,
            copy,
            closed: false,
            gone: false,
        }
    }

    pub(crate) fn limit_frames(&mut self, frame_bytes_max: usize) {
        self.framing.frame_bytes_max = frame_bytes_max;
    }

    /// Waits for the next frame. `None`: the peer has sent its last one, or died.
    pub(crate) fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<&[u8]>, Error> {
        loop {
            if let Some(found) = self.next_frame()? {
                return self.lend(&found).map(Some);
            }
            if self.has_ended() {
                return Ok(None);
            }
            let mut spin = self.spin.clone();
            if !spin.wait(false, || self.look())? && self.sleeps() {
                let asleep = Instant::now();
                let ready = self.socket.wait_readable(deadline);
                self.memory.control().reader_wakes();
                spin.slept(asleep.elapsed());
                if !ready? {
                    self.spin = spin;
                    return Err(Error::Deadline { peer: self.socket.peer.clone() });
                }
                self.take_wakeups()?;
            }
            self.spin = spin;
        }
    }

    /// Returns the next frame without waiting.
    pub(crate) fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        match self.next_frame()? {
            Some(found) => self.lend(&found).map(Received::Frame),
            None if self.has_ended() => Ok(Received::End),
            None => Ok(Received::Nothing),
        }
    }

    /// Whether the last frame has been received.
    pub(crate) fn has_ended(&self) -> bool {
        self.head == self.tail && (self.closed || self.gone)
    }

    /// Whether the peer is gone. Published frames may remain.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.gone
    }

    /// Whether a frame or the end can be received.
    pub(crate) fn look(&mut self) -> Result<bool, Error> {
        let (tail, closed) = self.memory.control().tail();
        let there = tail.wrapping_sub(self.head);
        if there < self.tail - self.head
            || there > self.memory.bytes() as u64
            || !tail.is_multiple_of(SLOT_ALIGN_BYTES as u64)
        {
            let reason =
                format!("the writer is at {tail}, which is not from {} to a ring further", self.tail);
            return Err(self.corrupt(reason));
        }
        (self.tail, self.closed) = (tail, closed);
        Ok(there > 0 || closed || self.gone)
    }

    /// Says on which processor this side waits.
    pub(crate) fn waits_at(&self, processor: u32) {
        self.memory.control().reader_is_at(processor);
    }

    /// Announces a sleep on the socket. `false`: there is something to receive already.
    pub(crate) fn sleeps(&self) -> bool {
        self.memory.control().reader_sleeps(Sleep::Socket, self.tail)
    }

    /// Empties the socket and notices its end.
    pub(crate) fn take_wakeups(&mut self) -> Result<(), Error> {
        let mut bytes = [0; WAKEUPS_MAX];
        match self.socket.try_read(&mut bytes)? {
            Read::End => {
                self.gone = true;
                // Frames published before the peer went are still there.
                self.look().map(|_| ())
            }
            Read::Bytes(_) | Read::Nothing => Ok(()),
        }
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::Corrupt { peer: self.socket.peer.clone(), reason }
    }

    /// Releases a slot to the writer.
    fn release(&mut self, bytes: usize) {
        self.head += bytes as u64;
        let how = self.memory.control().publish_head(self.head);
        wake(how, self.memory.control().writer_word(), &self.socket);
    }

    fn next_frame(&mut self) -> Result<Option<Found>, Error> {
        if self.lent_slot > 0 {
            let slot = std::mem::take(&mut self.lent_slot);
            self.release(slot);
        }
        loop {
            if self.head == self.tail {
                self.look()?;
            }
            if self.head == self.tail {
                return Ok(None);
            }
            let (ring, there) = (self.memory.bytes(), (self.tail - self.head) as usize);
            let at = (self.head % ring as u64) as usize;
            // Read once, because the peer could change it between two reads.
            let length = self.memory.slot_word(at).load(Ordering::Relaxed);
            if length == SKIP {
                if ring - at > there {
                    return Err(self.corrupt(format!("a skip at {at} leads beyond what was written")));
                }
                self.release(ring - at);
                continue;
            }
            let bytes = usize::try_from(length).unwrap_or(usize::MAX);
            self.framing.check_length(bytes, &self.socket.peer)?;
            let slot = slot_bytes(bytes);
            if bytes < self.framing.header_bytes || slot > there || slot > ring - at {
                return Err(
                    self.corrupt(format!("a frame of {bytes} bytes at {at} of {there} that were written"))
                );
            }
            return Ok(Some(Found { at, bytes }));
        }
    }

    fn lend(&mut self, &Found { at, bytes }: &Found) -> Result<&[u8], Error> {
        let slot = slot_bytes(bytes);
        if let Some(copy) = &mut self.copy {
            let words = bytes.div_ceil(size_of::<u64>());
            if copy.len() < words {
                grow(copy, words.next_power_of_two(), &self.socket.peer)?;
            }
            self.memory.copy_frame(at, &mut copy[..words]);
            self.release(slot);
        } else {
            self.lent_slot = slot;
        }
        let frame = match &self.copy {
            Some(copy) => &bytemuck::cast_slice(copy)[..bytes],
            None => self.memory.frame(at, bytes),
        };
        let claimed = self.framing.frame_bytes(frame, &self.socket.peer)?;
        if claimed != Some(bytes) {
            let reason = format!("a frame of {bytes} bytes whose header says {claimed:?}");
            return Err(self.corrupt(reason));
        }
        Ok(frame)
    }
}

impl AsFd for RingReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
