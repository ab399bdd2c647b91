//! How fast the same rows become batches from every format: 13 numbers and 26 ids a row, one thread, files in the page
//! cache, rounds in turns, medians printed.
//!
//! `cargo run --release -p sanderling-sample --example format_speed [-- --tiny]`
//!
//! TFRecord twice, ids as integers and as texts; samples twice, keys hashed as everywhere else and taken as they are. Knows
//! no generator of realistic data.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

#[path = "../tests/messages/mod.rs"]
mod messages;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use messages::{
    DenseSlot, Example, Feature, Features, Sample, SparseSlot, bytes, delimited, floats, ints, tfrecord,
};
use parquet::arrow::ArrowWriter;
use prost::Message;
use sanderling_sample::random::mix;
use sanderling_sample::{DataConfig, EncodeOptions, Encoder, LabelUse, Reader, Spec};

const ROWS: usize = 200_000;
const TINY_ROWS: usize = 500;
const ROUNDS: usize = 7;
const TINY_ROUNDS: usize = 1;
const NUMBERS: usize = 13;
const IDS: usize = 26;

type Failure = Box<dyn std::error::Error>;

struct Row {
    label: u8,
    numbers: Vec<f32>,
    ids: Vec<u64>,
}

fn row(row: u64) -> Row {
    let draw = |column: usize| mix(row * 64 + column as u64);
    Row {
        label: (draw(63) % 4 == 0).into(),
        numbers: (0..NUMBERS).map(|column| (draw(column) % 4000) as f32 / 4.0).collect(),
        ids: (0..IDS).map(|column| draw(32 + column) % 10_u64.pow(2 + column as u32 % 6)).collect(),
    }
}

fn column(kind: &str, index: usize) -> String {
    format!("{kind}_{index}")
}

fn columns() -> impl Iterator<Item = String> {
    (0..NUMBERS).map(|at| column("dense", at)).chain((0..IDS).map(|at| column("sparse", at)))
}

fn csv(rows: &[Row]) -> Vec<u8> {
    let mut text = "label,".to_string() + &columns().collect::<Vec<_>>().join(",");
    for Row { label, numbers, ids } in rows {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{label}");
        numbers.iter().for_each(|number| _ = write!(text, ",{number}"));
        ids.iter().for_each(|id| _ = write!(text, ",{id}"));
    }
    text.into_bytes()
}

fn libsvm(rows: &[Row]) -> Vec<u8> {
    let mut text = String::new();
    for Row { label, numbers, ids } in rows {
        let _ = write!(text, "{label}");
        numbers.iter().enumerate().for_each(|(at, number)| _ = write!(text, " {}:{number}", at + 1));
        let indices = ids.iter().enumerate().map(|(at, id)| 14 + at as u64 * 10_000_000 + id);
        indices.for_each(|index| _ = write!(text, " {index}:1"));
        text.push('\n');
    }
    text.into_bytes()
}

fn parquet(rows: &[Row]) -> Result<Vec<u8>, Failure> {
    let numbers = |at| Arc::new(rows.iter().map(|row| row.numbers[at]).collect::<Float32Array>()) as ArrayRef;
    let ids = |at| Arc::new(rows.iter().map(|row| row.ids[at] as i64).collect::<Int64Array>()) as ArrayRef;
    let labels = Arc::new(rows.iter().map(|row| i64::from(row.label)).collect::<Int64Array>()) as ArrayRef;
    let arrays = (0..NUMBERS).map(numbers).chain((0..IDS).map(ids));
    let named = std::iter::once(("label".to_string(), labels)).chain(columns().zip(arrays));
    let records = RecordBatch::try_from_iter(named)?;
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, records.schema(), None)?;
    writer.write(&records)?;
    writer.close()?;
    Ok(bytes)
}

fn examples(rows: &[Row], id: impl Fn(u64) -> Feature) -> Vec<u8> {
    let record = |Row { label, numbers, ids }: &Row| {
        let mut feature: BTreeMap<String, Feature> = BTreeMap::new();
        feature.insert("label".to_string(), ints(&[i64::from(*label)]));
        feature.extend((0..).zip(numbers).map(|(at, number)| (column("dense", at), floats(&[*number]))));
        feature.extend((0..).zip(ids).map(|(at, key)| (column("sparse", at), id(*key))));
        tfrecord(&Example { features: Some(Features { feature }) }.encode_to_vec())
    };
    rows.iter().flat_map(record).collect()
}

