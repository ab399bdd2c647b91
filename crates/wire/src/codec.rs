//! Compression of payloads, for slow links.
//!
//! A compressed payload is: bytes decompressed (4), bytes compressed (4), the compressed bytes, zeros up to a multiple
//! of 8. The header is not compressed.

use std::fmt;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

use crate::frame::{HEADER_BYTES, flag};
use crate::limit::PACK_BYTES_MIN;
use crate::{Agreed, Buffer, Features, Frame, Header, WireError, seal};

/// A zstd level that keeps up with a slow link on one core.
const ZSTD_LEVEL: i32 = 1;
const SIZES_BYTES: usize = 8;

/// A compression algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// lz4, block format: fast.
    Lz4,
    /// zstd: smaller.
    Zstd,
}

impl Compression {
    /// The compression of a frame, if any.
    #[must_use]
    pub fn of(header: &Header) -> Option<Compression> {
        match header.flags & flag::COMPRESSED {
            0 => None,
            flag::LZ4 => Some(Compression::Lz4),
            _ => Some(Compression::Zstd),
        }
    }

    /// The compression wanted by a client that offered one of the two. A client that offered both chooses by its first
    /// compressed frame.
    #[must_use]
    pub fn wanted(features: Features) -> Option<Compression> {
        match (features.has(Features::LZ4), features.has(Features::ZSTD)) {
            (true, false) => Some(Compression::Lz4),
            (false, true) => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// The feature bit of this compression.
    #[must_use]
    pub fn feature(self) -> Features {
        match self {
            Compression::Lz4 => Features::LZ4,
            Compression::Zstd => Features::ZSTD,
        }
    }
}

/// Working memory of one connection. The first use of each algorithm allocates it.
#[derive(Default)]
pub struct Codec {
    lz4: Option<CompressTable>,
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
    unpacked: Option<Buffer>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("unpacked", &self.unpacked).finish_non_exhaustive()
    }
}

impl Codec {
    /// Unused working memory.
    #[must_use]
    pub fn new() -> Codec {
        Codec::default()
    }

    /// Appends a compressed copy of `frame` to `out`. It is a plain copy if compression would not help, the payload is
    /// small, or the algorithm was not negotiated.
    pub fn pack(
        &mut self,
        frame: &[u8],
        how: Compression,
        agreed: &Agreed,
        out: &mut Buffer,
    ) -> Result<(), WireError> {
        let (feature, bit) = match how {
            Compression::Lz4 => (Features::LZ4, flag::LZ4),
            Compression::Zstd => (Features::ZSTD, flag::ZSTD),
        };
        let (head, payload) = frame.split_at(HEADER_BYTES);
        let body_at = HEADER_BYTES + SIZES_BYTES;
        if !agreed.features.has(feature) || payload.len() < PACK_BYTES_MIN {
            return Self::copy(frame, out);
        }
        let room = out.room(body_at + get_maximum_output_size(payload.len()) + 8)?;
        let to = &mut room[body_at..];
        let bytes = match how {
            Compression::Lz4 => {
                let table = self.lz4.get_or_insert_with(CompressTable::large);
                compress_into_with_table(payload, to, table).ok()
            }
            Compression::Zstd => {
                let compressor = match &mut self.compressor {
                    Some(compressor) => compressor,
                    none => {
                        none.insert(Compressor::new(ZSTD_LEVEL).map_err(|_| failed("no memory for zstd"))?)
                    }
                };
                compressor.compress_to_buffer(payload, to).ok()
            }
        };
        let Some(bytes) = bytes.filter(|bytes| (bytes + SIZES_BYTES).next_multiple_of(8) < payload.len())
        else {
            return Self::copy(frame, out);
        };
        let payload_bytes = (SIZES_BYTES + bytes).next_multiple_of(8);
        let packed = &mut room[..HEADER_BYTES + payload_bytes];
        packed[..HEADER_BYTES].copy_from_slice(head);
        packed[6] |= bit as u8;
        packed[20..24].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
        packed[HEADER_BYTES..][..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        packed[HEADER_BYTES + 4..][..4].copy_from_slice(&(bytes as u32).to_le_bytes());
        packed[body_at + bytes..].fill(0);
        seal(packed, agreed);
        let packed_bytes = packed.len();
        out.advance(packed_bytes);
        Ok(())
    }

    fn copy(frame: &[u8], out: &mut Buffer) -> Result<(), WireError> {
        out.room(frame.len())?[..frame.len()].copy_from_slice(frame);
        out.advance(frame.len());
        Ok(())
    }

    /// Decompresses a frame; a plain frame is returned unchanged. The decompressed frame must be within the negotiated
    /// limit, so that a short frame cannot demand more memory than a long one.
    pub fn unpack<'a>(&'a mut self, frame: Frame<'a>, agreed: &Agreed) -> Result<Frame<'a>, WireError> {
        let compressed = frame.header.flags & flag::COMPRESSED;
        if compressed == 0 {
            return Ok(frame);
        }
        let (sizes, body) = frame.payload.split_first_chunk::<SIZES_BYTES>().ok_or(failed("no sizes"))?;
        let [a, b, c, d, e, f, g, h] = *sizes;
        let unpacked_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        let packed_bytes = u32::from_le_bytes([e, f, g, h]) as usize;
        agreed.check_frame(HEADER_BYTES + unpacked_bytes)?;
        if !unpacked_bytes.is_multiple_of(8) {
            return Err(failed("decompressed size is not a multiple of 8"));
        }
        let (packed, zeros) = body.split_at_checked(packed_bytes).ok_or(failed("cut"))?;
        if zeros.len() >= 8 || zeros.iter().any(|&byte| byte != 0) {
            return Err(failed("bytes after its end"));
        }
        let unpacked = self.unpacked.get_or_insert_with(|| Buffer::new(agreed.frame_bytes_max as usize));
        unpacked.clear();
        let to = &mut unpacked.room(unpacked_bytes)?[..unpacked_bytes];
        let bytes = if compressed == flag::LZ4 {
            decompress_into(packed, to).ok()
        } else {
            let decompressor = match &mut self.decompressor {
                Some(decompressor) => decompressor,
                none => none.insert(Decompressor::new().map_err(|_| failed("no memory for zstd"))?),
            };
            decompressor.decompress_to_buffer(packed, to).ok()
        };
        if bytes != Some(unpacked_bytes) {
            return Err(failed("does not decompress to the size it says"));
        }
        unpacked.advance(unpacked_bytes);
        let mut header = frame.header;
        header.flags &= !flag::COMPRESSED;
        header.payload_bytes = unpacked_bytes as u32;
        Ok(Frame { header, payload: unpacked.bytes() })
    }
}

fn failed(what: &'static str) -> WireError {
    WireError::Compression { what }
}
