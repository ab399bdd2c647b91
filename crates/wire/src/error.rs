//! Errors of decoding and encoding. The owner of the connection adds the peer and the table.

use crate::Kind;

/// Why bytes are not a message, or a message cannot be encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes are not the start of a frame: another protocol, or a lost framing.
    #[error("not a sanderling frame: it starts with {found:02x?}; is the other side a sanderling server?")]
    Magic {
        /// The first bytes.
        found: [u8; 4],
    },
    /// The frame has another version than negotiated.
    #[error("frame of version {found}, agreed was {agreed}")]
    Version {
        /// Version in the frame.
        found: u8,
        /// Version of the connection.
        agreed: u8,
    },
    /// The version has no such kind.
    #[error("frame of unknown kind {found}")]
    Kind {
        /// Kind in the frame.
        found: u8,
    },
    /// The flags are unknown, contradictory, invalid for the kind, or not negotiated.
    #[error("{kind} frame with flags {found:#06x}: unknown, contradictory, or not agreed on")]
    Flags {
        /// Kind of the frame.
        kind: Kind,
        /// Flags in the frame.
        found: u16,
    },
    /// The frame was damaged on its way.
    #[error("checksum of the frame is {found:08x}, its bytes have {expected:08x}: damaged on the way")]
    Checksum {
        /// Checksum of the bytes.
        expected: u32,
        /// Checksum in the frame.
        found: u32,
    },
    /// A size exceeds its limit.
    #[error("{what}: {found} is above the limit of {max}")]
    TooLong {
        /// Name of the size.
        what: &'static str,
        /// Its value.
        found: u64,
        /// Its limit.
        max: u64,
    },
    /// This process lacks memory.
    #[error("no memory for a buffer of {bytes} bytes")]
    NoMemory {
        /// Number of bytes needed.
        bytes: u64,
    },
    /// The payload ends inside a field.
    #[error("{what}: {needed} bytes needed, the payload has {found} left")]
    Cut {
        /// Name of the field.
        what: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes left.
        found: u64,
    },
    /// The payload continues after the message.
    #[error("{found} bytes after the end of the message")]
    Trailing {
        /// Number of extra bytes.
        found: u64,
    },
    /// The field has an invalid value.
    #[error("{what}: {found} is not a legal value")]
    Value {
        /// Name of the field.
        what: &'static str,
        /// Its value.
        found: u64,
    },
    /// Two sizes contradict each other.
    #[error("{what}: has {found} elements, the other fields demand {expected}")]
    Length {
        /// Name of the field.
        what: &'static str,
        /// The size that the other fields require.
        expected: u64,
        /// Its size.
        found: u64,
    },
    /// The text is not UTF-8.
    #[error("{what}: not UTF-8")]
    Text {
        /// Name of the field.
        what: &'static str,
    },
    /// Padding bytes are not zero.
    #[error("{what}: the bytes around it must be zero")]
    Padding {
        /// The field before them.
        what: &'static str,
    },
    /// The compressed payload does not decompress as announced.
    #[error("compressed payload: {what}")]
    Compression {
        /// The problem.
        what: &'static str,
    },
    /// The message is of the other direction, or still compressed.
    #[error("{kind} frame is not {expected}")]
    Direction {
        /// Kind of the frame.
        kind: Kind,
        /// The expected kind of message.
        expected: &'static str,
    },
    /// The buffer does not start at a multiple of 8 bytes.
    #[error("{what}: buffers of frames must start at a multiple of 8 bytes")]
    Unaligned {
        /// The field that is not aligned.
        what: &'static str,
    },
    /// The given space is too short for the frame.
    #[error("the frame needs {needed} bytes, there are {found}")]
    NoRoom {
        /// Length of the frame.
        needed: usize,
        /// Length of the space.
        found: usize,
    },
}
