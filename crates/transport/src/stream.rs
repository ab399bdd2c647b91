//! Frames over a byte stream, with a send buffer and a receive buffer. Only `Framing` tells the length of a frame. The
//! stream may be encrypted.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::memory::grow;
use crate::options::Framing;
use crate::pipe::Pipe;
use crate::receive_budget::{Held, ReceiveBudget};
use crate::received::Received;
use crate::socket::{IOV_MAX, Read};
use crate::spin::Spin;
use crate::tls::{NO_TLS, is_tls_alert, is_tls_hello};

/// Initial buffer size, so small that a thousand idle connections cost little.
const BUFFER_BYTES_MIN: usize = 16 << 10;
/// Buffer size for batches of frames. A longer frame grows its buffer as the bytes arrive.
const BUFFER_BYTES_BATCH: usize = 256 << 10;
/// Alignment of borrowed frames.
const FRAME_ALIGN_BYTES: usize = size_of::<u64>();

/// A buffer of the initial size.
fn first_buffer(pipe: &Pipe) -> Result<Vec<u64>, Error> {
    let mut buffer = Vec::new();
    grow(&mut buffer, BUFFER_BYTES_MIN / FRAME_ALIGN_BYTES, pipe.peer())?;
    Ok(buffer)
}

/// The sending half of a stream.
#[derive(Debug)]
pub(crate) struct StreamSender {
    pub(crate) pipe: Pipe,
    framing: Framing,
    write_timeout: Duration,
    /// The buffer, in words for alignment. The bytes `sent..filled` wait to be sent.
    buffer: Vec<u64>,
    sent: usize,
    filled: usize,
    /// Start of the present blockage: the peer has accepted no bytes since.
    blocked_since: Option<Instant>,
    /// The pipe's progress counter at that time.
    taken: u64,
}

impl StreamSender {
    pub(crate) fn new(pipe: Pipe, framing: Framing, write_timeout: Duration) -> Result<StreamSender, Error> {
        let buffer = first_buffer(&pipe)?;
        let (sent, filled, blocked_since, taken) = (0, 0, None, 0);
        Ok(StreamSender { pipe, framing, write_timeout, buffer, sent, filled, blocked_since, taken })
    }

    /// Room for a frame of `bytes_max`, and the fill count to raise. Waits for the peer if necessary.
    pub(crate) fn frame(&mut self, bytes_max: usize) -> Result<(&mut [u8], &mut usize), Error> {
        self.framing.check_length(bytes_max, self.pipe.peer())?;
        if !self.make_room(bytes_max)? {
            self.flush()?;
            let made = self.make_room(bytes_max)?;
            debug_assert!(made, "an empty buffer grows to any frame");
        }
        Ok(self.lend(bytes_max))
    }

    /// Room for a frame without waiting. `None`: too many bytes wait to be sent.
    pub(crate) fn try_frame(&mut self, bytes_max: usize) -> Result<Option<(&mut [u8], &mut usize)>, Error> {
        self.framing.check_length(bytes_max, self.pipe.peer())?;
        if !self.make_room(bytes_max)? {
            self.try_flush()?;
            if !self.make_room(bytes_max)? {
                return Ok(None);
            }
        }
        Ok(Some(self.lend(bytes_max)))
    }

    fn lend(&mut self, bytes: usize) -> (&mut [u8], &mut usize) {
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        (&mut buffer[self.filled..][..bytes], &mut self.filled)
    }

    /// Makes room for `bytes` more at an aligned position. Pending bytes are moved if necessary, since the peer may
    /// have accepted any part of a frame.
    fn make_room(&mut self, bytes: usize) -> Result<bool, Error> {
        if self.sent == self.filled {
            (self.sent, self.filled) = (0, 0);
        }
        let capacity = self.buffer.len() * FRAME_ALIGN_BYTES;
        if self.filled.is_multiple_of(FRAME_ALIGN_BYTES) && self.filled + bytes <= capacity {
            return Ok(true);
        }
        let waiting = self.filled - self.sent;
        let filled = waiting.next_multiple_of(FRAME_ALIGN_BYTES);
        let needed = filled + bytes;
        if needed > capacity {
            if waiting > 0 && needed > BUFFER_BYTES_BATCH {
                return Ok(false);
            }
            let grown = needed.next_power_of_two().min(self.framing.frame_bytes_max.max(BUFFER_BYTES_BATCH));
            let words = grown.max(needed).div_ceil(FRAME_ALIGN_BYTES);
            grow(&mut self.buffer, words, self.pipe.peer())?;
        }
        let all: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        all.copy_within(self.sent..self.filled, filled - waiting);
        (self.sent, self.filled) = (filled - waiting, filled);
        Ok(true)
    }

