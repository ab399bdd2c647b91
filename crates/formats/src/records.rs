//! A stream of framed records cut into blocks of whole records, the unit of work of the message readers: `TFRecord`
//! (length, its checksum, data, its checksum) and length-delimited messages. Trusts no length: memory grows with the
//! bytes read. Knows no message.

use std::fmt;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sanderling_sample::{SampleError, quote};

use crate::blocks::BLOCK_BYTES;
use crate::format::Message;
use crate::input;

/// A longer record ends the run; memory stays bounded. Equal to the limit of a line.
pub const RECORD_BYTES_MAX: usize = crate::LINE_BYTES_MAX;

/// Length and checksum before the data of a `TFRecord`, and the checksum behind it.
const TFRECORD_HEADER_BYTES: usize = 12;
const TFRECORD_FOOTER_BYTES: usize = 4;

/// More bytes than any frame has beside its data.
const FRAME_BYTES_MAX: usize = 16;

/// The framing of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// 64-bit length, masked CRC-32C of the length, data, masked CRC-32C of the data; little endian.
    #[default]
    TfRecord,
    /// The length as a varint, then the data.
    Varint,
}

/// The reason that the rest cannot be cut into records.
struct Damage {
    expected: String,
    found: String,
}

/// The checksum as `TFRecord` stores it: rotated and shifted, so that data may hold checksums of its own.
pub(crate) fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Whether a file with this start is `TFRecord`: the first length fits its checksum.
pub(crate) fn is_tfrecord(start: &[u8]) -> bool {
    matches!(tfrecord_length(start), Some(Ok(_)))
}

/// The declared length of the first record; `None` if there are too few bytes to say.
fn tfrecord_length(bytes: &[u8]) -> Option<Result<u64, Damage>> {
    let (length, crc) = bytes.get(..TFRECORD_HEADER_BYTES)?.split_first_chunk::<8>()?;
    let (stored, computed) = (word(crc)?, masked_crc32c(length));
    let length = u64::from_le_bytes(*length);
    Some(if stored == computed {
        Ok(length)
    } else {
        Err(Damage {
            expected: format!("checksum {computed:08x} for the length {length}"),
            found: format!("{stored:08x} (damaged here, or not TFRecord)"),
        })
    })
}

/// The length that the first record declares, and where its data starts; `None` if there are too few bytes to say.
fn varint_length(bytes: &[u8]) -> Option<Result<(u64, usize), Damage>> {
    let mut length = 0;
    for (at, &byte) in bytes.iter().take(9).enumerate() {
        length |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Some(Ok((length, at + 1)));
        }
    }
    let start = quote(&bytes[..bytes.len().min(9)]);
    (bytes.len() >= 9).then(|| {
        let expected =
            format!("a record of at most {RECORD_BYTES_MAX} bytes, its length as a varint before it");
        Err(Damage { expected, found: format!("{start} in place of a length") })
    })
}

impl Framing {
    /// The framing of records of this message type.
    #[must_use]
    pub fn of(message: Message) -> Framing {
        match message {
            Message::Example => Framing::TfRecord,
            Message::Sample => Framing::Varint,
        }
    }

    /// The first record: the range of its data, and the start of the next record. `None` if bytes are missing.
    fn next(self, bytes: &[u8]) -> Option<Result<(Range<usize>, usize), Damage>> {
        let (length, start, footer) = match self {
            Framing::TfRecord => match tfrecord_length(bytes)? {
                Ok(length) => (length, TFRECORD_HEADER_BYTES, TFRECORD_FOOTER_BYTES),
                Err(damage) => return Some(Err(damage)),
            },
            Framing::Varint => match varint_length(bytes)? {
                Ok((length, start)) => (length, start, 0),
                Err(damage) => return Some(Err(damage)),
            },
        };
        let Some(length) = usize::try_from(length).ok().filter(|&length| length <= RECORD_BYTES_MAX) else {
            let expected = format!("a record of at most {RECORD_BYTES_MAX} bytes");
            return Some(Err(Damage { expected, found: format!("a declared length of {length}") }));
        };
        let data = start..start + length;
        let next = data.end + footer;
        (next <= bytes.len()).then_some(Ok((data, next)))
    }
}

/// Whole records as they are in the file. Create it with `RecordBlock::default()` and reuse it: it keeps its buffers.
#[derive(Clone, Default)]
pub struct RecordBlock {
    buffer: Vec<u8>,
    framing: Framing,
    /// The range of each record's data in the buffer.
    spans: Vec<Range<u32>>,
    first_record: u64,
}

