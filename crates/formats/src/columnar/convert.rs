//! Arrays with their values in one of a few types: whole numbers, floats, texts and lists of 64-bit offsets. The crate
//! `arrow-cast` converts between all types; with what it needs, it takes a tenth of compiling the main program. Knows no
//! file format.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
    Float16Type, Float32Type, Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type, UInt32Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, Float64Array, GenericListViewArray, Int64Array,
    LargeBinaryArray, LargeListArray, OffsetSizeTrait, PrimitiveArray, StringArray, UInt64Array,
    downcast_integer, make_array,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer, i256};
use arrow_schema::{ArrowError, DataType, Field};

/// Gives the values of a column to another type of the same width, bit by bit.
///
/// # Errors
///
/// The types differ in width.
pub(super) fn reinterpret(column: &dyn Array, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    Ok(make_array(column.to_data().into_builder().data_type(kind.clone()).build()?))
}

/// The whole numbers of a column: integers, times, or decimals that an i64 holds.
pub(super) fn integers(column: &ArrayRef) -> Result<Int64Array, ArrowError> {
    use DataType as D;
    Ok(match column.data_type() {
        D::Int64 => column.as_primitive().clone(),
        D::Int8 => column.as_primitive::<Int8Type>().unary(i64::from),
        D::Int16 => column.as_primitive::<Int16Type>().unary(i64::from),
        D::Int32 => column.as_primitive::<Int32Type>().unary(i64::from),
        D::UInt8 => column.as_primitive::<UInt8Type>().unary(i64::from),
        D::UInt16 => column.as_primitive::<UInt16Type>().unary(i64::from),
        D::UInt32 => column.as_primitive::<UInt32Type>().unary(i64::from),
        D::Date32 | D::Time32(_) => {
            reinterpret(column, &D::Int32)?.as_primitive::<Int32Type>().unary(i64::from)
        }
        D::Date64 | D::Time64(_) | D::Timestamp(..) | D::Duration(_) => {
            reinterpret(column, &D::Int64)?.as_primitive().clone()
        }
        D::Decimal32(_, scale) => {
            whole_decimals::<Decimal32Type>(column, *scale, |value| Some(value.into()))?
        }
        D::Decimal64(_, scale) => {
            whole_decimals::<Decimal64Type>(column, *scale, |value| Some(value.into()))?
        }
        D::Decimal128(_, scale) => whole_decimals::<Decimal128Type>(column, *scale, Some)?,
        D::Decimal256(_, scale) => whole_decimals::<Decimal256Type>(column, *scale, i256::to_i128)?,
        other => return Err(no_such(other, "whole numbers")),
    })
}

/// Decimals without fractions as integers. `scale` is at most 0.
fn whole_decimals<D: DecimalType>(
    column: &ArrayRef,
    scale: i8,
    wide: impl Fn(D::Native) -> Option<i128>,
) -> Result<Int64Array, ArrowError> {
    let factor = 10_i128.checked_pow(u32::from(scale.unsigned_abs()));
    column.as_primitive::<D>().try_unary(|value| {
        let whole = wide(value).zip(factor).and_then(|(value, factor)| value.checked_mul(factor));
        whole.and_then(|whole| i64::try_from(whole).ok()).ok_or_else(|| {
            let column = column.data_type();
            ArrowError::CastError(format!("a value of type {column} has more digits than its type declares"))
        })
    })
}

/// The numbers of a column of floats or decimals as f64.
pub(super) fn floats(column: &ArrayRef) -> Result<Float64Array, ArrowError> {
    use DataType as D;
    /// Decimals of so few digits that a float holds them: one division gives the nearest float.
    fn decimals<T: DecimalType>(
        column: &ArrayRef,
        scale: i8,
        wide: impl Fn(T::Native) -> f64,
    ) -> Float64Array {
        let (factor, divisor) =
            (10_f64.powi((-i32::from(scale)).max(0)), 10_f64.powi(i32::from(scale).max(0)));
        column.as_primitive::<T>().unary(|value| wide(value) * factor / divisor)
    }
    Ok(match column.data_type() {
        D::Float64 => column.as_primitive().clone(),
        D::Float32 => column.as_primitive::<Float32Type>().unary(f64::from),
        D::Float16 => column.as_primitive::<Float16Type>().unary(f64::from),
        D::Decimal32(_, scale) => decimals::<Decimal32Type>(column, *scale, f64::from),
        D::Decimal64(_, scale) => decimals::<Decimal64Type>(column, *scale, |value| value as f64),
        D::Decimal128(_, scale) => decimals::<Decimal128Type>(column, *scale, |value| value as f64),
        D::Decimal256(_, scale) => decimals::<Decimal256Type>(column, *scale, |value| {
            value
                .to_i128()
                .map_or_else(|| value.to_string().parse().unwrap_or(f64::NAN), |value| value as f64)
        }),
        other => return Err(no_such(other, "floats")),
    })
}

