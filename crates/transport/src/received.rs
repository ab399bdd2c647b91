//! The result of an attempt to receive, which all transports share.

/// The result of an attempt to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A whole frame, aligned to 8 bytes.
    Frame(&'a [u8]),
    /// No whole frame is available now.
    Nothing,
    /// The peer has sent its last frame.
    End,
}
