//! The words that both sides of a ring share, and the protocol on them: who may read and write which bytes, and who
//! wakes whom. It touches no frame and makes no system call; `tests/ring_model.rs` explores all its interleavings.
//!
//! Layout, little endian, each word alone on its pair of cache lines:
//!
//! | offset | type | written by | meaning |
//! |---|---|---|---|
//! | 0 | u64 | writer | `tail`: bytes ever written, a multiple of 64, plus 1 when nothing more will come |
//! | 128 | u64 | reader | `head`: bytes ever taken, a multiple of 64 |
//! | 256 | u32 | both | how the reader sleeps: 0 it does not, 1 on this word (futex), 2 on its socket |
//! | 384 | u32 | both | how the writer sleeps |
//!
//! *Publishing and sleeping* follow Dekker: a side that publishes stores its index, fences, and looks whether the other
//! sleeps; a side that goes to sleep says so, fences, and looks at the index once more. Of two that do so at the same
//! time at least one sees the other, so no wake-up is lost. Who wakes takes the sign down: one wake-up per sleep. Both
//! sides write the sign, so they only exchange it: their writes have one order that both know.

use super::atomics::{AtomicU32, AtomicU64, Ordering, fence};

/// The mark of the last `tail`.
const CLOSED: u64 = 1;

/// How a side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// On its word in the shared memory.
    Futex = 1,
    /// On its end of the socket.
    Socket = 2,
}

/// Alone on two cache lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Line<T>(T);

/// The words of one ring.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Control {
    tail: Line<AtomicU64>,
    head: Line<AtomicU64>,
    reader: Line<AtomicU32>,
    writer: Line<AtomicU32>,
}

impl Control {
    /// The writer's index as it stands there, and whether it is the last; what was written before it can be read.
    pub(super) fn tail(&self) -> (u64, bool) {
        let tail = self.tail.0.load(Ordering::Acquire);
        (tail & !CLOSED, tail & CLOSED != 0)
    }

    /// The reader's index as it stands there; what it has left can be overwritten.
    pub(super) fn head(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// The writer gives everything before `tail` to the reader. Says how the reader sleeps if it must be woken.
    pub(super) fn publish_tail(&self, tail: u64, closed: bool) -> Option<Sleep> {
        self.tail.0.store(tail | if closed { CLOSED } else { 0 }, Ordering::Release);
        take_sign(&self.reader.0)
    }

    /// The reader gives everything before `head` back to the writer. Says how the writer sleeps if it must be woken.
    pub(super) fn publish_head(&self, head: u64) -> Option<Sleep> {
        self.head.0.store(head, Ordering::Release);
        take_sign(&self.writer.0)
    }

    /// The reader is about to sleep, having seen nothing after `tail`. `false`: there is something now, stay awake.
    pub(super) fn reader_sleeps(&self, how: Sleep, tail: u64) -> bool {
        self.reader.0.swap(how as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let sleeps = self.tail() == (tail, false);
        if !sleeps {
            self.reader_wakes();
        }
        sleeps
    }

    /// The reader is awake again and needs no wake-up.
    pub(super) fn reader_wakes(&self) {
        self.reader.0.swap(0, Ordering::AcqRel);
    }

    /// The writer is about to sleep, having seen the reader no further than `head`. `false`: it is further now.
    pub(super) fn writer_sleeps(&self, how: Sleep, head: u64) -> bool {
        self.writer.0.swap(how as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let sleeps = self.head() == head;
        if !sleeps {
            self.writer_wakes();
        }
        sleeps
    }

    /// The writer is awake again and needs no wake-up.
    pub(super) fn writer_wakes(&self) {
        self.writer.0.swap(0, Ordering::AcqRel);
    }

    /// The word that a sleeping reader waits on.
    pub(super) fn reader_word(&self) -> &AtomicU32 {
        &self.reader.0
    }

    /// The word that a sleeping writer waits on.
    pub(super) fn writer_word(&self) -> &AtomicU32 {
        &self.writer.0
    }
}

/// After an index was stored: does the other side sleep? Its sign is taken down, so that it is woken once.
fn take_sign(word: &AtomicU32) -> Option<Sleep> {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match word.swap(0, Ordering::AcqRel) {
        0 => None,
        1 => Some(Sleep::Futex),
        // The word is the peer's to write: what it does not mean is the cheaper wake-up to us.
        _ => Some(Sleep::Socket),
    }
}
