//! One page of a flat column: unpacked by the first thread that needs it, decoded for any range of its rows. Flat are columns
//! without lists and structures, whose pages hold dictionary indices or plain values. Knows no file.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arrow_array::builder::BinaryViewBuilder;
use arrow_array::types::{Int8Type, Int16Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, ScalarBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::basic::{Compression, Type};

use super::super::cells::{Cells, cells_of};
use super::super::convert::reinterpret;
use super::super::pages::header::Header;
use super::super::pages::lengths::unpack;
use super::runs::{Cursor, Runs, WIDTH_MAX};

/// Rows, or values, between two marks of a page, unless it has more than [`MARKS_MAX`] of them.
const STRIDE: usize = 4096;
const MARKS_MAX: usize = 1024;

/// The values of a column.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) physical: Type,
    pub(super) kind: DataType,
    pub(super) codec: Compression,
    pub(super) is_optional: bool,
}

impl Kind {
    /// Whether values of this kind are decoded here.
    pub(super) fn is_flat(physical: Type, kind: &DataType) -> bool {
        use DataType as D;
        match physical {
            Type::INT32 => matches!(
                kind,
                D::Int8 | D::Int16 | D::Int32 | D::UInt8 | D::UInt16 | D::UInt32 | D::Date32 | D::Time32(_)
            ),
            Type::INT64 => {
                matches!(kind, D::Int64 | D::UInt64 | D::Timestamp(..) | D::Time64(_) | D::Duration(_))
            }
            Type::FLOAT => *kind == D::Float32,
            Type::DOUBLE => *kind == D::Float64,
            Type::BYTE_ARRAY => matches!(kind, D::Utf8View | D::BinaryView),
            _ => false,
        }
    }

    fn unpacked(&self, header: &Header, stored: &Bytes) -> Result<Buffer, String> {
        let levels = stored.get(..header.level_bytes).ok_or("a page is shorter than its levels")?;
        let size = header.unpacked_bytes.saturating_sub(header.level_bytes as u64);
        if !header.is_packed || self.codec == Compression::UNCOMPRESSED {
            return Ok(Buffer::from(stored.clone()));
        }
        let plain = unpack(self.codec, &stored[levels.len()..], size)
            .ok_or_else(|| format!("a page does not unpack to the {size} bytes that it declares"))?;
        Ok(Buffer::from_vec(if levels.is_empty() { plain.into_owned() } else { [levels, &plain].concat() }))
    }

    /// Plain values, with nulls where `valid` has a zero.
    fn plain(
        &self,
        values: &[u8],
        buffer: &Buffer,
        valid: Option<&[u32]>,
        count: usize,
    ) -> Result<ArrayRef, String> {
        let nulls = || valid.map(|valid| NullBuffer::from_iter(valid.iter().map(|valid| *valid != 0)));
        let few = "a page has fewer values than it declares";
        Ok(match self.physical {
            Type::INT32 => {
                let numbers = spread(values, valid, count, i32::from_le_bytes).ok_or(few)?;
                self.of_int32(Int32Array::new(numbers, nulls()))?
            }
            Type::INT64 => {
                let numbers = spread(values, valid, count, i64::from_le_bytes).ok_or(few)?;
                self.of_int64(Int64Array::new(numbers, nulls()))?
            }
            Type::FLOAT => Arc::new(Float32Array::new(
                spread(values, valid, count, f32::from_le_bytes).ok_or(few)?,
                nulls(),
            )),
            Type::DOUBLE => Arc::new(Float64Array::new(
                spread(values, valid, count, f64::from_le_bytes).ok_or(few)?,
                nulls(),
            )),
            _ => self.texts(values, buffer, valid, count)?,
        })
    }