    /// Adds bytes to those that wait to be sent, however many they are.
    #[cfg(feature = "rdma")]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if !self.make_room(bytes.len())? {
            self.try_flush()?;
            if !self.make_room(bytes.len())? {
                let capacity = self.buffer.len() * FRAME_ALIGN_BYTES;
                let words = (capacity + bytes.len()).div_ceil(FRAME_ALIGN_BYTES) + 1;
                grow(&mut self.buffer, words, self.pipe.peer())?;
                self.make_room(bytes.len())?;
            }
        }
        let (room, filled) = self.lend(bytes.len());
        room.copy_from_slice(bytes);
        *filled += bytes.len();
        Ok(())
    }

    /// Start of the present blockage.
    #[cfg(feature = "rdma")]
    pub(crate) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// Whether no bytes wait to be sent.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_flushed(&self) -> bool {
        self.sent == self.filled && self.blocked_since.is_none()
    }

    /// Sends all committed frames and waits for the peer.
    pub(crate) fn flush(&mut self) -> Result<(), Error> {
        while !self.try_flush()? {
            self.pipe.wait_writable(self.gives_up_at())?;
        }
        Ok(())
    }

    /// Sends as much as possible without waiting. `true`: everything is sent.
    pub(crate) fn try_flush(&mut self) -> Result<bool, Error> {
        while self.sent < self.filled {
            let waiting = &bytemuck::cast_slice(&self.buffer)[self.sent..self.filled];
            match self.pipe.try_write(&[IoSlice::new(waiting)])? {
                Some(bytes) => {
                    self.sent += bytes;
                    self.blocked_since = None;
                }
                None => return self.blocked().map(|()| false),
            }
        }
        (self.sent, self.filled) = (0, 0);
        if !self.pipe.try_flush()? {
            return self.blocked().map(|()| false);
        }
        self.blocked_since = None;
        Ok(true)
    }

    /// Sends a frame from pieces after all committed frames, without copying it together.
    pub(crate) fn send_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), Error> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        self.framing.check_length(bytes, self.pipe.peer())?;
        self.flush()?;
        let mut all = pieces.to_vec();
        let mut left = &mut all[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match self.pipe.try_write(&left[..left.len().min(IOV_MAX)])? {
                Some(bytes) => {
                    IoSlice::advance_slices(&mut left, bytes);
                    self.blocked_since = None;
                }
                None => {
                    self.blocked()?;
                    self.pipe.wait_writable(self.gives_up_at())?;
                }
            }
        }
        self.flush()
    }

    /// Records a blockage. Fails when it has lasted for the write timeout.
    fn blocked(&mut self) -> Result<(), Error> {
        let taken = self.pipe.taken();
        if std::mem::replace(&mut self.taken, taken) != taken {
            self.blocked_since = None;
        }
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.write_timeout {
            let peer = self.pipe.peer().to_owned();
            return Err(Error::SendTimeout { peer, timeout: self.write_timeout });
        }
        Ok(())
    }

    /// Whether sending waits for the peer's reading, not for its part of a TLS handshake.
    pub(crate) fn sends_by_writing(&self) -> bool {
        self.pipe.sends_by_writing()
    }

    /// The time at which a blocked sender gives up. `None`: nothing is blocked.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        self.blocked_since.map(|since| since + self.write_timeout)
    }
}

impl Drop for StreamSender {
    fn drop(&mut self) {
        self.pipe.shut_write();
    }
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct StreamReceiver {
    pipe: Pipe,
    framing: Framing,
    spin: Spin,
    /// The buffer, in words for alignment. The bytes `start..filled` are unread.
    buffer: Vec<u64>,
    start: usize,
    filled: usize,
    /// Length of the borrowed frame at `start`.
    lent: usize,
    /// Whether the last read found nothing.
    drained: bool,
    /// Whether the last successful read emptied the socket.
    emptied: bool,
    ended: bool,
    /// The buffer's share of a budget, beyond [`BUFFER_BYTES_BATCH`].
    held: Held,
}

impl StreamReceiver {
    pub(crate) fn new(pipe: Pipe, framing: Framing, spin: Spin) -> Result<StreamReceiver, Error> {
        let buffer = first_buffer(&pipe)?;
        Ok(StreamReceiver {
            pipe,
            framing,
            spin,
            buffer,
            start: 0,
            filled: 0,
            lent: 0,
            drained: false,
            emptied: false,
            ended: false,
            held: Held::default(),
        })
    }

    /// Counts the buffer beyond [`BUFFER_BYTES_BATCH`] against a budget from now on.
    pub(crate) fn share_memory(&mut self, budget: &ReceiveBudget) {
        self.held = Held::of(budget);
    }

    /// Returns the memory of a long frame if the budget is scarce.
    fn shrink(&mut self) {
        let mut buffer = Vec::new();
        // Without memory for a short buffer the long one stays.
        if grow(&mut buffer, BUFFER_BYTES_BATCH / FRAME_ALIGN_BYTES, self.pipe.peer()).is_ok() {
            self.buffer = buffer;
            self.held.release();
        }
    }

    pub(crate) fn limit_frames(&mut self, frame_bytes_max: usize) {
        self.framing.frame_bytes_max = frame_bytes_max;
    }

