//! Rows in Python's memory as inputs: Arrow tables and streams by the PyCapsule interface, dictionaries of columns, and
//! minibatches. Conversion only; reading them is the readers' business.
#![allow(unsafe_code)] // the C data interface of Arrow hands pointers over

mod cell;
mod column;

use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi};
use arrow_array::ffi_stream::{ArrayStreamReader, FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, RecordBatchReader, StructArray, make_array};
use arrow_schema::{ArrowError, Field, Schema};
use numpy::PyUntypedArray;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict, PyList, PyString, PyTuple};
use sanderling_formats::in_memory::{Content, InMemory};

use crate::batch::PyBatch;
use crate::error::BadFileError;

pub(crate) use cell::{Cell, cells_of};

const STREAM: &CStr = c"arrow_array_stream";
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";

/// Registers rows in memory as an input; `None` if the object is none, such as a path.
pub(crate) fn register(object: &Bound<'_, PyAny>) -> PyResult<Option<InMemory>> {
    if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
        return Ok(None);
    }
    let kind = kind_of(object)?;
    let content = if let Ok(batch) = object.cast::<PyBatch>() {
        encoded(batch.get())
    } else if let Ok(columns) = object.cast::<PyDict>() {
        of_columns(&kind, columns)?
    } else if object.hasattr("__arrow_c_stream__")? {
        match of_stream(&kind, object)? {
            Some(content) => content,
            None => of_columns(&kind, &columns_of(object)?)?,
        }
    } else if object.hasattr("__arrow_c_array__")? {
        of_batch(&kind, import_array(object).map_err(|error| refused(&kind, &error))?)?
    } else {
        return Ok(None);
    };
    Ok(Some(InMemory::register(&kind, content)))
}

/// Whether an object is rows in memory.
pub(crate) fn is_rows(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_own = object.is_instance_of::<PyBatch>() || object.is_instance_of::<PyDict>();
    Ok(is_own || object.hasattr("__arrow_c_stream__")? || object.hasattr("__arrow_c_array__")?)
}

/// The name of an object's type in errors: `polars.DataFrame`, `dict`.
fn kind_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    let class = object.get_type();
    let (name, module) = (class.name()?.to_string(), class.module()?.to_string());
    let module = module.trim_start_matches('_').split('.').next().unwrap_or_default();
    Ok(if module == "builtins" { name } else { format!("{module}.{name}") })
}

fn refused(kind: &str, error: &dyn std::fmt::Display) -> PyErr {
    BadFileError::new_err(format!("{kind}: {error}"))
}

fn encoded(batch: &PyBatch) -> Content {
    let sampled = &batch.sampled;
    let rows = sampled.rows();
    let weighted: Vec<bool> = (0..rows.columns()).map(|at| rows.values(at).is_some()).collect();
    let mut copy = sanderling_sample::Batch::new(&weighted);
    copy.append(&rows);
    Content::Encoded { names: sampled.names.to_vec(), batch: copy }
}

