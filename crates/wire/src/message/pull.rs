//! Pulls of rows, and their replies, which the server fills in place.

use sanderling_pull::{Absent, Pooling};

use crate::frame::{HEADER_BYTES, Header, flag};
use crate::limit::{DIM_MAX, KEYS_MAX, SAMPLES_MAX};
use crate::message::framing::{header, place_header};
use crate::reader::{Reader, product};
use crate::writer::{Writer, agree};
use crate::{Agreed, Bits, Kind, WireError, widen};

pub(crate) fn write_absent(absent: Absent, out: &mut Writer<'_>) {
    out.u8((absent == Absent::Init).into());
}

pub(crate) fn read_absent(from: &mut Reader<'_>) -> Result<Absent, WireError> {
    Ok(if from.bool("absent")? { Absent::Init } else { Absent::Zero })
}

pub(crate) fn write_pooling(pooling: Pooling, out: &mut Writer<'_>) {
    out.u8((pooling == Pooling::Mean).into());
}

pub(crate) fn read_pooling(from: &mut Reader<'_>) -> Result<Pooling, WireError> {
    Ok(if from.bool("pooling")? { Pooling::Mean } else { Pooling::Sum })
}

/// The number format of rows in a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowFormat {
    /// Single precision.
    F32,
    /// Half precision, if negotiated ([`Features::F16_ROWS`](crate::Features::F16_ROWS)).
    F16,
}

impl RowFormat {
    pub(crate) fn of(header: &Header) -> RowFormat {
        if header.flags & flag::F16_ROWS == 0 { RowFormat::F32 } else { RowFormat::F16 }
    }

    pub(crate) fn flag(self) -> u16 {
        if self == RowFormat::F16 { flag::F16_ROWS } else { 0 }
    }
}

/// Requests the rows of keys, in their order. Keys may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pull<'a> {
    /// Number of the table.
    pub table: u32,
    /// Row length that the client expects.
    pub dim: u32,
    /// The result for keys without a row.
    pub absent: Absent,
    /// Format of the rows in the reply.
    pub format: RowFormat,
    /// At most [`KEYS_MAX`].
    pub keys: &'a [u64],
}

impl<'a> Pull<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.count("keys", self.keys.len(), KEYS_MAX)?;
        write_dim(self.dim, out)?;
        write_absent(self.absent, out);
        out.pad();
        out.slice(self.keys);
        Ok(())
    }

    pub(crate) fn read(table: u32, format: RowFormat, from: &mut Reader<'a>) -> Result<Pull<'a>, WireError> {
        let keys = from.count("keys", KEYS_MAX)?;
        let dim = read_dim(from)?;
        let absent = read_absent(from)?;
        from.pad("absent")?;
        Ok(Pull { table, dim, absent, format, keys: from.slice("keys", keys)? })
    }
}

/// Requests one row per sample, pooled from the rows of its keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PullPooled<'a> {
    /// Number of the table.
    pub table: u32,
    /// Row length that the client expects.
    pub dim: u32,
    /// Pooling of a sample's rows.
    pub pooling: Pooling,
    /// The result for keys without a row.
    pub absent: Absent,
    /// Format of the rows in the reply.
    pub format: RowFormat,
    /// Keys, sample after sample.
    pub ragged: Ragged<'a>,
}

impl<'a> PullPooled<'a> {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.ragged.write_counts(out)?;
        write_dim(self.dim, out)?;
        write_pooling(self.pooling, out);
        write_absent(self.absent, out);
        out.u8(self.ragged.values.is_some().into());
        out.pad();
        self.ragged.write(out);
        Ok(())
    }

    pub(crate) fn read(
        table: u32,
        format: RowFormat,
        from: &mut Reader<'a>,
    ) -> Result<PullPooled<'a>, WireError> {
        let (keys, samples) = Ragged::read_counts(from)?;
        let dim = read_dim(from)?;
        let (pooling, absent) = (read_pooling(from)?, read_absent(from)?);
        let has_values = from.bool("has values")?;
        from.pad("has values")?;
        let ragged = Ragged::read(keys, samples, has_values, from)?;
        Ok(PullPooled { table, dim, pooling, absent, format, ragged })
    }
}

/// The keys of a batch. Sample `s` has the keys `offsets[s]..offsets[s + 1]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ragged<'a> {
    /// At most [`KEYS_MAX`].
    pub keys: &'a [u64],
    /// Ascending from 0 to the number of keys. One more than samples, which are at most [`SAMPLES_MAX`].
    pub offsets: &'a [u32],
    /// One factor per key for its row. Without values every factor is 1.
    pub values: Option<&'a [f32]>,
}

impl<'a> Ragged<'a> {
    pub(crate) fn write_counts(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        self.check()?;
        out.count("keys", self.keys.len(), KEYS_MAX)?;
        out.count("samples", self.offsets.len() - 1, SAMPLES_MAX)
    }

