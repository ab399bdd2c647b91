//! A connection and its two halves, over any kind of transport. It opens nothing and waits for one peer only.

use std::io::IoSlice;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::error::Error;
use crate::options::Framing;
#[cfg(feature = "rdma")]
use crate::rdma::{Card, GatherFrame, RdmaCommit, RdmaReceiver, RdmaSender};
use crate::receive_budget::ReceiveBudget;
use crate::received::Received;
use crate::shm::{RingCommit, RingReceiver, RingSender};
use crate::stream::{StreamReceiver, StreamSender};

/// Both halves of a connection. Two threads may own one half each.
///
/// Dropping the sender ends this direction; dropping both halves closes the connection.
#[derive(Debug)]
pub struct Connection {
    /// Sends frames.
    pub sender: Sender,
    /// Receives frames.
    pub receiver: Receiver,
}

impl Connection {
    /// Splits the connection into its halves.
    pub fn split(self) -> (Sender, Receiver) {
        (self.sender, self.receiver)
    }

    /// Name of the peer, for messages.
    pub fn peer(&self) -> &str {
        self.sender.peer()
    }

    /// Whether the kernel says that the process at the other end belongs to this user.
    #[must_use]
    pub fn is_of_this_user(&self) -> bool {
        crate::peer_user::is_of_this_user(self.socket())
    }

    /// The socket to the peer, which is not always what is polled.
    fn socket(&self) -> BorrowedFd<'_> {
        match &self.receiver.way {
            ReceivingWay::Stream(stream) => stream.as_fd(),
            ReceivingWay::Ring(ring) => ring.as_fd(),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.socket(),
        }
    }

    /// Whether an attempt is worth while, as far as user space can see.
    pub(crate) fn look(&mut self) -> bool {
        if let Some(gives_up_at) = self.gives_up_at() {
            let room = match &mut self.sender.way {
                // The kernel reports it.
                SendingWay::Stream(_) => false,
                SendingWay::Ring(ring) => ring.look().unwrap_or(true),
                #[cfg(feature = "rdma")]
                SendingWay::Rdma(rdma) => rdma.look(),
            };
            return room || gives_up_at <= Instant::now();
        }
        match &mut self.receiver.way {
            ReceivingWay::Stream(stream) => !stream.is_drained(),
            // The receiver finds the error again and reports it.
            ReceivingWay::Ring(ring) => ring.look().unwrap_or(true),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.look(),
        }
    }

    /// Tells a peer in shared memory on which processor this thread waits; whether the peer waits there, too.
    pub(crate) fn shares_processor(&self, processor: u32) -> bool {
        let (SendingWay::Ring(sender), ReceivingWay::Ring(receiver)) = (&self.sender.way, &self.receiver.way)
        else {
            return false;
        };
        receiver.waits_at(processor);
        sender.is_peer_at(processor)
    }

    /// Whether only the kernel, which watches for reading, can report news.
    pub(crate) fn needs_only_kernel(&self) -> bool {
        let drained = match &self.receiver.way {
            ReceivingWay::Stream(stream) => stream.is_drained(),
            ReceivingWay::Ring(_) => false,
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.needs_only_kernel(),
        };
        drained && self.gives_up_at().is_none()
    }

    /// Arms the connection to wake the thread that is about to sleep.
    pub(crate) fn arm(&mut self) -> Arming {
        if self.look() {
            return Arming::Ready;
        }
        let blocked = self.gives_up_at().is_some();
        #[cfg(feature = "rdma")]
        if let ReceivingWay::Rdma(rdma) = &self.receiver.way {
            // The next attempt finds an error again and reports it.
            let is_armed = rdma.arm(blocked).is_ok() && !self.look();
            return if is_armed { Arming::Watch { writing: false } } else { Arming::Ready };
        }
        match (&mut self.sender.way, &mut self.receiver.way) {
            (SendingWay::Stream(stream), _) => {
                Arming::Watch { writing: blocked && stream.sends_by_writing() }
            }
            (SendingWay::Ring(ring), _) if blocked && ring.sleeps() => Arming::Watch { writing: false },
            (_, ReceivingWay::Ring(ring)) if !blocked && ring.sleeps() => Arming::Watch { writing: false },
            _ => Arming::Ready,
        }
    }

    /// Called when the kernel reports the socket. Returns whether an attempt is worth while.
    pub(crate) fn signalled(&mut self) -> bool {
        match &mut self.receiver.way {
            ReceivingWay::Stream(_) => true,
            // Without a peer, a blocked sender waits in vain, whatever is left to receive.
            ReceivingWay::Ring(ring) => {
                ring.take_wakeups().is_err() || ring.has_ended() || ring.is_abandoned() || self.look()
            }
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.signalled().unwrap_or(true) || self.look(),
        }
    }

    /// The time at which the connection must be looked at again, whatever happens.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        let gives_up_at = self.gives_up_at();
        #[cfg(feature = "rdma")]
        if let SendingWay::Rdma(rdma) = &self.sender.way {
            return gives_up_at.into_iter().chain(rdma.holds_until()).min();
        }
        gives_up_at
    }

    /// The time at which a blocked sender gives up.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        match &self.sender.way {
            SendingWay::Stream(stream) => stream.gives_up_at(),
            SendingWay::Ring(ring) => ring.gives_up_at(),
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => rdma.gives_up_at(),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.receiver.way {
            ReceivingWay::Stream(stream) => stream.as_fd(),
            ReceivingWay::Ring(ring) => ring.as_fd(),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.as_fd(),
        }
    }
}

