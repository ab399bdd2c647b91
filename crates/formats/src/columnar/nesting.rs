//! Checks the schema in the footer of a Parquet file before the parquet crate reads it.
//!
//! That crate (60.1) recurses once per level of the schema, so that a footer of a few kilobytes overflows any stack, and it
//! reserves 8 bytes for each child that a group declares, up to 16 GiB, before it reads one: on most machines both end
//! the process. A bound on the footer's bytes catches neither, so the schema (Thrift, compact protocol) is walked here. A
//! known field is read by its specified type, not by the claimed one, as that crate does; otherwise prepared bytes could
//! show this module another schema. Everything else is left to that crate, which stops at the same byte. Knows no file
//! format but this footer.

use super::seekable::Seekable;

/// The deepest nesting of groups in a schema, its root included, and of structures in a skipped field, of which the parquet
/// crate allows fewer.
pub(super) const SCHEMA_DEPTH_MAX: usize = 100;

/// The most bytes of a footer.
const FOOTER_BYTES_MAX: u32 = 256 << 20;

/// The last bytes of a file; the length of its footer is before them.
const MAGIC: [u8; 4] = *b"PAR1";
/// The length and the magic.
const TAIL_BYTES: usize = 8;

/// The footer of a file; `None` if it is incomplete or is no Parquet.
///
/// # Errors
/// It is longer than [`FOOTER_BYTES_MAX`].
pub(super) fn footer_of(source: &Seekable) -> Result<Option<Vec<u8>>, String> {
    let Some(tail_at) = source.len_bytes().checked_sub(TAIL_BYTES as u64) else { return Ok(None) };
    let mut tail = [0; TAIL_BYTES];
    if source.read_at(tail_at, &mut tail).is_err() {
        return Ok(None);
    }
    let [a, b, c, d, magic @ ..] = tail;
    let length = u32::from_le_bytes([a, b, c, d]);
    let Some(start) = tail_at.checked_sub(length.into()).filter(|_| magic == MAGIC) else { return Ok(None) };
    if length > FOOTER_BYTES_MAX {
        return Err(format!(
            "its footer has {length} bytes, at most {FOOTER_BYTES_MAX} are read; write fewer row groups"
        ));
    }
    let mut footer = vec![0; length as usize];
    Ok(source.read_at(start, &mut footer).ok().map(|()| footer))
}

/// Checks that the parquet crate can read a footer.
///
/// # Errors
/// The reason that it cannot.
pub(super) fn check(footer: &[u8]) -> Result<(), String> {
    let mut walk = Walk { rest: footer };
    let Some(elements) = walk.find_schema().transpose()? else { return Ok(()) };
    // The enclosing groups of the next element, outermost first: how many of their children are left.
    let mut groups: Vec<usize> = Vec::new();
    for left in (0..elements).rev() {
        let Some(children) = walk.element() else { return Ok(()) };
        while groups.last() == Some(&0) {
            groups.pop();
        }
        if let Some(to_come) = groups.last_mut() {
            *to_come -= 1;
        }
        // The parquet crate refuses a negative number before it recurses.
        let Ok(children) = usize::try_from(children) else { return Ok(()) };
        if children == 0 {
            continue;
        }
        // The parquet crate would allocate for all of them first.
        if children > left {
            return Err(format!("a group has {children} columns, of which {left} at most are there"));
        }
        if groups.len() == SCHEMA_DEPTH_MAX {
            return Err(format!(
                "its columns are nested deeper than {SCHEMA_DEPTH_MAX} levels; flatten them"
            ));
        }
        groups.push(children);
    }
    Ok(())
}

/// Wire types of fields and elements.
pub(super) mod kind {
    pub(in super::super) const STOP: u8 = 0;
    pub(in super::super) const TRUE: u8 = 1;
    /// The type of booleans in a list.
    pub(in super::super) const FALSE: u8 = 2;
    pub(in super::super) const BYTE: u8 = 3;
    pub(in super::super) const I16: u8 = 4;
    pub(in super::super) const I64: u8 = 6;
    pub(in super::super) const DOUBLE: u8 = 7;
    pub(in super::super) const BINARY: u8 = 8;
    pub(in super::super) const LIST: u8 = 9;
    pub(in super::super) const SET: u8 = 10;
    pub(in super::super) const MAP: u8 = 11;
    pub(in super::super) const STRUCT: u8 = 12;
    pub(in super::super) const UUID: u8 = 13;
}

