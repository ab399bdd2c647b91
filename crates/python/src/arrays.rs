//! Arrays as Python gives them: what they must be, where their elements lie, keys with a sign or without. Knows no table.

use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyReadonlyArray,
    PyReadonlyArray1, PyReadonlyArray2, PyUntypedArray, PyUntypedArrayMethods, dtype,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

/// uint64 [n], or int64 [n], which numpy and torch make unless told otherwise: the bits are the key.
pub(crate) struct Keys<'py>(PyReadonlyArray1<'py, u64>);

impl<'py> Keys<'py> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn side_by_side(self) -> PyResult<PyReadonlyArray1<'py, u64>> {
        side_by_side(self.0)
    }
}

impl<'py> FromPyObject<'_, 'py> for Keys<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Keys<'py>> {
        if let Ok(keys) = given.cast::<PyArray1<u64>>() {
            return Ok(Keys(keys.try_readonly()?));
        }
        if given.cast::<PyArray1<i64>>().is_ok() {
            let keys = given.call_method1("view", ("uint64",))?.cast_into::<PyArray1<u64>>()?;
            return Ok(Keys(keys.try_readonly()?));
        }
        Err(not_an_array("keys", "uint64 or int64 [n]", given))
    }
}

/// One of them, from an int: none where there is no such key, since it has more bits.
pub(crate) struct Key(pub(crate) Option<u64>);

impl<'py> FromPyObject<'_, 'py> for Key {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Key> {
        match given.extract::<u64>() {
            Ok(key) => Ok(Key(Some(key))),
            Err(error) if error.is_instance_of::<PyOverflowError>(given.py()) => {
                Ok(Key(given.extract::<i64>().ok().map(i64::cast_unsigned)))
            }
            Err(error) => Err(error),
        }
    }
}

/// float32 [n, dim].
pub(crate) struct Grads<'py>(pub(crate) PyReadonlyArray2<'py, f32>);

impl<'py> FromPyObject<'_, 'py> for Grads<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<Grads<'py>> {
        Ok(Grads(rows("grads", &given)?.try_readonly()?))
    }
}

/// float32 [n, dim], for the argument of this name.
pub(crate) fn rows<'a, 'py>(
    what: &str,
    given: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, PyArray2<f32>>> {
    given.cast().map_err(|_| not_an_array(what, "float32 [n, dim]", given.as_borrowed()))
}

/// [n] of one kind of elements, side by side, for the argument of this name.
pub(crate) fn vector<'py, T: Element>(
    what: &str,
    given: &Bound<'py, PyAny>,
) -> PyResult<PyReadonlyArray1<'py, T>> {
    match given.cast::<PyArray1<T>>() {
        Ok(array) => side_by_side(array.try_readonly()?),
        Err(_) => {
            let expected = format!("{} [n]", dtype::<T>(given.py()));
            Err(not_an_array(what, &expected, given.as_borrowed()))
        }
    }
}

/// [n] of numbers or truth values of any type, as float32, for the argument of this name.
pub(crate) fn numbers<'py>(what: &str, given: &Bound<'py, PyAny>) -> PyResult<PyReadonlyArray1<'py, f32>> {
    let is_number = |kind: u8| b"biuf".contains(&kind);
    if given.cast::<PyArray1<f32>>().is_ok() {
        return vector(what, given);
    }
    match given.cast::<PyUntypedArray>() {
        Ok(array) if array.ndim() == 1 && is_number(array.dtype().kind()) => {
            let array = given.call_method1("astype", ("float32",))?.cast_into::<PyArray1<f32>>()?;
            Ok(array.try_readonly()?)
        }
        _ => Err(not_an_array(what, "numbers [n]", given.as_borrowed())),
    }
}

fn not_an_array(what: &str, expected: &str, given: Borrowed<'_, '_, PyAny>) -> PyErr {
    let found = match given.cast::<PyUntypedArray>() {
        Ok(array) => array.dtype().str().map(|dtype| format!("{dtype} {:?}", array.shape())),
        Err(_) => given.get_type().name().map(|name| name.to_string()),
    };
    match found {
        Ok(found) => PyTypeError::new_err(format!("{what} must be a numpy array of {expected}, not {found}")),
        Err(error) => error,
    }
}

/// The array itself if its elements lie side by side in C order, else a copy of which that is true.
pub(crate) fn side_by_side<'py, T: Element, D: Dimension>(
    array: PyReadonlyArray<'py, T, D>,
) -> PyResult<PyReadonlyArray<'py, T, D>> {
    if array.is_c_contiguous() && array.is_aligned() {
        return Ok(array);
    }
    let copy = array.call_method1("copy", ("C",))?.cast_into::<PyArray<T, D>>()?;
    Ok(copy.try_readonly()?)
}
