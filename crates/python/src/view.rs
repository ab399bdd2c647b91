//! numpy arrays over the memory of minibatches and lookups, without a copy: an array keeps the Python object alive that
//! holds its memory. Knows nothing of what the numbers mean.
#![allow(unsafe_code)] // numpy takes a pointer, and the promise that it stays good

use numpy::ndarray::{ArrayView1, ArrayView2};
use numpy::{Element, PyArray1, PyArray2};
use pyo3::prelude::*;
use sanderling_feed::LookedUp;
use sanderling_sample::Rows;

use crate::batch::PyBatch;
use crate::lookup::PyLookup;

/// A column of a minibatch, which Python may not write.
pub(crate) fn of_batch<'py, T: Element>(
    batch: &Bound<'py, PyBatch>,
    pick: impl for<'a> FnOnce(Rows<'a>) -> &'a [T],
) -> PyResult<Bound<'py, PyArray1<T>>> {
    let array = over(batch, pick(batch.get().sampled.rows()));
    // Without a borrow for writing: another thread may read the same column in an array of its own.
    array.getattr("flags")?.setattr("writeable", false)?;
    Ok(array)
}

/// Labels or weights of a minibatch; Python may write them, since Rust no longer reads them.
pub(crate) fn of_rows<'py>(
    batch: &Bound<'py, PyBatch>,
    pick: impl for<'a> FnOnce(Rows<'a>) -> &'a [f32],
) -> Bound<'py, PyArray1<f32>> {
    over(batch, pick(batch.get().sampled.rows()))
}

fn over<'py, T: Element>(batch: &Bound<'py, PyBatch>, values: &[T]) -> Bound<'py, PyArray1<T>> {
    // SAFETY: the values are part of the minibatch that `batch` holds, which Rust does not change while there is a Python object
    // of it, and which lives as long as that object; the array holds the object.
    unsafe {
        let values = ArrayView1::from_shape_ptr(values.len(), values.as_ptr());
        PyArray1::borrow_from_array(&values, batch.clone().into_any())
    }
}

/// Rows that were looked up, [rows, dim].
pub(crate) fn of_lookup<'py>(
    lookup: &Bound<'py, PyLookup>,
    dim: usize,
    pick: impl FnOnce(&mut LookedUp) -> Option<&mut [f32]>,
) -> Option<Bound<'py, PyArray2<f32>>> {
    let mut looked_up = lookup.get().lock_attached(lookup.py());
    let values = pick(&mut looked_up)?;
    let rows = values.len() / dim.max(1);
    // SAFETY: a lookup's rows are neither moved nor freed before it is dropped, and no method of it looks at them; the
    // Python object holds the lookup, and the array the object.
    unsafe {
        let values = ArrayView2::from_shape_ptr([rows, dim], values.as_mut_ptr().cast_const());
        Some(PyArray2::borrow_from_array(&values, lookup.clone().into_any()))
    }
}
