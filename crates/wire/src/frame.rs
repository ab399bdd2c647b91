//! The frame: a header of 32 bytes and the payload. It knows the header's fields and the checksum.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

use crate::limit::FRAME_BYTES_MAX;
use crate::{Agreed, Features, Kind, WireError};

/// Length of a header.
pub const HEADER_BYTES: usize = 32;
/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"SNDL";
/// The checksum is the header's last field and covers all other bytes of the frame.
const CHECKSUM_AT: usize = 28;
const FLAGS_AT: usize = 6;
const ID_AT: usize = 8;
const DEADLINE_AT: usize = 16;

/// Bits of [`Header::flags`].
pub mod flag {
    /// A reply, not a request.
    pub const REPLY: u16 = 1;
    /// The frame has a checksum.
    pub const CHECKSUM: u16 = 1 << 1;
    /// The payload is compressed with lz4.
    pub const LZ4: u16 = 1 << 2;
    /// The payload is compressed with zstd.
    pub const ZSTD: u16 = 1 << 3;
    /// Request: answer with f16 rows. Reply: the rows are f16.
    pub const F16_ROWS: u16 = 1 << 4;
    /// Push: an earlier message of the same push has advanced the table's use clock.
    pub const CONTINUES: u16 = 1 << 5;

    pub(crate) const COMPRESSED: u16 = LZ4 | ZSTD;
    pub(crate) const ALL: u16 = REPLY | CHECKSUM | COMPRESSED | F16_ROWS | CONTINUES;
}

/// The fields of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Version of the frame.
    pub version: u8,
    /// Kind of the message.
    pub kind: Kind,
    /// See [`flag`].
    pub flags: u16,
    /// Id chosen by the client. The reply repeats it; notices have 0.
    pub id: u64,
    /// Request: deadline in microseconds after arrival, 0 for none. Reply: 0, or the code of the
    /// [`Fault`](crate::Fault).
    pub deadline_or_status: u32,
    /// Length of the payload, a multiple of 8.
    pub payload_bytes: u32,
    /// Request: number of its table, or 0. Reply: 0.
    pub table: u32,
    /// CRC-32C, or 0 without a checksum.
    pub checksum: u32,
}

impl Header {
    /// Parses a header and checks it against the negotiated terms.
    pub fn parse(bytes: &[u8; HEADER_BYTES], agreed: &Agreed) -> Result<Header, WireError> {
        let payload_bytes = body_bytes(bytes)? as u32;
        let u32_at = |at| u32_at(bytes, at);
        let kind = Kind::of(bytes[5]).ok_or(WireError::Kind { found: bytes[5] })?;
        let header = Header {
            version: bytes[4],
            kind,
            flags: u16::from_le_bytes([bytes[FLAGS_AT], bytes[FLAGS_AT + 1]]),
            id: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            deadline_or_status: u32_at(16),
            payload_bytes,
            table: u32_at(24),
            checksum: u32_at(CHECKSUM_AT),
        };
        let version = version_of(kind, agreed);
        if header.version != version {
            return Err(WireError::Version { found: header.version, agreed: version });
        }
        header.check_flags(agreed)?;
        agreed.check_frame(header.frame_bytes())?;
        if header.table != 0 && (header.is_reply() || !kind.is_about_a_table()) {
            return Err(WireError::Value { what: "table", found: u64::from(header.table) });
        }
        Ok(header)
    }

    fn check_flags(&self, agreed: &Agreed) -> Result<(), WireError> {
        let (kind, found) = (self.kind, self.flags);
        let has = |flag: u16| found & flag != 0;
        let may = |feature: Features| agreed.features.has(feature);
        let failed = self.is_reply() && self.deadline_or_status != 0;
        let is_unsummed = self.is_reply() && kind == Kind::Pull && may(Features::UNSUMMED_ROWS);
        let may_omit = !agreed.needs_checksum() || is_unsummed;
        let good = found & !flag::ALL == 0
            && (!has(flag::LZ4) || may(Features::LZ4))
            && (!has(flag::ZSTD) || may(Features::ZSTD))
            && found & flag::COMPRESSED != flag::COMPRESSED
            && (!has(flag::F16_ROWS) || may(Features::F16_ROWS) && kind.has_rows() && !failed)
            && (!has(flag::CONTINUES) || may(Features::PUSH_PARTS) && kind == Kind::Push && !self.is_reply())
            && (has(flag::CHECKSUM) || may_omit && self.checksum == 0);
        if good { Ok(()) } else { Err(WireError::Flags { kind, found }) }
    }

