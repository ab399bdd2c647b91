//! Gradients of a step from Python, checked: a table here or on servers, keys and gradients that fit each other.
//! Conversion only; who adds up and applies is the group's business.

use std::sync::Arc;

use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sanderling_client::{ClientError, RemoteTable, SyncGroup};
use sanderling_store::Table;

use crate::arrays::{Grads, Keys, side_by_side, vector};
use crate::error::LengthError;
use crate::rates::Rate;
use crate::remote::PyRemoteTable;
use crate::table::{PyTable, rate_of};

/// A table of either kind.
pub(crate) enum StepTable {
    Here(Arc<Table>),
    Remote(RemoteTable),
}

impl StepTable {
    pub(crate) fn of(table: &Bound<'_, PyAny>) -> PyResult<StepTable> {
        if let Ok(table) = table.cast::<PyRemoteTable>() {
            return Ok(StepTable::Remote(table.get().table.clone()));
        }
        match table.cast::<PyTable>() {
            Ok(table) => Ok(StepTable::Here(Arc::clone(&table.get().table))),
            Err(_) => Err(PyTypeError::new_err("table must be a sanderling table")),
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            StepTable::Here(table) => table.name(),
            StepTable::Remote(table) => table.name(),
        }
    }

    pub(crate) fn dim(&self) -> usize {
        match self {
            StepTable::Here(table) => table.dim(),
            StepTable::Remote(table) => table.dim(),
        }
    }

    /// Its learning rate.
    pub(crate) fn rate(&self) -> PyResult<Rate> {
        match self {
            StepTable::Here(table) => Ok(rate_of(table)),
            StepTable::Remote(table) => PyRemoteTable { table: table.clone() }.rate(),
        }
    }

    /// Its place in the list of a group.
    pub(crate) fn place_in(&self, group: &mut SyncGroup) -> Result<usize, ClientError> {
        let (place, reason) = match self {
            StepTable::Here(table) => (
                group.place_of(table),
                "the workers were not told of it: Job(..., tables=[table]) or Meeting([table], workers), where they are threads of \
                 this process; others go in step over tables of their servers, connection.table(...)",
            ),
            StepTable::Remote(table) => (
                group.place_of_remote(table)?,
                "it is on servers, and workers that meet in this process go in step over tables of this process, Table(...)",
            ),
        };
        place.ok_or_else(|| ClientError::Group {
            place: format!("table {:?}", self.name()),
            reason: reason.to_owned(),
        })
    }
}

/// Keys, their counts, and the gradients, row after row.
pub(crate) struct StepPush {
    pub(crate) table: StepTable,
    pub(crate) keys: Vec<u64>,
    pub(crate) counts: Vec<u32>,
    pub(crate) grads: Vec<f32>,
}

impl StepPush {
    /// Refuses gradients that are not float32 [len(keys), dim]. Without counts each key occurred once.
    pub(crate) fn of(
        table: &Bound<'_, PyAny>,
        keys: Keys<'_>,
        Grads(grads): Grads<'_>,
        counts: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<StepPush> {
        let table = StepTable::of(table)?;
        let expected = [keys.len(), table.dim()];
        if grads.shape() != expected {
            let (name, found) = (table.name(), grads.shape());
            let text = format!("table {name:?}: grads must have shape {expected:?}, found {found:?}");
            return Err(LengthError::new_err(text));
        }
        let counts = match counts {
            Some(counts) => vector("counts", counts)?.as_slice()?.to_vec(),
            None => vec![1; keys.len()],
        };
        let (keys, grads) = (keys.side_by_side()?, side_by_side(grads)?);
        Ok(StepPush { table, keys: keys.as_slice()?.to_vec(), counts, grads: grads.as_slice()?.to_vec() })
    }
}
