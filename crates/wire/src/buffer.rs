//! A byte buffer with 8-byte alignment, for receiving and encoding frames.

use std::ops::Range;

use crate::WireError;

/// A reusable byte buffer, aligned to 8 bytes. It never grows above its limit.
///
/// Once a connection has seen its largest frame, it allocates no more. Frames are multiples of 8 bytes long, so
/// consecutive frames in a buffer are all aligned.
#[derive(Debug)]
pub struct Buffer {
    words: Vec<u64>,
    start: usize,
    end: usize,
    bytes_max: usize,
}

impl Buffer {
    /// An empty buffer with this limit in bytes (rounded up to 8).
    #[must_use]
    pub fn new(bytes_max: usize) -> Buffer {
        Buffer { words: Vec::new(), start: 0, end: 0, bytes_max: bytes_max.next_multiple_of(8) }
    }

    /// The content.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.start..self.end]
    }

    /// The content, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.start..self.end]
    }

    /// Length of the content.
    #[must_use]
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether the buffer is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.words.capacity() * 8
    }

    /// Clears the content and keeps the memory.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Frees the memory of an empty buffer that holds more than `bytes`, after an unusually large frame.
    pub fn trim(&mut self, bytes: usize) {
        if self.is_empty() && self.capacity() > bytes {
            self.clear();
            self.words = Vec::new();
        }
    }

    /// At least `bytes` of writable space after the content. [`Buffer::advance`] adds it to the content.
    pub fn room(&mut self, bytes: usize) -> Result<&mut [u8], WireError> {
        if self.end + bytes > self.words.len() * 8 && self.start > 0 {
            let (start, end) = (self.start, self.end);
            // `start` keeps its phase, because the content is aligned by it.
            let to = start % 8;
            bytemuck::cast_slice_mut::<u64, u8>(&mut self.words).copy_within(start..end, to);
            (self.start, self.end) = (to, to + end - start);
        }
        let needed = self.end.saturating_add(bytes);
        if needed > self.bytes_max {
            let (found, max) = (needed as u64, self.bytes_max as u64);
            return Err(WireError::TooLong { what: "buffer", found, max });
        }
        if needed > self.words.len() * 8 {
            let words = needed.max(self.words.len() * 16).min(self.bytes_max).div_ceil(8);
            // A peer decides the length, so a lack of memory must not end the process.
            let more = words - self.words.len();
            self.words
                .try_reserve_exact(more)
                .map_err(|_| WireError::NoMemory { bytes: words as u64 * 8 })?;
            self.words.resize(words, 0);
        }
        Ok(&mut bytemuck::cast_slice_mut(&mut self.words)[self.end..])
    }

    /// Adds the next `bytes` of the space to the content. Panics if there are fewer.
    pub fn advance(&mut self, bytes: usize) {
        assert!(self.end + bytes <= self.words.len() * 8, "more bytes than there is room for");
        self.end += bytes;
    }

    /// Removes the first `bytes`. Panics if there are fewer.
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "more bytes than are there");
        self.start += bytes;
        if self.start == self.end {
            self.clear();
        }
    }

    /// Appends the output of `write`, which is called again with more room after [`WireError::NoRoom`]. Returns the
    /// range of the new bytes in [`Buffer::bytes`].
    pub fn append(
        &mut self,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, WireError>,
    ) -> Result<Range<usize>, WireError> {
        let bytes = match write(self.room(0)?) {
            Err(WireError::NoRoom { needed, .. }) => write(self.room(needed)?)?,
            result => result?,
        };
        let at = self.len();
        self.advance(bytes);
        Ok(at..at + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in() {
        let mut buffer = Buffer::new(1000);
        let (mut next_in, mut next_out) = (0_u8, 0_u8);
        for step in 0..300_usize {
            let bytes = step * 7 % 50;
            for to in &mut buffer.room(bytes).expect("below the limit")[..bytes] {
                *to = next_in;
                next_in = next_in.wrapping_add(1);
            }
            buffer.advance(bytes);
            let out = (buffer.len() * 2 / 3).next_multiple_of(8).min(buffer.len());
            for &byte in &buffer.bytes()[..out] {
                assert_eq!(byte, next_out);
                next_out = next_out.wrapping_add(1);
            }
            buffer.consume(out);
        }
        assert!(buffer.capacity() <= 1000);
    }

    #[test]
    fn the_limit_holds_and_memory_is_kept() {
        let mut buffer = Buffer::new(100);
        assert_eq!(buffer.room(105), Err(WireError::TooLong { what: "buffer", found: 105, max: 104 }));
        assert_eq!(buffer.capacity(), 0);
        buffer.room(104).expect("at the limit");
        buffer.advance(104);
        assert!(buffer.room(1).is_err());
        buffer.clear();
        assert_eq!(buffer.capacity(), 104);
        buffer.trim(104);
        assert_eq!(buffer.capacity(), 104);
        buffer.trim(64);
        assert_eq!(buffer.capacity(), 0);
    }

    #[test]
    fn a_writer_without_room_is_asked_again() {
        let mut buffer = Buffer::new(1 << 10);
        for round in 0..3_usize {
            let at = buffer.append(|out| {
                let found = out.len();
                out.get_mut(..40).ok_or(WireError::NoRoom { needed: 40, found })?.fill(round as u8);
                Ok(40)
            });
            assert_eq!(at, Ok(round * 40..round * 40 + 40));
        }
        assert!(buffer.bytes().chunks(40).enumerate().all(|(at, bytes)| bytes == [at as u8; 40]));
    }
}
