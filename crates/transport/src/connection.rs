//! A connection and its two halves, the same whatever carries the bytes. It opens nothing and waits for one peer only.

use std::io::IoSlice;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::error::Error;
use crate::options::Framing;
use crate::poller::Arming;
use crate::receive_budget::ReceiveBudget;
use crate::shm::{RingCommit, RingReceiver, RingSender};
use crate::stream::{StreamReceiver, StreamSender};

/// Both halves of a connection. They may be taken apart and owned by two threads.
///
/// Dropping the sender tells the peer that nothing more will come; dropping both closes the connection.
#[derive(Debug)]
pub struct Connection {
    /// Sends frames.
    pub sender: Sender,
    /// Receives frames.
    pub receiver: Receiver,
}

impl Connection {
    /// The two halves.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Who is at the other end, for messages.
    pub fn peer(&self) -> &str {
        self.sender.peer()
    }

    /// Whether the kernel says that the process at the other end belongs to this user.
    #[must_use]
    pub fn is_of_this_user(&self) -> bool {
        crate::peer_user::is_of_this_user(self)
    }

    /// Is it worth trying now, as far as can be seen without the kernel?
    pub(crate) fn look(&mut self) -> bool {
        if let Some(gives_up_at) = self.gives_up_at() {
            let room = match &mut self.sender.way {
                // The kernel says so.
                SendingWay::Stream(_) => false,
                SendingWay::Ring(ring) => ring.look().unwrap_or(true),
            };
            return room || gives_up_at <= Instant::now();
        }
        match &mut self.receiver.way {
            ReceivingWay::Stream(stream) => !stream.is_drained(),
            // An error is found again, and reported, by who receives.
            ReceivingWay::Ring(ring) => ring.look().unwrap_or(true),
        }
    }

    /// Is there nothing to see but by the kernel, which watches it for reading?
    pub(crate) fn needs_only_kernel(&self) -> bool {
        let drained = matches!(&self.receiver.way, ReceivingWay::Stream(stream) if stream.is_drained());
        drained && self.gives_up_at().is_none()
    }

    /// Makes it wake the thread that will sleep.
    pub(crate) fn arm(&mut self) -> Arming {
        if self.look() {
            return Arming::Ready;
        }
        let blocked = self.gives_up_at().is_some();
        match (&mut self.sender.way, &mut self.receiver.way) {
            (SendingWay::Stream(stream), _) => {
                Arming::Watch { writing: blocked && stream.sends_by_writing() }
            }
            (SendingWay::Ring(ring), _) if blocked && ring.sleeps() => Arming::Watch { writing: false },
            (_, ReceivingWay::Ring(ring)) if !blocked && ring.sleeps() => Arming::Watch { writing: false },
            _ => Arming::Ready,
        }
    }

    /// The kernel has something to tell about its socket: is it worth trying?
    pub(crate) fn signalled(&mut self) -> bool {
        match &mut self.receiver.way {
            ReceivingWay::Stream(_) => true,
            // A sender that is blocked waits in vain when the peer is gone, whatever is left to receive.
            ReceivingWay::Ring(ring) => {
                ring.take_wakeups().is_err() || ring.has_ended() || ring.is_abandoned() || self.look()
            }
        }
    }

    /// When a sender that is blocked will be given up.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        match &self.sender.way {
            SendingWay::Stream(stream) => stream.gives_up_at(),
            SendingWay::Ring(ring) => ring.gives_up_at(),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.receiver.way {
            ReceivingWay::Stream(stream) => stream.as_fd(),
            ReceivingWay::Ring(ring) => ring.as_fd(),
        }
    }
}

/// The sending half of a connection.
///
/// Frames are written into memory that the sender lends, are committed, and go when they are flushed: several at once,
/// in one system call or one wake-up. What is committed and not flushed is lost when the sender is dropped.
#[derive(Debug)]
pub struct Sender {
    framing: Framing,
    way: SendingWay,
}

#[derive(Debug)]
enum SendingWay {
    Stream(StreamSender),
    Ring(RingSender),
}

