//! Parquet and Arrow IPC files (file and stream format) as record batches of the columns that the spec reads, and
//! their rows as fields. Decoding itself is the arrow and parquet crates'; this module picks columns, bounds sizes
//! and names the file in every error. It knows no bad-row policy and no thread.

mod cells;
mod convert;
mod encode;
mod flat;
mod ipc;
mod nesting;
mod pages;
mod projection;
mod seekable;
mod unpacked;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, NullArray, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

pub use crate::temporary::TEMPORARY_BYTES_MAX;
pub use cells::{Cells, cells_of};
pub use encode::{Place, RecordEncoder, Records, encode_rows};
pub use unpacked::{UNPACKED_FREE_BYTES, UNPACKED_RATIO_MAX};

use projection::{Asked, Projection, Source};
use sanderling_sample::{Encoder, SampleError};
use seekable::Seekable;

use crate::format::{Compression, Format};
use crate::in_memory::RecordBatches;
use crate::patient::Wanted;

/// Most rows of a record batch; a larger one, as in an IPC file, is sliced.
pub const ROWS_PER_BATCH_MAX: usize = 4096;

/// A Parquet or Arrow IPC file, or record batches in memory, read front to back.
pub struct ColumnarFile {
    path: PathBuf,
    file: Reader,
    /// The source of each output column.
    order: Vec<Source>,
    schema: SchemaRef,
    /// The columns of a Parquet file that are not read as arrays, but by page.
    flat: Option<Box<Flat>>,
    rows_declared: Option<u64>,
    rows_read: u64,
    /// The record batch at hand, and how many of its rows were returned.
    pending: Option<(RecordBatch, usize)>,
    at_end: bool,
}

/// Columns that are read by page, and the means to read them as arrays after all.
struct Flat {
    columns: flat::FlatColumns,
    source: Seekable,
    asked: Vec<(String, bool)>,
}

/// How the columns of a Parquet file are read.
#[derive(Clone, Copy, PartialEq)]
enum As {
    /// All of them as arrays, after a number of rows.
    Arrays(u64),
    /// By page, where their pages allow it.
    Pages,
}

enum Reader {
    Parquet(Box<ParquetRecordBatchReader>, Arc<pages::Budget>),
    Ipc(Box<ipc::IpcFile>),
    /// Record batches in memory, and the columns that are read.
    InMemory(RecordBatches, Vec<usize>),
}

impl std::fmt::Debug for ColumnarFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ColumnarFile").field("path", &self.path).field("rows_read", &self.rows_read).finish()
    }
}

impl ColumnarFile {
    /// Opens a file (or `-`, standard input) for an encoder and reads only its input columns.
    ///
    /// A compressed file, a url or a pipe is first copied into a temporary file of at most [`TEMPORARY_BYTES_MAX`].
    ///
    /// # Errors
    /// `Io` if the file cannot be read; `BadFile` if it is not of the format, or lacks a column, or has a column of a
    /// type that is no field (structs, maps, lists of lists).
    pub fn open(
        path: &Path,
        format: Format,
        compression: Compression,
        encoder: &Encoder,
    ) -> Result<ColumnarFile, SampleError> {
        Self::open_for(path, format, compression, encoder, None, As::Arrays(0))
    }

    /// Opens a file for [`ColumnarFile::next_records`]; stops copying it once it is not wanted any more.
    pub fn open_records(
        path: &Path,
        format: Format,
        compression: Compression,
        encoder: &Encoder,
        wanted: Option<&Wanted>,
    ) -> Result<ColumnarFile, SampleError> {
        Self::open_for(path, format, compression, encoder, wanted, As::Pages)
    }

    fn open_for(
        path: &Path,
        format: Format,
        compression: Compression,
        encoder: &Encoder,
        wanted: Option<&Wanted>,
        way: As,
    ) -> Result<ColumnarFile, SampleError> {
        let asked = asked(encoder);
        guarded(path, "opening", || {
            Self::open_columns(path, format, Seekable::open(path, compression, wanted)?, Some(&asked), way)
        })
    }

    /// Opens a file with all its columns, in their order, whatever their types.
    pub fn open_all(
        path: &Path,
        format: Format,
        compression: Compression,
    ) -> Result<ColumnarFile, SampleError> {
        guarded(path, "opening", || {
            Self::open_columns(path, format, Seekable::open(path, compression, None)?, None, As::Arrays(0))
        })
    }

