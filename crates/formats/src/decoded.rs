//! The decoded rows of one unit: in place, or in a batch without the rows that were left out. It opens no file.

use std::path::Path;

use sanderling_sample::{Batch, Encoder, LabelUse, PackedBatch, PackedBuffer, Rows, SampleError};

use crate::bad_rows::BadRows;

/// The decoded rows of one unit. Reuse it: it keeps its memory.
#[derive(Debug)]
pub struct Decoded {
    pub(crate) batch: Batch,
    /// The rows in place, if any; then `batch` is empty.
    pub(crate) packed: Option<PackedBatch>,
}

impl Decoded {
    /// Creates an empty one.
    #[must_use]
    pub fn new(encoder: &Encoder) -> Decoded {
        Decoded::from(encoder.new_batch())
    }

    /// All rows.
    #[must_use]
    pub fn rows(&self) -> Rows<'_> {
        self.packed.as_ref().map_or_else(|| Rows::all(&self.batch), PackedBatch::rows)
    }

    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packed.as_ref().map_or(self.batch.len(), PackedBatch::len)
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the rows are used in place, in the file's memory.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Moves all rows to the end of a batch, without a copy if that is empty and these are in a batch too. Leaves the
    /// content here unspecified.
    pub fn move_to(&mut self, batch: &mut Batch) {
        if batch.is_empty() && self.packed.is_none() {
            std::mem::swap(batch, &mut self.batch);
        } else {
            batch.append(&self.rows());
        }
    }

    /// Removes the rows and returns the memory of a packed batch.
    pub(crate) fn clear(&mut self) -> Option<PackedBuffer> {
        self.batch.clear();
        self.packed.take().map(PackedBatch::into_buffer)
    }
}

impl From<Batch> for Decoded {
    fn from(batch: Batch) -> Decoded {
        Decoded { batch, packed: None }
    }
}

/// The origin of rows from a batch file.
pub(crate) struct Origin<'a> {
    pub(crate) path: &'a Path,
    pub(crate) row_id_base: u64,
    /// Rows of the file before them.
    pub(crate) rows_before: u64,
}

/// Appends the rows that down-sampling keeps, and that have labels if those are required.
pub(crate) fn append_kept(
    encoder: &Encoder,
    bad_rows: &BadRows,
    origin: &Origin<'_>,
    rows: &Rows<'_>,
    batch: &mut Batch,
) -> Result<(), SampleError> {
    let labels = rows.labels();
    if encoder.keeps_all(labels) {
        batch.append(rows);
        return Ok(());
    }
    for (at, (row, label)) in (origin.rows_before + 1..).zip(labels).enumerate() {
        if label.is_nan() && encoder.label_use() == LabelUse::Required {
            let column = encoder.spec().label.column.clone();
            let (expected, found) = ("a label".to_string(), "nothing".to_string());
            let path = origin.path.to_path_buf();
            bad_rows.reject(SampleError::BadRow { path, line: row, column, expected, found }, batch)?;
        } else if let Some(weight) = encoder.keep(*label, origin.row_id_base + row) {
            batch.append(&rows.slice(at..at + 1));
            if let Some(last) = batch.weights.last_mut() {
                *last *= weight;
            }
        }
    }
    Ok(())
}