    fn of_int32(&self, array: Int32Array) -> Result<ArrayRef, String> {
        use DataType as D;
        // As the parquet crate converts them: without a check of the range.
        Ok(match self.kind {
            D::Int8 => Arc::new(array.unary::<_, Int8Type>(|value| value as i8)) as ArrayRef,
            D::Int16 => Arc::new(array.unary::<_, Int16Type>(|value| value as i16)),
            D::UInt8 => Arc::new(array.unary::<_, UInt8Type>(|value| value as u8)),
            D::UInt16 => Arc::new(array.unary::<_, UInt16Type>(|value| value as u16)),
            D::UInt32 => Arc::new(array.unary::<_, UInt32Type>(|value| value as u32)),
            D::Int32 => Arc::new(array),
            _ => reinterpret(&array, &self.kind).map_err(|error| error.to_string())?,
        })
    }

    fn of_int64(&self, array: Int64Array) -> Result<ArrayRef, String> {
        Ok(match self.kind {
            DataType::UInt64 => Arc::new(array.unary::<_, UInt64Type>(|value| value as u64)),
            DataType::Int64 => Arc::new(array),
            _ => reinterpret(&array, &self.kind).map_err(|error| error.to_string())?,
        })
    }

    /// Texts, each behind its length, as views into the page.
    fn texts(
        &self,
        values: &[u8],
        buffer: &Buffer,
        valid: Option<&[u32]>,
        count: usize,
    ) -> Result<ArrayRef, String> {
        let start = values.as_ptr() as usize - buffer.as_ptr() as usize;
        let mut builder = BinaryViewBuilder::with_capacity(count);
        let block = builder.append_block(buffer.clone());
        let (mut rest, is_utf8) = (values, self.kind == DataType::Utf8View);
        for at in 0..count {
            if valid.is_some_and(|valid| valid[at] == 0) {
                builder.append_null();
                continue;
            }
            let text = next_text(&mut rest)?;
            if is_utf8 && !text.is_ascii() && std::str::from_utf8(text).is_err() {
                return Err("a text is not UTF-8".to_string());
            }
            let place = start + (values.len() - rest.len()) - text.len();
            let view = u32::try_from(place).ok().zip(u32::try_from(text.len()).ok());
            let (place, length) = view.ok_or("a page of more than 4 GiB")?;
            builder.try_append_view(block, place, length).map_err(|error| error.to_string())?;
        }
        Ok(Arc::new(builder.finish()) as ArrayRef)
    }
}

/// Plain numbers of `N` bytes, with zeros where `valid` has a zero; `None` if there are fewer.
fn spread<const N: usize, T: ArrowNativeType + Default>(
    values: &[u8],
    valid: Option<&[u32]>,
    count: usize,
    number: impl Fn([u8; N]) -> T,
) -> Option<ScalarBuffer<T>> {
    let (chunks, _) = values.as_chunks::<N>();
    let Some(valid) = valid else {
        return Some(chunks.get(..count)?.iter().map(|chunk| number(*chunk)).collect());
    };
    let mut chunks = chunks.iter();
    let numbers = valid.iter().map(|valid| {
        if *valid == 0 { Some(T::default()) } else { chunks.next().map(|chunk| number(*chunk)) }
    });
    numbers.collect()
}

fn next_text<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let text = rest
        .split_first_chunk::<4>()
        .and_then(|(length, behind)| behind.split_at_checked(u32::from_le_bytes(*length) as usize));
    let (text, behind) = text.ok_or("a text is longer than its page")?;
    *rest = behind;
    Ok(text)
}

/// The dictionary of a column chunk.
#[derive(Debug)]
pub(super) struct Dictionary {
    kind: Arc<Kind>,
    header: Header,
    stored: Bytes,
    values: OnceLock<Result<(ArrayRef, Arc<Cells>), String>>,
}

impl Dictionary {
    pub(super) fn new(kind: Arc<Kind>, header: Header, stored: Bytes) -> Dictionary {
        Dictionary { kind, header, stored, values: OnceLock::new() }
    }

    /// Number of values.
    fn len(&self) -> usize {
        self.header.values as usize
    }

    fn values(&self) -> Result<&(ArrayRef, Arc<Cells>), String> {
        let values = self.values.get_or_init(|| {
            let buffer = self.kind.unpacked(&self.header, &self.stored)?;
            let values = self.kind.plain(&buffer, &buffer, None, self.len())?;
            let cells = Arc::new(cells_of(&values).map_err(|error| error.to_string())?);
            Ok((values, cells))
        });
        values.as_ref().map_err(Clone::clone)
    }
}

