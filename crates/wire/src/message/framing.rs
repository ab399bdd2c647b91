//! The frame around a message: its header in place, and its length before it is written.

use crate::frame::{HEADER_BYTES, Header, flag, version_of};
use crate::reader::Reader;
use crate::writer::Writer;
use crate::{Agreed, Frame, Kind, WireError, seal};

pub(super) fn header(kind: Kind, agreed: &Agreed, id: u64, flags: u16) -> Header {
    let version = version_of(kind, agreed);
    Header { version, kind, flags, id, deadline_or_status: 0, payload_bytes: 0, table: 0, checksum: 0 }
}

/// Encoding checks the same limits as decoding, so that every encoded message can be read.
pub(super) fn encode(
    header: Header,
    agreed: &Agreed,
    out: &mut [u8],
    write: impl FnOnce(&mut Writer<'_>) -> Result<(), WireError>,
) -> Result<usize, WireError> {
    let found = out.len();
    let mut writer = Writer::new(out, HEADER_BYTES);
    write(&mut writer)?;
    let needed = writer.at();
    agreed.check_frame(needed)?;
    let frame = out.get_mut(..needed).ok_or(WireError::NoRoom { needed, found })?;
    place_header(header, frame);
    seal(frame, agreed);
    Ok(needed)
}

pub(super) fn measure(
    write: impl FnOnce(&mut Writer<'_>) -> Result<(), WireError>,
) -> Result<usize, WireError> {
    let mut writer = Writer::new(&mut [], HEADER_BYTES);
    write(&mut writer)?;
    Ok(writer.at())
}

pub(super) fn place_header(mut header: Header, frame: &mut [u8]) {
    header.payload_bytes = (frame.len() - HEADER_BYTES) as u32;
    frame[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
}

pub(super) fn open<'a>(
    frame: &Frame<'a>,
    right_way: bool,
    expected: &'static str,
) -> Result<Reader<'a>, WireError> {
    if !right_way || frame.header.flags & flag::COMPRESSED != 0 {
        return Err(WireError::Direction { kind: frame.header.kind, expected });
    }
    Ok(Reader::new(frame.payload))
}
