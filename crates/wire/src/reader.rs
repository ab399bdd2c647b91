//! Reads fields in sequence. Each size is checked against its limit and the remaining bytes first.

use bytemuck::AnyBitPattern;

use crate::WireError;

/// The unread part of a payload.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Bytes read so far.
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload, at: 0 }
    }

    pub(crate) fn bytes(&mut self, what: &'static str, bytes: usize) -> Result<&'a [u8], WireError> {
        let (needed, found) = (bytes as u64, self.rest.len() as u64);
        let (taken, rest) =
            self.rest.split_at_checked(bytes).ok_or(WireError::Cut { what, needed, found })?;
        self.rest = rest;
        self.at += bytes;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], WireError> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(what, N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, WireError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn f32(&mut self, what: &'static str) -> Result<f32, WireError> {
        self.array(what).map(f32::from_le_bytes)
    }

    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, WireError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { what, found: u64::from(other) }),
        }
    }

    /// A number of elements.
    pub(crate) fn count(&mut self, what: &'static str, max: usize) -> Result<usize, WireError> {
        let found = self.u32(what)? as usize;
        if found > max {
            return Err(WireError::TooLong { what, found: found as u64, max: max as u64 });
        }
        Ok(found)
    }

    /// A number of elements that follow, each of at least `bytes_min` bytes, so that memory may be reserved for them.
    pub(crate) fn list(
        &mut self,
        what: &'static str,
        max: usize,
        bytes_min: usize,
    ) -> Result<usize, WireError> {
        let count = self.count(what, max)?;
        self.check_left(what, count, bytes_min)?;
        Ok(count)
    }

    fn check_left(&self, what: &'static str, count: usize, bytes_each: usize) -> Result<usize, WireError> {
        let found = self.rest.len() as u64;
        match count.checked_mul(bytes_each) {
            Some(bytes) if bytes <= self.rest.len() => Ok(bytes),
            bytes => {
                Err(WireError::Cut { what, needed: bytes.map_or(u64::MAX, |bytes| bytes as u64), found })
            }
        }
    }

    /// Zeros up to the next multiple of 8.
    pub(crate) fn pad(&mut self, what: &'static str) -> Result<(), WireError> {
        let zeros = self.bytes(what, self.at.next_multiple_of(8) - self.at)?;
        if zeros.iter().all(|&byte| byte == 0) { Ok(()) } else { Err(WireError::Padding { what }) }
    }

    /// `count` elements in place, then zeros up to the next multiple of 8.
    pub(crate) fn slice<T: AnyBitPattern>(
        &mut self,
        what: &'static str,
        count: usize,
    ) -> Result<&'a [T], WireError> {
        let bytes = self.check_left(what, count, size_of::<T>())?;
        let bytes = self.bytes(what, bytes)?;
        self.pad(what)?;
        // An empty slice may be unaligned.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes).map_err(|_| WireError::Unaligned { what })
    }

    pub(crate) fn blob(&mut self, what: &'static str, max: usize) -> Result<&'a [u8], WireError> {
        let count = self.count(what, max)?;
        self.pad(what)?;
        self.slice(what, count)
    }

    pub(crate) fn text(&mut self, what: &'static str, max: usize) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.blob(what, max)?).map_err(|_| WireError::Text { what })
    }

    /// Requires that all bytes are read.
    pub(crate) fn finish(&self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(WireError::Trailing { found: self.rest.len() as u64 })
    }
}

/// The product of two sizes.
pub(crate) fn product(what: &'static str, a: usize, b: usize) -> Result<usize, WireError> {
    a.checked_mul(b).ok_or(WireError::TooLong { what, found: u64::MAX, max: usize::MAX as u64 })
}