/// A data page.
#[derive(Debug)]
pub(super) struct Page {
    kind: Arc<Kind>,
    header: Header,
    /// The dictionary that its indices refer to; `None` for plain values.
    dictionary: Option<Arc<Dictionary>>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Stored(Bytes),
    Unpacked(Arc<Unpacked>),
    Damaged(String),
}

/// A page with places to decode from.
#[derive(Debug)]
struct Unpacked {
    buffer: Buffer,
    stride: usize,
    levels: Option<Range<usize>>,
    /// Per stride of rows the place in the levels, and the number of values before.
    rows: Vec<(Cursor, usize)>,
    values: Range<usize>,
    /// Bits of a dictionary index.
    width: u32,
    /// Per stride of values the place in the indices.
    indices: Vec<Cursor>,
    /// Per stride of values the place of the text.
    texts: Vec<usize>,
}

impl Page {
    pub(super) fn new(
        kind: Arc<Kind>,
        header: Header,
        dictionary: Option<Arc<Dictionary>>,
        stored: Bytes,
    ) -> Page {
        Page { kind, header, dictionary, state: Mutex::new(State::Stored(stored)) }
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.header.values as usize
    }

    /// Unpacks the page now, unless another thread is at it.
    pub(super) fn unpack_unless_busy(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            self.settle(&mut state);
        }
    }

    fn ready(&self) -> Result<Arc<Unpacked>, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.settle(&mut state);
        match &*state {
            State::Unpacked(unpacked) => Ok(Arc::clone(unpacked)),
            State::Damaged(reason) => Err(reason.clone()),
            State::Stored(_) => Err("a page was not unpacked".to_string()),
        }
    }

    fn settle(&self, state: &mut State) {
        if let State::Stored(stored) = state {
            *state = match self.unpack(stored) {
                Ok(unpacked) => State::Unpacked(Arc::new(unpacked)),
                Err(reason) => State::Damaged(reason),
            };
        }
    }

    fn unpack(&self, stored: &Bytes) -> Result<Unpacked, String> {
        let buffer = self.kind.unpacked(&self.header, stored)?;
        let few = || "a page is shorter than its levels".to_string();
        let mut start = 0;
        let levels = if self.header.is_second {
            start = self.header.level_bytes;
            self.kind.is_optional.then_some(0..start)
        } else if self.kind.is_optional {
            let length = buffer.first_chunk::<4>().ok_or_else(few)?;
            start = (u32::from_le_bytes(*length) as usize).saturating_add(4);
            Some(4..start)
        } else {
            None
        };
        if start > buffer.len() {
            return Err(few());
        }
        let stride = STRIDE.max(self.len().div_ceil(MARKS_MAX));
        let mut unpacked = Unpacked {
            stride,
            levels,
            rows: Vec::new(),
            values: start..buffer.len(),
            buffer,
            width: 0,
            indices: Vec::new(),
            texts: Vec::new(),
        };
        unpacked.mark(self)?;
        if let Some(dictionary) = &self.dictionary {
            dictionary.values()?;
        }
        Ok(unpacked)
    }

    /// The cells of some rows.
    pub(super) fn cells(&self, rows: &Range<usize>) -> Result<Cells, String> {
        let unpacked = self.ready()?;
        let few = || "a page has fewer values than it declares".to_string();
        let (valid, values) = unpacked.valid(rows).ok_or_else(few)?;
        let Some(dictionary) = &self.dictionary else {
            let bytes = unpacked.plain_from(values.start, &self.kind).ok_or_else(few)?;
            let array = self.kind.plain(bytes, &unpacked.buffer, valid.as_deref(), rows.len())?;
            return cells_of(&array).map_err(|error| error.to_string());
        };
        let (source, cells) = dictionary.values()?;
        let mut indices = Vec::with_capacity(rows.len());
        if !values.is_empty() {
            let runs = unpacked.runs();
            let mut cursor = unpacked.indices[values.start / unpacked.stride];
            runs.skip(&mut cursor, values.start % unpacked.stride).ok_or_else(few)?;
            runs.read(&mut cursor, values.len(), &mut indices).ok_or_else(few)?;
        }
        let missing = dictionary.len() as u32;
        if indices.iter().fold(0, |max, index| max.max(*index)) >= missing && !indices.is_empty() {
            return Err(format!("an index beyond the {missing} values of its dictionary"));
        }
        let rows = match valid {
            None => indices,
            Some(valid) => {
                indices.push(missing);
                let mut at = 0;
                let row = |valid: u32| {
                    let index = if valid == 0 { missing } else { indices[at] };
                    at += valid as usize;
                    index
                };
                valid.into_iter().map(row).collect()
            }
        };
        Ok(Cells::Indexed { rows, values: Arc::clone(cells), dictionary: Arc::clone(source) })
    }
}

