//! The cells of a record batch as fields: every column is cast once to one of a few layouts, then rows are walked.
//! Knows no file format.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int16Type, Int32Type, Int64Type, RunEndIndexType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, Float64Array,
    Int64Array, LargeBinaryArray, RecordBatch, RunArray, StringArray, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{ArrowError, DECIMAL256_MAX_PRECISION, DataType, TimeUnit};

use sanderling_sample::{Field, Time, TimeKind};

use super::convert;

/// A column in one of the layouts that fields are taken from.
#[derive(Debug)]
#[expect(missing_docs, reason = "the types of the variants say it")]
pub enum Cells {
    Null,
    Int(Int64Array),
    Unsigned(UInt64Array),
    Float(Float64Array),
    /// Truth values.
    Bool(BooleanArray),
    /// Days since 1970.
    Days(Int64Array),
    /// Times; `per_second` units make a second.
    Time {
        counts: Int64Array,
        kind: TimeKind,
        per_second: i64,
    },
    /// Texts of decimals. A text is an integer if an i64 holds it; otherwise it is the text without trailing zeros,
    /// which hashes and reads like the integer or float.
    Digits(StringArray),
    /// Texts of one length.
    Fixed(FixedSizeBinaryArray),
    /// Row `i` is the value `rows[i]` of a dictionary, or missing if that is the number of values. Values are not copied:
    /// they may be long and used often.
    Indexed {
        rows: Vec<u32>,
        values: Arc<Cells>,
        /// The dictionary itself, by which others know it again.
        dictionary: ArrayRef,
    },
    /// Cells one after the other, each with the row behind its last one.
    Parts(Vec<(usize, Cells)>),
    Text(BinaryArray),
    LargeText(LargeBinaryArray),
    ViewText(BinaryViewArray),
    /// Row `i` holds the cells `offsets[i] - offsets[0]..offsets[i + 1] - offsets[0]` of `values`.
    List {
        offsets: OffsetBuffer<i64>,
        nulls: Option<NullBuffer>,
        values: Box<Cells>,
        len: usize,
    },
}

/// Whether a column of this type has fields. Lists hold scalars only.
pub(super) fn is_supported(kind: &DataType) -> bool {
    is_scalar(kind) || list_item(kind).is_some_and(is_scalar)
}

fn list_item(kind: &DataType) -> Option<&DataType> {
    match kind {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => Some(item.data_type()),
        _ => None,
    }
}

fn is_scalar(kind: &DataType) -> bool {
    layout(kind).is_some()
}

/// A slice of a record batch has at most this many elements in a column of lists; a longer one is halved.
pub(super) const ELEMENTS_MAX: usize = 1 << 22;

/// Digits that always fit into an i64.
const INT_DIGITS: u32 = i64::MAX.ilog10();

/// Digits of the longest decimals; a column with a negative scale might need more.
const DIGITS_MAX: u32 = DECIMAL256_MAX_PRECISION as u32;

/// Decimals of up to this many digits are exactly the text of the nearest f64, and one division makes it.
const FLOAT_DIGITS: u8 = f64::DIGITS as u8;
/// Powers of ten up to this exponent are floats.
const FLOAT_SCALE_MAX: i8 = 22;

/// The most digits of a whole-number decimal type; `None` for other types.
fn whole_digits(kind: &DataType) -> Option<u32> {
    use DataType as D;
    match kind {
        D::Decimal32(digits, scale)
        | D::Decimal64(digits, scale)
        | D::Decimal128(digits, scale)
        | D::Decimal256(digits, scale)
            if *scale <= 0 =>
        {
            Some(u32::from(*digits) + u32::from(scale.unsigned_abs())).filter(|digits| *digits <= DIGITS_MAX)
        }
        _ => None,
    }
}

