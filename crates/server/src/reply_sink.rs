//! The destination of a session's replies. It knows no session and no socket.

use sanderling_wire::Buffer;

/// Provides memory for replies, one frame at a time.
pub trait ReplySink {
    /// Calls `fill` with at least `bytes_max` bytes that are aligned to 8. `fill` writes a frame to their start and
    /// returns its length.
    ///
    /// `false`: there is no room now, and `fill` was not called.
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;

    /// The card that can gather a reply. None: there is none.
    #[cfg(feature = "rdma")]
    fn card(&mut self) -> Option<sanderling_transport::Card> {
        None
    }

    /// Has the card gather a reply. `false`: it cannot now, and nothing was done.
    #[cfg(feature = "rdma")]
    fn gather(&mut self, _frame: sanderling_transport::GatherFrame) -> bool {
        false
    }
}

/// A buffer has room up to its limit.
impl ReplySink for Buffer {
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let Ok(room) = self.room(bytes_max) else { return false };
        let bytes = fill(room);
        self.advance(bytes);
        true
    }
}