    fn open_columns(
        path: &Path,
        format: Format,
        source: Seekable,
        asked: Option<&[Asked<'_>]>,
        way: As,
    ) -> Result<ColumnarFile, SampleError> {
        match format {
            Format::Parquet => Self::open_parquet(path, source, asked, way),
            Format::Arrow => Self::open_ipc(path, source, asked),
            other => Err(bad_file(path, format!("{other:?} is a text format, not a columnar one"))),
        }
    }

    fn open_parquet(
        path: &Path,
        source: Seekable,
        asked: Option<&[Asked<'_>]>,
        way: As,
    ) -> Result<ColumnarFile, SampleError> {
        let refused = |reason| bad_file(path, format!("is refused: {reason}"));
        if let Some(footer) = nesting::footer_of(&source).map_err(refused)? {
            nesting::check(&footer).map_err(refused)?;
        }
        let failed = |error| bad_file(path, format!("does not read as Parquet: {error}"));
        let metadata = pages::metadata_of(&source).map_err(failed)?;
        let mut columns = Projection::new(path, metadata.schema(), asked)?;
        let rows_declared = row_count(path, metadata.metadata().row_groups())?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), columns.read.iter().copied());
        let (pages, rows) = pages::Pages::new(source.clone(), metadata.metadata(), &mask).map_err(refused)?;
        let budget = pages.budget();
        let flat = match (asked, way) {
            (Some(asked), As::Pages) => {
                let found = columns.take_flat(|column| {
                    flat::FlatColumn::new(metadata.metadata(), metadata.schema(), column)
                });
                let asked = asked.iter().map(|asked| (asked.name.to_owned(), asked.optional)).collect();
                let columns = flat::FlatColumns { pages: pages.clone(), columns: found };
                Some(Box::new(Flat { columns, source, asked }))
            }
            _ => None,
        };
        let before = if let As::Arrays(rows) = way { rows } else { 0 };
        let mask = ProjectionMask::roots(metadata.parquet_schema(), columns.read.iter().copied());
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(pages, metadata);
        let builder = builder.with_projection(mask).with_batch_size(rows);
        let reader = builder.with_offset(usize::try_from(before).unwrap_or(usize::MAX)).build();
        let reader = Reader::Parquet(Box::new(reader.map_err(failed)?), budget);
        let file = Self::new(path, reader, columns, Some(rows_declared));
        Ok(ColumnarFile { flat, rows_read: before, ..file })
    }

