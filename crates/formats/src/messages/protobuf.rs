//! The wire format of protocol buffers, as a cursor over borrowed bytes: tags, varints, fixed words, nested messages,
//! skipping of unknown fields. Trusts no length. Knows no message.

/// Groups (an old way to nest) may be nested this deep in a skipped field, as in other decoders.
const GROUPS_DEPTH_MAX: u32 = 100;

/// The wire type of a value.
pub(crate) const VARINT: u8 = 0;
pub(crate) const FIXED64: u8 = 1;
pub(crate) const BYTES: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
pub(crate) const FIXED32: u8 = 5;

/// Bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Malformed {
    /// The expected thing.
    pub(crate) expected: &'static str,
    /// The address of the byte with the error.
    at: usize,
}

impl Malformed {
    /// The offset of the error in the record, from 0.
    pub(crate) fn offset_in(&self, record: &[u8]) -> usize {
        self.at.saturating_sub(record.as_ptr() as usize).min(record.len())
    }
}

/// The unread rest of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Cursor<'a> {
        Cursor(message)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    #[cold]
    pub(crate) fn malformed(self, expected: &'static str) -> Malformed {
        Malformed { expected, at: self.0.as_ptr() as usize }
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        match *self.0 {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(byte))
            }
            [low, high, ref rest @ ..] if high < 0x80 => {
                self.0 = rest;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (at, &byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                if at == 9 && byte > 1 {
                    break;
                }
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err(self.malformed("a varint of at most 64 bits"))
    }

    /// The number and wire type of the next field; `None` at the end of the message.
    #[inline]
    pub(crate) fn tag(&mut self) -> Result<Option<(u32, u8)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let start = *self;
        let tag = self.varint()?;
        match u32::try_from(tag) {
            Ok(tag) if tag >= 8 => Ok(Some((tag >> 3, (tag & 7) as u8))),
            _ => Err(start.malformed("the tag of a field")),
        }
    }

    #[inline]
    pub(crate) fn fixed32(&mut self) -> Result<u32, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| self.malformed("4 bytes"))?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*bytes))
    }

    #[inline]
    pub(crate) fn fixed64(&mut self) -> Result<u64, Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or_else(|| self.malformed("8 bytes"))?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    /// A value with its length before it.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let start = *self;
        let length = self.varint()?;
        let split = usize::try_from(length).ok().and_then(|length| self.0.split_at_checked(length));
        let (value, rest) =
            split.ok_or_else(|| start.malformed("a length within what is left of the message"))?;
        self.0 = rest;
        Ok(value)
    }

    /// As [`Cursor::bytes`], where the tag said `wire`.
    #[inline]
    pub(crate) fn nested(&mut self, wire: u8, expected: &'static str) -> Result<&'a [u8], Malformed> {
        if wire == BYTES { self.bytes() } else { Err(self.malformed(expected)) }
    }

    /// Passes over the value of a field.
    #[inline]
    pub(crate) fn skip(&mut self, field: u32, wire: u8) -> Result<(), Malformed> {
        if wire == BYTES {
            return self.bytes().map(|_| ());
        }
        self.skip_within(field, wire, GROUPS_DEPTH_MAX)
    }

    fn skip_within(&mut self, field: u32, wire: u8, depth: u32) -> Result<(), Malformed> {
        match wire {
            VARINT => self.varint().map(|_| ()),
            FIXED64 => self.fixed64().map(|_| ()),
            BYTES => self.bytes().map(|_| ()),
            FIXED32 => self.fixed32().map(|_| ()),
            GROUP_START if depth > 0 => loop {
                let start = *self;
                match self.tag()? {
                    Some((end, GROUP_END)) if end == field => return Ok(()),
                    Some((_, GROUP_END)) | None => return Err(start.malformed("the end of a group")),
                    Some((inner, wire)) => self.skip_within(inner, wire, depth - 1)?,
                }
            },
            _ => Err(self.malformed("a field of a known wire type")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn varints() {
        for (bytes, expected) in [
            (&[][..], None),
            (&[0], Some(0)),
            (&[0x7f], Some(127)),
            (&[0x80], None),
            (&[0x80, 0x00], Some(0)),
            (&[0xac, 0x02], Some(300)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Some(u64::MAX)),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02], None),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], None),
        ] {
            let mut cursor = Cursor::new(bytes);
            assert_eq!(cursor.varint().ok(), expected, "{bytes:?}");
            assert!(expected.is_none() || cursor.is_empty());
        }
    }

    #[test]
    fn groups_are_skipped_and_never_too_deep() {
        let nested = |depth: usize| [vec![0x0b; depth], vec![0x0c; depth]].concat();
        for (bytes, skipped) in [
            (nested(1), true),
            (nested(100), true),
            (nested(101), false),
            (nested(100_000), false),
            (vec![0x0b, 0x14], false),
            (vec![0x0b], false),
            (vec![0x0b, 0x10, 0x80, 0x01, 0x0c], true),
        ] {
            let mut cursor = Cursor::new(&bytes);
            let (field, wire) = cursor.tag().unwrap().unwrap();
            assert_eq!(cursor.skip(field, wire).is_ok(), skipped, "{} bytes", bytes.len());
        }
    }

    proptest! {
        #[test]
        fn whatever_is_skipped_as_prost_skips_it(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut cursor = Cursor::new(&bytes);
            let ours = loop {
                match cursor.tag() {
                    Ok(None) => break true,
                    Ok(Some((field, wire))) if cursor.skip(field, wire).is_ok() => {}
                    _ => break false,
                }
            };
            // A message without fields: everything is skipped.
            prop_assert_eq!(ours, <() as prost::Message>::decode(&bytes[..]).is_ok());
        }
    }
}
