//! A batch as one run of bytes: the block of a batch file, or the minibatch that a hub sends. Columns are read in
//! place. It knows no file, no compression and no network.
//!
//! All numbers are little endian, and every array starts at a multiple of 64 bytes; see `docs/batch-format.md`.

#[cfg(target_endian = "big")]
compile_error!("arrays of a packed batch are used where they lie, in the order of their bytes");

use std::ops::Range;
use std::sync::Arc;

use bytemuck::{AnyBitPattern, cast_slice};

use crate::mapped::MappedFile;
use crate::rows::Rows;
use crate::spec::Spec;

mod buffer;
mod pack;

pub use buffer::PackedBuffer;
pub use pack::{pack, pack_into, pack_without, packed_bytes_max};

/// Every array starts at a multiple of this, counted from the start of the batch.
pub const PACKED_ALIGN_BYTES: usize = 64;
/// A packed batch is not longer than this.
pub const PACKED_BYTES_MAX: usize = 1 << 31;

const MAGIC: u32 = u32::from_le_bytes(*b"SNDB");
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const ENTRY_BYTES: usize = 8;
/// Flags of a column: each key has a value; the row boundaries are those of the column before.
const WEIGHTED: u32 = 1;
const SHARED_OFFSETS: u32 = 2;

/// The reason that bytes are no packed batch, or that rows cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackedError {
    /// The bytes do not start like a packed batch.
    #[error("is no packed batch: it does not begin with SNDB")]
    Magic,
    /// The version is newer.
    #[error("is a packed batch of version {0}; this program reads version {VERSION}: bring it up to date")]
    Version(u32),
    /// There are too few or too many bytes for the columns.
    #[error("has {found} bytes, its header asks for {needed}")]
    Length {
        /// Bytes that rows, columns and keys need.
        needed: u64,
        /// Bytes found.
        found: u64,
    },
    /// A count is over its limit.
    #[error("{found} {what}: at most {max}")]
    TooMany {
        /// The counted thing.
        what: &'static str,
        /// The count.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A flag that is unknown, or not allowed in its position.
    #[error("column {column} has the flags {flags:#x}")]
    Flags {
        /// The column, from 0.
        column: usize,
        /// The flags.
        flags: u32,
    },
    /// Row boundaries do not ascend from 0 to the number of keys.
    #[error("the row boundaries of column {column} do not ascend from 0 to its number of keys")]
    Offsets {
        /// The column, from 0.
        column: usize,
    },
    /// A label, weight or value that is not allowed.
    #[error("{what}{}", .column.map_or_else(String::new, |at| format!(" in column {at}")))]
    Number {
        /// The kind of number and the problem.
        what: &'static str,
        /// The column, from 0, if it is a column's.
        column: Option<usize>,
    },
    /// The bytes do not start at a multiple of 8.
    #[error("does not start at a multiple of 8 bytes in memory")]
    Unaligned,
}

const A_LABEL: &str = "a label other than 0, 1 and NaN";
const A_WEIGHT: &str = "a weight that is below 0 or not finite";
const A_VALUE: &str = "a value that is not a finite number";

/// The ranges of a column's arrays.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    offsets: Range<usize>,
    keys: Range<usize>,
    values: Option<Range<usize>>,
}

/// The owner of the bytes.
#[derive(Debug)]
enum Owner {
    Buffer,
    Mapped(Arc<MappedFile>, Range<usize>),
}

/// A batch whose columns lie in one run of bytes, checked and read in place.
///
/// The bytes are in a [`PackedBuffer`], filled by a network or a decompressor, or in a mapped file. To send a batch,
/// [`pack`] it and send the bytes; to receive one, put the bytes into a buffer, [`PackedBatch::parse`] it, and
/// recover the memory with [`PackedBatch::into_buffer`]. Packed batches carry no checksum: the file or the message
/// adds one.
pub struct PackedBatch {
    owner: Owner,
    /// The bytes, unless they are mapped; also the memory for another batch.
    buffer: PackedBuffer,
    labels: Range<usize>,
    weights: Range<usize>,
    rows: usize,
    /// The order in which columns are shown; `None`: as packed.
    order: Option<Arc<[usize]>>,
}

