//! Where predictions go: CSV or Parquet. Knows no model.

use std::io::{BufWriter, Error, Stdout, Write};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Float32Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use sanderling_files::OutputFile;

/// Name of the column.
const COLUMN: &str = "score";

/// Writes scores in order; NaN is a row without one.
pub(crate) struct ScoreWriter(Sink);

enum Sink {
    Stdout(BufWriter<Stdout>),
    Csv(BufWriter<OutputFile>),
    Parquet(Box<ArrowWriter<OutputFile>>, Arc<Schema>),
}

impl ScoreWriter {
    /// Opens the destination: standard output for `-`, Parquet for `.parquet`, CSV for any other name.
    pub(crate) fn create(path: &Path, header: bool) -> Result<Self, Error> {
        let mut sink = if path.as_os_str() == "-" {
            Sink::Stdout(BufWriter::new(std::io::stdout()))
        } else if path.extension().is_some_and(|extension| extension == "parquet") {
            let schema = Arc::new(Schema::new(vec![Field::new(COLUMN, DataType::Float32, true)]));
            let file = OutputFile::create(path)?;
            Sink::Parquet(Box::new(ArrowWriter::try_new(file, Arc::clone(&schema), None)?), schema)
        } else {
            Sink::Csv(BufWriter::new(OutputFile::create(path)?))
        };
        match &mut sink {
            Sink::Stdout(out) if header => writeln!(out, "{COLUMN}")?,
            Sink::Csv(out) if header => writeln!(out, "{COLUMN}")?,
            _ => {}
        }
        Ok(Self(sink))
    }

    /// Appends scores.
    pub(crate) fn write(&mut self, scores: &[f32]) -> Result<(), Error> {
        match &mut self.0 {
            Sink::Stdout(out) => lines(out, scores),
            Sink::Csv(out) => lines(out, scores),
            Sink::Parquet(out, schema) => {
                let column: Float32Array =
                    scores.iter().map(|score| (!score.is_nan()).then_some(*score)).collect();
                let batch = RecordBatch::try_new(Arc::clone(schema), vec![Arc::new(column)]);
                Ok(out.write(&batch.map_err(Error::other)?)?)
            }
        }
    }

    /// Completes the output and gives it its name.
    pub(crate) fn finish(self) -> Result<(), Error> {
        match self.0 {
            Sink::Stdout(mut out) => out.flush(),
            Sink::Csv(out) => out.into_inner()?.finish().map(drop),
            Sink::Parquet(out, _) => out.into_inner()?.finish().map(drop),
        }
    }
}

fn lines(out: &mut impl Write, scores: &[f32]) -> Result<(), Error> {
    for score in scores {
        if score.is_nan() { writeln!(out)? } else { writeln!(out, "{score}")? }
    }
    Ok(())
}