    /// Waits for the next frame. `None`: the peer has sent its last one.
    pub(crate) fn receive(&mut self, deadline: Option<Instant>) -> Result<Option<&[u8]>, Error> {
        loop {
            if self.next_frame()? {
                return Ok(Some(self.lent_bytes()));
            }
            if self.ended {
                return Ok(None);
            }
            let mut spin = self.spin.clone();
            if !spin.wait(false, || self.fill())? {
                let asleep = Instant::now();
                let ready = self.pipe.wait_readable(deadline)?;
                spin.slept(asleep.elapsed());
                if !ready {
                    self.spin = spin;
                    return Err(Error::Deadline { peer: self.pipe.peer().to_owned() });
                }
            }
            self.spin = spin;
        }
    }

    /// Whether another attempt would find nothing, as far as user space knows.
    pub(crate) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Returns the next frame without waiting.
    pub(crate) fn try_receive(&mut self) -> Result<Received<'_>, Error> {
        loop {
            if self.next_frame()? {
                return Ok(Received::Frame(self.lent_bytes()));
            }
            if self.ended {
                return Ok(Received::End);
            }
            if std::mem::take(&mut self.emptied) {
                // The kernel reports later bytes to the poller.
                self.drained = true;
                return Ok(Received::Nothing);
            }
            if !self.fill()? {
                return Ok(Received::Nothing);
            }
        }
    }

    /// The frame that is borrowed.
    pub(crate) fn lent_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.buffer)[self.start..self.start + self.lent]
    }

    /// Releases the borrowed frame and finds the next whole one in the buffer.
    fn next_frame(&mut self) -> Result<bool, Error> {
        self.start += std::mem::take(&mut self.lent);
        if self.start == self.filled {
            (self.start, self.filled) = (0, 0);
            if self.held.is_wanted() {
                self.shrink();
            }
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        let peer = self.pipe.peer();
        let rest = &bytes[self.start..self.filled];
        let frame = self.framing.frame_bytes(rest, peer).map_err(|error| {
            if !matches!(self.pipe, Pipe::Plain(_)) || !is_tls_hello(rest) {
                return error;
            }
            // A plain close would look as if this process had died.
            let _ = self.pipe.try_write(&[IoSlice::new(NO_TLS)]);
            let reason = "it begins as TLS does, which is not talked here".to_owned();
            Error::NotAFrame { peer: peer.to_owned(), reason }
        })?;
        match frame {
            Some(frame) if frame <= self.filled - self.start => {
                // Only a frame of odd length leaves the next one unaligned.
                let aligned = self.start - self.start % FRAME_ALIGN_BYTES;
                if aligned != self.start {
                    bytes.copy_within(self.start..self.filled, aligned);
                    self.filled -= self.start - aligned;
                    self.start = aligned;
                }
                self.lent = frame;
                Ok(true)
            }
            _ if self.ended && self.filled > self.start => {
                let (peer, rest) = (peer.to_owned(), &bytes[self.start..self.filled]);
                if matches!(self.pipe, Pipe::Plain(_)) && is_tls_alert(rest) {
                    return Err(Error::TalksTls { peer });
                }
                Err(Error::Cut { peer, bytes: rest.len() })
            }
            _ => Ok(false),
        }
    }

    /// Tries to read more. `true`: bytes or the end arrived.
    fn fill(&mut self) -> Result<bool, Error> {
        self.emptied = false;
        let mut bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.buffer);
        let peer = self.pipe.peer();
        let needed = self.framing.frame_bytes(&bytes[self.start..self.filled], peer)?;
        let needed = needed.unwrap_or(self.framing.header_bytes);
        if self.start + needed > bytes.len() || self.filled == bytes.len() {
            bytes.copy_within(self.start..self.filled, 0);
            (self.start, self.filled) = (0, self.filled - self.start);
        }
        if self.filled == bytes.len() {
            // Only received bytes grow the buffer. The length in a header is a claim.
            let words = self.buffer.len() * 2;
            let beyond = (words * FRAME_ALIGN_BYTES).saturating_sub(BUFFER_BYTES_BATCH);
            self.held.raise(beyond).map_err(|bytes_max| Error::BuffersFull {
                peer: self.pipe.peer().to_owned(),
                bytes: needed,
                bytes_max,
            })?;
            grow(&mut self.buffer, words, self.pipe.peer())?;
            bytes = bytemuck::cast_slice_mut(&mut self.buffer);
        }
        let room = bytes.len() - self.filled;
        match self.pipe.try_read(&mut bytes[self.filled..]) {
            Ok(Read::Nothing) => {
                self.drained = true;
                return Ok(false);
            }
            Ok(Read::End) => self.ended = true,
            Ok(Read::Bytes(read)) => {
                self.filled += read;
                // With TLS, a part of a record may remain in the socket after any read.
                self.emptied = read < room && matches!(self.pipe, Pipe::Plain(_));
                if read == room && bytes.len() < BUFFER_BYTES_BATCH {
                    let words = self.buffer.len() * 2;
                    grow(&mut self.buffer, words, self.pipe.peer())?;
                }
            }
            Err(Error::Cut { peer, .. }) => return Err(Error::Cut { peer, bytes: self.filled - self.start }),
            Err(error) => return Err(error),
        }
        self.drained = false;
        Ok(true)
    }
}

impl AsFd for StreamReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests;