impl std::fmt::Debug for PackedBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedBatch").field("rows", &self.rows).field("columns", &self.columns()).finish()
    }
}

impl PackedBatch {
    /// Checks the bytes of a buffer and keeps it.
    ///
    /// # Errors
    /// The first deviation from the form that [`pack`] writes. Padding bytes are not checked.
    pub fn parse(mut buffer: PackedBuffer) -> Result<PackedBatch, PackedError> {
        let mut columns = buffer.take_columns();
        let head = Head::parse(buffer.bytes(), &mut columns)?;
        buffer.put_columns(columns);
        Ok(PackedBatch::new(Owner::Buffer, buffer, head))
    }

    /// Checks a range of a mapped file; `buffer` lends its memory for the list of columns.
    pub fn parse_mapped(
        file: &Arc<MappedFile>,
        range: Range<usize>,
        mut buffer: PackedBuffer,
    ) -> Result<PackedBatch, PackedError> {
        let mut columns = buffer.take_columns();
        let head = Head::parse(&file.bytes()[range.clone()], &mut columns)?;
        buffer.put_columns(columns);
        Ok(PackedBatch::new(Owner::Mapped(Arc::clone(file), range), buffer, head))
    }

    fn new(owner: Owner, buffer: PackedBuffer, head: Head) -> PackedBatch {
        let Head { rows, labels, weights } = head;
        PackedBatch { owner, buffer, labels, weights, rows, order: None }
    }

    /// The memory, for another batch.
    #[must_use]
    pub fn into_buffer(self) -> PackedBuffer {
        self.buffer
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.order.as_ref().map_or(self.buffer.columns().len(), |order| order.len())
    }

    /// All rows, without a copy.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        Rows::packed(self)
    }

    /// The bytes as they were packed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.owner {
            Owner::Buffer => self.buffer.bytes(),
            Owner::Mapped(file, range) => &file.bytes()[range.clone()],
        }
    }

    /// Shows the columns in this order from now on.
    pub fn set_order(&mut self, order: &Arc<[usize]>) {
        assert!(order.iter().all(|&at| at < self.buffer.columns().len()));
        self.order = Some(Arc::clone(order));
    }

    fn place(&self, column: usize) -> &Place {
        let column = self.order.as_ref().map_or(column, |order| order[column]);
        &self.buffer.columns()[column]
    }

    fn array<T: AnyBitPattern>(&self, place: &Range<usize>) -> &[T] {
        cast_slice(&self.bytes()[place.clone()])
    }

    pub(crate) fn labels(&self) -> &[f32] {
        self.array(&self.labels)
    }

    pub(crate) fn weights(&self) -> &[f32] {
        self.array(&self.weights)
    }

    pub(crate) fn offsets(&self, column: usize) -> &[u32] {
        self.array(&self.place(column).offsets)
    }

    pub(crate) fn keys(&self, column: usize) -> &[u64] {
        self.array(&self.place(column).keys)
    }

    pub(crate) fn values(&self, column: usize) -> Option<&[f32]> {
        self.place(column).values.as_ref().map(|values| self.array(values))
    }
}

/// The parts of a batch beside its columns.
struct Head {
    rows: usize,
    labels: Range<usize>,
    weights: Range<usize>,
}

