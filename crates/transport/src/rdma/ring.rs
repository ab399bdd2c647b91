//! Which parts of the other end's ring are free, and what a message of the queue pair says. It knows no memory and no
//! device, only positions.

use std::collections::VecDeque;

use crate::shm::{SLOT_ALIGN_BYTES, slot_bytes};

/// Bits of an immediate value that are not its kind.
const VALUE_BITS: u32 = 30;
const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;

/// An announcement that goes with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A whole frame is in the slot at this offset.
    Frame { at: usize },
    /// A further part of a long frame is in the slot at this offset.
    Piece { at: usize },
    /// So many frames and pieces of the other direction are released, since the start and modulo 2^30.
    Released { messages: u32 },
    /// There are no further frames.
    End,
}

impl Message {
    pub(super) fn encode(self) -> u32 {
        let (kind, value) = match self {
            Message::Frame { at } => (0, at / SLOT_ALIGN_BYTES),
            Message::Piece { at } => (1, at / SLOT_ALIGN_BYTES),
            Message::Released { messages } => (2, messages as usize),
            Message::End => (3, 0),
        };
        kind << VALUE_BITS | value as u32 & VALUE_MASK
    }

    pub(super) fn decode(immediate: u32) -> Message {
        let value = immediate & VALUE_MASK;
        let at = value as usize * SLOT_ALIGN_BYTES;
        match immediate >> VALUE_BITS {
            0 => Message::Frame { at },
            1 => Message::Piece { at },
            2 => Message::Released { messages: value },
            _ => Message::End,
        }
    }
}

/// The sending side's view of a ring that the other end reads.
#[derive(Debug)]
pub(super) struct OutRing {
    bytes: usize,
    messages_max: usize,
    /// Position behind the last message, and of the first one that is not released, since the start.
    tail: u64,
    head: u64,
    /// Positions behind the messages that are not released.
    ends: VecDeque<u64>,
    /// Released messages since the start, modulo 2^30.
    released: u32,
}

impl OutRing {
    pub(super) fn new(bytes: usize, messages_max: u32) -> OutRing {
        let (ends, messages_max) = (VecDeque::new(), messages_max as usize);
        OutRing { bytes, messages_max, tail: 0, head: 0, ends, released: 0 }
    }

    /// The longest message. Two of them always find room in an empty ring, wherever its end is.
    pub(super) fn piece_bytes_max(&self) -> usize {
        piece_bytes_max(self.bytes)
    }

    /// The offset of a free slot for a message of this length. None: there is none now.
    pub(super) fn find(&mut self, message_bytes: usize) -> Option<usize> {
        let slot = slot_bytes(message_bytes);
        if self.ends.len() >= self.messages_max {
            return None;
        }
        let ring = self.bytes as u64;
        if self.ends.is_empty() {
            // The start of the ring is in the caches.
            self.tail = self.tail.next_multiple_of(ring);
            self.head = self.tail;
        }
        let at = (self.tail % ring) as usize;
        let (free, to_end) = (self.bytes - (self.tail - self.head) as usize, self.bytes - at);
        if slot <= to_end {
            return (slot <= free).then_some(at);
        }
        if to_end + slot > free {
            return None;
        }
        self.tail += to_end as u64;
        Some(0)
    }

    /// Takes the slot that was found last.
    pub(super) fn take(&mut self, message_bytes: usize) {
        self.tail += slot_bytes(message_bytes) as u64;
        self.ends.push_back(self.tail);
    }

    /// The other end has released messages up to this number. Returns whether some of them were not released before.
    pub(super) fn release(&mut self, messages: u32) -> Result<bool, String> {
        let more = (messages.wrapping_sub(self.released) & VALUE_MASK) as usize;
        if more > self.ends.len() {
            return Err(format!("it releases {more} messages of {}", self.ends.len()));
        }
        for end in self.ends.drain(..more) {
            self.head = end;
        }
        self.released = messages;
        Ok(more > 0)
    }
}

