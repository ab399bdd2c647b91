//! Arrays as Python gives them: where their elements lie, and keys with a sign or without. Knows no table.

use numpy::ndarray::Dimension;
use numpy::{
    Element, PyArray, PyArray1, PyArrayMethods, PyReadonlyArray, PyReadonlyArray1, PyUntypedArray,
    PyUntypedArrayMethods,
};
use pyo3::exceptions::PyTypeError;
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
        let found = match given.cast::<PyUntypedArray>() {
            Ok(array) => format!("{} {:?}", array.dtype().str()?, array.shape()),
            Err(_) => given.get_type().name()?.to_string(),
        };
        Err(PyTypeError::new_err(format!("keys must be a numpy array of uint64 or int64 [n], not {found}")))
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
