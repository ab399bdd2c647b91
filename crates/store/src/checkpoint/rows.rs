//! The bytes of a table file: header, blocks of rows, end mark.

use std::io::{self, Read};
use std::ops::ControlFlow;

use crate::RowRef;
use crate::rows::layout::Header;

const MAGIC: [u8; 8] = *b"SNDLROWS";
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
/// The header's checksum covers the header from here on.
const CHECKED_FROM: usize = 12;
/// Row count and checksum before each block.
const BLOCK_HEADER_BYTES: usize = 8;
/// Key, frequency, last use and version before each row's floats.
const ROW_HEADER_BYTES: usize = 20;
/// A row count of zero, checksum, number of rows.
const END_BYTES: usize = 16;
/// A block ends at this size; only its last row may exceed it.
pub(crate) const BLOCK_BYTES: usize = 64 * 1024;

/// Errors of reading a table file.
#[derive(Debug)]
pub(crate) enum RowsError {
    Io(io::Error),
    Damaged(String),
    Version(u32),
    Store(crate::StoreError),
}

impl From<io::Error> for RowsError {
    fn from(error: io::Error) -> RowsError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return RowsError::Damaged("it is truncated".to_string());
        }
        RowsError::Io(error)
    }
}

fn row_bytes(dim: usize, state: usize) -> usize {
    ROW_HEADER_BYTES + (dim + state) * size_of::<f32>()
}

/// The maximum number of rows in a file of this size.
pub(crate) fn rows_max(shape: RowShape, bytes: u64) -> u64 {
    bytes / row_bytes(shape.dim, shape.state) as u64
}

/// Lengths of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowShape {
    pub(crate) dim: usize,
    pub(crate) state: usize,
}

