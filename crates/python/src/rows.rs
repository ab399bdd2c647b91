//! Rows of Python as dictionaries, scored without an input: what a service does for one request. Conversion only.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sanderling_learner::{Model, RowScorer};
use sanderling_sample::Field;

use crate::error::{BadRowError, of_learner};
use crate::frames::{Cell, is_column};

/// Rows that are scored at a time.
const ROWS_AT_ONCE: usize = 512;

/// Scorers that are not in use; a call takes one and puts it back.
#[derive(Default)]
pub(crate) struct RowScorers(Mutex<Vec<RowScorer>>);

impl RowScorers {
    /// The probability of one row.
    pub(crate) fn row(&self, model: &Model, row: &Bound<'_, PyDict>) -> PyResult<f64> {
        self.with(model, |scorer| {
            add(scorer, row, None)?;
            let mut probability = Vec::with_capacity(1);
            scorer.score(model, &mut probability).map_err(of_learner)?;
            Ok(probability.first().copied().map_or(f64::NAN, f64::from))
        })
    }

    /// The probabilities of a list of rows.
    pub(crate) fn rows(&self, model: &Model, rows: &Bound<'_, PyList>) -> PyResult<Vec<f32>> {
        let py = rows.py();
        self.with(model, |scorer| {
            let mut probabilities = Vec::with_capacity(rows.len());
            for (number, row) in rows.iter().enumerate() {
                add(scorer, row.cast::<PyDict>()?, Some(number))?;
                if scorer.len() == ROWS_AT_ONCE {
                    py.detach(|| scorer.score(model, &mut probabilities)).map_err(of_learner)?;
                }
            }
            py.detach(|| scorer.score(model, &mut probabilities)).map_err(of_learner)?;
            Ok(probabilities)
        })
    }

    fn with<T>(&self, model: &Model, work: impl FnOnce(&mut RowScorer) -> PyResult<T>) -> PyResult<T> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = lock().pop();
        let mut scorer = match kept {
            Some(scorer) => scorer,
            None => RowScorer::new(model).map_err(of_learner)?,
        };
        let done = work(&mut scorer);
        scorer.clear();
        lock().push(scorer);
        done
    }
}

/// Whether a dictionary is a row, not columns: one of its values is a single value.
pub(crate) fn is_row(columns: &Bound<'_, PyDict>) -> PyResult<bool> {
    for (_, value) in columns {
        if !is_column(&value)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Encodes a row; `number` is its place in a list.
fn add(scorer: &mut RowScorer, row: &Bound<'_, PyDict>, number: Option<usize>) -> PyResult<()> {
    let place = || number.map_or("row".to_owned(), |number| format!("row {number}"));
    let mut cells = Vec::with_capacity(scorer.columns().len());
    for (at, name) in scorer.columns().iter().enumerate() {
        cells.push(match row.get_item(name)? {
            Some(value) => Cell::of(name, &value)?,
            None if scorer.is_optional(at) => Cell::Missing,
            None => {
                return Err(BadRowError::new_err(format!(
                    "{}: has no column {name:?}; a missing value is None",
                    place()
                )));
            }
        });
    }
    let elements: Vec<Vec<Field<'_>>> = cells.iter().map(Cell::elements).collect();
    let fields: Vec<Field<'_>> =
        cells.iter().zip(&elements).map(|(cell, elements)| cell.field(elements)).collect();
    scorer.add(&fields).map_err(|error| {
        let column = scorer.columns().get(error.column).map_or("", String::as_str);
        let (expected, found) = (error.expected, error.found);
        BadRowError::new_err(format!("{}: column {column}: expected {expected}, found {found}", place()))
    })
}
