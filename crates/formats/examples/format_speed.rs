//! How fast the same rows become batches from every format, one thread, files in the page cache, rounds in turns, medians
//! printed: rows of 13 numbers and 26 ids, and rows of 81 features with 1 to 3 ids each.
//!
//! `cargo run --release -p sanderling-formats --example format_speed [-- --tiny]`
//!
//! TFRecord twice, ids as integers and as texts; samples twice, keys hashed as everywhere else and taken as they are; batch
//! files used where they lie, and copied as a shuffle buffer does. Below them what the machine can do with the bytes of the
//! uncompressed batch file. Knows no generator of realistic data.
#![allow(clippy::print_stdout, reason = "printing is what an example is for")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Float32Array, Int64Array, ListArray, RecordBatch};
use parquet::arrow::ArrowWriter;
use prost::Message;
use sanderling_formats::batch_file::{BLOCK_ROWS, BatchFileOptions, BatchFileWriter, BlockCompression};
use sanderling_formats::{BadRows, DataConfig, Decoded, Decoder, Reader, Source, Unit};
use sanderling_random::mix;
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Rows, Spec};
use sanderling_testkit::messages::{
    DenseSlot, Example, Feature, Features, Sample, SparseSlot, bytes, delimited, floats, ints, tfrecord,
};

const ROUNDS: usize = 7;
const TINY_ROUNDS: usize = 1;
/// As many rows fewer.
const TINY_DIVISOR: usize = 400;

/// What the rows are like.
struct Shape {
    rows: usize,
    numbers: usize,
    ids: usize,
    /// Each id column has 1 to so many.
    ids_each_max: u64,
}

const SHAPES: [Shape; 2] = [
    Shape { rows: 200_000, numbers: 13, ids: 26, ids_each_max: 1 },
    Shape { rows: 40_000, numbers: 0, ids: 81, ids_each_max: 3 },
];

type Failure = Box<dyn std::error::Error>;

struct Row {
    label: u8,
    numbers: Vec<f32>,
    ids: Vec<Vec<u64>>,
}

fn row(shape: &Shape, row: u64) -> Row {
    let draw = |column: usize| mix(row * 512 + column as u64);
    let ids = |column: usize| {
        let id = |at: u64| draw(128 + 4 * column + at as usize) % 10_u64.pow(2 + column as u32 % 6);
        (0..1 + draw(64 + column) % shape.ids_each_max).map(id).collect()
    };
    Row {
        label: (draw(511) % 4 == 0).into(),
        numbers: (0..shape.numbers).map(|column| (draw(column) % 4000) as f32 / 4.0).collect(),
        ids: (0..shape.ids).map(ids).collect(),
    }
}

fn column(kind: &str, index: usize) -> String {
    format!("{kind}_{index}")
}

fn columns(shape: &Shape) -> impl Iterator<Item = String> {
    let numbers = (0..shape.numbers).map(|at| column("dense", at));
    numbers.chain((0..shape.ids).map(|at| column("sparse", at)))
}

fn csv(shape: &Shape, rows: &[Row]) -> Vec<u8> {
    let mut text = "label,".to_string() + &columns(shape).collect::<Vec<_>>().join(",");
    for Row { label, numbers, ids } in rows {
        // Writing to a string does not fail.
        let _ = write!(text, "\n{label}");
        numbers.iter().for_each(|number| _ = write!(text, ",{number}"));
        for ids in ids {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            let _ = write!(text, ",{}", ids.join("|"));
        }
    }
    text.into_bytes()
}

fn libsvm(rows: &[Row]) -> Vec<u8> {
    let mut text = String::new();
    for Row { label, numbers, ids } in rows {
        let _ = write!(text, "{label}");
        numbers.iter().enumerate().for_each(|(at, number)| _ = write!(text, " {}:{number}", at + 1));
        let all = ids.iter().enumerate().flat_map(|(at, ids)| ids.iter().map(move |id| (at, id)));
        let indices = all.map(|(at, id)| 14 + at as u64 * 10_000_000 + id);
        indices.for_each(|index| _ = write!(text, " {index}:1"));
        text.push('\n');
    }
    text.into_bytes()
}

