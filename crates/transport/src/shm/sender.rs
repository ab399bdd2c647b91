//! The writing side of a ring: finds contiguous slots, publishes committed frames and waits for room. It checks every
//! index that the peer wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use super::control::Sleep;
use super::memory::{FRAME_AT_BYTES, RingMemory, SLOT_ALIGN_BYTES};
use super::wake;
use crate::error::Error;
use crate::options::Framing;
use crate::socket::{Socket, timespec};
use crate::spin::Spin;

/// A slot word that means: the next slot is at the start of the ring.
pub(super) const SKIP: u64 = u64::MAX;
/// Beyond this offset the writer returns to the start as soon as possible, so that the used part of a large ring stays
/// in the cache.
const WINDOW_BYTES: usize = 256 << 10;
/// How often a sleeping writer checks that the peer lives.
const ALIVE_CHECK: Duration = Duration::from_millis(5);

/// Length of a frame's slot.
pub(crate) fn slot_bytes(frame_bytes: usize) -> usize {
    (FRAME_AT_BYTES + frame_bytes).next_multiple_of(SLOT_ALIGN_BYTES)
}

/// The longest frame that always finds a slot, wherever the writer stands: less than half of the ring.
pub(super) fn frame_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 2 - FRAME_AT_BYTES
}

/// The sending half of a ring.
#[derive(Debug)]
pub(crate) struct RingSender {
    memory: RingMemory,
    pub(crate) socket: Arc<Socket>,
    framing: Framing,
    write_timeout: Duration,
    spin: Spin,
    /// Bytes ever committed, and the published part of them.
    tail: u64,
    published: u64,
    /// The reader's last known index.
    head: u64,
    /// Start of the present blockage: the reader has released nothing since.
    blocked_since: Option<Instant>,
}

impl RingSender {
    pub(super) fn new(
        memory: RingMemory,
        socket: Arc<Socket>,
        mut framing: Framing,
        write_timeout: Duration,
        spin: Spin,
    ) -> RingSender {
        framing.frame_bytes_max = framing.frame_bytes_max.min(frame_bytes_max(memory.bytes()));
        let (tail, published, head) = (0, 0, 0);
        RingSender {
            memory,
            socket,
            framing,
            write_timeout,
            spin,
            tail,
            published,
            head,
            blocked_since: None,
        }
    }

    /// A slot for a frame of `bytes_max`. Waits for the peer if necessary.
    pub(crate) fn frame(&mut self, bytes_max: usize) -> Result<(RingCommit<'_>, &mut [u8]), Error> {
        self.framing.check_length(bytes_max, &self.socket.peer)?;
        let at = loop {
            if let Some(at) = self.place(bytes_max)? {
                break at;
            }
            self.flush();
            self.wait_for_room()?;
        };
        Ok(self.lend(at, bytes_max))
    }

    /// A slot for a frame without waiting. `None`: there is no room.
    pub(crate) fn try_frame(
        &mut self,
        bytes_max: usize,
    ) -> Result<Option<(RingCommit<'_>, &mut [u8])>, Error> {
        self.framing.check_length(bytes_max, &self.socket.peer)?;
        match self.place(bytes_max)? {
            Some(at) => Ok(Some(self.lend(at, bytes_max))),
            None => {
                self.flush();
                self.blocked()?;
                // A sender that waits elsewhere learns of the peer's end here.
                self.check_peer()?;
                Ok(None)
            }
        }
    }

    fn lend(&mut self, at: usize, bytes_max: usize) -> (RingCommit<'_>, &mut [u8]) {
        self.blocked_since = None;
        let (word, frame) = self.memory.slot_mut(at, bytes_max);
        (RingCommit { word, tail: &mut self.tail }, frame)
    }

    /// Finds room, at the start of the ring if there is none before its end.
    fn place(&mut self, frame_bytes: usize) -> Result<Option<usize>, Error> {
        let (ring, slot) = (self.memory.bytes(), slot_bytes(frame_bytes));
        for refreshed in [false, true] {
            let at = (self.tail % ring as u64) as usize;
            let (free, to_end) = (ring - (self.tail - self.head) as usize, ring - at);
            let start_is_free = at > 0 && free >= to_end + slot;
            let fits_here = slot <= to_end && slot <= free;
            let leaves_window = at + slot > WINDOW_BYTES;
            if start_is_free && (leaves_window || !fits_here) {
                self.memory.slot_word(at).store(SKIP, Ordering::Relaxed);
                self.tail += to_end as u64;
                return Ok(Some(0));
            }
            if fits_here && (refreshed || !leaves_window) {
                return Ok(Some(at));
            }
            if !refreshed {
                self.look()?;
            }
        }
        Ok(None)
    }

    /// Reads the reader's index and checks it. Returns whether it has advanced.
    pub(crate) fn look(&mut self) -> Result<bool, Error> {
        let head = self.memory.control().head();
        let moved = head.wrapping_sub(self.head);
        if moved > self.published - self.head || !moved.is_multiple_of(SLOT_ALIGN_BYTES as u64) {
            let (from, to) = (self.head, self.published);
            let reason = format!("the reader is at {head}, which is not from {from} to {to}");
            return Err(Error::Corrupt { peer: self.socket.peer.clone(), reason });
        }
        self.head = head;
        if moved > 0 {
            // It may be too little for a long frame, but the peer makes progress.
            self.blocked_since = None;
        }
        Ok(moved > 0)
    }