    pub(crate) fn read_counts(from: &mut Reader<'a>) -> Result<(usize, usize), WireError> {
        Ok((from.count("keys", KEYS_MAX)?, from.count("samples", SAMPLES_MAX)?))
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.slice(self.keys);
        out.slice(self.offsets);
        out.slice(self.values.unwrap_or_default());
    }

    pub(crate) fn read(
        keys: usize,
        samples: usize,
        has_values: bool,
        from: &mut Reader<'a>,
    ) -> Result<Ragged<'a>, WireError> {
        let ragged = Ragged {
            keys: from.slice("keys", keys)?,
            offsets: from.slice("offsets", samples + 1)?,
            values: if has_values { Some(from.slice("values", keys)?) } else { None },
        };
        ragged.check()?;
        Ok(ragged)
    }

    // Offsets are sizes, so they are checked like all sizes.
    fn check(&self) -> Result<(), WireError> {
        let ends = (self.offsets.first(), self.offsets.last());
        if ends != (Some(&0), Some(&(self.keys.len() as u32))) || !self.offsets.is_sorted() {
            let found = self.offsets.last().copied().unwrap_or_default().into();
            return Err(WireError::Value { what: "offsets", found });
        }
        self.values.map_or(Ok(()), |values| agree("values", self.keys.len(), values.len()))
    }
}

/// Reply to a pull: the rows, and which keys have none. A pooled pull has one row per sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PullReply<'a> {
    /// Weights per row.
    pub dim: u32,
    /// Per key of the request, whether it has no row.
    pub absent: Bits<'a>,
    /// The rows in request order.
    pub values: RowValues<'a>,
}

/// Rows in the format of the reply.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum RowValues<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
}

impl RowValues<'_> {
    /// The format of the rows.
    #[must_use]
    pub fn format(&self) -> RowFormat {
        match self {
            RowValues::F32(_) => RowFormat::F32,
            RowValues::F16(_) => RowFormat::F16,
        }
    }

    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            RowValues::F32(values) => values.len(),
            RowValues::F16(values) => values.len(),
        }
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies each row of `dim` values as f32 to its position in `out`. Panics beyond the end.
    pub fn scatter(&self, dim: usize, positions: &[u32], out: &mut [f32]) {
        match self {
            RowValues::F32(rows) if dim == 1 => {
                rows.iter().zip(positions).for_each(|(value, &at)| out[at as usize] = *value);
            }
            RowValues::F32(rows) => {
                for (row, &at) in rows.chunks_exact(dim).zip(positions) {
                    out[at as usize * dim..][..dim].copy_from_slice(row);
                }
            }
            RowValues::F16(rows) => {
                for (row, &at) in rows.chunks_exact(dim).zip(positions) {
                    widen(row, &mut out[at as usize * dim..][..dim]);
                }
            }
        }
    }

    /// Copies all values as f32. Panics if the lengths differ.
    pub fn copy_to(&self, out: &mut [f32]) {
        match self {
            RowValues::F32(values) => out.copy_from_slice(values),
            RowValues::F16(values) => widen(values, out),
        }
    }
}

/// The sizes of a [`PullReply`]. They follow from the request alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullShape {
    /// Keys of the request.
    pub keys: usize,
    /// Rows of the reply: one per key, or one per sample.
    pub rows: usize,
    /// Weights per row.
    pub dim: u32,
    /// Format of the rows.
    pub format: RowFormat,
}

impl PullShape {
    const HEAD_BYTES: usize = 16;
    /// Offset of the absent bits in a reply.
    pub const ABSENT_AT: usize = HEADER_BYTES + PullShape::HEAD_BYTES;

    fn values(&self) -> Result<usize, WireError> {
        product("rows", self.rows, self.dim as usize)
    }

    /// Length of the whole frame.
    pub fn frame_bytes(&self) -> Result<usize, WireError> {
        let width = if self.format == RowFormat::F16 { 2 } else { 4 };
        let bytes = product("rows", self.values()?, width)?.next_multiple_of(8);
        Ok(HEADER_BYTES + PullShape::HEAD_BYTES + self.keys.div_ceil(64) * 8 + bytes)
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        out.count("keys", self.keys, KEYS_MAX)?;
        out.count("rows", self.rows, KEYS_MAX.max(SAMPLES_MAX))?;
        write_dim(self.dim, out)?;
        out.pad();
        Ok(())
    }
}

/// The areas of a pull reply that the server fills.
#[derive(Debug)]
pub struct PullAreas<'a> {
    /// Bits for [`set_bit`](crate::set_bit), initially zero.
    pub absent: &'a mut [u64],
    /// `rows * dim` values with undefined content.
    pub rows: RowsMut<'a>,
}

