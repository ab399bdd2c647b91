//! A run of rows in any memory: a minibatch without a copy. It knows no file and no model.

use std::ops::Range;

use crate::batch::Batch;
use crate::packed::PackedBatch;

/// A run of rows: per row a label and a weight, per column the keys and values of all rows, concatenated.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    place: Place<'a>,
    range: Range<usize>,
}

/// The memory of rows. It is matched once per column, not per key.
#[derive(Clone, Copy, Debug)]
enum Place<'a> {
    Batch(&'a Batch),
    Packed(&'a PackedBatch),
}

impl<'a> Rows<'a> {
    /// A range of the rows of a batch.
    ///
    /// # Panics
    /// If the batch has fewer rows.
    #[must_use]
    pub fn new(batch: &'a Batch, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= batch.len(), "rows {range:?} of {}", batch.len());
        Rows { place: Place::Batch(batch), range }
    }

    /// All rows of a batch.
    #[must_use]
    pub fn all(batch: &'a Batch) -> Self {
        Rows { place: Place::Batch(batch), range: 0..batch.len() }
    }

    /// All rows of a packed batch.
    pub(crate) fn packed(batch: &'a PackedBatch) -> Self {
        Rows { place: Place::Packed(batch), range: 0..batch.len() }
    }

    /// A range of these rows, counted from 0.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "rows {range:?} of {}", self.len());
        let range = self.range.start + range.start..self.range.start + range.end;
        Rows { range, ..self.clone() }
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Number of columns: one per feature, in the order of the spec.
    #[must_use]
    pub fn columns(&self) -> usize {
        match self.place {
            Place::Batch(batch) => batch.columns.len(),
            Place::Packed(batch) => batch.columns(),
        }
    }

    /// 0 or 1 per row, or of a regression a number; NaN where the input has no label.
    #[must_use]
    pub fn labels(&self) -> &'a [f32] {
        let labels = match self.place {
            Place::Batch(batch) => &batch.labels,
            Place::Packed(batch) => batch.labels(),
        };
        &labels[self.range.clone()]
    }

    /// Importance per row.
    #[must_use]
    pub fn weights(&self) -> &'a [f32] {
        let weights = match self.place {
            Place::Batch(batch) => &batch.weights,
            Place::Packed(batch) => batch.weights(),
        };
        &weights[self.range.clone()]
    }

    /// The keys of a column, all rows concatenated.
    #[must_use]
    pub fn keys(&self, column: usize) -> &'a [u64] {
        let keys = match self.place {
            Place::Batch(batch) => &batch.columns[column].keys,
            Place::Packed(batch) => batch.keys(column),
        };
        &keys[self.key_range(column)]
    }

    /// The values of a column, parallel to `keys`; `None` if every key counts as 1.
    #[must_use]
    pub fn values(&self, column: usize) -> Option<&'a [f32]> {
        let values = match self.place {
            Place::Batch(batch) => {
                let column = &batch.columns[column];
                column.is_weighted().then_some(&column.values[..])
            }
            Place::Packed(batch) => batch.values(column),
        };
        values.map(|values| &values[self.key_range(column)])
    }

    /// Row boundaries of a column; they start at `offsets[0]`, which is 0 only for the first rows of a batch. Row `i`
    /// has the keys from `offsets[i] - offsets[0]` to `offsets[i + 1] - offsets[0]`.
    #[must_use]
    pub fn offsets(&self, column: usize) -> &'a [u32] {
        let offsets = match self.place {
            Place::Batch(batch) => &batch.columns[column].offsets,
            Place::Packed(batch) => batch.offsets(column),
        };
        &offsets[self.range.start..=self.range.end]
    }

    fn key_range(&self, column: usize) -> Range<usize> {
        let offsets = self.offsets(column);
        offsets[0] as usize..offsets[offsets.len() - 1] as usize
    }
}
