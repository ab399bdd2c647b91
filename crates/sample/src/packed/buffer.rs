//! Memory for one packed batch, aligned and used again and again. It knows nothing of what the bytes mean.

use bytemuck::{cast_slice, cast_slice_mut};

use super::{PACKED_ALIGN_BYTES, Place};

const WORD_BYTES: usize = size_of::<u64>();
const LINE_WORDS: usize = PACKED_ALIGN_BYTES / WORD_BYTES;

/// Bytes that start on a cache line, and memory for the list of columns. It keeps its memory.
#[derive(Debug, Default)]
pub struct PackedBuffer {
    words: Vec<u64>,
    /// The word at which the bytes start.
    start: usize,
    bytes: usize,
    columns: Vec<Place>,
}

impl PackedBuffer {
    /// An empty one.
    #[must_use]
    pub fn new() -> PackedBuffer {
        PackedBuffer::default()
    }

    /// Sets the length and returns the bytes to be written; their content is unspecified. Memory grows at once: check
    /// a length from elsewhere first.
    pub fn resize(&mut self, bytes: usize) -> &mut [u8] {
        let words = bytes.div_ceil(WORD_BYTES) + LINE_WORDS;
        if self.words.len() < words {
            self.words.resize(words, 0);
            // Words are aligned, so the next line begins at one of them.
            let address = self.words.as_ptr() as usize;
            self.start = (address.next_multiple_of(PACKED_ALIGN_BYTES) - address) / WORD_BYTES;
        }
        self.bytes = bytes;
        self.bytes_mut()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &cast_slice(&self.words[self.start..])[..self.bytes]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words[self.start..])[..self.bytes]
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    pub(super) fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
    }

    pub(super) fn columns(&self) -> &[Place] {
        &self.columns
    }

    pub(super) fn take_columns(&mut self) -> Vec<Place> {
        std::mem::take(&mut self.columns)
    }

    pub(super) fn put_columns(&mut self, columns: Vec<Place>) {
        self.columns = columns;
    }
}
