//! Batch files: encoded rows in blocks that are mapped and used in place. This file and `docs/batch-format.md` define
//! the bytes; `write` makes such files, `read` opens them. It knows no thread.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use bytemuck::{bytes_of, pod_read_unaligned};

use sanderling_sample::SampleError;

mod agreement;
mod read;
mod write;

pub(crate) use read::spec_in;
pub use read::{BatchFile, Block, Unpacker, completed, spec_of};
pub use write::{BatchFileOptions, BatchFileWriter, Written};

/// Blocks of more bytes than this, unpacked, are refused; the writer stays far below it.
pub const BLOCK_BYTES_MAX: usize = 64 << 20;
/// A longer feature spec, as JSON, is refused.
pub const SPEC_BYTES_MAX: usize = 16 << 20;
/// Default number of rows per block.
pub const BLOCK_ROWS: usize = 4096;

/// Every part of the file starts at a multiple of this.
const ALIGN_BYTES: u64 = 64;
const FRAME_BYTES: usize = 64;
const FILE_MAGIC: u64 = u64::from_le_bytes(*b"SNDLBTCH");
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"BLCK");
const END_MAGIC: u64 = u64::from_le_bytes(*b"SNDLBEND");
const VERSION: u32 = 1;
const ENTRY_BYTES: usize = 16;

/// Compression of the blocks of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockCompression {
    /// No compression: blocks are used in place.
    #[default]
    None,
    /// lz4, block format.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl BlockCompression {
    /// Every compression, by its name in options; its number in a file is its position.
    pub const ALL: [(&'static str, BlockCompression); 3] =
        [("none", BlockCompression::None), ("lz4", BlockCompression::Lz4), ("zstd", BlockCompression::Zstd)];
}

impl fmt::Display for BlockCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].0)
    }
}

impl FromStr for BlockCompression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, which)| *which).ok_or_else(|| format!("none, lz4 or zstd, not {text:?}"))
    }
}

/// The first bytes of a file; the spec as JSON comes behind them.
#[derive(Clone, Copy)]
struct FileHeader {
    spec_bytes: u32,
    spec_crc: u32,
}

/// The header of a block.
#[derive(Clone, Copy)]
struct BlockHeader {
    compression: u32,
    rows: u32,
    crc: u32,
    stored_bytes: u64,
    raw_bytes: u64,
}

/// The last bytes of a file; the index is before them.
#[derive(Clone, Copy)]
struct Trailer {
    index_at: u64,
    blocks: u64,
    rows: u64,
    index_crc: u32,
}

type Frame = [u8; FRAME_BYTES];

fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Concatenates the parts and stores the checksum of all bytes before `crc_at` there.
fn frame(parts: &[&[u8]], crc_at: usize) -> Frame {
    let (mut frame, mut at) = ([0; FRAME_BYTES], 0);
    for part in parts {
        frame[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    let sum = crc(&frame[..crc_at]);
    frame[crc_at..crc_at + 4].copy_from_slice(&sum.to_le_bytes());
    frame
}

fn u32_at(frame: &[u8], at: usize) -> u32 {
    pod_read_unaligned(&frame[at..at + 4])
}

fn u64_at(frame: &[u8], at: usize) -> u64 {
    pod_read_unaligned(&frame[at..at + 8])
}

impl FileHeader {
    const CRC_AT: usize = 60;

    fn to_bytes(self) -> Frame {
        let parts: [&[u8]; 4] =
            [bytes_of(&FILE_MAGIC), bytes_of(&VERSION), bytes_of(&self.spec_bytes), bytes_of(&self.spec_crc)];
        frame(&parts, Self::CRC_AT)
    }

    fn parse(frame: &Frame) -> Result<FileHeader, String> {
        if u64_at(frame, 0) != FILE_MAGIC {
            return Err("is no batch file: it does not begin with SNDLBTCH".to_string());
        }
        let version = u32_at(frame, 8);
        if version != VERSION {
            return Err(format!(
                "is a batch file of version {version}; this program reads version {VERSION}: convert again, or bring it up to date"
            ));
        }
        if u32_at(frame, Self::CRC_AT) != crc(&frame[..Self::CRC_AT]) {
            return Err("the header does not fit its checksum: the file is damaged".to_string());
        }
        Ok(FileHeader { spec_bytes: u32_at(frame, 12), spec_crc: u32_at(frame, 16) })
    }
}

impl BlockHeader {
    const CRC_AT: usize = 60;

    fn to_bytes(self) -> Frame {
        let parts: [&[u8]; 6] = [
            bytes_of(&BLOCK_MAGIC),
            bytes_of(&self.compression),
            bytes_of(&self.rows),
            bytes_of(&self.crc),
            bytes_of(&self.stored_bytes),
            bytes_of(&self.raw_bytes),
        ];
        frame(&parts, Self::CRC_AT)
    }

    fn parse(frame: &Frame) -> Option<BlockHeader> {
        let is_whole =
            u32_at(frame, 0) == BLOCK_MAGIC && u32_at(frame, Self::CRC_AT) == crc(&frame[..Self::CRC_AT]);
        is_whole.then(|| BlockHeader {
            compression: u32_at(frame, 4),
            rows: u32_at(frame, 8),
            crc: u32_at(frame, 12),
            stored_bytes: u64_at(frame, 16),
            raw_bytes: u64_at(frame, 24),
        })
    }
}

impl Trailer {
    const CRC_AT: usize = 52;
    const MAGIC_AT: usize = 56;

    fn to_bytes(self) -> Frame {
        let parts: [&[u8]; 4] = [
            bytes_of(&self.index_at),
            bytes_of(&self.blocks),
            bytes_of(&self.rows),
            bytes_of(&self.index_crc),
        ];
        let mut frame = frame(&parts, Self::CRC_AT);
        frame[Self::MAGIC_AT..].copy_from_slice(&END_MAGIC.to_le_bytes());
        frame
    }

    fn parse(frame: &Frame) -> Result<Trailer, String> {
        if u64_at(frame, Self::MAGIC_AT) != END_MAGIC {
            return Err(
                "does not end as a batch file: it was cut short, or is still being written; convert again"
                    .to_string(),
            );
        }
        if u32_at(frame, Self::CRC_AT) != crc(&frame[..Self::CRC_AT]) {
            return Err("its last bytes do not fit their checksum: the file is damaged".to_string());
        }
        Ok(Trailer {
            index_at: u64_at(frame, 0),
            blocks: u64_at(frame, 8),
            rows: u64_at(frame, 16),
            index_crc: u32_at(frame, 24),
        })
    }
}

fn bad_file(path: &Path, reason: impl Into<String>) -> SampleError {
    SampleError::BadFile { path: path.to_path_buf(), reason: reason.into() }
}

fn io_error(path: &Path) -> impl Fn(std::io::Error) -> SampleError {
    move |source| SampleError::Io { path: path.to_path_buf(), source }
}

/// Whether a file that starts like this is a batch file.
pub(crate) fn is_batch_file(start: &[u8]) -> bool {
    start.starts_with(&FILE_MAGIC.to_le_bytes())
}

#[cfg(test)]
mod tests;