/// Fields of `FileMetaData`.
mod file {
    pub(super) const VERSION: i16 = 1;
    pub(super) const SCHEMA: i16 = 2;
    pub(super) const ROWS: i16 = 3;
    pub(super) const ROW_GROUPS: i16 = 4;
    pub(super) const KEY_VALUES: i16 = 5;
    pub(super) const CREATED_BY: i16 = 6;
    pub(super) const COLUMN_ORDERS: i16 = 7;
}

/// Fields of `SchemaElement`; the others from 1 to 9 are numbers.
mod element {
    pub(super) const NAME: i16 = 4;
    pub(super) const CHILDREN: i16 = 5;
    pub(super) const LOGICAL_TYPE: i16 = 10;
}

/// Variants of `LogicalType` with fields; the others up to the last one are empty, except the unknown one.
mod logical {
    pub(super) const DECIMAL: i16 = 5;
    pub(super) const TIME: i16 = 7;
    pub(super) const TIMESTAMP: i16 = 8;
    pub(super) const UNKNOWN: i16 = 9;
    pub(super) const INTEGER: i16 = 10;
    pub(super) const VARIANT: i16 = 16;
    pub(super) const GEOMETRY: i16 = 17;
    pub(super) const GEOGRAPHY: i16 = 18;
    pub(super) const LAST: i16 = 19;
}

/// The unread rest of Thrift bytes. A function returns `None` if the parquet crate refuses the bytes, too.
pub(super) struct Walk<'a> {
    pub(super) rest: &'a [u8],
}

