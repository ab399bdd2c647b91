//! Page headers of a Parquet file (Thrift, compact protocol). Known fields are read by their specified types, as the
//! parquet crate reads them.

use super::super::nesting::{SCHEMA_DEPTH_MAX, Walk, kind};
use super::super::seekable::Seekable;

/// Bytes read for a header: usually the first size; long statistics need the others.
const READ_BYTES: [usize; 3] = [1 << 10, 64 << 10, 16 << 20];

/// Encodings by number.
pub(in super::super) mod encoding {
    pub(in super::super::super) const PLAIN: u64 = 0;
    pub(in super::super::super) const PLAIN_DICTIONARY: u64 = 2;
    /// Repeated values and bit-packed groups.
    pub(in super::super::super) const RUNS: u64 = 3;
    /// Texts with their lengths first.
    pub(super) const DELTA_LENGTHS: u64 = 6;
    /// Texts without what they share with the one before, lengths first.
    pub(in super::super) const DELTA_PREFIXES: u64 = 7;
    pub(in super::super::super) const RLE_DICTIONARY: u64 = 8;
}

/// A page header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Header {
    pub(in super::super) stored_bytes: u64,
    pub(in super::super) unpacked_bytes: u64,
    pub(in super::super) is_dictionary: bool,
    /// Whether it is a page of rows.
    pub(in super::super) is_data: bool,
    /// Elements and nulls; in a dictionary the entries.
    pub(in super::super) values: u64,
    pub(in super::super) encoding: u64,
    /// The encoding of definition levels, in a data page of version 1.
    pub(in super::super) level_encoding: u64,
    /// Bytes of levels that are not compressed.
    pub(in super::super) level_bytes: usize,
    /// Bytes of repetition levels among them.
    pub(in super::super) repeat_bytes: usize,
    /// Whether it is a data page of version 2, whose header has the length of its levels.
    pub(in super::super) is_second: bool,
    pub(in super::super) is_packed: bool,
}

impl Header {
    pub(super) fn has_lengths(&self) -> bool {
        !self.is_dictionary && matches!(self.encoding, encoding::DELTA_LENGTHS | encoding::DELTA_PREFIXES)
    }
}

/// Reads the header at `start`; also returns its length.
pub(super) fn read(source: &Seekable, start: u64) -> Option<(u64, Header)> {
    let left = source.len_bytes().checked_sub(start)?;
    for bytes in READ_BYTES {
        let bytes = left.min(bytes as u64);
        let mut buffer = vec![0; bytes as usize];
        source.read_at(start, &mut buffer).ok()?;
        let mut walk = Walk { rest: &buffer };
        if let Some(header) = header(&mut walk) {
            return Some((bytes - walk.rest.len() as u64, header));
        }
        if bytes == left {
            break;
        }
    }
    None
}

fn header(walk: &mut Walk<'_>) -> Option<Header> {
    const DATA: i32 = 0;
    const DICTIONARY: i32 = 2;
    const SECOND_DATA: i32 = 3;
    let mut header = Header { is_packed: true, ..Header::default() };
    let (mut last, mut page) = (0, -1);
    loop {
        let (kind, id) = walk.field(last)?;
        match id {
            _ if kind == kind::STOP => break,
            1 => page = walk.number()?,
            2 => header.unpacked_bytes = unsigned(walk.number()?),
            3 => header.stored_bytes = unsigned(walk.number()?),
            4 => walk.pass_number()?,
            5 => data_page(walk, &mut header)?,
            7 => dictionary(walk, &mut header)?,
            8 => second_data_page(walk, &mut header)?,
            _ => walk.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        last = id;
    }
    header.is_dictionary = page == DICTIONARY;
    header.is_data = page == if header.is_second { SECOND_DATA } else { DATA };
    Some(header)
}

/// The parquet crate reports negative numbers.
fn unsigned(number: i32) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn data_page(walk: &mut Walk<'_>, header: &mut Header) -> Option<()> {
    let mut last = 0;
    loop {
        let (kind, id) = walk.field(last)?;
        match id {
            _ if kind == kind::STOP => return Some(()),
            1 => header.values = unsigned(walk.number()?),
            2 => header.encoding = unsigned(walk.number()?),
            3 => header.level_encoding = unsigned(walk.number()?),
            4 => walk.pass_number()?,
            5 => statistics(walk)?,
            _ => walk.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        last = id;
    }
}

fn dictionary(walk: &mut Walk<'_>, header: &mut Header) -> Option<()> {
    let mut last = 0;
    loop {
        let (kind, id) = walk.field(last)?;
        match id {
            _ if kind == kind::STOP => return Some(()),
            1 => header.values = unsigned(walk.number()?),
            2 => header.encoding = unsigned(walk.number()?),
            _ => walk.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        last = id;
    }
}

fn second_data_page(walk: &mut Walk<'_>, header: &mut Header) -> Option<()> {
    let mut last = 0;
    header.is_second = true;
    loop {
        let (kind, id) = walk.field(last)?;
        match id {
            _ if kind == kind::STOP => return Some(()),
            1 => header.values = unsigned(walk.number()?),
            2 | 3 => walk.pass_number()?,
            4 => header.encoding = unsigned(walk.number()?),
            5 | 6 => {
                let bytes = usize::try_from(walk.number()?).ok()?;
                header.level_bytes += bytes;
                header.repeat_bytes += if id == 6 { bytes } else { 0 };
            }
            7 => header.is_packed = kind == kind::TRUE,
            8 => statistics(walk)?,
            _ => walk.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        last = id;
    }
}

fn statistics(walk: &mut Walk<'_>) -> Option<()> {
    let mut last = 0;
    loop {
        let (kind, id) = walk.field(last)?;
        match id {
            _ if kind == kind::STOP => return Some(()),
            1 | 2 | 5 | 6 => walk.text()?,
            3 | 4 => walk.pass_number()?,
            // A boolean's value is in its field type.
            7 | 8 => {}
            _ => walk.skip(kind, SCHEMA_DEPTH_MAX)?,
        }
        last = id;
    }
}