fn parquet(shape: &Shape, rows: &[Row]) -> Result<Vec<u8>, Failure> {
    let numbers = |at| Arc::new(rows.iter().map(|row| row.numbers[at]).collect::<Float32Array>()) as ArrayRef;
    let ids = |at: usize| {
        let ids = rows.iter().map(|row| row.ids[at].iter().map(|id| Some(*id as i64)).collect::<Vec<_>>());
        if shape.ids_each_max == 1 {
            return Arc::new(ids.flatten().collect::<Int64Array>()) as ArrayRef;
        }
        Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(ids.map(Some))) as ArrayRef
    };
    let labels = Arc::new(rows.iter().map(|row| i64::from(row.label)).collect::<Int64Array>()) as ArrayRef;
    let arrays = (0..shape.numbers).map(numbers).chain((0..shape.ids).map(ids));
    let named = std::iter::once(("label".to_string(), labels)).chain(columns(shape).zip(arrays));
    let records = RecordBatch::try_from_iter(named)?;
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, records.schema(), None)?;
    writer.write(&records)?;
    writer.close()?;
    Ok(bytes)
}

fn examples(rows: &[Row], feature_of: impl Fn(&[u64]) -> Feature) -> Vec<u8> {
    let record = |Row { label, numbers, ids }: &Row| {
        let mut feature: BTreeMap<String, Feature> = BTreeMap::new();
        feature.insert("label".to_string(), ints(&[i64::from(*label)]));
        feature.extend((0..).zip(numbers).map(|(at, number)| (column("dense", at), floats(&[*number]))));
        feature.extend((0..).zip(ids).map(|(at, ids)| (column("sparse", at), feature_of(ids))));
        tfrecord(&Example { features: Some(Features { feature }) }.encode_to_vec())
    };
    rows.iter().flat_map(record).collect()
}