impl fmt::Debug for RecordBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, records) = (self.first_record, self.spans.len());
        f.debug_struct("RecordBlock").field("first_record", &first).field("records", &records).finish()
    }
}

impl RecordBlock {
    /// The records with their numbers in the file, from 1. Data that does not fit its checksum is an error: the
    /// computed checksum and the stored one.
    pub fn records(&self) -> impl Iterator<Item = (u64, Result<&[u8], (u32, u32)>)> {
        let checked = |span: &Range<u32>| {
            let data = &self.buffer[span.start as usize..span.end as usize];
            if self.framing == Framing::TfRecord {
                let stored = word(&self.buffer[span.end as usize..]).unwrap_or_default();
                let computed = masked_crc32c(data);
                if stored != computed {
                    return Err((computed, stored));
                }
            }
            Ok(data)
        };
        (self.first_record..).zip(self.spans.iter().map(checked))
    }
}

/// Cuts a stream into blocks.
pub struct RecordBlocks {
    stream: Box<dyn Read + Send>,
    path: PathBuf,
    framing: Framing,
    /// Bytes that were read but belong to the next block.
    carry: Vec<u8>,
    next_record: u64,
    at_end: bool,
    block_bytes: usize,
}

impl RecordBlocks {
    /// Cuts `stream`; `path` names it in errors.
    pub fn new(stream: Box<dyn Read + Send>, path: &Path, framing: Framing) -> RecordBlocks {
        let (path, carry, block_bytes) = (path.to_path_buf(), Vec::new(), BLOCK_BYTES);
        RecordBlocks { stream, path, framing, carry, next_record: 1, at_end: false, block_bytes }
    }

    /// Sets the approximate size of a block.
    pub(crate) fn with_block_bytes(self, block_bytes: usize) -> RecordBlocks {
        RecordBlocks { block_bytes, ..self }
    }

    /// Replaces the block with the next records; `false` at the end. Reuses the block's buffers. Records before a
    /// damaged place come before the error.
    pub fn next_block(&mut self, block: &mut RecordBlock) -> Result<bool, SampleError> {
        block.spans.clear();
        block.framing = self.framing;
        block.first_record = self.next_record;
        let buffer = &mut block.buffer;
        let mut filled = self.carry.len();
        if buffer.len() < filled {
            buffer.resize(filled, 0);
        }
        buffer[..filled].copy_from_slice(&self.carry);
        self.carry.clear();
        // The end of the last whole record.
        let mut end = 0;
        let mut target = self.block_bytes.max(filled);
        let damage = loop {
            self.fill(buffer, &mut filled, target)?;
            let damage = loop {
                match self.framing.next(&buffer[end..filled]) {
                    None => break None,
                    Some(Err(damage)) => break Some(damage),
                    Some(Ok((data, next))) => {
                        // Blocks stay far below 4 GiB: `RECORD_BYTES_MAX`.
                        block.spans.push((end + data.start) as u32..(end + data.end) as u32);
                        end += next;
                    }
                }
            };
            if !block.spans.is_empty() || damage.is_some() || self.at_end {
                break damage;
            }
            target = (2 * target).min(RECORD_BYTES_MAX + FRAME_BYTES_MAX);
        };
        self.carry.extend_from_slice(&buffer[end..filled]);
        self.next_record += block.spans.len() as u64;
        if !block.spans.is_empty() {
            return Ok(true);
        }
        match damage {
            Some(Damage { expected, found }) => Err(self.bad_record(expected, found)),
            None if filled == 0 => Ok(false),
            None => {
                let expected = "the rest of the record, or the end of the file before it".to_string();
                let found =
                    format!("only {filled} bytes of it: the file was cut short, or is of another format");
                Err(self.bad_record(expected, found))
            }
        }
    }

    fn bad_record(&self, expected: String, found: String) -> SampleError {
        let (path, column) = (self.path.clone(), WHOLE_RECORD.to_string());
        SampleError::BadRow { path, line: self.next_record, column, expected, found }
    }

    /// Reads until `filled` reaches `target` or the stream ends.
    fn fill(&mut self, buffer: &mut Vec<u8>, filled: &mut usize, target: usize) -> Result<(), SampleError> {
        if buffer.len() < target {
            buffer.resize(target, 0);
        }
        let place = |error| input::cut_short(&self.path, "record", self.next_record - 1, &error);
        input::fill(&mut *self.stream, &mut buffer[..target], filled, &mut self.at_end).map_err(place)
    }
}

/// Stands for the column in errors of a whole record.
pub(crate) const WHOLE_RECORD: &str = "(the record)";

#[cfg(test)]
mod tests;
