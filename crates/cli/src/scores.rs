//! Where predictions go: CSV or Parquet, written beside the destination and moved there when whole.

use std::fs::File;
use std::io::{BufWriter, Error, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Float32Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;

/// Name of the column.
const COLUMN: &str = "score";

/// Writes scores in order; NaN is a row without one.
pub(crate) struct ScoreWriter {
    sink: Sink,
    /// None for standard output.
    part: Option<PartFile>,
}

/// A file under its temporary name, removed unless it is given its final one.
struct PartFile {
    part: PathBuf,
    path: PathBuf,
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // After the rename there is nothing left to remove.
        let _ = std::fs::remove_file(&self.part);
    }
}

enum Sink {
    Csv(BufWriter<Box<dyn Write>>),
    Parquet(Box<ArrowWriter<File>>, Arc<Schema>),
}

impl ScoreWriter {
    /// Opens the destination: standard output for `-`, Parquet for `.parquet`, CSV for any other name.
    pub(crate) fn create(path: &Path, header: bool) -> Result<Self, Error> {
        if path.as_os_str() == "-" {
            let sink = Sink::Csv(BufWriter::new(Box::new(std::io::stdout())));
            return Self { sink, part: None }.with_header(header);
        }
        let mut part = path.as_os_str().to_owned();
        part.push(format!(".part-{}", std::process::id()));
        let part = PathBuf::from(part);
        let named = |error: Error| Error::new(error.kind(), format!("{}: {error}", part.display()));
        let file = File::create(&part).map_err(named)?;
        let parquet = path.extension().is_some_and(|extension| extension == "parquet");
        let sink = if parquet {
            let schema = Arc::new(Schema::new(vec![Field::new(COLUMN, DataType::Float32, true)]));
            Sink::Parquet(Box::new(ArrowWriter::try_new(file, Arc::clone(&schema), None)?), schema)
        } else {
            Sink::Csv(BufWriter::new(Box::new(file)))
        };
        Self { sink, part: Some(PartFile { part, path: path.to_path_buf() }) }.with_header(header)
    }

    fn with_header(mut self, header: bool) -> Result<Self, Error> {
        if let (Sink::Csv(out), true) = (&mut self.sink, header) {
            writeln!(out, "{COLUMN}")?;
        }
        Ok(self)
    }

    /// Appends scores.
    pub(crate) fn write(&mut self, scores: &[f32]) -> Result<(), Error> {
        match &mut self.sink {
            Sink::Csv(out) => {
                for score in scores {
                    if score.is_nan() { writeln!(out)? } else { writeln!(out, "{score}")? }
                }
            }
            Sink::Parquet(out, schema) => {
                let column: Float32Array =
                    scores.iter().map(|score| (!score.is_nan()).then_some(*score)).collect();
                let batch = RecordBatch::try_new(Arc::clone(schema), vec![Arc::new(column)]);
                out.write(&batch.map_err(Error::other)?)?;
            }
        }
        Ok(())
    }

    /// Completes the output and gives it its name.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.sink {
            Sink::Csv(mut out) => out.flush()?,
            Sink::Parquet(out, _) => drop(out.close()?),
        }
        match &self.part {
            Some(PartFile { part, path }) => std::fs::rename(part, path),
            None => Ok(()),
        }
    }
}
