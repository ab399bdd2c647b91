//! What can be wrong with bytes, or with a message that is to become bytes. Knows neither peer nor table: who holds the
//! connection adds those.

use crate::Kind;

/// Why bytes are not a message, or a message cannot become bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Not the start of a frame: another protocol, or a stream out of step.
    #[error("not a sanderling frame: it starts with {found:02x?}; is the other side a sanderling server?")]
    Magic {
        /// First bytes.
        found: [u8; 4],
    },
    /// A frame of another version than agreed.
    #[error("frame of version {found}, agreed was {agreed}")]
    Version {
        /// Version in the frame.
        found: u8,
        /// Version of this connection.
        agreed: u8,
    },
    /// A kind that this version does not have.
    #[error("frame of unknown kind {found}")]
    Kind {
        /// Kind in the frame.
        found: u8,
    },
    /// Flags that do not exist, contradict each other, do not go with this kind, or were not agreed on.
    #[error("{kind} frame with flags {found:#06x}: unknown, contradictory, or not agreed on")]
    Flags {
        /// Kind of the frame.
        kind: Kind,
        /// Flags in the frame.
        found: u16,
    },
    /// The frame is not what was sent.
    #[error("checksum of the frame is {found:08x}, its bytes have {expected:08x}: damaged on the way")]
    Checksum {
        /// What the bytes have.
        expected: u32,
        /// What the frame says.
        found: u32,
    },
    /// Larger than its limit.
    #[error("{what}: {found} is above the limit of {max}")]
    TooLong {
        /// Which size.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        max: u64,
    },
    /// This process has no memory left for it.
    #[error("no memory for a buffer of {bytes} bytes")]
    NoMemory {
        /// How many were needed.
        bytes: u64,
    },
    /// The payload ends before what it says is in it.
    #[error("{what}: {needed} bytes needed, the payload has {found} left")]
    Cut {
        /// What is cut.
        what: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        found: u64,
    },
    /// The payload goes on after its end.
    #[error("{found} bytes after the end of the message")]
    Trailing {
        /// How many.
        found: u64,
    },
    /// A value that the field cannot have.
    #[error("{what}: {found} is not a legal value")]
    Value {
        /// Which field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// Two sizes that must agree do not.
    #[error("{what}: has {found} elements, the other fields demand {expected}")]
    Length {
        /// Which field.
        what: &'static str,
        /// What the others demand.
        expected: u64,
        /// What it has.
        found: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what}: not UTF-8")]
    Text {
        /// Which field.
        what: &'static str,
    },
    /// Bytes between fields that are not zero.
    #[error("{what}: the bytes around it must be zero")]
    Padding {
        /// The field before them.
        what: &'static str,
    },
    /// A compressed payload that does not decompress to what it says.
    #[error("compressed payload: {what}")]
    Compression {
        /// What is wrong.
        what: &'static str,
    },
    /// A message of the other direction, or one that is still compressed.
    #[error("{kind} frame is not {expected}")]
    Direction {
        /// Kind of the frame.
        kind: Kind,
        /// What was to be decoded.
        expected: &'static str,
    },
    /// The buffer of ours does not start at a multiple of 8 bytes.
    #[error("{what}: buffers of frames must start at a multiple of 8 bytes")]
    Unaligned {
        /// What stood there.
        what: &'static str,
    },
    /// The space of ours does not hold the frame.
    #[error("the frame needs {needed} bytes, there are {found}")]
    NoRoom {
        /// Bytes of the frame.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
}