fn samples(rows: &[Row]) -> Vec<u8> {
    let record = |Row { label, numbers, ids }: &Row| {
        let sparse = (0..).zip(ids).map(|(index, id)| SparseSlot { index, keys: id.clone() }).collect();
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

fn by_column(shape: &Shape, key: &str) -> Result<Arc<Encoder>, Failure> {
    let quoted: Vec<String> = columns(shape).map(|column| format!("\"{column}\"")).collect();
    let (numbers, ids) = (quoted[..shape.numbers].join(", "), quoted[shape.numbers..].join(", "));
    let kind = if shape.ids_each_max == 1 { "categorical" } else { "multi" };
    let mut toml = format!("[[feature]]\neach = [{ids}]\nkey = \"{key}\"\ntype = \"{kind}\"\n");
    if shape.numbers > 0 {
        let _ = write!(toml, "[[feature]]\neach = [{numbers}]\ntype = \"numeric\"");
    }
    encoder(&toml::from_str(&toml)?)
}

/// How a file is read.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Into a batch.
    Copied,
    /// Where its rows lie.
    InPlace,
    /// Not at all: its bytes through the system call that reads, through the checksum, from memory to memory.
    Bytes,
    Checksum,
    MemoryCopy,
}

/// Reads a file; gives the rows.
fn read(path: &Path, way: Way, encoder: &Arc<Encoder>) -> Result<usize, Failure> {
    let (name, config) = ([path.to_string_lossy().into_owned()], DataConfig::default());
    let mut rows = 0;
    if way == Way::Copied {
        let mut reader = Reader::open(&name, &config, encoder)?;
        let mut batch = encoder.new_batch();
        while reader.next(&mut batch)? {
            rows += batch.len();
            batch.clear();
        }
        return Ok(rows);
    }
    let mut source = Source::open(&name, &config, encoder)?;
    let mut decoder = Decoder::new(Arc::clone(encoder), Arc::new(BadRows::new(config.on_bad_row)));
    let (mut unit, mut decoded) = (Unit::default(), Decoded::new(encoder));
    while source.next_unit(&mut unit)? {
        decoder.decode_in_place(&unit, &mut decoded)?;
        rows += decoded.len();
    }
    Ok(rows)
}

/// What the machine takes for so many bytes, a block at a time as a reader of batch files has them.
fn limit(path: &Path, way: Way, memory: &[u8]) -> Result<(), Failure> {
    const PIECE_BYTES: usize = 2 << 20;
    let mut to = vec![0; PIECE_BYTES];
    let mut file = std::fs::File::open(path)?;
    for from in memory.chunks(PIECE_BYTES) {
        let to = &mut to[..from.len()];
        match way {
            Way::Bytes => std::io::Read::read_exact(&mut file, to)?,
            Way::Checksum => _ = std::hint::black_box(crc_fast::crc32_iscsi(from)),
            _ => to.copy_from_slice(from),
        }
        std::hint::black_box(to);
    }
    Ok(())
}

/// Converts a file, as `sanderling convert` does.
fn convert(
    from: &Path,
    to: &Path,
    compression: BlockCompression,
    encoder: &Arc<Encoder>,
) -> Result<(), Failure> {
    let mut reader = Reader::open(&[from.to_string_lossy().into_owned()], &DataConfig::default(), encoder)?;
    let mut all = encoder.new_batch();
    while reader.next(&mut all)? {}
    let mut out =
        BatchFileWriter::create(to, encoder.spec(), BatchFileOptions { compression, overwrite: true })?;
    for start in (0..all.len()).step_by(BLOCK_ROWS) {
        out.write(&Rows::new(&all, start..all.len().min(start + BLOCK_ROWS)))?;
    }
    out.finish()?;
    Ok(())
}

fn main() -> Result<(), Failure> {
    let is_tiny = std::env::args().any(|argument| argument == "--tiny");
    for shape in &SHAPES {
        measure(shape, is_tiny)?;
    }
    Ok(())
}

fn measure(shape: &Shape, is_tiny: bool) -> Result<(), Failure> {
    let (rows, rounds) =
        if is_tiny { (shape.rows / TINY_DIVISOR, TINY_ROUNDS) } else { (shape.rows, ROUNDS) };
    let rows: Vec<Row> = (0..rows as u64).map(|at| row(shape, at)).collect();
    let (hash, raw) = (by_column(shape, "hash")?, by_column(shape, "raw")?);
    let integers = |ids: &[u64]| ints(&ids.iter().map(|id| *id as i64).collect::<Vec<_>>());
    let texts = |ids: &[u64]| {
        let texts: Vec<String> = ids.iter().map(u64::to_string).collect();
        bytes(&texts.iter().map(String::as_bytes).collect::<Vec<_>>())
    };
    let folder = tempfile::tempdir()?;
    for (file, content) in [
        ("a.libsvm", libsvm(&rows)),
        ("a.csv", csv(shape, &rows)),
        ("a.parquet", parquet(shape, &rows)?),
        ("a.tfrecord", examples(&rows, integers)),
        ("b.tfrecord", examples(&rows, texts)),
        ("a.pb", samples(&rows)),
    ] {
        std::fs::write(folder.path().join(file), content)?;
    }
    for (name, compression) in BlockCompression::ALL {
        let to = folder.path().join(format!("{name}.batch"));
        convert(&folder.path().join("a.csv"), &to, compression, &hash)?;
    }
    let contestants = [
        ("libsvm, raw keys", "a.libsvm", Way::Copied, &encoder(&Spec::libsvm())?),
        ("CSV", "a.csv", Way::Copied, &hash),
        ("Parquet", "a.parquet", Way::Copied, &hash),
        ("TFRecord, integers", "a.tfrecord", Way::Copied, &hash),
        ("TFRecord, texts", "b.tfrecord", Way::Copied, &hash),
        ("protobuf", "a.pb", Way::Copied, &hash),
        ("protobuf, raw keys", "a.pb", Way::Copied, &raw),
        ("batch", "none.batch", Way::InPlace, &hash),
        ("batch, copied", "none.batch", Way::Copied, &hash),
        ("batch, lz4", "lz4.batch", Way::InPlace, &hash),
        ("batch, zstd", "zstd.batch", Way::InPlace, &hash),
        ("limit: read", "none.batch", Way::Bytes, &hash),
        ("limit: CRC-32C", "none.batch", Way::Checksum, &hash),
        ("limit: memory copy", "none.batch", Way::MemoryCopy, &hash),
    ];
    let memory = std::fs::read(folder.path().join("none.batch"))?;
    let mut times = vec![Vec::new(); contestants.len()];
    for _ in 0..=rounds {
        for ((name, file, way, encoder), times) in contestants.iter().zip(&mut times) {
            let path = folder.path().join(file);
            let start = Instant::now();
            if matches!(way, Way::Copied | Way::InPlace) {
                let read = read(&path, *way, encoder)?;
                if read != rows.len() {
                    return Err(format!("{name}: {read} rows of {}", rows.len()).into());
                }
            } else {
                limit(&path, *way, &memory)?;
            }
            times.push(start.elapsed().as_secs_f64());
        }
    }
    let Shape { numbers, ids, ids_each_max, .. } = shape;
    println!(
        "{} rows of {numbers} numbers and {ids} features of 1 to {ids_each_max} ids, one thread",
        rows.len()
    );
    for ((name, file, ..), times) in contestants.iter().zip(&mut times) {
        // The first round warms up.
        times.remove(0);
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let bytes = folder.path().join(file).metadata()?.len() as f64;
        println!(
            "{name:20} {:6.0} bytes/row  {:11.0} rows/s  {:6.0} MB/s",
            bytes / rows.len() as f64,
            rows.len() as f64 / median,
            bytes / median / 1e6
        );
    }
    Ok(())
}