/// The rows of an object with `__arrow_c_stream__`; `None` if it is a frame that cannot be exported, as of pandas
/// without pyarrow.
fn of_stream(kind: &str, object: &Bound<'_, PyAny>) -> PyResult<Option<Content>> {
    let py = object.py();
    let capsule = match object.call_method0("__arrow_c_stream__") {
        Ok(capsule) => capsule,
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyImportError>(py) => return Ok(None),
        Err(error) => {
            // A column of mixed types, as the producer names it.
            let wrong = BadFileError::new_err(format!("{kind}: {}", one_line(&error.value(py).to_string())));
            wrong.set_cause(py, Some(error));
            return Err(wrong);
        }
    };
    let stream = take_stream(&capsule)?;
    // Producers may need the interpreter in threads of their own.
    let reader =
        py.detach(|| RecordBatchStreamReader::try_new(stream)).map_err(|error| refused(kind, &error))?;
    if !can_be_read_again(object)? {
        return Ok(Some(Content::Stream(Box::new(reader))));
    }
    let schema = reader.schema();
    let batches = py.detach(|| reader.collect::<Result<Vec<RecordBatch>, ArrowError>>());
    Ok(Some(Content::Batches { schema, batches: batches.map_err(|error| refused(kind, &error))? }))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether an object is a table rather than a stream: it has a number of rows.
fn can_be_read_again(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    // Asked of the class: the length of a relation of duckdb is a query.
    let class = object.get_type();
    Ok(class.hasattr("__len__")? || class.hasattr("num_rows")? || class.hasattr("shape")?)
}

/// Moves a stream out of its capsule.
fn take_stream(capsule: &Bound<'_, PyAny>) -> PyResult<FFI_ArrowArrayStream> {
    let pointer = capsule.cast::<PyCapsule>()?.pointer_checked(Some(STREAM))?;
    // SAFETY: a capsule of this name holds a stream by the PyCapsule interface of Arrow; taking it leaves it released.
    Ok(unsafe { FFI_ArrowArrayStream::from_raw(pointer.as_ptr().cast()) })
}

/// The array of an object with `__arrow_c_array__`.
fn import_array(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let capsules = object.call_method0("__arrow_c_array__")?;
    let (schema, array): (Bound<'_, PyAny>, Bound<'_, PyAny>) = capsules.extract()?;
    let schema = schema.cast::<PyCapsule>()?.pointer_checked(Some(SCHEMA))?;
    let array = array.cast::<PyCapsule>()?.pointer_checked(Some(ARRAY))?;
    // SAFETY: capsules of these names hold a schema and an array by the PyCapsule interface of Arrow; the array is moved
    // out and left released, the schema stays the capsule's, which is alive.
    let data = unsafe {
        let array = FFI_ArrowArray::from_raw(array.as_ptr().cast());
        from_ffi(array, &*schema.as_ptr().cast::<FFI_ArrowSchema>())
    };
    data.map(make_array).map_err(|error| BadFileError::new_err(error.to_string()))
}

/// The one array of an object with `__arrow_c_stream__`; `None` of several.
fn import_chunk(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayRef>> {
    let stream = take_stream(&object.call_method0("__arrow_c_stream__")?)?;
    let wrong = |error: ArrowError| BadFileError::new_err(error.to_string());
    let mut chunks = ArrayStreamReader::try_new(stream).map_err(wrong)?;
    let first = chunks.next().transpose().map_err(wrong)?;
    Ok(if chunks.next().is_none() { first } else { None })
}

fn of_batch(kind: &str, array: ArrayRef) -> PyResult<Content> {
    let Some(rows) = array.as_any().downcast_ref::<StructArray>() else {
        let found = array.data_type();
        return Err(BadFileError::new_err(format!("{kind}: expected columns with names, found {found}")));
    };
    let batch = RecordBatch::from(rows);
    Ok(Content::Batches { schema: batch.schema(), batches: vec![batch] })
}

/// The columns of a frame of pandas, by name.
fn columns_of<'py>(frame: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(frame.py());
    for item in frame.call_method0("items")?.try_iter()? {
        let (name, column): (Bound<'py, PyAny>, Bound<'py, PyAny>) = item?.extract()?;
        columns.set_item(name.str()?, column.call_method0("to_numpy")?)?;
    }
    Ok(columns)
}

/// Columns of equal lengths by name: numpy arrays, lists, series.
fn of_columns(kind: &str, columns: &Bound<'_, PyDict>) -> PyResult<Content> {
    let (mut fields, mut arrays) = (Vec::<Field>::new(), Vec::<ArrayRef>::new());
    for (name, value) in columns {
        let name: String = name.extract().map_err(|_| {
            BadFileError::new_err(format!("{kind}: {name} is no name of a column, which is a str"))
        })?;
        let array = column::array_of(&name, &value)?;
        if let Some(first) = arrays.first().filter(|first| first.len() != array.len()) {
            let (rows, found, before) = (array.len(), first.len(), fields[0].name());
            return Err(BadFileError::new_err(format!(
                "{kind}: column {name:?} has {rows} rows, column {before:?} has {found}"
            )));
        }
        fields.push(Field::new(name, array.data_type().clone(), true));
        arrays.push(array);
    }
    let rows = arrays.first().map_or(0, |array| array.len());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&schema), arrays, &options);
    Ok(Content::Batches { schema, batches: vec![batch.map_err(|error| refused(kind, &error))?] })
}

/// Whether a value of a dictionary is a column, or several values of one field, rather than one value.
pub(crate) fn is_column(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let is_one = value.is_none()
        || value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyBytes>()
        || value.is_instance_of::<PyDict>();
    if is_one {
        return Ok(false);
    }
    let is_usual = value.is_instance_of::<PyList>()
        || value.is_instance_of::<PyTuple>()
        || value.is_instance_of::<PyUntypedArray>();
    Ok(is_usual || value.hasattr("__len__")?)
}