/// Memory for one frame, lent by a [`Sender`]: the send buffer of a socket, or a slot of the shared ring. It starts at a
/// multiple of eight.
///
/// It holds arbitrary bytes until they are overwritten. In shared memory a peer can read, and if it is hostile change,
/// them at any time: write here, and decide nothing by reading back. Dropping it uncommitted sends nothing.
#[derive(Debug)]
pub struct SlotMut<'a> {
    bytes: &'a mut [u8],
    framing: &'a Framing,
    place: Place<'a>,
}

#[derive(Debug)]
enum Place<'a> {
    /// The end of what a buffer holds.
    Buffer(&'a mut usize),
    /// A slot of the ring.
    Slot(RingCommit<'a>),
}

/// What an attempt to receive gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A whole frame, at an address that is a multiple of eight.
    Frame(&'a [u8]),
    /// No whole frame now.
    Nothing,
    /// The peer has sent its last frame.
    End,
}

impl Sender {
    pub(crate) fn stream(stream: StreamSender, framing: Framing) -> Sender {
        Sender { framing, way: SendingWay::Stream(stream) }
    }

    pub(crate) fn ring(ring: RingSender, framing: Framing) -> Sender {
        Sender { framing, way: SendingWay::Ring(ring) }
    }

    /// Lends memory for a frame of at most `bytes_max` bytes, waiting for the peer to make room if there is none.
    ///
    /// # Errors
    /// [`Error::FrameTooLong`] beyond the framing's limit, [`Error::SendTimeout`] when the peer takes nothing,
    /// [`Error::Closed`] when it is gone.
    pub fn frame(&mut self, bytes_max: usize) -> Result<SlotMut<'_>, Error> {
        let (bytes, place) = match &mut self.way {
            SendingWay::Stream(stream) => {
                let (bytes, filled) = stream.frame(bytes_max)?;
                (bytes, Place::Buffer(filled))
            }
            SendingWay::Ring(ring) => {
                let (slot, bytes) = ring.frame(bytes_max)?;
                (bytes, Place::Slot(slot))
            }
        };
        Ok(SlotMut { bytes, framing: &self.framing, place })
    }

    /// The same without waiting: `None` while the peer leaves no room. A `Poller` says when to try again.
    ///
    /// # Errors
    /// As [`Sender::frame`].
    pub fn try_frame(&mut self, bytes_max: usize) -> Result<Option<SlotMut<'_>>, Error> {
        let lent = match &mut self.way {
            SendingWay::Stream(stream) => {
                stream.try_frame(bytes_max)?.map(|(bytes, filled)| (bytes, Place::Buffer(filled)))
            }
            SendingWay::Ring(ring) => {
                ring.try_frame(bytes_max)?.map(|(slot, bytes)| (bytes, Place::Slot(slot)))
            }
        };
        Ok(lent.map(|(bytes, place)| SlotMut { bytes, framing: &self.framing, place }))
    }

    /// Sends all that was committed, waiting for the peer.
    ///
    /// # Errors
    /// [`Error::SendTimeout`] when the peer takes nothing, [`Error::Closed`] when it is gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.flush(),
            SendingWay::Ring(ring) => {
                ring.flush();
                Ok(())
            }
        }
    }

    /// Sends as much as the peer takes now. `true`: all of it. A `Poller` says when to try again.
    ///
    /// # Errors
    /// As [`Sender::flush`]: the timeout counts from when the peer last took something.
    pub fn try_flush(&mut self) -> Result<bool, Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.try_flush(),
            SendingWay::Ring(ring) => {
                ring.flush();
                Ok(true)
            }
        }
    }

    /// Sends one frame made of pieces, after all that was committed, and flushes. A socket takes the pieces from where
    /// they are; shared memory copies them.
    ///
    /// # Errors
    /// As [`Sender::frame`]. After an error part of the frame may have gone.
    pub fn send_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.send_vectored(pieces),
            SendingWay::Ring(_) => {
                let mut slot = self.frame(pieces.iter().map(|piece| piece.len()).sum())?;
                let mut filled = 0;
                for piece in pieces {
                    slot[filled..filled + piece.len()].copy_from_slice(piece);
                    filled += piece.len();
                }
                slot.commit(filled);
                self.flush()
            }
        }
    }

    /// Is something that could not be sent waiting for the peer?
    pub fn is_blocked(&self) -> bool {
        match &self.way {
            SendingWay::Stream(stream) => stream.gives_up_at().is_some(),
            SendingWay::Ring(ring) => ring.gives_up_at().is_some(),
        }
    }

    /// Who is at the other end, for messages.
    pub fn peer(&self) -> &str {
        match &self.way {
            SendingWay::Stream(stream) => stream.pipe.peer(),
            SendingWay::Ring(ring) => &ring.socket.peer,
        }
    }
}

