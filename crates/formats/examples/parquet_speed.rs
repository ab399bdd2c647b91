//! How fast a Parquet file becomes batches of hashed keys: 81 columns (a label, 13 counts on a log scale, 67 texts), one thread and
//! two, beside the reading of the file alone. Rounds are interleaved, medians printed.
//!
//! `cargo run --release -p sanderling-formats --example parquet_speed [-- --tiny | FILE [ROUNDS]]`
//!
//! A file has the columns `label`, `n0` to `n12` and `c0` to `c66`; `bench/parquet_vs_polars.py` makes one. Without a file the
//! example makes its own. It knows no other format.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Decoder, Source, Unit};
use sanderling_random::mix;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, Spec};

const ROWS: u64 = 400_000;
const TINY_ROWS: u64 = 2_000;
const ROWS_PER_WRITE: u64 = 50_000;
const ROUNDS: usize = 7;
const TINY_ROUNDS: usize = 1;
const NUMBERS: u64 = 13;
const TEXTS: u64 = 67;

type Failure = Box<dyn std::error::Error>;

/// A row's number, 40 % of them missing, most of them small.
fn number(row: u64, column: u64) -> Option<i64> {
    let draw = mix(row * 256 + column);
    (draw % 10 >= 4).then(|| ((draw >> 8) % (1 << (1 + (draw >> 40) % 14))) as i64)
}

/// A row's text: 8 hexadecimal digits of a skewed choice from 10 to a million values, depending on the column.
fn text(row: u64, column: u64) -> String {
    let draw = mix(row * 256 + 64 + column);
    let values = 10_u64.pow(1 + (column % 6) as u32) as f64;
    let chosen = values.powf((draw >> 11) as f64 / (1_u64 << 53) as f64) as u64;
    format!("{:08x}", mix(chosen << 8 | column) as u32)
}

fn write(path: &Path, rows: u64) -> Result<(), Failure> {
    let mut writer: Option<ArrowWriter<std::fs::File>> = None;
    for start in (0..rows).step_by(ROWS_PER_WRITE as usize) {
        let rows = start..rows.min(start + ROWS_PER_WRITE);
        let labels: ArrayRef =
            Arc::new(Int64Array::from_iter_values(rows.clone().map(|row| mix(row).is_multiple_of(4).into())));
        let numbers = (0..NUMBERS).map(|column| {
            let values: ArrayRef =
                Arc::new(rows.clone().map(|row| number(row, column)).collect::<Int64Array>());
            (format!("n{column}"), values)
        });
        let texts = (0..TEXTS).map(|column| {
            let values: ArrayRef =
                Arc::new(StringArray::from_iter_values(rows.clone().map(|row| text(row, column))));
            (format!("c{column}"), values)
        });
        let records = RecordBatch::try_from_iter(
            [("label".to_string(), labels)].into_iter().chain(numbers).chain(texts),
        )?;
        if writer.is_none() {
            let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
            let file = std::fs::File::create(path)?;
            writer = Some(ArrowWriter::try_new(file, records.schema(), Some(properties))?);
        }
        if let Some(writer) = &mut writer {
            writer.write(&records)?;
        }
    }
    if let Some(writer) = writer {
        writer.close()?;
    }
    Ok(())
}

fn encoder() -> Result<Arc<Encoder>, Failure> {
    let list =
        |kind: char, count| (0..count).map(|at| format!("\"{kind}{at}\"")).collect::<Vec<_>>().join(", ");
    let spec: Spec = toml::from_str(&format!(
        "[[feature]]\neach = [{}]\ntype = \"log\"\n[[feature]]\neach = [{}]",
        list('n', NUMBERS),
        list('c', TEXTS)
    ))?;
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Ok(Arc::new(Encoder::new(&spec, &options)?))
}

/// Reads the file with some threads; decodes it unless there are none. Returns the rows.
fn read(path: &Path, encoder: &Arc<Encoder>, threads: usize) -> Result<usize, Failure> {
    let name = [path.to_string_lossy().into_owned()];
    let mut source = Source::open(&name, &DataConfig::default(), encoder)?;
    if threads == 0 {
        let mut unit = Unit::default();
        while source.next_unit(&mut unit)? {}
        return Ok(0);
    }
    let source = Mutex::new(source);
    let decode = || -> Result<usize, SampleError> {
        let bad_rows = Arc::new(BadRows::new(BadRowPolicy::Fail));
        let mut decoder = Decoder::new(Arc::clone(encoder), bad_rows);
        let (mut unit, mut batch, mut rows) = (Unit::default(), encoder.new_batch(), 0);
        while source.lock().unwrap_or_else(PoisonError::into_inner).next_unit(&mut unit)? {
            batch.clear();
            decoder.decode(&unit, &mut batch)?;
            rows += batch.len();
        }
        Ok(rows)
    };
    if threads == 1 {
        return Ok(decode()?);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(decode)).collect();
        let mut rows = 0;
        for thread in threads {
            rows += thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(rows)
    })
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_tiny = arguments.first().is_some_and(|argument| argument == "--tiny");
    let folder = tempfile::tempdir()?;
    let (path, rounds) = match &arguments[..] {
        [file, rest @ ..] if !is_tiny => {
            (PathBuf::from(file), rest.first().map_or(Ok(ROUNDS), |rounds| rounds.parse())?)
        }
        _ => {
            let path = folder.path().join("columns.parquet");
            write(&path, if is_tiny { TINY_ROWS } else { ROWS })?;
            (path, if is_tiny { TINY_ROUNDS } else { ROUNDS })
        }
    };
    let encoder = encoder()?;
    let contestants = [("read only", 0), ("one thread", 1), ("two threads", 2)];
    let (mut times, mut rows) = (vec![Vec::new(); contestants.len()], 0);
    for _ in 0..=rounds {
        for ((_, threads), times) in contestants.iter().zip(&mut times) {
            let start = Instant::now();
            rows = rows.max(read(&path, &encoder, *threads)?);
            times.push(start.elapsed().as_secs_f64());
        }
    }
    println!("{rows} rows of 81 columns, {} bytes", path.metadata()?.len());
    for ((name, _), times) in contestants.iter().zip(&mut times) {
        // The first round warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        println!("{name:12} {:11.0} rows/s", rows as f64 / times[times.len() / 2]);
    }
    Ok(())
}