impl Walk<'_> {
    /// Moves to the first element of the schema and returns their number.
    fn find_schema(&mut self) -> Option<Result<usize, String>> {
        let mut last = 0;
        loop {
            let (kind, id) = self.field(last)?;
            match id {
                _ if kind == kind::STOP => return None,
                file::SCHEMA => {
                    let (kind, count) = self.list()?;
                    return (kind == kind::STRUCT).then_some(Ok(count));
                }
                file::VERSION | file::ROWS => self.pass_number()?,
                file::CREATED_BY => self.text()?,
                file::ROW_GROUPS => return None,
                file::KEY_VALUES | file::COLUMN_ORDERS => {
                    return Some(Err("its schema comes after what belongs behind it".to_owned()));
                }
                _ => self.skip(kind, SCHEMA_DEPTH_MAX)?,
            }
            last = id;
        }
    }

    /// Skips an element of the schema and returns its declared number of children.
    fn element(&mut self) -> Option<i32> {
        let (mut last, mut children) = (0, 0);
        loop {
            let (kind, id) = self.field(last)?;
            match id {
                _ if kind == kind::STOP => return Some(children),
                element::NAME => self.text()?,
                element::CHILDREN => children = self.number()?,
                1..=9 => self.pass_number()?,
                element::LOGICAL_TYPE => self.logical_type()?,
                _ => self.skip(kind, SCHEMA_DEPTH_MAX)?,
            }
            last = id;
        }
    }

    fn logical_type(&mut self) -> Option<()> {
        let (kind, variant) = self.field(0)?;
        match variant {
            _ if kind == kind::STOP => return None,
            logical::DECIMAL
            | logical::TIME
            | logical::TIMESTAMP
            | logical::INTEGER
            | logical::VARIANT
            | logical::GEOMETRY
            | logical::GEOGRAPHY => self.parameters(variant)?,
            logical::UNKNOWN => self.skip(kind, SCHEMA_DEPTH_MAX)?,
            1..=logical::LAST => self.nothing()?,
            _ => self.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        self.end(variant)
    }

    /// The fields of a logical type.
    fn parameters(&mut self, variant: i16) -> Option<()> {
        let mut last = 0;
        loop {
            let (kind, id) = self.field(last)?;
            match (variant, id) {
                _ if kind == kind::STOP => return Some(()),
                (logical::DECIMAL, 1 | 2) | (logical::GEOGRAPHY, 2) => self.pass_number()?,
                (logical::INTEGER | logical::VARIANT, 1) => self.pass(1)?,
                (logical::GEOMETRY | logical::GEOGRAPHY, 1) => self.text()?,
                // A boolean's value is in its field type.
                (logical::TIME | logical::TIMESTAMP, 1) | (logical::INTEGER, 2) => {
                    matches!(kind, kind::TRUE | kind::FALSE).then_some(())?;
                }
                (logical::TIME | logical::TIMESTAMP, 2) => {
                    let (_, unit) = self.field(0)?;
                    self.nothing()?;
                    self.end(unit)?;
                }
                _ => self.skip(kind, SCHEMA_DEPTH_MAX)?,
            }
            last = id;
        }
    }

    /// A structure without fields.
    fn nothing(&mut self) -> Option<()> {
        (self.byte()? == kind::STOP).then_some(())
    }

    /// The end of a structure after its only field.
    fn end(&mut self, last: i16) -> Option<()> {
        (self.field(last)?.0 == kind::STOP).then_some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }

    pub(super) fn varint(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0, 0_u32);
        loop {
            let byte = self.byte()?;
            // A varint that is too long wraps, as in the parquet crate.
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte & 0x80 == 0 {
                return Some(value);
            }
            shift = shift.wrapping_add(7);
        }
    }

    /// A number; the lower half of one of 64 bits.
    pub(super) fn number(&mut self) -> Option<i32> {
        let value = self.varint()?;
        Some(((value >> 1) as i64 ^ -((value & 1) as i64)) as i32)
    }

    pub(super) fn pass_number(&mut self) -> Option<()> {
        self.varint().map(|_| ())
    }

    pub(super) fn text(&mut self) -> Option<()> {
        let bytes = self.varint()?;
        self.pass(bytes)
    }

    /// Type and id of the next field of a structure; the type STOP ends it.
    pub(super) fn field(&mut self, last: i16) -> Option<(u8, i16)> {
        let byte = self.byte()?;
        match (byte & 0x0f, byte >> 4) {
            (kind::STOP, _) => Some((kind::STOP, 0)),
            (kind, _) if kind > kind::UUID => None,
            (kind, 0) => Some((kind, self.number()? as i16)),
            (kind, delta) => Some((kind, last.checked_add(delta.into())?)),
        }
    }

    /// Type and number of the elements of a list.
    fn list(&mut self) -> Option<(u8, usize)> {
        let byte = self.byte()?;
        let count = match byte >> 4 {
            15 => i32::try_from(self.varint()?).ok()?,
            count => count.into(),
        };
        // Some writers give an empty list no type.
        let kind = if byte == 0 { kind::BYTE } else { element_kind(byte & 0x0f)? };
        Some((kind, usize::try_from(count).ok()?))
    }

    /// Skips an unknown field with at most `depth` nested structures.
    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            kind::TRUE | kind::FALSE => Some(()),
            kind::BYTE => self.pass(1),
            kind::I16..=kind::I64 => self.pass_number(),
            kind::DOUBLE => self.pass(8),
            kind::BINARY => self.text(),
            kind::LIST | kind::SET => {
                let (kind, count) = self.list()?;
                self.skip_all(&[kind], count, depth)
            }
            kind::MAP => {
                let count = i32::try_from(self.varint()?).ok()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                let kinds = [element_kind(kinds >> 4)?, element_kind(kinds & 0x0f)?];
                self.skip_all(&kinds, usize::try_from(count).ok()?, depth)
            }
            kind::STRUCT => loop {
                match self.field(0)? {
                    (kind::STOP, _) => return Some(()),
                    (kind, _) => self.skip(kind, depth)?,
                }
            },
            kind::UUID => self.pass(16),
            _ => None,
        }
    }

    fn skip_all(&mut self, kinds: &[u8], count: usize, depth: usize) -> Option<()> {
        // The parquet crate reads no bytes for these, so there may be any number of them.
        if kinds.iter().all(|&kind| kind == kind::FALSE) {
            return Some(());
        }
        for _ in 0..count {
            for &kind in kinds {
                self.skip(kind, depth)?;
            }
        }
        Some(())
    }
}

/// The element type of a written type; booleans have two.
fn element_kind(written: u8) -> Option<u8> {
    match written {
        kind::TRUE => Some(kind::FALSE),
        kind::FALSE..=kind::UUID => Some(written),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