/// Whether fractional decimals of this type are floats without loss.
fn is_float(kind: &DataType) -> bool {
    use DataType as D;
    matches!(kind, D::Decimal32(digits, scale) | D::Decimal64(digits, scale) | D::Decimal128(digits, scale)
        | D::Decimal256(digits, scale) if *digits <= FLOAT_DIGITS && *scale <= FLOAT_SCALE_MAX)
}

/// The type that a scalar column is cast to; the same for all slices of a column, whatever the values.
fn layout(kind: &DataType) -> Option<DataType> {
    use DataType as D;
    Some(match kind {
        D::Null => D::Null,
        D::Boolean | D::Int8 | D::Int16 | D::Int32 | D::Int64 => D::Int64,
        D::UInt8 | D::UInt16 | D::UInt32 => D::Int64,
        D::UInt64 => D::UInt64,
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(..) | D::Duration(_) => D::Int64,
        D::Float16 | D::Float32 | D::Float64 => D::Float64,
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) => {
            match whole_digits(kind) {
                Some(digits) if digits <= INT_DIGITS => D::Int64,
                Some(_) => D::Utf8,
                None if is_float(kind) => D::Float64,
                None => D::Utf8,
            }
        }
        D::Utf8 | D::Binary | D::FixedSizeBinary(_) => D::Binary,
        D::LargeUtf8 | D::LargeBinary => D::LargeBinary,
        D::Utf8View | D::BinaryView => D::BinaryView,
        D::Dictionary(_, value) => layout(value)?,
        D::RunEndEncoded(_, value) => layout(value.data_type())?,
        _ => return None,
    })
}

/// Casts a column to the layout of its type.
pub fn cells_of(column: &ArrayRef) -> Result<Cells, ArrowError> {
    if let Some(item) = list_item(column.data_type()) {
        let unsupported = || unsupported(column.data_type());
        if !is_scalar(item) {
            return Err(unsupported());
        }
        let elements = elements_of(column);
        if elements > ELEMENTS_MAX {
            return Err(ArrowError::InvalidArgumentError(format!(
                "{elements} elements in {} rows, at most {ELEMENTS_MAX} are read at a time",
                column.len()
            )));
        }
        return list_cells(column);
    }
    scalar_cells(column)
}

/// The number of list elements of a column, before any is copied: views may share elements.
fn elements_of(column: &ArrayRef) -> usize {
    let views = |sizes: &mut dyn Iterator<Item = i64>| {
        sizes.fold(0_usize, |sum, size| sum.saturating_add(usize::try_from(size).unwrap_or_default()))
    };
    match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value_offsets().last().map_or(0, |last| {
            usize::try_from(last - column.as_list::<i32>().value_offsets()[0]).unwrap_or_default()
        }),
        DataType::LargeList(_) => column.as_list::<i64>().value_offsets().last().map_or(0, |last| {
            usize::try_from(last - column.as_list::<i64>().value_offsets()[0]).unwrap_or_default()
        }),
        DataType::ListView(_) => {
            views(&mut column.as_list_view::<i32>().value_sizes().iter().map(|&size| i64::from(size)))
        }
        DataType::LargeListView(_) => views(&mut column.as_list_view::<i64>().value_sizes().iter().copied()),
        DataType::FixedSizeList(_, size) => {
            column.len().saturating_mul(usize::try_from(*size).unwrap_or_default())
        }
        _ => 0,
    }
}

/// Whether the lists of these rows are short enough to be converted together.
pub(super) fn is_bounded(records: &RecordBatch) -> bool {
    records.columns().iter().all(|column| elements_of(column) <= ELEMENTS_MAX)
}

fn unsupported(kind: &DataType) -> ArrowError {
    ArrowError::NotYetImplemented(format!(
        "type {kind} is neither number, text, boolean, time nor a list of them"
    ))
}