/// The longest message in a ring of this size.
pub(super) const fn piece_bytes_max(ring_bytes: usize) -> usize {
    ring_bytes / 8 - SLOT_ALIGN_BYTES
}

/// The receiving side's count of what it has released, and of what the other end knows of it.
#[derive(Debug, Default)]
pub(super) struct Releases {
    messages: u32,
    untold: u32,
    untold_bytes: usize,
}

impl Releases {
    /// Counts a message of this length.
    pub(super) fn note(&mut self, message_bytes: usize) {
        self.messages = self.messages.wrapping_add(1) & VALUE_MASK;
        self.untold += 1;
        self.untold_bytes += slot_bytes(message_bytes);
    }

    /// The message that is due now, so that the other end never waits while its ring is empty.
    pub(super) fn to_tell(&self, ring_bytes: usize, messages_max: u32) -> Option<Message> {
        let is_due = self.untold >= messages_max / 4 || self.untold_bytes >= ring_bytes / 4;
        is_due.then_some(Message::Released { messages: self.messages })
    }

    /// The other end was told.
    pub(super) fn told(&mut self) {
        (self.untold, self.untold_bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RING_BYTES: usize = 16 << 10;
    const MESSAGES_MAX: u32 = 8;

    #[test]
    fn messages_are_read_back() {
        for message in [
            Message::Frame { at: 0 },
            Message::Frame { at: 64 << 20 },
            Message::Piece { at: 4096 },
            Message::Released { messages: VALUE_MASK },
            Message::End,
        ] {
            assert_eq!(Message::decode(message.encode()), message);
        }
    }

    #[test]
    fn more_cannot_be_released_than_was_sent() {
        let mut ring = OutRing::new(RING_BYTES, MESSAGES_MAX);
        assert!(ring.release(1).is_err());
        assert_eq!(ring.find(100), Some(0));
        ring.take(100);
        assert!(ring.release(2).is_err());
        assert_eq!(ring.release(1), Ok(true));
        assert_eq!(ring.release(1), Ok(false));
        // A count that goes back is one far ahead.
        assert!(ring.release(0).is_err());
    }

    proptest! {
        /// No slot overlaps one that is not released. A sender always finds room, however long its message, when its
        /// other end has read everything and tells only the messages that are due.
        #[test]
        fn slots_do_not_overlap_and_senders_do_not_starve(
            steps in prop::collection::vec((1..=piece_bytes_max(RING_BYTES), any::<bool>()), 1..200)
        ) {
            let mut ring = OutRing::new(RING_BYTES, MESSAGES_MAX);
            let mut releases = Releases::default();
            let mut live: VecDeque<(usize, usize)> = VecDeque::new();
            let mut untold: VecDeque<usize> = VecDeque::new();
            for (bytes, reads) in steps {
                let mut found = ring.find(bytes);
                if found.is_none() || reads {
                    // The other end reads all there is.
                    for (_, bytes) in live.iter().skip(untold.len()) {
                        releases.note(*bytes);
                        untold.push_back(*bytes);
                        if let Some(Message::Released { messages }) = releases.to_tell(RING_BYTES, MESSAGES_MAX) {
                            prop_assert_eq!(ring.release(messages), Ok(true));
                            releases.told();
                            untold.clear();
                        }
                    }
                    let kept = untold.len();
                    while live.len() > kept {
                        live.pop_front();
                    }
                    found = ring.find(bytes);
                    prop_assert!(found.is_some(), "{} bytes find no room beside {:?}", bytes, live);
                }
                let at = found.unwrap_or_default();
                prop_assert!(at + slot_bytes(bytes) <= RING_BYTES);
                for &(other, other_bytes) in &live {
                    prop_assert!(at + slot_bytes(bytes) <= other || other + slot_bytes(other_bytes) <= at);
                }
                ring.take(bytes);
                live.push_back((at, bytes));
            }
        }
    }
}
