//! The formats of exported rows: Parquet, npy and TSV. Knows no model.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::io::{BufWriter, Error, Stdout, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, StringBuilder, UInt32Builder, UInt64Builder,
};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use sanderling_files::OutputFile;
use sanderling_learner::{LearnError, SavedRows};

/// Rows of a record batch.
const ROWS_AT_ONCE: usize = 8192;
/// The header of an npy file ends at a multiple of this.
const NPY_ALIGN: usize = 64;
const NPY_MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// A format of exported rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    Parquet,
    Npy,
    Tsv,
}

impl Layout {
    /// The format that a name ends in; TSV for standard output.
    pub(super) fn of(path: &Path) -> Option<Layout> {
        if path.as_os_str() == "-" {
            return Some(Layout::Tsv);
        }
        match path.extension()?.to_str()? {
            "parquet" => Some(Layout::Parquet),
            "npy" => Some(Layout::Npy),
            "tsv" => Some(Layout::Tsv),
            _ => None,
        }
    }
}

/// Writes rows in order.
pub(super) struct RowWriter(Sink);

enum Sink {
    Stdout(BufWriter<Stdout>),
    Tsv(BufWriter<OutputFile>),
    Npy(BufWriter<OutputFile>),
    Parquet(Box<Batches>),
}

/// Rows on their way to a Parquet file.
struct Batches {
    out: ArrowWriter<OutputFile>,
    schema: Arc<Schema>,
    keys: UInt64Builder,
    names: StringBuilder,
    frequencies: UInt32Builder,
    weights: FixedSizeListBuilder<Float32Builder>,
    rows: usize,
}

impl RowWriter {
    /// Opens the destination for so many rows.
    pub(super) fn create(path: &Path, layout: Layout, dim: usize, rows: u64) -> Result<RowWriter, Error> {
        let mut sink = match layout {
            Layout::Tsv if path.as_os_str() == "-" => Sink::Stdout(BufWriter::new(std::io::stdout())),
            Layout::Tsv => Sink::Tsv(BufWriter::new(OutputFile::create(path)?)),
            Layout::Npy => Sink::Npy(BufWriter::new(OutputFile::create(path)?)),
            Layout::Parquet => Sink::Parquet(Box::new(Batches::create(path, dim)?)),
        };
        match &mut sink {
            Sink::Stdout(out) => writeln!(out, "{}", header(dim))?,
            Sink::Tsv(out) => writeln!(out, "{}", header(dim))?,
            Sink::Npy(out) => out.write_all(&npy_header(dim, rows))?,
            Sink::Parquet(_) => {}
        }
        Ok(RowWriter(sink))
    }

    /// Appends a row.
    pub(super) fn write(
        &mut self,
        key: u64,
        name: Option<&str>,
        frequency: u32,
        weights: &[f32],
    ) -> Result<(), Error> {
        match &mut self.0 {
            Sink::Stdout(out) => writeln!(out, "{}", line(key, name, frequency, weights)),
            Sink::Tsv(out) => writeln!(out, "{}", line(key, name, frequency, weights)),
            Sink::Npy(out) => {
                out.write_all(&key.to_le_bytes())?;
                out.write_all(&frequency.to_le_bytes())?;
                weights.iter().try_for_each(|weight| out.write_all(&weight.to_le_bytes()))
            }
            Sink::Parquet(batches) => batches.add(key, name, frequency, weights),
        }
    }

    /// Writes what is left, and gives the file its name; its bytes, if it is a file.
    pub(super) fn finish(self) -> Result<Option<u64>, Error> {
        match self.0 {
            Sink::Stdout(mut out) => out.flush().map(|()| None),
            Sink::Tsv(out) | Sink::Npy(out) => {
                out.into_inner().map_err(std::io::IntoInnerError::into_error)?.finish().map(Some)
            }
            Sink::Parquet(mut batches) => {
                batches.flush()?;
                batches.out.into_inner()?.finish().map(Some)
            }
        }
    }
}

