//! Columns of Python as Arrow arrays: numpy arrays in place where their type allows it, lists and objects by value.
#![allow(unsafe_code)] // an Arrow buffer over numpy's memory

use std::panic::RefUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_array::builder::{LargeBinaryBuilder, LargeListBuilder};
use arrow_array::types::{
    ArrowPrimitiveType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{ArrayRef, BooleanArray, PrimitiveArray};
use arrow_buffer::{Buffer, ScalarBuffer};
use numpy::{Element, PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use sanderling_sample::with_text;

use super::{Cell, cells_of, import_array, import_chunk};
use crate::arrays::side_by_side;
use crate::error::BadFileError;

/// numpy's "not a time".
const NOT_A_TIME: i64 = i64::MIN;

/// A column of a dictionary.
pub(super) fn array_of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let py = value.py();
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        return of_objects(name, value);
    }
    let numpy = py.import("numpy")?;
    let array = if value.is_instance_of::<PyUntypedArray>() {
        value.clone()
    } else if value.hasattr("__arrow_c_array__")? {
        return import_array(value);
    } else if value.hasattr("__arrow_c_stream__")?
        && let Ok(Some(array)) = import_chunk(value)
    {
        return Ok(array);
    } else {
        numpy.call_method1("asarray", (value,))?
    };
    let (kind, dimensions) = {
        let array = array.cast::<PyUntypedArray>()?;
        (array.dtype().kind(), array.ndim())
    };
    if dimensions != 1 {
        return Err(BadFileError::new_err(format!(
            "column {name:?}: expected an array [n], found one of {dimensions} dimensions"
        )));
    }
    match kind {
        b'b' => {
            let values = side_by_side(array.cast::<PyArray1<bool>>()?.try_readonly()?)?;
            Ok(Arc::new(BooleanArray::from(values.as_slice()?.to_vec())))
        }
        b'i' | b'u' | b'f' => numbers(&array, kind),
        b'M' => times(&numpy, &array, "datetime64"),
        b'm' => times(&numpy, &array, "timedelta64"),
        b'O' | b'U' | b'S' | b'T' => of_objects(name, &array.call_method0("tolist")?),
        _ => {
            let kind = array.cast::<PyUntypedArray>()?.dtype().str()?;
            Err(BadFileError::new_err(format!(
                "column {name:?}: expected numbers, text, booleans, times or lists of them, found {kind}"
            )))
        }
    }
}

fn numbers(array: &Bound<'_, PyAny>, kind: u8) -> PyResult<ArrayRef> {
    macro_rules! in_place {
        ($($arrow:ty),*) => {
            $(if let Ok(found) = array.cast::<PyArray1<<$arrow as ArrowPrimitiveType>::Native>>() {
                return Ok(Arc::new(PrimitiveArray::<$arrow>::new(borrowed(found)?, None)));
            })*
        };
    }
    in_place!(Int64Type, Float64Type, Int32Type, Float32Type, UInt64Type, UInt32Type);
    in_place!(Int16Type, UInt16Type, Int8Type, UInt8Type);
    // Halves, and numbers in the other byte order.
    let wide = match kind {
        b'i' => "int64",
        b'u' => "uint64",
        _ => "float64",
    };
    numbers(&array.call_method1("astype", (wide,))?, kind)
}

/// The elements of an array without a copy, where they lie side by side.
fn borrowed<T: Element + arrow_buffer::ArrowNativeType>(
    array: &Bound<'_, PyArray1<T>>,
) -> PyResult<ScalarBuffer<T>> {
    /// Keeps the array alive.
    struct Owner(#[expect(dead_code, reason = "held until the buffer is dropped")] Py<PyAny>);
    impl RefUnwindSafe for Owner {}

    let values = side_by_side(array.try_readonly()?)?;
    let (pointer, len) = (values.data(), values.len());
    let Some(pointer) = NonNull::new(pointer.cast::<u8>()).filter(|_| len > 0) else {
        return Ok(ScalarBuffer::from(Vec::new()));
    };
    let owner = Arc::new(Owner(values.as_any().clone().unbind()));
    // SAFETY: `len` elements from the pointer on are the array's, side by side and aligned; the owner keeps the array,
    // which numpy neither moves nor frees while it is referred to.
    let buffer = unsafe { Buffer::from_custom_allocation(pointer, len * size_of::<T>(), owner) };
    Ok(ScalarBuffer::new(buffer, 0, len))
}

/// Times or durations of numpy; units that Arrow lacks become seconds.
fn times(numpy: &Bound<'_, PyModule>, array: &Bound<'_, PyAny>, class: &str) -> PyResult<ArrayRef> {
    let (unit, count): (String, u64) =
        numpy.call_method1("datetime_data", (array.getattr("dtype")?,))?.extract()?;
    let unit = if count == 1 && ["s", "ms", "us", "ns"].contains(&&*unit) { unit } else { "s".to_owned() };
    let counts =
        array.call_method1("astype", (format!("{class}[{unit}]"),))?.call_method1("view", ("int64",))?;
    let counts = side_by_side(counts.cast::<PyArray1<i64>>()?.try_readonly()?)?;
    let counts = counts.as_slice()?;
    fn array_of<T: ArrowPrimitiveType<Native = i64>>(counts: &[i64]) -> ArrayRef {
        let counts = counts.iter().map(|count| Some(*count).filter(|count| *count != NOT_A_TIME));
        Arc::new(counts.collect::<PrimitiveArray<T>>())
    }
    Ok(match (class, &*unit) {
        ("datetime64", "s") => array_of::<TimestampSecondType>(counts),
        ("datetime64", "ms") => array_of::<TimestampMillisecondType>(counts),
        ("datetime64", "us") => array_of::<TimestampMicrosecondType>(counts),
        ("datetime64", _) => array_of::<TimestampNanosecondType>(counts),
        (_, "s") => array_of::<DurationSecondType>(counts),
        (_, "ms") => array_of::<DurationMillisecondType>(counts),
        (_, "us") => array_of::<DurationMicrosecondType>(counts),
        _ => array_of::<DurationNanosecondType>(counts),
    })
}

/// Objects by their texts, which every value has exactly one of.
fn of_objects(name: &str, values: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let cells = cells_of(name, values)?;
    if !cells.iter().any(|cell| matches!(cell, Cell::List(_))) {
        if cells.iter().all(|cell| matches!(cell, Cell::Bool(_) | Cell::Missing)) {
            let is_true = |cell: &Cell| if let Cell::Bool(is_true) = cell { Some(*is_true) } else { None };
            return Ok(Arc::new(cells.iter().map(is_true).collect::<BooleanArray>()));
        }
        let mut texts = LargeBinaryBuilder::new();
        cells.iter().for_each(|cell| append(cell, &mut texts));
        return Ok(Arc::new(texts.finish()));
    }
    let mut lists = LargeListBuilder::new(LargeBinaryBuilder::new());
    for cell in &cells {
        match cell {
            Cell::List(items) => items.iter().for_each(|item| append(item, lists.values())),
            Cell::Missing => {}
            one => append(one, lists.values()),
        }
        lists.append(!matches!(cell, Cell::Missing));
    }
    Ok(Arc::new(lists.finish()))
}

fn append(cell: &Cell, texts: &mut LargeBinaryBuilder) {
    match cell {
        Cell::Missing => texts.append_null(),
        Cell::Float(number) if number.is_nan() => texts.append_null(),
        cell => {
            with_text(cell.field(&[]), |text| texts.append_value(text));
        }
    }
}