/// The preparation of a connection before its thread sleeps.
pub(crate) enum Arming {
    /// Nothing: there is something to do now.
    Ready,
    /// The kernel must watch its socket: for reading, or for writing.
    Watch {
        /// For writing only.
        writing: bool,
    },
}

/// The sending half of a connection.
///
/// A frame is written into memory of the sender, committed, and sent by a flush: several frames go in one system call
/// or wake-up. Dropping the sender discards frames that were not flushed.
#[derive(Debug)]
pub struct Sender {
    framing: Framing,
    way: SendingWay,
}

#[derive(Debug)]
enum SendingWay {
    Stream(StreamSender),
    Ring(RingSender),
    #[cfg(feature = "rdma")]
    Rdma(RdmaSender),
}

/// Memory for one frame, borrowed from a [`Sender`]: the send buffer of a socket, or a slot of the shared ring.
///
/// It is aligned to 8 bytes and holds arbitrary bytes at first. In shared memory a hostile peer can change them at any
/// time, so never decide anything by reading back. Dropping it uncommitted sends nothing.
#[derive(Debug)]
pub struct SlotMut<'a> {
    bytes: &'a mut [u8],
    framing: &'a Framing,
    place: Place<'a>,
}

#[derive(Debug)]
enum Place<'a> {
    /// The end of the buffer's content.
    Buffer(&'a mut usize),
    /// A slot of the ring.
    Slot(RingCommit<'a>),
    /// A slot of the ring of a queue pair, or a buffer.
    #[cfg(feature = "rdma")]
    Rdma(RdmaCommit<'a>),
}

impl Sender {
    pub(crate) fn stream(stream: StreamSender, framing: Framing) -> Sender {
        Sender { framing, way: SendingWay::Stream(stream) }
    }

    pub(crate) fn ring(ring: RingSender, framing: Framing) -> Sender {
        Sender { framing, way: SendingWay::Ring(ring) }
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn rdma(rdma: RdmaSender, framing: Framing) -> Sender {
        Sender { framing, way: SendingWay::Rdma(rdma) }
    }

    /// Borrows memory for a frame of at most `bytes_max` bytes and waits until there is room.
    ///
    /// # Errors
    /// [`Error::FrameTooLong`] beyond the framing's limit, [`Error::SendTimeout`] when the peer reads nothing,
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
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => {
                let (place, bytes) = rdma.frame(bytes_max)?;
                (bytes, Place::Rdma(place))
            }
        };
        Ok(SlotMut { bytes, framing: &self.framing, place })
    }

    /// Borrows memory for a frame without waiting. `None`: there is no room; a `Poller` tells when to retry.
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
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => {
                rdma.try_frame(bytes_max)?.map(|(place, bytes)| (bytes, Place::Rdma(place)))
            }
        };
        Ok(lent.map(|(bytes, place)| SlotMut { bytes, framing: &self.framing, place }))
    }

    /// Sends all committed frames and waits for the peer.
    ///
    /// # Errors
    /// [`Error::SendTimeout`] when the peer reads nothing, [`Error::Closed`] when it is gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.flush(),
            SendingWay::Ring(ring) => {
                ring.flush();
                Ok(())
            }
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => rdma.flush(),
        }
    }

    /// Sends as much as possible without waiting. `true`: everything is sent. A `Poller` tells when to retry.
    ///
    /// # Errors
    /// As [`Sender::flush`]. The timeout counts from the last progress.
    pub fn try_flush(&mut self) -> Result<bool, Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.try_flush(),
            SendingWay::Ring(ring) => {
                ring.flush();
                Ok(true)
            }
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => rdma.try_flush(),
        }
    }

    /// Sends one frame made of pieces after all committed frames, and flushes. Sockets need no copy of the pieces.
    ///
    /// # Errors
    /// As [`Sender::frame`]. After an error part of the frame may have been sent.
    pub fn send_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), Error> {
        match &mut self.way {
            SendingWay::Stream(stream) => stream.send_vectored(pieces),
            _ => {
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

    /// The card that may gather frames of this connection. `None`: it has none, or there is no queue pair yet.
    #[cfg(feature = "rdma")]
    pub fn card(&self) -> Option<Card> {
        if let SendingWay::Rdma(rdma) = &self.way { rdma.card() } else { None }
    }

    /// Sends a frame that the card gathers, after all committed frames. `false`: the card cannot take it now, and nothing
    /// was done.
    ///
    /// The frame's memory is kept until the card has read it. If that takes longer than the write timeout, the
    /// connection ends.
    ///
    /// # Errors
    /// As [`Sender::try_frame`].
    #[cfg(feature = "rdma")]
    pub fn try_gather(&mut self, frame: GatherFrame) -> Result<bool, Error> {
        if let SendingWay::Rdma(rdma) = &mut self.way { rdma.try_gather(frame) } else { Ok(false) }
    }

    /// Whether committed frames wait for the peer.
    pub fn is_blocked(&self) -> bool {
        match &self.way {
            SendingWay::Stream(stream) => stream.gives_up_at().is_some(),
            SendingWay::Ring(ring) => ring.gives_up_at().is_some(),
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => rdma.gives_up_at().is_some(),
        }
    }

    /// Name of the peer, for messages.
    pub fn peer(&self) -> &str {
        match &self.way {
            SendingWay::Stream(stream) => stream.pipe.peer(),
            SendingWay::Ring(ring) => &ring.socket.peer,
            #[cfg(feature = "rdma")]
            SendingWay::Rdma(rdma) => rdma.peer(),
        }
    }
}

impl SlotMut<'_> {
    /// Marks the first `bytes` as a whole frame, to be sent with the next flush.
    ///
    /// # Panics
    /// If the framing computes another length, or `bytes` exceeds the borrowed memory.
    pub fn commit(self, bytes: usize) {
        let header = &self.bytes[..bytes][..self.framing.header_bytes];
        let body = (self.framing.body_bytes)(header);
        assert_eq!(body.as_ref().ok(), Some(&(bytes - header.len())), "a frame whose header says {body:?}");
        match self.place {
            Place::Buffer(filled) => *filled += bytes,
            Place::Slot(slot) => slot.commit(bytes),
            #[cfg(feature = "rdma")]
            Place::Rdma(place) => place.commit(bytes),
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

/// The receiving half of a connection. A frame is borrowed until the next call.
///
/// The accepting side borrows private memory. The connecting side of a shared-memory connection borrows the server's
/// slot itself, which a hostile server can change meanwhile: read sizes and offsets once.
#[derive(Debug)]
pub struct Receiver {
    way: ReceivingWay,
}

#[derive(Debug)]
enum ReceivingWay {
    Stream(StreamReceiver),
    Ring(RingReceiver),
    #[cfg(feature = "rdma")]
    Rdma(RdmaReceiver),
}

impl Receiver {
    pub(crate) fn stream(stream: StreamReceiver) -> Receiver {
        Receiver { way: ReceivingWay::Stream(stream) }
    }

    pub(crate) fn ring(ring: RingReceiver) -> Receiver {
        Receiver { way: ReceivingWay::Ring(ring) }
    }

    #[cfg(feature = "rdma")]
    pub(crate) fn rdma(rdma: RdmaReceiver) -> Receiver {
        Receiver { way: ReceivingWay::Rdma(rdma) }
    }

    /// Lowers the frame limit, for peers that have not authenticated, so that they need little memory.
    pub fn limit_frames(&mut self, frame_bytes_max: usize) {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.limit_frames(frame_bytes_max),
            ReceivingWay::Ring(ring) => ring.limit_frames(frame_bytes_max),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.limit_frames(frame_bytes_max),
        }
    }

    /// Shares the memory for long frames with other connections. If it is used up, this connection fails with
    /// [`Error::BuffersFull`].
    ///
    /// A ring has all its memory from the start.
    pub fn share_memory(&mut self, budget: &ReceiveBudget) {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.share_memory(budget),
            ReceivingWay::Ring(_) => {}
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.share_memory(budget),
        }
    }

    /// Waits for the next whole frame. `None`: the peer has sent its last one.
    ///
    /// # Errors
    /// [`Error::Deadline`] when none came in time (the call may be repeated), [`Error::Cut`] when the connection ended
    /// inside a frame, [`Error::FrameTooLong`], [`Error::NotAFrame`] or [`Error::Corrupt`] for bytes that no correct
    /// peer sends.
    pub fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<&[u8]>, Error> {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.receive(deadline),
            ReceivingWay::Ring(ring) => ring.receive(deadline),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.receive(deadline),
        }
    }

    /// Returns the next whole frame without waiting. A `Poller` tells when another attempt is worth while.
    ///
    /// # Errors
    /// As [`Receiver::receive`], without the deadline.
    pub fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        match &mut self.way {
            ReceivingWay::Stream(stream) => stream.try_receive(),
            ReceivingWay::Ring(ring) => ring.try_receive(),
            #[cfg(feature = "rdma")]
            ReceivingWay::Rdma(rdma) => rdma.try_receive(),
        }
    }
}