impl Head {
    /// Finds the arrays and checks their content. Allocates only for the columns, whose entries exist.
    fn parse(bytes: &[u8], columns: &mut Vec<Place>) -> Result<Head, PackedError> {
        columns.clear();
        if !bytes.as_ptr().cast::<u64>().is_aligned() {
            return Err(PackedError::Unaligned);
        }
        let found = bytes.len() as u64;
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(PackedError::Length { needed: HEADER_BYTES as u64, found });
        };
        let words: &[u32] = cast_slice(header);
        if words[0] != MAGIC {
            return Err(PackedError::Magic);
        }
        if words[1] != VERSION {
            return Err(PackedError::Version(words[1]));
        }
        let (rows, count) = (words[2] as usize, words[3] as usize);
        if count > Spec::FEATURES_MAX {
            let (found, max) = (count as u64, Spec::FEATURES_MAX as u64);
            return Err(PackedError::TooMany { what: "columns", found, max });
        }
        let mut arrays = Arrays { at: HEADER_BYTES as u64, bytes };
        let entries: &[u32] = cast_slice(&bytes[arrays.next(count, ENTRY_BYTES)?]);
        let labels = arrays.next(rows, 4)?;
        let weights = arrays.next(rows, 4)?;
        columns.reserve(count);
        let mut shared: Option<(Range<usize>, u32)> = None;
        for (column, entry) in entries.chunks_exact(2).enumerate() {
            let (keys, flags) = (entry[0], entry[1]);
            let offsets = match &shared {
                _ if flags & SHARED_OFFSETS == 0 => arrays.next(rows + 1, 4)?,
                // Equal boundaries end at the same number of keys.
                Some((offsets, same)) if *same == keys => offsets.clone(),
                _ => return Err(PackedError::Flags { column, flags }),
            };
            if flags & !(WEIGHTED | SHARED_OFFSETS) != 0 {
                return Err(PackedError::Flags { column, flags });
            }
            if flags & SHARED_OFFSETS == 0 && !is_ragged(cast_slice(&bytes[offsets.clone()]), keys) {
                return Err(PackedError::Offsets { column });
            }
            shared = Some((offsets.clone(), keys));
            let count = keys as usize;
            let keys = arrays.next(count, 8)?;
            let values = (flags & WEIGHTED != 0).then(|| arrays.next(count, 4)).transpose()?;
            if let Some(values) = &values
                && !are_finite(cast_slice(&bytes[values.clone()]))
            {
                return Err(PackedError::Number { what: A_VALUE, column: Some(column) });
            }
            columns.push(Place { offsets, keys, values });
        }
        if arrays.at != found {
            return Err(PackedError::Length { needed: arrays.at, found });
        }
        if !are_labels(cast_slice(&bytes[labels.clone()])) {
            return Err(PackedError::Number { what: A_LABEL, column: None });
        }
        let weighs = |weight: &f32| *weight >= 0.0 && weight.is_finite();
        if !cast_slice(&bytes[weights.clone()]).iter().all(weighs) {
            return Err(PackedError::Number { what: A_WEIGHT, column: None });
        }
        Ok(Head { rows, labels, weights })
    }
}

/// Finds consecutive arrays.
struct Arrays<'a> {
    /// The start of the next array. No sum overflows: counts have 32 bits, and there are few arrays.
    at: u64,
    bytes: &'a [u8],
}

impl Arrays<'_> {
    fn next(&mut self, count: usize, item_bytes: usize) -> Result<Range<usize>, PackedError> {
        let end = self.at + count as u64 * item_bytes as u64;
        let (needed, found) = (end.next_multiple_of(PACKED_ALIGN_BYTES as u64), self.bytes.len() as u64);
        if needed > found {
            return Err(PackedError::Length { needed, found });
        }
        let range = self.at as usize..end as usize;
        self.at = needed;
        Ok(range)
    }
}

/// Whether boundaries ascend from 0 to the number of keys. Without a branch per boundary, so that it vectorises.
fn is_ragged(offsets: &[u32], keys: u32) -> bool {
    let descents = offsets.iter().zip(&offsets[1..]).fold(0, |any, (a, b)| any | u32::from(a > b));
    descents == 0 && offsets[0] == 0 && offsets[offsets.len() - 1] == keys
}

/// Whether each label is 0, 1 or NaN; vectorises likewise.
fn are_labels(labels: &[f32]) -> bool {
    labels.iter().fold(true, |all, &label| all & (label == 0.0 || label == 1.0 || label.is_nan()))
}

/// Whether no value is infinite or NaN; vectorises likewise.
fn are_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    values.iter().fold(0, |any, value| any | u32::from(value.to_bits() & EXPONENT == EXPONENT)) == 0
}

#[cfg(test)]
mod tests;
