//! The receiving half: frames and records over TCP at first, then frames in the registered ring. It checks what the peer
//! wrote, lends frames and releases their slots.
//!
//! As for shared memory, the accepting side copies frames to private memory first; the connecting side reads them in
//! place.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::channel::{Channel, State};
use super::link::Arrival;
use super::record::{self, Content, ENVELOPE_BYTES};
use crate::error::Error;
use crate::memory::grow;
use crate::options::Framing;
use crate::receive_budget::{Held, ReceiveBudget};
use crate::received::Received;
use crate::shm::{FRAME_AT_BYTES, RingMemory};
use crate::spin::Spin;
use crate::stream::StreamReceiver;

/// Longest header of a framing, in words.
const HEADER_WORDS_MAX: usize = 32;
/// Beyond this length the buffer of long frames counts against the common budget.
const BUFFER_BYTES_FREE: usize = 256 << 10;
/// Content of a released slot in debug builds, so that a frame which is announced before its bytes are there
/// cannot look like one.
const POISON: u8 = 0xa5;

/// The receiving half of a connection by RDMA.
#[derive(Debug)]
pub(crate) struct RdmaReceiver {
    channel: Arc<Channel>,
    framing: Framing,
    spin: Spin,
    stream: StreamReceiver,
    /// The ring that the other end fills, once there is a queue pair.
    ring: Option<RingMemory>,
    /// The slot that is borrowed in place: its offset and the length of its message.
    lent: Option<(usize, usize)>,
    /// Private memory for copies, in words.
    copy: Vec<u64>,
    /// A long frame of which pieces have come: its memory, and the bytes that are there.
    long: Vec<u64>,
    long_filled: usize,
    /// The long frame was lent.
    long_lent: bool,
    held: Held,
    ended: bool,
}

/// Where a frame was found.
#[derive(Clone, Copy, Debug)]
enum Found {
    Stream,
    Slot { at: usize, bytes: usize },
    Copy { bytes: usize },
    Long { bytes: usize },
}

impl RdmaReceiver {
    pub(super) fn new(channel: Arc<Channel>, framing: Framing, spin: Spin) -> Result<RdmaReceiver, Error> {
        let stream = StreamReceiver::new(channel.pipe.clone(), record::framing(&framing), spin.clone())?;
        Ok(RdmaReceiver {
            channel,
            framing,
            spin,
            stream,
            ring: None,
            lent: None,
            copy: Vec::new(),
            long: Vec::new(),
            long_filled: 0,
            long_lent: false,
            held: Held::default(),
            ended: false,
        })
    }

    pub(crate) fn limit_frames(&mut self, frame_bytes_max: usize) {
        self.framing.frame_bytes_max = frame_bytes_max;
        self.stream.limit_frames(record::envelope_bytes_max(frame_bytes_max));
    }

    pub(crate) fn share_memory(&mut self, budget: &ReceiveBudget) {
        self.held = Held::of(budget);
        self.stream.share_memory(budget);
    }

    /// Waits for the next frame. `None`: the peer has sent its last one, or died.
    pub(crate) fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<&[u8]>, Error> {
        loop {
            if let Some(found) = self.next_frame()? {
                return self.lend(found).map(Some);
            }
            if self.ended {
                return Ok(None);
            }
            let mut spin = self.spin.clone();
            let waited = !spin.wait(false, || Ok::<_, Error>(self.look()))? && {
                self.channel.arm(false)?;
                !self.look()
            };
            if waited {
                let asleep = Instant::now();
                let is_in_time = self.channel.wait(deadline)?;
                spin.slept(asleep.elapsed());
                self.signalled()?;
                if !is_in_time && !self.look() {
                    self.spin = spin;
                    return Err(Error::Deadline { peer: self.channel.pipe.peer().to_owned() });
                }
            }
            self.spin = spin;
        }
    }

