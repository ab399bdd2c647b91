//! The bytes of a table file and of a delta file: header, blocks of rows, of a delta also removed keys, end mark.

use std::io::{self, Read};
use std::ops::ControlFlow;

use crate::RowRef;
use crate::rows::layout::Header;

const MAGIC: [u8; 8] = *b"SNDLROWS";
const DELTA_MAGIC: [u8; 8] = *b"SNDLDLTA";
pub(crate) const VERSION: u32 = 1;
const HEADER_BYTES: usize = 40;
const DELTA_HEADER_BYTES: usize = 64;
/// The header's checksum covers the header from here on.
const CHECKED_FROM: usize = 12;
/// Row count and checksum before each block.
const BLOCK_HEADER_BYTES: usize = 8;
/// Key, frequency, last use and version before each row's floats.
const ROW_HEADER_BYTES: usize = 20;
/// Set in the row count of a block that holds removed keys.
const REMOVED: u32 = 1 << 31;
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

pub(crate) fn row_bytes(dim: usize, state: usize) -> usize {
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

/// The place of a delta file in its chain, which its header has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link {
    /// Number in the chain, from 1.
    pub(crate) sequence: u32,
    /// Generation of the full checkpoint.
    pub(crate) base: u64,
    /// The changes are those after this epoch of the table, until the other one.
    pub(crate) since: u64,
    pub(crate) epoch: u64,
}

