//! Rows as Arrow record batches and the Parquet file made of them. It knows no thread.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, Int64Builder, ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use sanderling_files::OutputFile;
use sanderling_sample::SampleError;

use super::text::{hex_digits, token};
use super::truth::{CHUNK_ROWS, Row};
use super::{CATEGORICAL, NUMERIC, SynthConfig};

/// Rows of a row group; bounds what the writer holds in memory.
const ROW_GROUP_ROWS: usize = 256 * 1024;

/// `label: int32, I1..I13: int64 (null is missing), C1..C26: string, or list of string if multi-valued`.
pub(super) fn schema(config: &SynthConfig) -> SchemaRef {
    let fields = super::column_names().into_iter().enumerate().map(|(index, name)| {
        let token = || Field::new_list_field(DataType::Utf8, true);
        match index {
            0 => Field::new(name, DataType::Int32, false),
            1..=NUMERIC => Field::new(name, DataType::Int64, true),
            _ if index <= NUMERIC + config.multi_valued => Field::new_list(name, token(), false),
            _ => Field::new(name, DataType::Utf8, false),
        }
    });
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

enum Tokens {
    One(StringBuilder),
    Many(ListBuilder<StringBuilder>),
}

/// Collects the rows of a chunk.
pub(super) struct BatchBuilder {
    schema: SchemaRef,
    labels: Int32Builder,
    counts: Vec<Int64Builder>,
    tokens: Vec<Tokens>,
}

impl BatchBuilder {
    pub(super) fn new(config: &SynthConfig) -> Self {
        let rows = CHUNK_ROWS as usize;
        let strings = || StringBuilder::with_capacity(rows, rows * 8);
        let tokens = (0..CATEGORICAL).map(|index| {
            if index < config.multi_valued {
                Tokens::Many(ListBuilder::new(strings()))
            } else {
                Tokens::One(strings())
            }
        });
        BatchBuilder {
            schema: schema(config),
            labels: Int32Builder::with_capacity(rows),
            counts: (0..NUMERIC).map(|_| Int64Builder::with_capacity(rows)).collect(),
            tokens: tokens.collect(),
        }
    }

    pub(super) fn push(&mut self, row: &Row) {
        self.labels.append_value(i32::from(row.label()));
        for (index, column) in self.counts.iter_mut().enumerate() {
            column.append_option(row.count(index).map(i64::from));
        }
        for (index, column) in self.tokens.iter_mut().enumerate() {
            for &id in row.ids(index) {
                let bytes = hex_digits(token(id)).to_le_bytes();
                let text = std::str::from_utf8(&bytes).unwrap_or_default();
                match column {
                    Tokens::One(strings) => strings.append_value(text),
                    Tokens::Many(lists) => lists.values().append_value(text),
                }
            }
            if let Tokens::Many(lists) = column {
                lists.append(true);
            }
        }
    }

    /// The rows pushed so far; leaves the builder empty.
    pub(super) fn finish(&mut self) -> RecordBatch {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(self.labels.finish())];
        columns.extend(self.counts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
        columns.extend(self.tokens.iter_mut().map(|column| match column {
            Tokens::One(strings) => Arc::new(strings.finish()) as ArrayRef,
            Tokens::Many(lists) => Arc::new(lists.finish()) as ArrayRef,
        }));
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns are built in step with the schema")
    }
}

/// A Parquet file under construction.
pub(super) struct ParquetFile {
    writer: ArrowWriter<OutputFile>,
}

impl ParquetFile {
    pub(super) fn new(file: OutputFile, path: &Path, config: &SynthConfig) -> Result<Self, SampleError> {
        // Dictionaries and statistics would take most of the time: nearly every value of the large vocabularies is
        // new to a row group.
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .build();
        let writer =
            ArrowWriter::try_new(file, schema(config), Some(properties)).map_err(|e| failed(path, &e))?;
        Ok(ParquetFile { writer })
    }

    pub(super) fn write(&mut self, path: &Path, batch: &RecordBatch) -> Result<u64, SampleError> {
        self.writer.write(batch).map_err(|e| failed(path, &e))?;
        Ok(self.writer.bytes_written() as u64)
    }

    /// Writes the footer; returns the file.
    pub(super) fn close(self, path: &Path) -> Result<OutputFile, SampleError> {
        self.writer.into_inner().map_err(|e| failed(path, &e))
    }
}

fn failed(path: &Path, error: &ParquetError) -> SampleError {
    SampleError::BadFile { path: path.to_path_buf(), reason: format!("writing Parquet: {error}") }
}