fn samples(rows: &[Row]) -> Vec<u8> {
    let record = |Row { label, numbers, ids }: &Row| {
        let sparse = (0..).zip(ids).map(|(index, id)| SparseSlot { index, keys: vec![*id] }).collect();
        let dense =
            (0..).zip(numbers).map(|(index, number)| DenseSlot { index, values: vec![*number] }).collect();
        delimited(&Sample { label: Some(f32::from(*label)), sparse, dense }.encode_to_vec())
    };
    rows.iter().flat_map(record).collect()
}

fn encoder(spec: &Spec) -> Result<Arc<Encoder>, Failure> {
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Ok(Arc::new(Encoder::new(spec, &options)?))
}

fn by_column(key: &str) -> Result<Arc<Encoder>, Failure> {
    let quoted: Vec<String> = columns().map(|column| format!("\"{column}\"")).collect();
    let (numbers, ids) = (quoted[..NUMBERS].join(", "), quoted[NUMBERS..].join(", "));
    encoder(&toml::from_str(&format!(
        "[[feature]]\neach = [{numbers}]\ntype = \"numeric\"\n[[feature]]\neach = [{ids}]\nkey = \"{key}\""
    ))?)
}

/// Reads a file; gives the rows.
fn read(path: &Path, encoder: &Arc<Encoder>) -> Result<usize, Failure> {
    let mut reader = Reader::open(&[path.to_string_lossy().into_owned()], &DataConfig::default(), encoder)?;
    let (mut batch, mut rows) = (encoder.new_batch(), 0);
    while reader.next(&mut batch)? {
        rows += batch.len();
        batch.clear();
    }
    Ok(rows)
}

fn main() -> Result<(), Failure> {
    let is_tiny = std::env::args().any(|argument| argument == "--tiny");
    let (rows, rounds) = if is_tiny { (TINY_ROWS, TINY_ROUNDS) } else { (ROWS, ROUNDS) };
    let rows: Vec<Row> = (0..rows as u64).map(row).collect();
    let (hash, raw) = (by_column("hash")?, by_column("raw")?);
    let texts = |id: u64| bytes(&[id.to_string().as_bytes()]);
    let contestants = [
        ("libsvm, raw keys", "a.libsvm", libsvm(&rows), encoder(&Spec::libsvm())?),
        ("CSV", "a.csv", csv(&rows), Arc::clone(&hash)),
        ("Parquet", "a.parquet", parquet(&rows)?, Arc::clone(&hash)),
        ("TFRecord, integers", "a.tfrecord", examples(&rows, |id| ints(&[id as i64])), Arc::clone(&hash)),
        ("TFRecord, texts", "b.tfrecord", examples(&rows, texts), Arc::clone(&hash)),
        ("protobuf", "a.pb", samples(&rows), Arc::clone(&hash)),
        ("protobuf, raw keys", "a.pb", samples(&rows), raw),
    ];
    let folder = tempfile::tempdir()?;
    for (_, file, content, _) in &contestants {
        std::fs::write(folder.path().join(file), content)?;
    }
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..=rounds {
        for ((name, file, _, encoder), times) in contestants.iter().zip(&mut times) {
            let start = Instant::now();
            let read = read(&folder.path().join(file), encoder)?;
            times.push(start.elapsed().as_secs_f64());
            if read != rows.len() {
                return Err(format!("{name}: {read} rows of {}", rows.len()).into());
            }
        }
    }
    println!("{} rows of {NUMBERS} numbers and {IDS} ids, one thread", rows.len());
    for ((name, _, content, _), times) in contestants.iter().zip(&mut times) {
        // The first round warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        println!(
            "{name:20} {:5} bytes/row  {:9.0} rows/s  {:6.0} MB/s",
            content.len() / rows.len(),
            rows.len() as f64 / median,
            content.len() as f64 / median / 1e6
        );
    }
    Ok(())
}