/// The destination of rows.
#[derive(Debug)]
#[allow(missing_docs)]
pub enum RowsMut<'a> {
    F32(&'a mut [f32]),
    /// Half precision, see [`narrow`](crate::narrow).
    F16(&'a mut [u16]),
}

impl<'a> PullReply<'a> {
    /// Encodes a reply without its rows at the start of `out`, which is aligned to 8 bytes, and returns the areas to
    /// fill. Then call [`seal`](crate::seal) on the first [`PullShape::frame_bytes`] of `out`.
    pub fn begin(
        kind: Kind,
        shape: PullShape,
        agreed: &Agreed,
        id: u64,
        out: &'a mut [u8],
    ) -> Result<PullAreas<'a>, WireError> {
        assert!(kind.has_rows(), "{kind} has no rows");
        let (needed, found) = (shape.frame_bytes()?, out.len());
        agreed.check_frame(needed)?;
        let frame = out.get_mut(..needed).ok_or(WireError::NoRoom { needed, found })?;
        place_header(header(kind, agreed, id, flag::REPLY | shape.format.flag()), frame);
        shape.write(&mut Writer::new(frame, HEADER_BYTES))?;
        let (_, areas) = frame.split_at_mut(HEADER_BYTES + PullShape::HEAD_BYTES);
        let (absent, rows) = areas.split_at_mut(shape.keys.div_ceil(64) * 8);
        absent.fill(0);
        // The rows may end inside their last word.
        if let Some(last) = rows.last_chunk_mut::<8>() {
            last.fill(0);
        }
        let values = shape.values()?;
        let unaligned = |_| WireError::Unaligned { what: "space for a reply" };
        let absent = bytemuck::try_cast_slice_mut(absent).map_err(unaligned)?;
        let rows = match shape.format {
            RowFormat::F32 => {
                RowsMut::F32(&mut bytemuck::try_cast_slice_mut(rows).map_err(unaligned)?[..values])
            }
            RowFormat::F16 => {
                RowsMut::F16(&mut bytemuck::try_cast_slice_mut(rows).map_err(unaligned)?[..values])
            }
        };
        Ok(PullAreas { absent, rows })
    }

    /// Encodes the start of a reply without a checksum: all before its rows. No key is absent.
    pub fn head(kind: Kind, shape: PullShape, agreed: &Agreed, id: u64) -> Result<Vec<u8>, WireError> {
        assert!(kind.has_rows(), "{kind} has no rows");
        let needed = shape.frame_bytes()?;
        agreed.check_frame(needed)?;
        let mut head = vec![0; PullShape::ABSENT_AT + shape.keys.div_ceil(64) * 8];
        let mut start = header(kind, agreed, id, flag::REPLY | shape.format.flag());
        start.payload_bytes = (needed - HEADER_BYTES) as u32;
        head[..HEADER_BYTES].copy_from_slice(&start.to_bytes());
        shape.write(&mut Writer::new(&mut head, HEADER_BYTES))?;
        Ok(head)
    }

    /// The sizes of the reply.
    #[must_use]
    pub fn shape(&self) -> PullShape {
        let rows = self.values.len() / (self.dim as usize).max(1);
        PullShape { keys: self.absent.len(), rows, dim: self.dim, format: self.values.format() }
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        let shape = self.shape();
        agree("rows", shape.values()?, self.values.len())?;
        shape.write(out)?;
        out.slice(self.absent.words());
        write_values(self.values, out);
        Ok(())
    }

    pub(crate) fn read(format: RowFormat, from: &mut Reader<'a>) -> Result<PullReply<'a>, WireError> {
        let keys = from.count("keys", KEYS_MAX)?;
        let rows = from.count("rows", KEYS_MAX.max(SAMPLES_MAX))?;
        let dim = read_dim(from)?;
        from.pad("dim")?;
        let values = PullShape { keys, rows, dim, format }.values()?;
        let words = from.slice("absent", keys.div_ceil(64))?;
        let absent = Bits::new(words, keys).ok_or(WireError::Padding { what: "absent" })?;
        Ok(PullReply { dim, absent, values: read_values(format, values, from)? })
    }
}

pub(crate) fn write_values(values: RowValues<'_>, out: &mut Writer<'_>) {
    match values {
        RowValues::F32(values) => out.slice(values),
        RowValues::F16(values) => out.slice(values),
    }
}

pub(crate) fn read_values<'a>(
    format: RowFormat,
    values: usize,
    from: &mut Reader<'a>,
) -> Result<RowValues<'a>, WireError> {
    Ok(match format {
        RowFormat::F32 => RowValues::F32(from.slice("rows", values)?),
        RowFormat::F16 => RowValues::F16(from.slice("rows", values)?),
    })
}

/// A row has 1 to [`DIM_MAX`] weights.
pub(crate) fn write_dim(dim: u32, out: &mut Writer<'_>) -> Result<(), WireError> {
    check_dim(dim)?;
    out.count("dim", dim as usize, DIM_MAX)
}

pub(crate) fn read_dim(from: &mut Reader<'_>) -> Result<u32, WireError> {
    let dim = from.count("dim", DIM_MAX)? as u32;
    check_dim(dim)?;
    Ok(dim)
}

fn check_dim(dim: u32) -> Result<(), WireError> {
    if dim == 0 { Err(WireError::Value { what: "dim", found: 0 }) } else { Ok(()) }
}