/// The texts of decimals, all digits written out.
pub(super) fn decimal_texts(column: &ArrayRef) -> Result<StringArray, ArrowError> {
    fn texts<T: DecimalType>(column: &ArrayRef) -> StringArray {
        let decimals = column.as_primitive::<T>();
        (0..decimals.len()).map(|row| decimals.is_valid(row).then(|| decimals.value_as_string(row))).collect()
    }
    Ok(match column.data_type() {
        DataType::Decimal32(..) => texts::<Decimal32Type>(column),
        DataType::Decimal64(..) => texts::<Decimal64Type>(column),
        DataType::Decimal128(..) => texts::<Decimal128Type>(column),
        DataType::Decimal256(..) => texts::<Decimal256Type>(column),
        other => return Err(no_such(other, "texts of decimals")),
    })
}

/// The bytes of texts with 32-bit offsets, not copied.
pub(super) fn bytes(column: &ArrayRef) -> BinaryArray {
    column.as_string_opt::<i32>().map_or_else(|| column.as_binary().clone(), |texts| texts.clone().into())
}

/// The bytes of texts with 64-bit offsets, not copied.
pub(super) fn large_bytes(column: &ArrayRef) -> LargeBinaryArray {
    column.as_string_opt::<i64>().map_or_else(|| column.as_binary().clone(), |texts| texts.clone().into())
}

/// The bytes of views of texts, not copied.
pub(super) fn view_bytes(column: &ArrayRef) -> BinaryViewArray {
    column
        .as_string_view_opt()
        .map_or_else(|| column.as_binary_view().clone(), |texts| texts.clone().to_binary_view())
}

/// Per row the index of its value in a dictionary of `len` values; `len` for a missing one.
pub(super) fn dictionary_rows(keys: &dyn Array, len: u32) -> Result<Vec<u32>, ArrowError> {
    fn rows<K: ArrowPrimitiveType>(keys: &dyn Array, len: u32) -> Result<Vec<u32>, ArrowError>
    where
        u32: TryFrom<K::Native>,
    {
        let keys: &PrimitiveArray<K> = keys.as_primitive();
        let row = |key: Option<K::Native>| match key {
            None => Ok(len),
            Some(key) => u32::try_from(key).ok().filter(|row| *row < len).ok_or_else(|| {
                let outside = format!("dictionary index {key:?} is outside the dictionary of {len} values");
                ArrowError::InvalidArgumentError(outside)
            }),
        };
        keys.iter().map(row).collect()
    }
    macro_rules! rows_of {
        ($kind:ty) => {
            rows::<$kind>(keys, len)
        };
    }
    downcast_integer! {
        keys.data_type() => (rows_of),
        other => Err(no_such(other, "dictionary indices")),
    }
}

/// A column of lists with 64-bit offsets.
pub(super) fn lists(column: &ArrayRef, item: &Arc<Field>) -> Result<LargeListArray, ArrowError> {
    match column.data_type() {
        DataType::LargeList(_) => Ok(column.as_list().clone()),
        DataType::List(_) => {
            let lists = column.as_list::<i32>();
            let offsets: ScalarBuffer<i64> =
                lists.offsets().iter().map(|&offset| i64::from(offset)).collect();
            let nulls = lists.nulls().cloned();
            LargeListArray::try_new(item.clone(), OffsetBuffer::new(offsets), lists.values().clone(), nulls)
        }
        DataType::FixedSizeList(..) => {
            let lists = column.as_fixed_size_list();
            let size = i64::from(lists.value_length());
            let offsets: ScalarBuffer<i64> = (0..=lists.len() as i64).map(|row| row * size).collect();
            let nulls = lists.nulls().cloned();
            LargeListArray::try_new(item.clone(), OffsetBuffer::new(offsets), lists.values().clone(), nulls)
        }
        DataType::ListView(_) => list_views(column.as_list_view::<i32>(), item),
        DataType::LargeListView(_) => list_views(column.as_list_view::<i64>(), item),
        other => Err(no_such(other, "lists")),
    }
}

/// Copies the elements of views one behind the other.
fn list_views<O: OffsetSizeTrait>(
    views: &GenericListViewArray<O>,
    item: &Arc<Field>,
) -> Result<LargeListArray, ArrowError> {
    let (mut offsets, mut elements) = (vec![0_i64], Vec::new());
    for (row, (offset, size)) in views.value_offsets().iter().zip(views.value_sizes()).enumerate() {
        if views.is_valid(row) {
            let first = offset.as_usize() as u64;
            elements.extend(first..first + size.as_usize() as u64);
        }
        offsets.push(elements.len() as i64);
    }
    let values = arrow_select::take::take(views.values(), &UInt64Array::from(elements), None)?;
    LargeListArray::try_new(item.clone(), OffsetBuffer::new(offsets.into()), values, views.nulls().cloned())
}

fn no_such(kind: &DataType, wanted: &str) -> ArrowError {
    ArrowError::CastError(format!("a column of type {kind} has no {wanted}"))
}