fn header(shape: RowShape, generation: u64, link: Option<&Link>) -> Vec<u8> {
    let bytes = if link.is_some() { DELTA_HEADER_BYTES } else { HEADER_BYTES };
    let mut header = Vec::with_capacity(bytes);
    header.extend(if link.is_some() { DELTA_MAGIC } else { MAGIC });
    header.extend(0_u32.to_le_bytes());
    header.extend(VERSION.to_le_bytes());
    header.extend(generation.to_le_bytes());
    header.extend((bytes as u32).to_le_bytes());
    header.extend((shape.dim as u32).to_le_bytes());
    header.extend((shape.state as u32).to_le_bytes());
    header.extend(link.map_or(0, |link| link.sequence).to_le_bytes());
    if let Some(Link { base, since, epoch, .. }) = link {
        [base, since, epoch].iter().for_each(|number| header.extend(number.to_le_bytes()));
    }
    debug_assert_eq!(header.len(), bytes);
    // Before the covered data, because a CRC after its data makes a CRC over both independent of the data.
    let crc = crc_fast::crc32_iscsi(&header[CHECKED_FROM..]);
    header[8..CHECKED_FROM].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Appends the bytes of a row to a block.
#[inline]
pub(crate) fn append_row(shape: RowShape, row: RowRef<'_>, block: &mut Vec<u8>) {
    let RowShape { dim, state } = shape;
    assert_eq!((row.weights.len(), row.state.len()), (dim, state), "rows have one shape");
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
}

/// Encodes a table file or a delta file, block by block. `write` may exchange the buffer that it gets.
pub(crate) struct Encoder<W> {
    shape: RowShape,
    write: W,
    /// Rows, behind the place of the block's header, and their number.
    block: Vec<u8>,
    block_rows: u32,
    rows: u64,
    /// Removed keys, of a delta file.
    removed_block: Vec<u8>,
    removed: Option<u64>,
}

impl<W: FnMut(&mut Vec<u8>) -> io::Result<()>> Encoder<W> {
    /// Begins a file with its header.
    pub(crate) fn new(
        shape: RowShape,
        generation: u64,
        link: Option<&Link>,
        mut write: W,
    ) -> io::Result<Encoder<W>> {
        write(&mut header(shape, generation, link))?;
        let (block, removed_block) = (vec![0; BLOCK_HEADER_BYTES], vec![0; BLOCK_HEADER_BYTES]);
        let removed = link.map(|_| 0);
        Ok(Encoder { shape, write, block, block_rows: 0, rows: 0, removed_block, removed })
    }

    #[inline]
    pub(crate) fn row(&mut self, row: RowRef<'_>) -> io::Result<()> {
        append_row(self.shape, row, &mut self.block);
        self.block_rows += 1;
        self.rows += 1;
        if self.block.len() >= BLOCK_BYTES { self.close_rows() } else { Ok(()) }
    }

    /// Adds a key without a row to a delta file.
    pub(crate) fn remove(&mut self, key: u64) -> io::Result<()> {
        self.removed_block.extend_from_slice(&key.to_le_bytes());
        self.removed = self.removed.map(|removed| removed + 1);
        if self.removed_block.len() >= BLOCK_BYTES { self.close_removed() } else { Ok(()) }
    }

    fn close_rows(&mut self) -> io::Result<()> {
        let rows = std::mem::take(&mut self.block_rows);
        close(&mut self.block, rows, &mut self.write)
    }

    fn close_removed(&mut self) -> io::Result<()> {
        let keys = (self.removed_block.len() - BLOCK_HEADER_BYTES) / size_of::<u64>();
        close(&mut self.removed_block, REMOVED | keys as u32, &mut self.write)
    }

    /// Ends the file; returns the numbers of rows and of removed keys.
    pub(crate) fn finish(mut self) -> io::Result<(u64, u64)> {
        if self.block_rows > 0 {
            self.close_rows()?;
        }
        if self.removed_block.len() > BLOCK_HEADER_BYTES {
            self.close_removed()?;
        }
        // The end mark is a block of no rows whose payload is the number of rows, and that of removed keys.
        self.block.extend(self.rows.to_le_bytes());
        self.removed.iter().for_each(|removed| self.block.extend(removed.to_le_bytes()));
        self.close_rows()?;
        Ok((self.rows, self.removed.unwrap_or(0)))
    }
}

/// Writes a block, and begins the next one in its place.
fn close(
    block: &mut Vec<u8>,
    rows: u32,
    write: &mut impl FnMut(&mut Vec<u8>) -> io::Result<()>,
) -> io::Result<()> {
    let crc = crc_fast::crc32_iscsi(&block[BLOCK_HEADER_BYTES..]);
    block[..4].copy_from_slice(&rows.to_le_bytes());
    block[4..8].copy_from_slice(&crc.to_le_bytes());
    let result = write(block);
    block.clear();
    block.resize(BLOCK_HEADER_BYTES, 0);
    result
}

/// Encodes the rows that `each` passes, all of this shape; returns their number and the result of `each`. `write` may
/// exchange the buffer that it gets.
pub(crate) fn encode<T>(
    shape: RowShape,
    generation: u64,
    write: impl FnMut(&mut Vec<u8>) -> io::Result<()>,
    each: impl FnOnce(&mut dyn FnMut(RowRef<'_>) -> ControlFlow<()>) -> T,
) -> io::Result<(u64, T)> {
    let (mut encoder, mut result) = (Encoder::new(shape, generation, None, write)?, Ok(()));
    let made = each(&mut |row| {
        if result.is_ok() {
            result = encoder.row(row);
        }
        if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    result?;
    Ok((encoder.finish()?.0, made))
}

/// A file of rows according to the manifest and the file system.
#[derive(Debug)]
pub(crate) struct Expected {
    pub(crate) generation: u64,
    pub(crate) rows: u64,
    /// File size, which bounds all lengths in the file.
    pub(crate) bytes: u64,
    /// Of a delta file; and the number of its removed keys.
    pub(crate) link: Option<(Link, u64)>,
}

/// A verified block of a file.
pub(crate) enum RowBlock<'a> {
    /// Rows. The receiver may exchange the buffer.
    Rows(&'a mut Vec<u8>),
    /// Keys without a row, of 8 bytes each.
    Removed(&'a [u8]),
}

/// Reads and checks the header of a file.
fn decode_header(shape: RowShape, expected: &Expected, input: &mut impl Read) -> Result<usize, RowsError> {
    let damaged = |reason: String| Err(RowsError::Damaged(reason));
    let (magic, size) = match expected.link {
        None => (MAGIC, HEADER_BYTES),
        Some(_) => (DELTA_MAGIC, DELTA_HEADER_BYTES),
    };
    let mut header = [0; DELTA_HEADER_BYTES];
    let header = &mut header[..size];
    input.read_exact(header)?;
    if header[..8] != magic {
        return damaged(format!("it does not begin with {}", String::from_utf8_lossy(&magic)));
    }
    let word = |at: usize| u32_at(header, at);
    if word(8) != crc_fast::crc32_iscsi(&header[CHECKED_FROM..]) {
        return damaged("the checksum of its header does not match".to_string());
    }
    if word(12) != VERSION {
        return Err(RowsError::Version(word(12)));
    }
    if u64_at(header, 16) != expected.generation {
        let (found, expected) = (u64_at(header, 16), expected.generation);
        return damaged(format!("it belongs to generation {found}, the manifest to {expected}"));
    }
    let (dim, state) = (word(28) as usize, word(32) as usize);
    if word(24) as usize != size || (RowShape { dim, state }) != shape {
        return damaged(format!(
            "its rows have {dim} weights and {state} state values, the manifest says {} and {}",
            shape.dim, shape.state
        ));
    }
    if let Some((link, _)) = expected.link {
        let (base, since, epoch) = (u64_at(header, 40), u64_at(header, 48), u64_at(header, 56));
        let found = Link { sequence: word(36), base, since, epoch };
        if found != link {
            return damaged(format!("it is {found:?}, the manifest says {link:?}"));
        }
    }
    Ok(size)
}

/// Decodes a table file or a delta file and passes every block to `each`.
///
/// The checksum of a block is verified before; only the end of the file proves it complete.
pub(crate) fn decode(
    shape: RowShape,
    expected: &Expected,
    input: &mut impl Read,
    mut each: impl FnMut(RowBlock<'_>) -> Result<(), RowsError>,
) -> Result<(), RowsError> {
    let damaged = |reason: String| Err(RowsError::Damaged(reason));
    let header_bytes = decode_header(shape, expected, input)?;
    let row_bytes = row_bytes(shape.dim, shape.state);
    let block_rows_max = BLOCK_BYTES.div_ceil(row_bytes);
    let block_removed_max = if expected.link.is_some() { BLOCK_BYTES / size_of::<u64>() } else { 0 };
    let end_bytes = size_of::<u64>() * if expected.link.is_some() { 2 } else { 1 };
    let mut left = expected.bytes.saturating_sub(header_bytes as u64);
    let (mut rows, mut removed, mut payload) = (0_u64, 0_u64, Vec::new());
    loop {
        let mut block = [0; BLOCK_HEADER_BYTES];
        input.read_exact(&mut block)?;
        left = left.saturating_sub(BLOCK_HEADER_BYTES as u64);
        let count = u32_at(&block, 0);
        let (is_removed, block_rows) = (count & REMOVED != 0, (count & !REMOVED) as usize);
        let (size, most) = match (is_removed, block_rows) {
            (false, 0) => (end_bytes, 0),
            (false, rows) => (rows.saturating_mul(row_bytes), block_rows_max),
            (true, keys) => (keys * size_of::<u64>(), block_removed_max),
        };
        if block_rows > most || size as u64 > left || is_removed && block_rows == 0 {
            return damaged(format!("a block after row {rows} claims {block_rows} rows, more than fit"));
        }
        payload.resize(size, 0);
        input.read_exact(&mut payload)?;
        left -= size as u64;
        if crc_fast::crc32_iscsi(&payload) != u32_at(&block, 4) {
            return damaged(format!("the checksum of the block after row {rows} does not match"));
        }
        if count == 0 {
            let total = u64_at(&payload, 0);
            if total != rows || rows != expected.rows || left != 0 {
                return damaged(format!(
                    "it holds {rows} rows and {left} further bytes, but says {total} rows, and the manifest {}",
                    expected.rows
                ));
            }
            if let Some((_, expected)) = expected.link
                && (u64_at(&payload, 8) != removed || removed != expected)
            {
                let total = u64_at(&payload, 8);
                return damaged(format!(
                    "it holds {removed} removed keys, but says {total}, and the manifest {expected}"
                ));
            }
            return Ok(());
        }
        if is_removed {
            each(RowBlock::Removed(&payload))?;
            removed += block_rows as u64;
        } else {
            each(RowBlock::Rows(&mut payload))?;
            rows += block_rows as u64;
        }
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

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that an independent program wrote by the documented format (`golden/make_chain.py`).
    #[test]
    fn files_are_written_as_documented() {
        type Row = (u64, [u32; 3], f32, f32);
        let check = |golden: &[u8], generation: u64, link: Option<Link>, rows: &[Row], removed: &[u64]| {
            let (shape, mut written) = (RowShape { dim: 1, state: 1 }, Vec::new());
            let write = |bytes: &mut Vec<u8>| {
                written.extend_from_slice(bytes);
                Ok(())
            };
            let mut encoder = Encoder::new(shape, generation, link.as_ref(), write).expect("it is memory");
            for (key, [frequency, last_use, version], weight, state) in rows {
                let (key, frequency, last_use, version) = (*key, *frequency, *last_use, *version);
                let row = RowRef { key, frequency, last_use, version, weights: &[*weight], state: &[*state] };
                encoder.row(row).expect("it is memory");
            }
            removed.iter().for_each(|&key| encoder.remove(key).expect("it is memory"));
            let counts = encoder.finish().expect("it is memory");
            assert_eq!(counts, (rows.len() as u64, removed.len() as u64));
            assert_eq!(written, golden);
        };
        let full = [(1, [3, 2, 2], 0.5, 0.25), (2, [1, 1, 1], -1.0, 0.0), (3, [9, 4, 5], 8.0, 1.0)];
        check(include_bytes!("../../tests/all/golden/chain/g1-0.table"), 1, None, &full, &[]);
        let first = 1_700_000_000_000_000;
        let link = Link { sequence: 1, base: 1, since: first, epoch: first + 3 };
        let rows = [(1, [4, 5, 3], 1.5, 0.5), (4, [1, 6, 1], 4.0, -2.0)];
        check(include_bytes!("../../tests/all/golden/chain/g2-0.delta"), 2, Some(link), &rows, &[2]);
        let link = Link { sequence: 2, base: 1, since: first + 3, epoch: first + 4 };
        let rows = [(2, [1, 7, 1], 7.0, 0.0)];
        check(include_bytes!("../../tests/all/golden/chain/g3-0.delta"), 3, Some(link), &rows, &[4]);
    }
}
