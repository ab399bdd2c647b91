//! Single values of Python as fields of a row. Knows no column type.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};
use sanderling_sample::Field;

use super::is_column;
use crate::error::BadRowError;

/// A value that is held for the time of a call.
#[derive(Debug)]
pub(crate) enum Cell {
    Missing,
    Text(Vec<u8>),
    Int(i64),
    Unsigned(u64),
    Float(f64),
    Bool(bool),
    List(Vec<Cell>),
}

impl Cell {
    /// The value of a column.
    pub(crate) fn of(column: &str, value: &Bound<'_, PyAny>) -> PyResult<Cell> {
        let failed = |error: PyErr| {
            let reason = error.value(value.py());
            // A text of half a surrogate pair, and a whole number of more than 64 bits.
            BadRowError::new_err(format!("column {column:?}: {reason}"))
        };
        if let Some(cell) = Cell::of_scalar(value).map_err(failed)? {
            return Ok(cell);
        }
        if is_column(value)? {
            let items = value.try_iter()?.map(|item| {
                let item = item?;
                Cell::of_scalar(&item).map_err(failed)?.ok_or_else(|| wrong(column, &item))
            });
            return Ok(Cell::List(items.collect::<PyResult<_>>()?));
        }
        Err(wrong(column, value))
    }

    fn of_scalar(value: &Bound<'_, PyAny>) -> PyResult<Option<Cell>> {
        if let Ok(text) = value.cast::<PyString>() {
            return Ok(Some(Cell::Text(text.to_str()?.as_bytes().to_vec())));
        }
        if value.is_none() {
            return Ok(Some(Cell::Missing));
        }
        if let Ok(value) = value.cast::<PyBool>() {
            return Ok(Some(Cell::Bool(value.is_true())));
        }
        if value.is_instance_of::<PyInt>() {
            return Ok(Some(match value.extract::<i64>() {
                Ok(number) => Cell::Int(number),
                Err(_) => Cell::Unsigned(value.extract()?),
            }));
        }
        if let Ok(number) = value.cast::<PyFloat>() {
            return Ok(Some(Cell::Float(number.value())));
        }
        if let Ok(bytes) = value.cast::<PyBytes>() {
            return Ok(Some(Cell::Text(bytes.as_bytes().to_vec())));
        }
        Cell::of_other(value)
    }

    /// Numbers of numpy, dates and times, decimals, and missing values of pandas.
    fn of_other(value: &Bound<'_, PyAny>) -> PyResult<Option<Cell>> {
        let class = value.get_type();
        let (name, module) = (class.name()?, class.module()?);
        let (name, module) = (name.to_str()?, module.to_str()?);
        if matches!(name, "NAType" | "NaTType") {
            return Ok(Some(Cell::Missing));
        }
        if module == "numpy" && value.hasattr("item")? && !value.hasattr("__len__")? {
            let plain = value.call_method0("item")?;
            // Nanoseconds become an integer, so those stay text.
            let is_time = matches!(name, "datetime64" | "timedelta64");
            return if is_time && plain.is_instance_of::<PyInt>() {
                Ok(Some(Cell::Text(value.str()?.to_str()?.as_bytes().to_vec())))
            } else {
                Cell::of_scalar(&plain)
            };
        }
        if name == "timedelta" || name == "Timedelta" {
            return Ok(Some(Cell::Float(value.call_method0("total_seconds")?.extract()?)));
        }
        if value.hasattr("isoformat")? {
            let text = value.call_method0("isoformat")?;
            return Ok(Some(Cell::Text(text.cast::<PyString>()?.to_str()?.as_bytes().to_vec())));
        }
        let is_text = module == "decimal" || module == "uuid";
        Ok(if is_text { Some(Cell::Text(value.str()?.to_str()?.as_bytes().to_vec())) } else { None })
    }

    /// The fields of the elements of a list; empty for other values.
    pub(crate) fn elements(&self) -> Vec<Field<'_>> {
        match self {
            Cell::List(items) => items.iter().map(|item| item.field(&[])).collect(),
            _ => Vec::new(),
        }
    }

    /// The field; `elements` is what [`Cell::elements`] gave for it.
    pub(crate) fn field<'a>(&'a self, elements: &'a [Field<'a>]) -> Field<'a> {
        match self {
            Cell::Missing => Field::Missing,
            Cell::Text(text) => Field::Text(text),
            Cell::Int(number) => Field::Int(*number),
            Cell::Unsigned(number) => Field::Unsigned(*number),
            Cell::Float(number) => Field::Float(*number),
            Cell::Bool(is_true) => Field::Bool(*is_true),
            Cell::List(_) => Field::List(elements),
        }
    }
}

fn wrong(column: &str, value: &Bound<'_, PyAny>) -> PyErr {
    let class = value.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
    BadRowError::new_err(format!(
        "column {column:?}: expected numbers, text, booleans, times or lists of them, found {class}"
    ))
}

/// The values of a column of Python objects.
pub(crate) fn cells_of(column: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<Cell>> {
    values.try_iter()?.map(|value| Cell::of(column, &value?)).collect()
}