impl Batches {
    fn create(path: &Path, dim: usize) -> Result<Batches, Error> {
        let item = Field::new("item", DataType::Float32, false);
        let width =
            i32::try_from(dim).map_err(|_| Error::other(format!("{dim} weights per row are too many")))?;
        let schema = Arc::new(Schema::new(vec![
            Field::new("key", DataType::UInt64, false),
            Field::new("name", DataType::Utf8, true),
            Field::new("frequency", DataType::UInt32, false),
            Field::new("weights", DataType::FixedSizeList(Arc::new(item.clone()), width), false),
        ]));
        let out = ArrowWriter::try_new(OutputFile::create(path)?, Arc::clone(&schema), None)?;
        Ok(Batches {
            out,
            schema,
            keys: UInt64Builder::new(),
            names: StringBuilder::new(),
            frequencies: UInt32Builder::new(),
            weights: FixedSizeListBuilder::new(Float32Builder::new(), width).with_field(item),
            rows: 0,
        })
    }

    fn add(&mut self, key: u64, name: Option<&str>, frequency: u32, weights: &[f32]) -> Result<(), Error> {
        self.keys.append_value(key);
        self.names.append_option(name);
        self.frequencies.append_value(frequency);
        self.weights.values().append_slice(weights);
        self.weights.append(true);
        self.rows += 1;
        if self.rows == ROWS_AT_ONCE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.rows = 0;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.keys.finish()),
            Arc::new(self.names.finish()),
            Arc::new(self.frequencies.finish()),
            Arc::new(self.weights.finish()),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(Error::other)?;
        Ok(self.out.write(&batch)?)
    }
}

fn header(dim: usize) -> String {
    let weights = (0..dim).map(|at| format!("\tw{at}")).collect::<String>();
    format!("key\tname\tfrequency{weights}")
}

fn line(key: u64, name: Option<&str>, frequency: u32, weights: &[f32]) -> String {
    // One line and one field, whatever the name holds.
    let name = name.unwrap_or_default().replace(['\t', '\n', '\r'], " ");
    let mut line = format!("{key}\t{name}\t{frequency}");
    for weight in weights {
        let _ = write!(line, "\t{weight}");
    }
    line
}

/// The header of a structured array, as numpy's format 1.0 has it.
fn npy_header(dim: usize, rows: u64) -> Vec<u8> {
    let fields = format!("[('key', '<u8'), ('frequency', '<u4'), ('weights', '<f4', ({dim},))]");
    let mut text = format!("{{'descr': {fields}, 'fortran_order': False, 'shape': ({rows},), }}");
    let before = NPY_MAGIC.len() + size_of::<u16>();
    let padding = NPY_ALIGN - (before + text.len() + 1) % NPY_ALIGN;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut header = NPY_MAGIC.to_vec();
    header.extend_from_slice(&(text.len() as u16).to_le_bytes());
    header.extend_from_slice(text.as_bytes());
    header
}

/// A row of the most frequent ones.
#[derive(Debug, PartialEq)]
pub(super) struct TopRow {
    pub(super) key: u64,
    pub(super) frequency: u32,
    pub(super) weights: Vec<f32>,
}

/// The rows of the most frequent keys, smaller keys first among equals. Reads the table twice, so that only these rows are
/// in memory.
pub(super) fn most_frequent(saved: &SavedRows, table: &str, most: u64) -> Result<Vec<TopRow>, LearnError> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    // The least frequent of the kept ones is on top.
    let mut heap: BinaryHeap<(Reverse<u32>, u64)> = BinaryHeap::new();
    saved.for_each_row(table, |row| {
        heap.push((Reverse(row.frequency), row.key));
        if heap.len() > most {
            heap.pop();
        }
        Ok(())
    })?;
    let keys: Vec<(Reverse<u32>, u64)> = heap.into_sorted_vec();
    let mut rows: Vec<Option<TopRow>> = keys.iter().map(|_| None).collect();
    saved.for_each_row(table, |row| {
        if let Ok(at) = keys.binary_search(&(Reverse(row.frequency), row.key)) {
            rows[at] = Some(TopRow { key: row.key, frequency: row.frequency, weights: row.weights.to_vec() });
        }
        Ok(())
    })?;
    Ok(rows.into_iter().flatten().collect())
}