impl Unpacked {
    fn runs(&self) -> Runs<'_> {
        // The first byte is the width.
        let bytes = self.buffer[self.values.clone()].get(1..).unwrap_or_default();
        Runs { bytes, width: self.width }
    }

    /// Sets the marks.
    fn mark(&mut self, page: &Page) -> Result<(), String> {
        let few = || "a page has fewer values than it declares".to_string();
        let mut values = page.len();
        if let Some(levels) = &self.levels {
            let runs = Runs { bytes: &self.buffer[levels.clone()], width: 1 };
            let (mut cursor, mut before, mut left) = (Cursor::default(), 0, page.len());
            while left > 0 {
                self.rows.push((cursor, before));
                let some = left.min(self.stride);
                before += runs.count_ones(&mut cursor, some).ok_or_else(few)?;
                left -= some;
            }
            values = before;
        }
        if values == 0 {
            return Ok(());
        }
        if page.dictionary.is_some() {
            self.width = u32::from(self.buffer[self.values.clone()].first().copied().unwrap_or_default());
            if self.width > WIDTH_MAX {
                return Err(format!("dictionary indices of {} bits", self.width));
            }
            let mut marks = Vec::new();
            let (runs, mut cursor) = (self.runs(), Cursor::default());
            for left in (1..=values).rev().step_by(self.stride) {
                marks.push(cursor);
                runs.skip(&mut cursor, left.min(self.stride)).ok_or_else(few)?;
            }
            self.indices = marks;
        } else if page.kind.physical == Type::BYTE_ARRAY {
            let all = &self.buffer[self.values.clone()];
            let mut rest = all;
            for at in 0..values {
                if at % self.stride == 0 {
                    self.texts.push(all.len() - rest.len());
                }
                next_text(&mut rest)?;
            }
        }
        Ok(())
    }

    /// Which rows have values, unless all have, and the range of their values.
    fn valid(&self, rows: &Range<usize>) -> Option<(Option<Vec<u32>>, Range<usize>)> {
        let Some(levels) = &self.levels else { return Some((None, rows.clone())) };
        let runs = Runs { bytes: &self.buffer[levels.clone()], width: 1 };
        let (mut cursor, before) = *self.rows.get(rows.start / self.stride)?;
        let start = before + runs.count_ones(&mut cursor, rows.start % self.stride)?;
        if runs.repeats(&mut cursor, rows.len()) == Some(1) {
            return Some((None, start..start + rows.len()));
        }
        let mut valid = Vec::with_capacity(rows.len());
        runs.read(&mut cursor, rows.len(), &mut valid)?;
        let values = valid.iter().map(|valid| *valid as usize & 1).sum::<usize>();
        Some((Some(valid), start..start + values))
    }

    /// The plain values from one on.
    fn plain_from(&self, value: usize, kind: &Kind) -> Option<&[u8]> {
        let all = &self.buffer[self.values.clone()];
        let width = match kind.physical {
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            _ => {
                // A page of nulls has no marks.
                let mark = self.texts.get(value / self.stride).copied().unwrap_or(all.len());
                let mut rest = all.get(mark..)?;
                for _ in 0..(value % self.stride) * usize::from(!rest.is_empty()) {
                    next_text(&mut rest).ok()?;
                }
                return Some(rest);
            }
        };
        all.get(value.checked_mul(width)?..)
    }
}