    /// Length of header and payload.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes as usize
    }

    /// Whether it is a reply or a notice.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        self.flags & flag::REPLY != 0
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = self.version;
        bytes[5] = self.kind as u8;
        bytes[FLAGS_AT..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.deadline_or_status.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.table.to_le_bytes());
        bytes[CHECKSUM_AT..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Length of the body after a header. With the header it is at most [`FRAME_BYTES_MAX`]. Transports need no other
/// field.
pub fn body_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, WireError> {
    let found = [header[0], header[1], header[2], header[3]];
    if found != MAGIC {
        return Err(WireError::Magic { found });
    }
    let bytes = u32_at(header, 20) as usize;
    if HEADER_BYTES + bytes > FRAME_BYTES_MAX {
        let (found, max) = ((HEADER_BYTES + bytes) as u64, FRAME_BYTES_MAX as u64);
        return Err(WireError::TooLong { what: "frame", found, max });
    }
    if !bytes.is_multiple_of(8) {
        return Err(WireError::Value { what: "payload_bytes", found: bytes as u64 });
    }
    Ok(bytes)
}

/// The version of a frame. Hello comes before the negotiation, so its version never changes.
pub(crate) fn version_of(kind: Kind, agreed: &Agreed) -> u8 {
    if kind == Kind::Hello { Agreed::BEFORE_HELLO.version } else { agreed.version }
}

/// A frame in a buffer of received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// The payload, possibly compressed.
    pub payload: &'a [u8],
}

/// The result of parsing the start of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole frame.
    Frame(Frame<'a>),
    /// The start of a frame.
    Incomplete {
        /// Number of bytes to wait for: the header, or the whole frame.
        frame_bytes: usize,
    },
}

impl<'a> Frame<'a> {
    /// Parses the frame at the start of `bytes` and checks header and checksum. After an error the framing is lost and
    /// the connection is of no use.
    pub fn parse(bytes: &'a [u8], agreed: &Agreed) -> Result<Parsed<'a>, WireError> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Parsed::Incomplete { frame_bytes: HEADER_BYTES });
        };
        let header = Header::parse(head, agreed)?;
        let Some(payload) = rest.get(..header.payload_bytes as usize) else {
            return Ok(Parsed::Incomplete { frame_bytes: header.frame_bytes() });
        };
        if header.flags & flag::CHECKSUM != 0 {
            let (expected, found) = (checksum(head, payload), header.checksum);
            if expected != found {
                return Err(WireError::Checksum { expected, found });
            }
        }
        Ok(Parsed::Frame(Frame { header, payload }))
    }
}

fn checksum(head: &[u8; HEADER_BYTES], payload: &[u8]) -> u32 {
    let mut digest = Digest::new(Crc32Iscsi);
    digest.update(&head[..CHECKSUM_AT]);
    digest.update(payload);
    digest.finalize() as u32
}

/// Finishes an encoded frame: adds the checksum, unless the terms omit it.
///
/// Panics if `frame` is shorter than a header.
pub fn seal(frame: &mut [u8], agreed: &Agreed) {
    let (head, payload) = frame.split_first_chunk_mut::<HEADER_BYTES>().expect("a frame has a header");
    head[FLAGS_AT] &= !(flag::CHECKSUM as u8);
    head[CHECKSUM_AT..].fill(0);
    if agreed.needs_checksum() {
        head[FLAGS_AT] |= flag::CHECKSUM as u8;
        let sum = checksum(head, payload);
        head[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Changes the deadline of a request that waited before it was sent.
///
/// Panics if `frame` is shorter than a header.
pub fn set_deadline(frame: &mut [u8], deadline_us: u32, agreed: &Agreed) {
    frame[DEADLINE_AT..DEADLINE_AT + 4].copy_from_slice(&deadline_us.to_le_bytes());
    seal(frame, agreed);
}

/// Adapts a request that was encoded for another connection: sets the id and removes flags that were not negotiated.
///
/// Panics if `frame` is shorter than a header.
pub fn refit(frame: &mut [u8], id: u64, agreed: &Agreed) {
    frame[ID_AT..ID_AT + 8].copy_from_slice(&id.to_le_bytes());
    if !agreed.features.has(Features::F16_ROWS) {
        frame[FLAGS_AT] &= !(flag::F16_ROWS as u8);
    }
    if !agreed.features.has(Features::PUSH_PARTS) {
        frame[FLAGS_AT] &= !(flag::CONTINUES as u8);
    }
    seal(frame, agreed);
}