impl SlotMut<'_> {
    /// The first `bytes` of this memory are a whole frame, to be sent with the next flush.
    ///
    /// # Panics
    /// When they are not: when the framing sees another length, or `bytes` is more than was lent.
    pub fn commit(self, bytes: usize) {
        let header = &self.bytes[..bytes][..self.framing.header_bytes];
        let body = (self.framing.body_bytes)(header);
        assert_eq!(body.as_ref().ok(), Some(&(bytes - header.len())), "a frame whose header says {body:?}");
        match self.place {
            Place::Buffer(filled) => *filled += bytes,
            Place::Slot(slot) => slot.commit(bytes),
        }
    }

    /// Copies a whole frame and commits it.
    ///
    /// # Panics
    /// As [`SlotMut::commit`].
    pub fn write(self, frame: &[u8]) {
        self.bytes[..frame.len()].copy_from_slice(frame);
        self.commit(frame.len());
    }
}

impl Deref for SlotMut<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes
    }
}

impl DerefMut for SlotMut<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.bytes
    }
}

/// The receiving half of a connection. A frame is lent until the next call.
///
/// What the accepting side is lent is private memory. What the connecting side is lent on shared memory is the server's
/// slot itself: a server that breaks the rules can change it while it is read, so a client that does not trust its
/// server takes sizes and offsets out of it once.
#[derive(Debug)]
pub struct Receiver {
    way: ReceivingWay,
}

#[derive(Debug)]
enum ReceivingWay {
    Stream(StreamReceiver),
    Ring(RingReceiver),
}

impl Receiver {
    pub(crate) fn stream(stream: StreamReceiver) -> Receiver {
        Receiver { way: ReceivingWay::Stream(stream) }
    }

    pub(crate) fn ring(ring: RingReceiver) -> Receiver {
        Receiver { way: ReceivingWay::Ring(ring) }
    }

    /// Takes no longer frames from now on: for peers that are not known yet, so that none makes room for more.
    pub fn limit_frames(&mut self, frame_bytes_max: usize) {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.limit_frames(frame_bytes_max),
            ReceivingWay::Ring(ring) => ring.limit_frames(frame_bytes_max),
        }
    }

    /// From now on the memory for long frames is part of what many connections share: where there is no more, this one fails
    /// with [`Error::BuffersFull`]. A ring has its memory from the start.
    pub fn share_memory(&mut self, budget: &ReceiveBudget) {
        if let ReceivingWay::Stream(stream) = &mut self.way {
            stream.share_memory(budget);
        }
    }

    /// Waits for the next whole frame. `None`: the peer has sent its last one.
    ///
    /// # Errors
    /// [`Error::Deadline`] when none came in time (ask again at will), [`Error::Cut`] when the connection ended inside
    /// a frame, [`Error::FrameTooLong`], [`Error::NotAFrame`] or [`Error::Corrupt`] for what no correct peer sends.
    pub fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<&[u8]>, Error> {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.receive(deadline),
            ReceivingWay::Ring(ring) => ring.receive(deadline),
        }
    }

    /// The next whole frame if it is there; never waits. [`Received::Nothing`] is as of the last time that the system was
    /// asked: what has come since then is found by the next attempt, and a `Poller` says when that is worth while.
    ///
    /// # Errors
    /// As [`Receiver::receive`], but for the deadline.
    pub fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.try_receive(),
            ReceivingWay::Ring(ring) => ring.try_receive(),
        }
    }
}
