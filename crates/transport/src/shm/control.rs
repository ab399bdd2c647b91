//! The words that both sides of a ring share, and the protocol on them: who may access which bytes, and who wakes
//! whom.
//!
//! `tests/all/ring_model.rs` explores all its interleavings. Layout, little endian, each word alone on its pair of
//! cache lines:
//!
//! | offset | type | written by | meaning |
//! |---|---|---|---|
//! | 0 | u64 | writer | `tail`: bytes ever written, a multiple of 64, plus 1 after the last frame |
//! | 128 | u64 | reader | `head`: bytes ever released, a multiple of 64 |
//! | 256 | u32 | both | how the reader sleeps: 0 it does not, 1 on this word (futex), 2 on its socket |
//! | 384 | u32 | both | how the writer sleeps |
//! | 512 | u32 | reader | 1 + the processor on which the reader began its last wait; 0: unknown, as of older peers |
//!
//! *Publishing and sleeping* follow Dekker: a publishing side stores its index, fences, and reads the other side's
//! sleep word; a side that goes to sleep stores its sleep word, fences, and reads the index again. Of two concurrent
//! sides at least one sees the other, so no wake-up is lost. The waking side resets the sleep word, for one wake-up
//! per sleep. Both sides write the sleep words by exchanges only, so that the writes have one order.

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

/// A value alone on two cache lines, since processors fetch them in pairs.
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
    processor: Line<AtomicU32>,
}

impl Control {
    /// The writer's index, and whether it is final. The bytes before it are readable.
    pub(super) fn tail(&self) -> (u64, bool) {
        let tail = self.tail.0.load(Ordering::Acquire);
        (tail & !CLOSED, tail & CLOSED != 0)
    }

    /// The reader's index. The bytes before it can be overwritten.
    pub(super) fn head(&self) -> u64 {
        self.head.0.load(Ordering::Acquire)
    }

    /// Publishes the bytes before `tail` to the reader. Returns how the reader sleeps if it must be woken.
    pub(super) fn publish_tail(&self, tail: u64, closed: bool) -> Option<Sleep> {
        self.tail.0.store(tail | if closed { CLOSED } else { 0 }, Ordering::Release);
        take_sign(&self.reader.0)
    }

    /// Returns the bytes before `head` to the writer. Returns how the writer sleeps if it must be woken.
    pub(super) fn publish_head(&self, head: u64) -> Option<Sleep> {
        self.head.0.store(head, Ordering::Release);
        take_sign(&self.writer.0)
    }

    /// Announces that the reader is about to sleep after seeing nothing beyond `tail`. `false`: there is something
    /// now.
    pub(super) fn reader_sleeps(&self, how: Sleep, tail: u64) -> bool {
        self.reader.0.swap(how as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let sleeps = self.tail() == (tail, false);
        if !sleeps {
            self.reader_wakes();
        }
        sleeps
    }

    /// Announces that the reader is awake.
    pub(super) fn reader_wakes(&self) {
        self.reader.0.swap(0, Ordering::AcqRel);
    }

    /// Announces that the writer is about to sleep after seeing the reader at `head`. `false`: the reader has
    /// advanced.
    pub(super) fn writer_sleeps(&self, how: Sleep, head: u64) -> bool {
        self.writer.0.swap(how as u32, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let sleeps = self.head() == head;
        if !sleeps {
            self.writer_wakes();
        }
        sleeps
    }

    /// Announces that the writer is awake.
    pub(super) fn writer_wakes(&self) {
        self.writer.0.swap(0, Ordering::AcqRel);
    }

    /// Says on which processor the reader waits.
    pub(super) fn reader_is_at(&self, processor: u32) {
        // It changes rarely, and the other side keeps its copy of the line while it does not.
        if self.processor.0.load(Ordering::Relaxed) != processor + 1 {
            self.processor.0.store(processor + 1, Ordering::Relaxed);
        }
    }

    /// Whether the reader began its last wait on this processor.
    pub(super) fn is_reader_at(&self, processor: u32) -> bool {
        self.processor.0.load(Ordering::Relaxed) == processor + 1
    }

    /// The futex word of the reader.
    pub(super) fn reader_word(&self) -> &AtomicU32 {
        &self.reader.0
    }

    /// The futex word of the writer.
    pub(super) fn writer_word(&self) -> &AtomicU32 {
        &self.writer.0
    }
}

/// After an index was stored: resets the other side's sleep word and returns how it sleeps.
fn take_sign(word: &AtomicU32) -> Option<Sleep> {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) == 0 {
        return None;
    }
    match word.swap(0, Ordering::AcqRel) {
        0 => None,
        1 => Some(Sleep::Futex),
        // The peer may write any value. An unknown one causes the cheaper wake-up.
        _ => Some(Sleep::Socket),
    }
}