    /// Returns the next frame without waiting.
    pub(crate) fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        match self.next_frame()? {
            Some(found) => self.lend(found).map(Received::Frame),
            None if self.ended => Ok(Received::End),
            None => Ok(Received::Nothing),
        }
    }

    /// Whether there is something to receive, as far as user space can see.
    pub(crate) fn look(&self) -> bool {
        let mut state = self.channel.state();
        if !state.receives_by_ring {
            return !self.stream.is_drained();
        }
        state.poll();
        let arrived =
            state.link.as_ref().is_none_or(|link| !link.arrived.is_empty() || link.failure.is_some());
        arrived || state.is_gone || self.ended
    }

    /// Whether only the kernel can report news.
    pub(crate) fn needs_only_kernel(&self) -> bool {
        self.stream.is_drained() && self.channel.state().link.is_none()
    }

    /// Called when the kernel reports the descriptor. Returns whether an attempt is worth while.
    pub(crate) fn signalled(&mut self) -> Result<bool, Error> {
        self.channel.take_events()?;
        let is_by_stream = !self.channel.state().receives_by_ring;
        Ok(is_by_stream || self.look())
    }

    /// Prepares the descriptor for a wait.
    pub(crate) fn arm(&self, is_blocked: bool) -> Result<(), Error> {
        self.channel.arm(is_blocked)
    }

    /// The TCP socket.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.channel.pipe.as_fd()
    }

    fn corrupt(&self, reason: String) -> Error {
        self.channel.error(reason)
    }

    /// Releases what is lent.
    fn release(&mut self) {
        if let Some((at, bytes)) = self.lent.take() {
            self.release_slot(at, bytes);
        }
        if std::mem::take(&mut self.long_lent) {
            self.long_filled = 0;
            if self.held.is_wanted() {
                self.long = Vec::new();
                self.held.release();
            }
        }
    }

    fn release_slot(&mut self, at: usize, bytes: usize) {
        if cfg!(debug_assertions)
            && let Some(ring) = &mut self.ring
        {
            ring.slot_mut(at, bytes).1.fill(POISON);
        }
        if let Some(link) = &mut self.channel.state().link {
            link.release(bytes);
        }
    }

    fn next_frame(&mut self) -> Result<Option<Found>, Error> {
        self.release();
        loop {
            if self.ended {
                return Ok(None);
            }
            let arrival = {
                let mut state = self.channel.state();
                let state = &mut *state;
                Channel::flush_stream(state)?;
                if state.receives_by_ring { Some(self.next_arrival(state)?) } else { None }
            };
            let found = match arrival {
                None => self.next_of_stream()?,
                Some(None) => return Ok(None),
                Some(Some(Arrival::End)) => {
                    self.ended = true;
                    Next::Frame(None)
                }
                Some(Some(Arrival::Frame { at })) => Next::Frame(Some(self.read_frame(at)?)),
                Some(Some(Arrival::Piece { at })) => self.read_piece(at)?,
            };
            match found {
                Next::Frame(found) => return Ok(found),
                Next::Again => {}
            }
        }
    }

    /// Takes the next arrival of the queue pair. A peer that is gone has sent nothing more.
    fn next_arrival(&self, state: &mut State) -> Result<Option<Arrival>, Error> {
        let Some(link) = &mut state.link else { return Err(self.corrupt("no queue pair".to_owned())) };
        if link.arrived.is_empty() {
            link.poll();
        }
        if let Some(arrival) = link.arrived.pop_front() {
            return Ok(Some(arrival));
        }
        if state.is_gone {
            return Ok(Some(Arrival::End));
        }
        match state.failure(&self.channel) {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }

    /// Reads an envelope of the TCP connection.
    fn next_of_stream(&mut self) -> Result<Next, Error> {
        let envelope = match self.stream.try_receive()? {
            Received::Frame(envelope) => envelope,
            Received::Nothing => return Ok(Next::Frame(None)),
            Received::End => {
                self.ended = true;
                return Ok(Next::Frame(None));
            }
        };
        let peer = self.channel.pipe.peer();
        let (header, body) = envelope.split_at(ENVELOPE_BYTES);
        let content =
            record::content(header).map_err(|reason| Error::NotAFrame { peer: peer.to_owned(), reason })?;
        let ring = if content == Content::Frame {
            if self.framing.frame_bytes(body, peer)? != Some(body.len()) {
                let reason = format!("a frame of {} bytes whose header says otherwise", body.len());
                return Err(Error::NotAFrame { peer: peer.to_owned(), reason });
            }
            self.channel.received_frame()?
        } else {
            self.channel.handle(content, body)?
        };
        self.ring = self.ring.take().or(ring);
        match content {
            Content::Frame => Ok(Next::Frame(Some(Found::Stream))),
            _ => Ok(Next::Again),
        }
    }

    /// Reads a frame in a slot, and checks its length. The accepting side copies it.
    fn read_frame(&mut self, at: usize) -> Result<Found, Error> {
        let Some(ring) = &self.ring else { return Err(self.corrupt("no ring".to_owned())) };
        let header_bytes = self.framing.header_bytes;
        let room = ring.bytes().saturating_sub(at + FRAME_AT_BYTES);
        let mut header = [0u64; HEADER_WORDS_MAX];
        let words = header_bytes.div_ceil(size_of::<u64>());
        if room < words * size_of::<u64>() {
            return Err(self.corrupt(format!("a frame at {at} of a ring of {}", ring.bytes())));
        }
        // Read once, because the peer could change it between two reads.
        ring.copy_frame(at, &mut header[..words]);
        let header = &bytemuck::cast_slice(&header)[..header_bytes];
        let bytes = self.framing.frame_bytes(header, self.channel.pipe.peer())?.unwrap_or_default();
        let words = bytes.div_ceil(size_of::<u64>());
        if words * size_of::<u64>() > room {
            return Err(
                self.corrupt(format!("a frame of {bytes} bytes at {at} of a ring of {}", ring.bytes()))
            );
        }
        if self.channel.is_client {
            self.lent = Some((at, bytes));
            return Ok(Found::Slot { at, bytes });
        }
        if self.copy.len() < words {
            grow(&mut self.copy, words.next_power_of_two(), self.channel.pipe.peer())?;
        }
        ring.copy_frame(at, &mut self.copy[..words]);
        self.release_slot(at, bytes);
        Ok(Found::Copy { bytes })
    }

    /// The length of the next piece: the longest possible, or the rest of the frame.
    fn piece_bytes(&self) -> Result<usize, Error> {
        let longest = self.channel.state().link.as_ref().map_or(0, super::link::Link::piece_bytes_max);
        let there: &[u8] = &bytemuck::cast_slice(&self.long)[..self.long_filled];
        let whole = self.framing.frame_bytes(there, self.channel.pipe.peer())?;
        Ok(whole.map_or(longest, |whole| longest.min(whole.saturating_sub(self.long_filled))))
    }

    /// Adds a piece to the long frame.
    fn read_piece(&mut self, at: usize) -> Result<Next, Error> {
        let bytes = self.piece_bytes()?;
        let peer = self.channel.pipe.peer();
        let Some(ring) = &self.ring else { return Err(self.corrupt("no ring".to_owned())) };
        let room = ring.bytes().saturating_sub(at + FRAME_AT_BYTES);
        if !self.long_filled.is_multiple_of(size_of::<u64>())
            || bytes == 0
            || bytes.next_multiple_of(8) > room
        {
            return Err(self.corrupt(format!(
                "a piece of {bytes} bytes at {at} of a ring of {}, behind {}",
                ring.bytes(),
                self.long_filled
            )));
        }
        let (from, words) = (self.long_filled / size_of::<u64>(), bytes.div_ceil(size_of::<u64>()));
        if self.long.len() < from + words {
            // Only received bytes grow the buffer. The length in a header is a claim.
            let grown = (from + words).next_power_of_two();
            let beyond = (grown * size_of::<u64>()).saturating_sub(BUFFER_BYTES_FREE);
            self.held.raise(beyond).map_err(|bytes_max| Error::BuffersFull {
                peer: peer.to_owned(),
                bytes: self.long_filled + bytes,
                bytes_max,
            })?;
            grow(&mut self.long, grown, peer)?;
        }
        ring.copy_frame(at, &mut self.long[from..from + words]);
        self.long_filled += bytes;
        let there: &[u8] = &bytemuck::cast_slice(&self.long)[..self.long_filled];
        let needed = self.framing.frame_bytes(there, peer)?;
        let filled = self.long_filled;
        self.release_slot(at, bytes);
        match needed {
            Some(needed) if filled == needed => Ok(Next::Frame(Some(Found::Long { bytes: needed }))),
            Some(needed) if filled < needed => Ok(Next::Again),
            _ => Err(self.corrupt(format!("pieces of {filled} bytes for a frame of {needed:?}"))),
        }
    }

    fn lend(&mut self, found: Found) -> Result<&[u8], Error> {
        let frame = match found {
            Found::Stream => return Ok(&self.stream.lent_bytes()[ENVELOPE_BYTES..]),
            Found::Slot { at, bytes } => match &self.ring {
                Some(ring) => ring.frame(at, bytes),
                None => &[],
            },
            Found::Copy { bytes } => &bytemuck::cast_slice(&self.copy)[..bytes],
            Found::Long { bytes } => {
                self.long_lent = true;
                &bytemuck::cast_slice(&self.long)[..bytes]
            }
        };
        // The peer may have changed the header since its length was read.
        if self.framing.frame_bytes(frame, self.channel.pipe.peer())? != Some(frame.len()) {
            let reason = format!("a frame of {} bytes whose header says otherwise", frame.len());
            return Err(self.channel.error(reason));
        }
        Ok(frame)
    }
}

/// The result of one step of the receiver.
enum Next {
    /// A frame, or nothing now.
    Frame(Option<Found>),
    /// No frame yet, but there may be more to read.
    Again,
}

impl AsFd for RdmaReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
