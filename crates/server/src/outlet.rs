//! Where a session writes its replies: memory that somebody lends when there is room. Knows no session and no socket.

use sanderling_wire::Buffer;

/// Lends memory for frames, one at a time.
pub trait Outlet {
    /// Lends at least `bytes_max` bytes that start at a multiple of 8; `fill` writes a frame to their start and says how
    /// long it is. `false`: there is no room now, and `fill` was not called.
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;
}

/// A buffer always has room, up to its limit.
impl Outlet for Buffer {
    fn put(&mut self, bytes_max: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let Ok(room) = self.room(bytes_max) else { return false };
        let bytes = fill(room);
        self.advance(bytes);
        true
    }
}