    fn open_ipc(
        path: &Path,
        source: Seekable,
        asked: Option<&[Asked<'_>]>,
    ) -> Result<ColumnarFile, SampleError> {
        let failed = |error| bad_file(path, format!("does not read as Arrow IPC: {error}"));
        if source.len_bytes() == 0 {
            return Err(bad_file(path, "is empty; an Arrow IPC file starts with a schema"));
        }
        let mut file = ipc::IpcFile::open(source).map_err(failed)?;
        let columns = Projection::new(path, file.schema(), asked)?;
        file.project(columns.read.clone());
        Ok(Self::new(path, Reader::Ipc(Box::new(file)), columns, None))
    }

    /// Reads record batches in memory like a file.
    pub(crate) fn in_memory(
        path: &Path,
        schema: &SchemaRef,
        batches: RecordBatches,
        encoder: &Encoder,
    ) -> Result<ColumnarFile, SampleError> {
        let columns = Projection::new(path, schema, Some(&asked(encoder)))?;
        let reader = Reader::InMemory(batches, columns.read.clone());
        Ok(Self::new(path, reader, columns, None))
    }

    fn new(path: &Path, file: Reader, columns: Projection, rows_declared: Option<u64>) -> ColumnarFile {
        ColumnarFile {
            path: path.to_path_buf(),
            file,
            order: columns.order,
            schema: columns.schema,
            flat: None,
            rows_declared,
            rows_read: 0,
            pending: None,
            at_end: false,
        }
    }

    /// The columns that [`ColumnarFile::next`] yields: parallel to the encoder's input columns, or all of the file's.
    #[must_use]
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Rows yielded so far. The next batch's first row is this plus 1.
    #[must_use]
    pub fn rows_read(&self) -> u64 {
        self.rows_read
    }

    /// The number of rows that the file declares, if its format does (Parquet).
    #[must_use]
    pub fn rows_declared(&self) -> Option<u64> {
        self.rows_declared
    }

    /// The next rows like [`ColumnarFile::next`], of a file from [`ColumnarFile::open_records`]. Columns that are read by
    /// page are not decoded yet.
    ///
    /// # Errors
    /// As [`ColumnarFile::next`].
    pub fn next_records(&mut self) -> Result<Option<Records>, SampleError> {
        let before = self.rows_read;
        let Some(batch) = self.next()? else { return Ok(None) };
        let mut records = Records { schema: Arc::clone(&self.schema), ..Records::from(batch) };
        let Some(flat) = &mut self.flat else { return Ok(Some(records)) };
        let (rows, into) = (records.rows, &mut records.columns);
        match guarded(&self.path, "reading", || Ok(flat.columns.take(rows, into)))? {
            Ok(()) => Ok(Some(records)),
            Err(flat::Failed::Unsupported) => {
                let asked = flat.asked.iter().map(|(name, optional)| Asked { name, optional: *optional });
                let (asked, source) = (asked.collect::<Vec<_>>(), flat.source.clone());
                let path = self.path.clone();
                *self = guarded(&path, "opening", || {
                    Self::open_parquet(&path, source, Some(&asked), As::Arrays(before))
                })?;
                self.next_records()
            }
            Err(flat::Failed::Damaged(error)) => {
                (self.at_end, self.pending) = (true, None);
                Err(bad_file(&self.path, format!("damaged after row {before}: {error}")))
            }
        }
    }

    /// The next rows, at most [`ROWS_PER_BATCH_MAX`], with one column per input column of the encoder (of type Null
    /// where the file lacks an optional one). `None` at the end.
    ///
    /// # Errors
    /// `BadFile` if the file is damaged from here on, or ends with fewer rows than it declares.
    #[allow(clippy::should_implement_trait)] // an Iterator would yield Option<Result>, and go on after an error
    pub fn next(&mut self) -> Result<Option<RecordBatch>, SampleError> {
        loop {
            if let Some(batch) = self.next_slice() {
                return Ok(Some(batch));
            }
            if self.at_end {
                return Ok(None);
            }
            // Stays set on an error: data behind a damaged place is not trusted.
            self.at_end = true;
            let file = &mut self.file;
            let read = guarded(&self.path, "reading", || {
                Ok(match file {
                    Reader::Parquet(reader, budget) => {
                        budget.begin();
                        reader.next().transpose()
                    }
                    Reader::Ipc(file) => file.next(),
                    Reader::InMemory(batches, read) => batches
                        .next()
                        .transpose()
                        .and_then(|batch| batch.map(|it| it.project(read)).transpose()),
                })
            })?;
            match read {
                Ok(Some(batch)) => {
                    self.at_end = false;
                    self.accept(&batch)?;
                }
                Ok(None) => return self.check_end().map(|()| None),
                Err(error) => {
                    let reason = format!("damaged after row {}: {error}", self.rows_read);
                    return Err(bad_file(&self.path, reason));
                }
            }
        }
    }

    /// Puts the columns in order.
    fn accept(&mut self, batch: &RecordBatch) -> Result<(), SampleError> {
        let rows = batch.num_rows();
        let column = |source: &Source| -> ArrayRef {
            match source {
                Source::Column(index) => Arc::clone(batch.column(*index)),
                Source::Nothing => Arc::new(NullArray::new(rows)),
                Source::Path(value) => {
                    Arc::new(StringArray::from_iter_values(std::iter::repeat_n(value, rows)))
                }
            }
        };
        let columns: Vec<ArrayRef> = self.order.iter().map(column).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = match &self.flat {
            None => Arc::clone(&self.schema),
            // Columns that are read by page have places of nulls here.
            Some(_) => {
                let fields = self.schema.fields().iter().zip(&columns);
                let fields = fields
                    .map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()));
                Arc::new(Schema::new(fields.collect::<Vec<_>>()))
            }
        };
        let batch = RecordBatch::try_new_with_options(schema, columns, &options).map_err(|error| {
            bad_file(&self.path, format!("damaged after row {}: {error}", self.rows_read))
        })?;
        self.pending = Some((batch, 0));
        Ok(())
    }

    /// The next slice of the record batch at hand; shorter if its lists are long.
    fn next_slice(&mut self) -> Option<RecordBatch> {
        let (batch, start) = self.pending.as_mut()?;
        let left = batch.num_rows() - *start;
        if left == 0 {
            self.pending = None;
            return None;
        }
        let mut slice = batch.slice(*start, ROWS_PER_BATCH_MAX.min(left));
        while slice.num_rows() > 1 && !cells::is_bounded(&slice) {
            slice = slice.slice(0, slice.num_rows() / 2);
        }
        *start += slice.num_rows();
        self.rows_read += slice.num_rows() as u64;
        Some(slice)
    }

    fn check_end(&self) -> Result<(), SampleError> {
        match self.rows_declared {
            Some(declared) if declared != self.rows_read => {
                let reason = format!("declares {declared} rows but holds {}", self.rows_read);
                Err(bad_file(&self.path, reason))
            }
            _ => Ok(()),
        }
    }
}

/// The input columns of an encoder.
fn asked(encoder: &Encoder) -> Vec<Asked<'_>> {
    let names = encoder.input_columns().iter().enumerate();
    names.map(|(index, name)| Asked { name, optional: encoder.is_optional(index) }).collect()
}

fn row_count(path: &Path, groups: &[parquet::file::metadata::RowGroupMetaData]) -> Result<u64, SampleError> {
    let sum =
        groups.iter().try_fold(0u64, |sum, group| sum.checked_add(u64::try_from(group.num_rows()).ok()?));
    sum.ok_or_else(|| bad_file(path, "declares a negative number of rows"))
}

fn bad_file(path: &Path, reason: impl Into<String>) -> SampleError {
    SampleError::BadFile { path: path.to_path_buf(), reason: reason.into() }
}

/// Runs library code on a file's bytes. The arrow and parquet crates promise errors, not the absence of panics, on
/// hostile bytes; a panic there is a damaged file and must not take a training run's process down.
fn guarded<T>(
    path: &Path,
    doing: &str,
    work: impl FnOnce() -> Result<T, SampleError>,
) -> Result<T, SampleError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied().map(String::from);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        Err(bad_file(path, format!("damaged: {doing} it failed an internal check ({text})")))
    })
}