fn list_cells(column: &ArrayRef) -> Result<Cells, ArrowError> {
    let item = match column.data_type() {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => item.clone(),
        other => return Err(unsupported(other)),
    };
    let list = convert::lists(column, &item)?;
    let offsets = list.offsets().clone();
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    // The child of a sliced list is whole: convert only the slice's part.
    let values = list.values().slice(first as usize, (last - first) as usize);
    let values = Box::new(scalar_cells(&values)?);
    Ok(Cells::List { offsets, nulls: list.nulls().cloned(), values, len: (last - first) as usize })
}

fn scalar_cells(column: &ArrayRef) -> Result<Cells, ArrowError> {
    let kind = column.data_type();
    match kind {
        // Values stay in the dictionary: a short file may name a long text often, and each is encoded once.
        DataType::Dictionary(_, value) if is_scalar(value) => {
            let column = column.as_any_dictionary();
            let values = column.values();
            let len = u32::try_from(values.len()).map_err(|_| too_many_values(values))?;
            return indexed(convert::dictionary_rows(column.keys(), len)?, values);
        }
        DataType::RunEndEncoded(_, value) if is_scalar(value.data_type()) => {
            let (rows, values) = runs(column)?;
            return indexed(rows, &values);
        }
        DataType::FixedSizeBinary(_) => return Ok(Cells::Fixed(column.as_fixed_size_binary().clone())),
        DataType::Boolean => return Ok(Cells::Bool(column.as_boolean().clone())),
        DataType::Date32 => return Ok(Cells::Days(convert::integers(column)?)),
        _ => {}
    }
    if let Some((kind, per_second)) = time_of(kind) {
        return Ok(Cells::Time { counts: convert::integers(column)?, kind, per_second });
    }
    let layout = layout(kind).ok_or_else(|| unsupported(kind))?;
    Ok(match layout {
        DataType::Null => Cells::Null,
        DataType::Int64 => Cells::Int(convert::integers(column)?),
        DataType::UInt64 => Cells::Unsigned(column.as_primitive().clone()),
        DataType::Float64 => Cells::Float(convert::floats(column)?),
        DataType::Utf8 => Cells::Digits(convert::decimal_texts(column)?),
        DataType::Binary => Cells::Text(convert::bytes(column)),
        DataType::LargeBinary => Cells::LargeText(convert::large_bytes(column)),
        _ => Cells::ViewText(convert::view_bytes(column)),
    })
}

fn indexed(rows: Vec<u32>, dictionary: &ArrayRef) -> Result<Cells, ArrowError> {
    if u32::try_from(dictionary.len()).is_err() {
        return Err(too_many_values(dictionary));
    }
    let values = Arc::new(scalar_cells(dictionary)?);
    Ok(Cells::Indexed { rows, values, dictionary: Arc::clone(dictionary) })
}

fn too_many_values(dictionary: &ArrayRef) -> ArrowError {
    let many = format!("a dictionary of {} values, at most {} are read", dictionary.len(), u32::MAX);
    ArrowError::InvalidArgumentError(many)
}

/// Whether values of this type are texts.
pub(super) fn is_text(kind: &DataType) -> bool {
    use DataType as D;
    matches!(
        kind,
        D::Utf8
            | D::LargeUtf8
            | D::Utf8View
            | D::Binary
            | D::LargeBinary
            | D::BinaryView
            | D::FixedSizeBinary(_)
    )
}

/// Per row of a run-end encoded column the index of its value, and the values.
fn runs(column: &ArrayRef) -> Result<(Vec<u32>, ArrayRef), ArrowError> {
    fn places<R: RunEndIndexType>(column: &ArrayRef) -> Option<(Vec<u32>, ArrayRef)> {
        let runs = column.as_any().downcast_ref::<RunArray<R>>()?;
        let rows = (0..column.len()).map(|row| runs.get_physical_index(row) as u32).collect();
        Some((rows, Arc::clone(runs.values())))
    }
    let found = places::<Int32Type>(column);
    let found = found.or_else(|| places::<Int64Type>(column)).or_else(|| places::<Int16Type>(column));
    found.ok_or_else(|| unsupported(column.data_type()))
}