    /// Whether the peer began its last wait on this processor.
    pub(crate) fn is_peer_at(&self, processor: u32) -> bool {
        self.memory.control().is_reader_at(processor)
    }

    fn wait_for_room(&mut self) -> Result<(), Error> {
        self.blocked()?;
        let mut spin = self.spin.clone();
        let moved = spin.wait(false, || self.look())?;
        if !moved && self.memory.control().writer_sleeps(Sleep::Futex, self.head) {
            let asleep = Instant::now();
            let word = self.memory.control().writer_word();
            let flags = rustix::thread::futex::Flags::empty();
            let slice = timespec(ALIVE_CHECK.min(self.write_timeout));
            match rustix::thread::futex::wait(word, flags, Sleep::Futex as u32, Some(&slice)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
                Err(error) => return Err(Error::io(&self.socket.peer, "wait", error)),
            }
            self.memory.control().writer_wakes();
            spin.slept(asleep.elapsed());
            self.check_peer()?;
        }
        self.spin = spin;
        Ok(())
    }

    /// Records a blockage. Fails when it has lasted for the write timeout.
    fn blocked(&mut self) -> Result<(), Error> {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.write_timeout {
            return Err(Error::SendTimeout { peer: self.socket.peer.clone(), timeout: self.write_timeout });
        }
        Ok(())
    }

    /// Fails when the peer is gone. It reads nothing from the socket, which belongs to the receiving half.
    fn check_peer(&self) -> Result<(), Error> {
        let mut hung_up = [PollFd::new(&*self.socket, PollFlags::RDHUP)];
        match crate::socket::wait(&mut hung_up, Some(Instant::now())) {
            Ok(true) => Err(Error::Closed { peer: self.socket.peer.clone() }),
            Ok(false) | Err(_) => Ok(()),
        }
    }

    /// Publishes the committed frames and wakes the reader if it sleeps.
    pub(crate) fn flush(&mut self) {
        if self.published != self.tail {
            self.published = self.tail;
            let how = self.memory.control().publish_tail(self.tail, false);
            wake(how, self.memory.control().reader_word(), &self.socket);
        }
    }

    /// The time at which a blocked sender gives up. `None`: nothing is blocked.
    pub(crate) fn gives_up_at(&self) -> Option<Instant> {
        self.blocked_since.map(|since| since + self.write_timeout)
    }

    /// Announces a sleep on the socket until there is room. `false`: there is some already.
    pub(crate) fn sleeps(&self) -> bool {
        self.memory.control().writer_sleeps(Sleep::Socket, self.head)
    }
}

impl Drop for RingSender {
    fn drop(&mut self) {
        let how = self.memory.control().publish_tail(self.published, true);
        wake(how, self.memory.control().reader_word(), &self.socket);
    }
}

/// A slot without its length yet.
#[derive(Debug)]
pub(crate) struct RingCommit<'a> {
    word: &'a AtomicU64,
    tail: &'a mut u64,
}

impl RingCommit<'_> {
    pub(crate) fn commit(self, bytes: usize) {
        self.word.store(bytes as u64, Ordering::Relaxed);
        *self.tail += slot_bytes(bytes) as u64;
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::shm::{RingReceiver, receive_memory, send_memory};

    const RING_BYTES: usize = 1 << 16;
    /// Frames of 1000 bytes. Longer ones are requested and not sent.
    const FRAMING: Framing = Framing {
        header_bytes: 1,
        body_bytes: |_| Ok(999),
        frame_bytes_max: RING_BYTES / 2 - FRAME_AT_BYTES,
    };

    /// The halves of both ends of a connection.
    fn ends() -> [(RingSender, RingReceiver); 2] {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let socket = |end: UnixStream| Socket::new(OwnedFd::from(end), "test".to_owned()).expect("a socket");
        let (long, spin) = (Duration::from_secs(60), Spin::new(0));
        let server = send_memory(socket(ours), RING_BYTES, FRAMING, long, &spin).expect("memory");
        let met =
            receive_memory(socket(theirs), FRAMING, long, &spin, Instant::now() + long).expect("memory");
        [server, met.expect("in time")]
    }

    #[test]
    fn each_side_learns_where_the_other_waits() {
        let [server, client] = ends();
        for ((sender, _), (_, receiver)) in [(&server, &client), (&client, &server)] {
            assert!(!sender.is_peer_at(0), "it has not waited");
            for processor in [0, 7, 0] {
                receiver.waits_at(processor);
                assert!(sender.is_peer_at(processor) && !sender.is_peer_at(processor + 1));
            }
        }
    }

    #[test]
    fn a_reader_that_makes_too_little_room_is_not_one_that_takes_nothing() {
        let [(mut sender, _replies), (_requests, mut receiver)] = ends();
        while let Some((commit, _)) = sender.try_frame(1000).expect("it is there") {
            commit.commit(1000);
        }
        let first = sender.gives_up_at().expect("it waits");
        // Lets clocks of any resolution tell the two times apart.
        std::thread::sleep(Duration::from_millis(20));
        // The second receive releases the slot of the first frame.
        receiver.try_receive().expect("a frame");
        receiver.try_receive().expect("a frame");
        assert!(sender.try_frame(FRAMING.frame_bytes_max).expect("it is there").is_none());
        let second = sender.gives_up_at().expect("it waits");
        assert!(second > first);
        assert!(sender.try_frame(FRAMING.frame_bytes_max).expect("it is there").is_none());
        assert_eq!(sender.gives_up_at(), Some(second));
    }
}
