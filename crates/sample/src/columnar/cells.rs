//! The cells of a record batch as fields: every column is cast once to one of a few layouts, then rows are walked.
//! Knows no file format.

use std::path::Path;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Float64Array, Int64Array, LargeBinaryArray,
    LargeListArray, RecordBatch, StringArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DECIMAL256_MAX_PRECISION, DataType};
use arrow::error::ArrowError;

use super::{bad_file, guarded};
use crate::batch::Batch;
use crate::encode::{Encoder, Fate};
use crate::error::SampleError;
use crate::field::Field;

/// Appends the rows of a record batch (columns parallel to the encoder's input columns, as
/// [`super::ColumnarFile::next`] yields them) to a batch. `first_row` is the file row of the first one, counted from
/// 1; `first_row_id` its position in the whole input, which decides about down-sampling. A row that does not encode
/// is given to `on_bad`, which either stops everything by returning the error or accounts for it, perhaps by closing a
/// placeholder row in the batch.
///
/// # Errors
/// What `on_bad` returns; `BadFile` if a column does not convert at all.
pub fn decode(
    encoder: &Encoder,
    records: &RecordBatch,
    path: &Path,
    first_row: u64,
    first_row_id: u64,
    batch: &mut Batch,
    mut on_bad: impl FnMut(SampleError, &mut Batch) -> Result<(), SampleError>,
) -> Result<(), SampleError> {
    let names = encoder.input_columns();
    debug_assert_eq!(records.num_columns(), names.len());
    let columns = guarded(path, "converting", || {
        let columns = records.columns().iter().zip(names);
        let cells = columns.map(|(column, name)| {
            cells_of(column).map_err(|error| bad_file(path, format!("column {name:?}: {error}")))
        });
        cells.collect::<Result<Vec<Cells>, SampleError>>()
    })?;
    let elements: Vec<Vec<Field<'_>>> = columns.iter().map(Cells::elements).collect();
    let mut fields = vec![Field::Missing; columns.len()];
    for row in 0..records.num_rows() {
        for ((field, column), elements) in fields.iter_mut().zip(&columns).zip(&elements) {
            *field = column.field(row, elements);
        }
        match encoder.encode_row(&fields, first_row_id + row as u64, batch) {
            Ok(Fate::Kept | Fate::Dropped) => {}
            Err(error) => {
                let error = SampleError::BadRow {
                    path: path.to_path_buf(),
                    line: first_row + row as u64,
                    column: names.get(error.column).cloned().unwrap_or_default(),
                    expected: error.expected,
                    found: error.found,
                };
                on_bad(error, batch)?;
            }
        }
    }
    Ok(())
}

/// A column in one of the layouts that fields are taken from.
pub(crate) enum Cells {
    Null,
    Int(Int64Array),
    Unsigned(UInt64Array),
    Float(Float64Array),
    /// Texts of whole numbers. Each is an integer as in other columns, if that holds it; otherwise, ids mostly, its text, which
    /// hashes and reads as a key like the integer.
    Digits(StringArray),
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

/// So many digits always fit into an i64.
const INT_DIGITS: u32 = i64::MAX.ilog10();

/// The longest decimals there are; a column that counts millions, say, might need more.
const DIGITS_MAX: u32 = DECIMAL256_MAX_PRECISION as u32;

/// The most digits of a value of a type of whole decimals; `None` of any other.
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
                None => D::Float64,
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

/// Casts a column to the layout that its type asks for.
pub(crate) fn cells_of(column: &ArrayRef) -> Result<Cells, ArrowError> {
    if let Some(item) = list_item(column.data_type()) {
        let unsupported = || unsupported(column.data_type());
        if !is_scalar(item) {
            return Err(unsupported());
        }
        return list_cells(column);
    }
    scalar_cells(column)
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
    let list = cast(column, &DataType::LargeList(item))?;
    let list: &LargeListArray = list.as_list();
    let offsets = list.offsets().clone();
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    // The child of a sliced list is whole: convert only what the slice owns.
    let values = list.values().slice(first as usize, (last - first) as usize);
    let values = Box::new(scalar_cells(&values)?);
    Ok(Cells::List { offsets, nulls: list.nulls().cloned(), values, len: (last - first) as usize })
}

fn scalar_cells(column: &ArrayRef) -> Result<Cells, ArrowError> {
    let kind = column.data_type();
    match kind {
        // To their values first: the layouts below have no rule for encoded ones.
        DataType::Dictionary(_, value) if !matches!(**value, DataType::Dictionary(..)) => {
            return scalar_cells(&cast(column, &plain(value))?);
        }
        DataType::RunEndEncoded(_, value) => return scalar_cells(&cast(column, value.data_type())?),
        DataType::FixedSizeBinary(_) => {
            let array = column.as_fixed_size_binary();
            return Ok(Cells::Text(array.iter().collect()));
        }
        _ => {}
    }
    let layout = layout(kind).ok_or_else(|| unsupported(kind))?;
    Ok(match layout {
        DataType::Null => Cells::Null,
        DataType::Int64 => Cells::Int(cast(&steps(column)?, &layout)?.as_primitive().clone()),
        DataType::UInt64 => Cells::Unsigned(column.as_primitive().clone()),
        DataType::Float64 => Cells::Float(cast(column, &layout)?.as_primitive().clone()),
        DataType::Utf8 => Cells::Digits(digits(column)?.as_string().clone()),
        DataType::Binary => Cells::Text(cast(column, &layout)?.as_binary().clone()),
        DataType::LargeBinary => Cells::LargeText(cast(column, &layout)?.as_binary().clone()),
        _ => Cells::ViewText(cast(column, &layout)?.as_binary_view().clone()),
    })
}

/// Text dictionaries unpack into views, which point at the dictionary instead of repeating it.
fn plain(value: &DataType) -> DataType {
    match value {
        DataType::Utf8 => DataType::Utf8View,
        DataType::Binary => DataType::BinaryView,
        other => other.clone(),
    }
}

/// 32-bit times have no cast to 64-bit integers of their own.
fn steps(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match column.data_type() {
        DataType::Date32 | DataType::Time32(_) => cast(column, &DataType::Int32),
        _ => Ok(column.clone()),
    }
}

/// The texts of whole decimals.
fn digits(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    // The digits of a decimal that counts hundreds, say, lack the zeros at the end.
    let has_all = matches!(column.data_type(), DataType::Decimal128(_, 0) | DataType::Decimal256(_, 0));
    let longest = DataType::Decimal256(DECIMAL256_MAX_PRECISION, 0);
    let all = if has_all { column.clone() } else { cast(column, &longest)? };
    cast(&all, &DataType::Utf8)
}

fn cast(column: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    if column.data_type() == to {
        return Ok(column.clone());
    }
    // Not safe: a value that does not fit must be an error, not a null.
    cast_with_options(column, to, &CastOptions { safe: false, ..CastOptions::default() })
}

impl Cells {
    /// The fields of all elements of a list column, for [`Cells::field`] to take slices of; empty for scalars.
    pub(crate) fn elements(&self) -> Vec<Field<'_>> {
        match self {
            Cells::List { values, len, .. } => (0..*len).map(|index| values.field(index, &[])).collect(),
            _ => Vec::new(),
        }
    }

    /// The field of a row. `elements` is what [`Cells::elements`] gave for this column.
    #[inline]
    pub(crate) fn field<'a>(&'a self, row: usize, elements: &'a [Field<'a>]) -> Field<'a> {
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
                let text = array.value(row);
                text.parse().map_or(Field::Text(text.as_bytes()), Field::Int)
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
