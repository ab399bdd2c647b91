//! A run of rows, wherever they lie: what a minibatch is, without a copy. It knows no file and no model.

use std::ops::Range;

use crate::batch::Batch;

/// A run of rows: per row a label and a weight, per column the keys and values of all of them one after the other.
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    batch: &'a Batch,
    range: Range<usize>,
}

impl<'a> Rows<'a> {
    /// A range of the rows of a batch.
    ///
    /// # Panics
    /// If the batch has fewer rows.
    #[must_use]
    pub fn new(batch: &'a Batch, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= batch.len(), "rows {range:?} of {}", batch.len());
        Rows { batch, range }
    }

    /// All rows of a batch.
    #[must_use]
    pub fn all(batch: &'a Batch) -> Self {
        Rows { batch, range: 0..batch.len() }
    }

    /// A range of these rows, 0 being the first of them.
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
        self.batch.columns.len()
    }

    /// 0 or 1 per row; NaN where the input has no label.
    #[must_use]
    pub fn labels(&self) -> &'a [f32] {
        &self.batch.labels[self.range.clone()]
    }

    /// Importance per row.
    #[must_use]
    pub fn weights(&self) -> &'a [f32] {
        &self.batch.weights[self.range.clone()]
    }

    /// The keys of a column, all rows one after the other.
    #[must_use]
    pub fn keys(&self, column: usize) -> &'a [u64] {
        let column = &self.batch.columns[column];
        &column.keys[column.key_range(&self.range)]
    }

    /// The values of a column, parallel to `keys`, or None where every key counts as 1.
    #[must_use]
    pub fn values(&self, column: usize) -> Option<&'a [f32]> {
        let column = &self.batch.columns[column];
        column.is_weighted().then(|| &column.values[column.key_range(&self.range)])
    }

    /// Row boundaries of a column; they start at `offsets[0]`, which is 0 only for the first rows of a batch. Row `i`
    /// has the keys from `offsets[i] - offsets[0]` to `offsets[i + 1] - offsets[0]`.
    #[must_use]
    pub fn offsets(&self, column: usize) -> &'a [u32] {
        &self.batch.columns[column].offsets[self.range.start..=self.range.end]
    }
}
