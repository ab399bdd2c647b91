//! Total length of a page's texts, for encodings that store lengths apart from the texts, or only the new part of
//! each: a few bytes may declare many long texts. Format:
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/>.

use std::borrow::Cow;
use std::io::Read;

use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;

use super::super::nesting::Walk;
use super::BROTLI_BUFFER_BYTES;
use super::header::{Header, encoding};

/// The total bytes of a page's texts.
pub(super) fn sum(
    codec: Compression,
    is_repeated: bool,
    is_optional: bool,
    header: &Header,
    page: &[u8],
) -> Result<u64, String> {
    let damaged = || "a page of texts whose lengths do not read".to_string();
    let packed = page.get(header.level_bytes..).ok_or_else(damaged)?;
    let size = header.unpacked_bytes.saturating_sub(header.level_bytes as u64);
    let codec = if header.is_packed { codec } else { Compression::UNCOMPRESSED };
    let plain = unpack(codec, packed, size).ok_or_else(|| {
        format!("a page of texts that does not unpack to the {size} bytes that it declares")
    })?;
    let mut rest = &plain[..];
    if !header.is_second {
        for is_there in [is_repeated, is_optional] {
            if is_there {
                let (length, levels) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
                rest = levels.get(u32::from_le_bytes(*length) as usize..).ok_or_else(damaged)?;
            }
        }
    }
    let mut walk = Walk { rest };
    let mut bytes = deltas(&mut walk, header.values).ok_or_else(damaged)?;
    if header.encoding == encoding::DELTA_PREFIXES {
        bytes = bytes.saturating_add(deltas(&mut walk, header.values).ok_or_else(damaged)?);
    }
    Ok(bytes)
}

/// The `size` bytes that a page unpacks to; `None` if it does not.
pub(in super::super) fn unpack(codec: Compression, packed: &[u8], size: u64) -> Option<Cow<'_, [u8]>> {
    let length = usize::try_from(size).ok()?;
    let read = |stream: &mut dyn Read| {
        let mut plain = Vec::new();
        stream.take(size).read_to_end(&mut plain).ok().map(|_| plain)
    };
    let plain = match codec {
        Compression::UNCOMPRESSED => return Some(packed.into()),
        _ if length == 0 => Vec::new(),
        Compression::SNAPPY => {
            let mut plain = vec![0; length];
            snap::raw::Decoder::new().decompress(packed, &mut plain).ok()?;
            plain
        }
        Compression::GZIP(_) => read(&mut MultiGzDecoder::new(packed))?,
        Compression::BROTLI(_) => read(&mut brotli::Decompressor::new(packed, BROTLI_BUFFER_BYTES))?,
        Compression::ZSTD(_) => zstd::bulk::decompress(packed, length).ok()?,
        Compression::LZ4_RAW => lz4_flex::block::decompress(packed, length).ok()?,
        // Abandoned before these encodings existed.
        Compression::LZ4 | Compression::LZO => return None,
    };
    (plain.len() == length).then_some(plain.into())
}

/// The sum of a run of lengths, which are stored as differences in blocks of miniblocks.
fn deltas(walk: &mut Walk<'_>, values_max: u64) -> Option<u64> {
    let (block, parts, total) = (walk.varint()?, walk.varint()?, walk.varint()?);
    let mut value = walk.number()?;
    if total == 0 {
        return Some(0);
    }
    let part = block.checked_div(parts).filter(|part| *part > 0 && part % 8 == 0)?;
    if total > values_max {
        return None;
    }
    let mut sum = u64::try_from(value).ok()?;
    let mut left = total - 1;
    while left > 0 {
        let least = walk.number()?;
        let (widths, rest) = walk.rest.split_at_checked(usize::try_from(parts).ok()?)?;
        walk.rest = rest;
        for &width in widths {
            if left == 0 {
                break;
            }
            let bytes = usize::try_from(part.checked_mul(u64::from(width))? / 8).ok()?;
            let (bits, rest) = walk.rest.split_at_checked(bytes).filter(|_| width <= 32)?;
            walk.rest = rest;
            for at in 0..part.min(left) {
                // Wraps like the parquet crate.
                value = value
                    .wrapping_add(least)
                    .wrapping_add(bits_at(bits, at * u64::from(width), width) as i32);
                sum = sum.checked_add(u64::try_from(value).ok()?)?;
            }
            left -= part.min(left);
        }
    }
    Some(sum)
}

/// A number of up to 32 bits at a bit offset.
fn bits_at(bytes: &[u8], place: u64, width: u8) -> u32 {
    let start = (place / 8) as usize;
    let mut word = [0; 8];
    let there = &bytes[start.min(bytes.len())..];
    let there = &there[..there.len().min(8)];
    word[..there.len()].copy_from_slice(there);
    ((u64::from_le_bytes(word) >> (place % 8)) & ((1 << width) - 1)) as u32
}