/// Encodes the rows that `each` passes, all of this shape; returns their number and the result of `each`. `write` may
/// exchange the buffer that it gets.
pub(crate) fn encode<T>(
    shape: RowShape,
    generation: u64,
    mut write: impl FnMut(&mut Vec<u8>) -> io::Result<()>,
    each: impl FnOnce(&mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> T,
) -> io::Result<(u64, T)> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend(MAGIC);
    header.extend(0_u32.to_le_bytes());
    header.extend(VERSION.to_le_bytes());
    header.extend(generation.to_le_bytes());
    header.extend((HEADER_BYTES as u32).to_le_bytes());
    header.extend((shape.dim as u32).to_le_bytes());
    header.extend((shape.state as u32).to_le_bytes());
    header.extend(0_u32.to_le_bytes());
    debug_assert_eq!(header.len(), HEADER_BYTES);
    // Before the covered data, because a CRC after its data makes a CRC over both independent of the data.
    let crc = crc_fast::crc32_iscsi(&header[CHECKED_FROM..]);
    header[8..CHECKED_FROM].copy_from_slice(&crc.to_le_bytes());
    write(&mut header)?;

    let mut block = vec![0; BLOCK_HEADER_BYTES];
    let (mut block_rows, mut rows, mut result) = (0_u32, 0_u64, Ok(()));
    let mut close = |block: &mut Vec<u8>, block_rows: &mut u32| {
        let crc = crc_fast::crc32_iscsi(&block[BLOCK_HEADER_BYTES..]);
        block[..4].copy_from_slice(&block_rows.to_le_bytes());
        block[4..8].copy_from_slice(&crc.to_le_bytes());
        let result = write(block);
        block.clear();
        block.resize(BLOCK_HEADER_BYTES, 0);
        *block_rows = 0;
        result
    };
    let made = each(&mut |row| {
        if result.is_err() {
            return ControlFlow::Break(());
        }
        assert_eq!((row.weights.len(), row.state.len()), (shape.dim, shape.state), "rows have one shape");
        block.extend_from_slice(&row.key.to_le_bytes());
        for word in [row.frequency, row.last_use, row.version] {
            block.extend_from_slice(&word.to_le_bytes());
        }
        for values in [row.weights, row.state] {
            // Resized at once, so that it compiles to one copy.
            let first = block.len();
            block.resize(first + size_of_val(values), 0);
            let (places, _) = block[first..].as_chunks_mut::<4>();
            places.iter_mut().zip(values).for_each(|(place, value)| *place = value.to_bits().to_le_bytes());
        }
        block_rows += 1;
        rows += 1;
        if block.len() >= BLOCK_BYTES {
            result = close(&mut block, &mut block_rows);
        }
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result?;
    if block_rows > 0 {
        close(&mut block, &mut block_rows)?;
    }
    // The end mark is a block of no rows whose payload is the number of rows.
    block.extend(rows.to_le_bytes());
    close(&mut block, &mut 0)?;
    Ok((rows, made))
}

/// A table file according to the manifest and the file system.
pub(crate) struct Expected {
    pub(crate) generation: u64,
    pub(crate) rows: u64,
    /// File size, which bounds all lengths in the file.
    pub(crate) bytes: u64,
}

/// Decodes a table file and passes the bytes of every block of rows to `each`, which may exchange the buffer.
///
/// The checksum of a block is verified before; only the end of the file proves it complete.
pub(crate) fn decode(
    shape: RowShape,
    expected: &Expected,
    input: &mut impl Read,
    mut each: impl FnMut(&mut Vec<u8>) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let damaged = |reason: String| Err(RowsError::Damaged(reason));
    let mut header = [0; HEADER_BYTES];
    input.read_exact(&mut header)?;
    if header[..8] != MAGIC {
        return damaged("it does not begin with SNDLROWS".to_string());
    }
    let word = |at: usize| u32_at(&header, at);
    if word(8) != crc_fast::crc32_iscsi(&header[CHECKED_FROM..]) {
        return damaged("the checksum of its header does not match".to_string());
    }
    if word(12) != VERSION {
        return Err(RowsError::Version(word(12)));
    }
    if u64_at(&header, 16) != expected.generation {
        let (found, expected) = (u64_at(&header, 16), expected.generation);
        return damaged(format!("it belongs to generation {found}, the manifest to {expected}"));
    }
    let (dim, state) = (word(28) as usize, word(32) as usize);
    if word(24) as usize != HEADER_BYTES || (RowShape { dim, state }) != shape {
        return damaged(format!(
            "its rows have {dim} weights and {state} state values, the manifest says {} and {}",
            shape.dim, shape.state
        ));
    }
    let row_bytes = row_bytes(dim, state);
    let block_rows_max = BLOCK_BYTES.div_ceil(row_bytes);
    let mut left = expected.bytes.saturating_sub(HEADER_BYTES as u64);
    let (mut rows, mut payload) = (0_u64, Vec::new());
    loop {
        let mut block = [0; BLOCK_HEADER_BYTES];
        input.read_exact(&mut block)?;
        left = left.saturating_sub(BLOCK_HEADER_BYTES as u64);
        let block_rows = u32_at(&block, 0) as usize;
        let size = if block_rows == 0 {
            END_BYTES - BLOCK_HEADER_BYTES
        } else {
            block_rows.saturating_mul(row_bytes)
        };
        if block_rows > block_rows_max || size as u64 > left {
            return damaged(format!("a block after row {rows} claims {block_rows} rows, more than fit"));
        }
        payload.resize(size, 0);
        input.read_exact(&mut payload)?;
        left -= size as u64;
        if crc_fast::crc32_iscsi(&payload) != u32_at(&block, 4) {
            return damaged(format!("the checksum of the block after row {rows} does not match"));
        }
        if block_rows == 0 {
            let total = u64_at(&payload, 0);
            if total != rows || rows != expected.rows || left != 0 {
                return damaged(format!(
                    "it holds {rows} rows and {left} further bytes, but says {total} rows, and the manifest {}",
                    expected.rows
                ));
            }
            return Ok(());
        }
        each(&mut payload)?;
        rows += block_rows as u64;
    }
}

/// The number of rows in a block.
pub(crate) fn rows_of_block(shape: RowShape, block: &[u8]) -> usize {
    block.len() / row_bytes(shape.dim, shape.state)
}

/// The key of a row in a block.
pub(crate) fn row_key(shape: RowShape, block: &[u8], number: u32) -> u64 {
    u64_at(block, number as usize * row_bytes(shape.dim, shape.state))
}

/// The header of a row in a block; its weights and state replace `values`.
pub(crate) fn row_of_block(shape: RowShape, block: &[u8], number: u32, values: &mut [f32]) -> Header {
    let row_bytes = row_bytes(shape.dim, shape.state);
    let row = &block[number as usize * row_bytes..][..row_bytes];
    // Vectorized, unlike a conversion value by value with a check of each length.
    let (places, _) = row[ROW_HEADER_BYTES..].as_chunks::<4>();
    values.iter_mut().zip(places).for_each(|(value, bits)| *value = f32::from_le_bytes(*bits));
    Header {
        key: u64_at(row, 0),
        frequency: u32_at(row, 8),
        last_use: u32_at(row, 12),
        version: u32_at(row, 16),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