/// The kind of time that a type counts, and its units per second.
fn time_of(kind: &DataType) -> Option<(TimeKind, i64)> {
    use DataType as D;
    let (kind, unit) = match kind {
        D::Date64 => (TimeKind::Instant, &TimeUnit::Millisecond),
        // The zone does not matter: these count from 1970 in UTC, whatever zone they are shown in.
        D::Timestamp(unit, _) => (TimeKind::Instant, unit),
        D::Time32(unit) | D::Time64(unit) => (TimeKind::OfDay, unit),
        D::Duration(unit) => (TimeKind::Duration, unit),
        _ => return None,
    };
    let per_second = match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    };
    Some((kind, per_second))
}

impl Cells {
    /// The fields of all elements of a list column, for [`Cells::field`] to take slices of; empty for scalars.
    pub fn elements(&self) -> Vec<Field<'_>> {
        match self {
            Cells::List { values, len, .. } => (0..*len).map(|index| values.field(index, &[])).collect(),
            _ => Vec::new(),
        }
    }

    /// The field of a row. `elements` is what [`Cells::elements`] gave for this column.
    #[inline]
    pub fn field<'a>(&'a self, row: usize, elements: &'a [Field<'a>]) -> Field<'a> {
        match self {
            Cells::Null => Field::Missing,
            Cells::Int(array) if array.is_null(row) => Field::Missing,
            Cells::Int(array) => Field::Int(array.value(row)),
            Cells::Unsigned(array) if array.is_null(row) => Field::Missing,
            Cells::Unsigned(array) => Field::Unsigned(array.value(row)),
            Cells::Float(array) if array.is_null(row) => Field::Missing,
            Cells::Float(array) => Field::Float(array.value(row)),
            Cells::Digits(array) if array.is_null(row) => Field::Missing,
            Cells::Digits(array) => {
                let mut text = array.value(row);
                if text.contains('.') {
                    text = text.trim_end_matches('0').trim_end_matches('.');
                }
                text.parse().map_or(Field::Text(text.as_bytes()), Field::Int)
            }
            Cells::Bool(array) if array.is_null(row) => Field::Missing,
            Cells::Bool(array) => Field::Bool(array.value(row)),
            Cells::Days(array) if array.is_null(row) => Field::Missing,
            Cells::Days(array) => Field::Time(Time::of_day(array.value(row) as i32)),
            Cells::Time { counts, .. } if counts.is_null(row) => Field::Missing,
            Cells::Time { counts, kind, per_second } => {
                Field::Time(Time::of(*kind, counts.value(row), *per_second))
            }
            Cells::Fixed(array) if array.is_null(row) => Field::Missing,
            Cells::Fixed(array) => Field::Text(array.value(row)),
            Cells::Indexed { rows, values, dictionary } => match rows[row] as usize {
                missing if missing == dictionary.len() => Field::Missing,
                index => values.field(index, &[]),
            },
            Cells::Parts(parts) => {
                let part = parts.partition_point(|(end, _)| *end <= row);
                let start = part.checked_sub(1).map_or(0, |before| parts[before].0);
                parts[part].1.field(row - start, &[])
            }
            Cells::Text(array) if array.is_null(row) => Field::Missing,
            Cells::Text(array) => Field::Text(array.value(row)),
            Cells::LargeText(array) if array.is_null(row) => Field::Missing,
            Cells::LargeText(array) => Field::Text(array.value(row)),
            Cells::ViewText(array) if array.is_null(row) => Field::Missing,
            Cells::ViewText(array) => Field::Text(array.value(row)),
            Cells::List { nulls: Some(nulls), .. } if nulls.is_null(row) => Field::Missing,
            Cells::List { offsets, .. } => {
                let first = offsets[0];
                Field::List(&elements[(offsets[row] - first) as usize..(offsets[row + 1] - first) as usize])
            }
        }
    }
}
