//! Writes fields in sequence, in the form that `reader.rs` reads.

use crate::WireError;
use crate::limit::REASON_BYTES_MAX;

/// Writes to a slice and keeps counting after its end, like C's `snprintf`, so that one function encodes a message and
/// computes its length.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    /// Starts at `at`, a multiple of 8.
    pub(crate) fn new(out: &'a mut [u8], at: usize) -> Writer<'a> {
        Writer { out, at }
    }

    /// The position, which may be beyond the slice.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        if let Some(to) = self.out.get_mut(self.at..end) {
            to.copy_from_slice(bytes);
        }
        self.at = end;
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes(&[value]);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn f32(&mut self, value: f32) {
        self.u32(value.to_bits());
    }

    /// A number of elements, checked against the reader's limit.
    pub(crate) fn count(&mut self, what: &'static str, count: usize, max: usize) -> Result<(), WireError> {
        if count > max {
            return Err(WireError::TooLong { what, found: count as u64, max: max as u64 });
        }
        self.u32(count as u32);
        Ok(())
    }

    /// Zeros up to the next multiple of 8.
    pub(crate) fn pad(&mut self) {
        let zeros = [0; 8];
        self.bytes(&zeros[..self.at.next_multiple_of(8) - self.at]);
    }

    /// A raw slice, then zeros up to the next multiple of 8.
    pub(crate) fn slice<T: bytemuck::NoUninit>(&mut self, values: &[T]) {
        self.bytes(bytemuck::cast_slice(values));
        self.pad();
    }

    /// Length (4 bytes), 4 zeros, the bytes, zeros up to the next multiple of 8.
    pub(crate) fn blob(&mut self, what: &'static str, bytes: &[u8], max: usize) -> Result<(), WireError> {
        self.count(what, bytes.len(), max)?;
        self.pad();
        self.slice(bytes);
        Ok(())
    }

    pub(crate) fn text(&mut self, what: &'static str, text: &str, max: usize) -> Result<(), WireError> {
        self.blob(what, text.as_bytes(), max)
    }

    /// A text for people. A long text is cut, because an error must not fail to be reported.
    pub(crate) fn reason(&mut self, text: &str) -> Result<(), WireError> {
        let mut end = text.len().min(REASON_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.text("reason", &text[..end], REASON_BYTES_MAX)
    }
}

/// Requires that two sizes of a message agree.
pub(crate) fn agree(what: &'static str, expected: usize, found: usize) -> Result<(), WireError> {
    if expected == found {
        return Ok(());
    }
    Err(WireError::Length { what, expected: expected as u64, found: found as u64 })
}
