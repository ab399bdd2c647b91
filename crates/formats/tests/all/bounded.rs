//! What a short file may cost: each of these is read by a child process with little address space. Knows no model.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, DictionaryArray, FixedSizeListArray, Int32Array, ListViewArray, NullArray,
    RecordBatch, StringArray,
};
use arrow_buffer::ScalarBuffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use sanderling_formats::{BadRows, DataConfig, Decoder, Source, Unit};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

/// What the child may take, code and threads included: some times what a batch may unpack to.
const LIMIT_KIB: u64 = 1_500_000;

const FILE: &str = "SANDERLING_BOUNDED_FILE";

/// Not a test of its own: what the child does.
#[test]
fn child() {
    let Some(path) = std::env::var_os(FILE) else { return };
    match rows_of(Path::new(&path)) {
        Ok(rows) => println!("read {rows} rows"),
        Err(error) => println!("refused: {error}"),
    }
}

fn rows_of(path: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let spec: Spec = toml::from_str("[[feature]]\nname = \"x\"\ntype = \"multi\"")?;
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Arc::new(Encoder::new(&spec, &options)?);
    let config = DataConfig::default();
    let mut source = Source::open(&[path.display().to_string()], &config, &encoder)?;
    let mut decoder = Decoder::new(Arc::clone(&encoder), Arc::new(BadRows::new(config.on_bad_row)));
    let (mut unit, mut batch, mut rows) = (Unit::default(), encoder.new_batch(), 0);
    while source.next_unit(&mut unit)? {
        batch.clear();
        decoder.decode(&unit, &mut batch)?;
        rows += batch.len();
    }
    Ok(rows)
}

/// The child must say this of a file, and live.
fn check(name: &str, bytes: &[u8], expected: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let child = format!("ulimit -v {LIMIT_KIB}; exec \"$0\" --exact bounded::child --nocapture");
    let test = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", &child]).arg(test).env(FILE, &path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(expected), "{name} of {} bytes: {said}", bytes.len());
}

fn records(column: ArrayRef) -> RecordBatch {
    let field = Field::new("x", column.data_type().clone(), true);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap()
}

fn parquet(column: ArrayRef, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let (records, mut bytes) = (records(column), Vec::new());
    let mut writer = ArrowWriter::try_new(&mut bytes, records.schema(), Some(properties.build())).unwrap();
    writer.write(&records).unwrap();
    writer.close().unwrap();
    bytes
}

fn arrow(column: ArrayRef, codec: Option<CompressionType>) -> Vec<u8> {
    let (records, mut bytes) = (records(column), Vec::new());
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let mut writer = FileWriter::try_new_with_options(&mut bytes, &records.schema(), options).unwrap();
    writer.write(&records).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

fn zstd() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()))
}

/// So many rows of one long text, which is there once.
fn one_text(bytes: usize, rows: usize) -> ArrayRef {
    let text: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(bytes)]));
    Arc::new(DictionaryArray::<Int32Type>::try_new(Int32Array::from(vec![0; rows]), text).unwrap())
}

fn zeros(bytes: usize) -> ArrayRef {
    Arc::new(BinaryArray::from_vec(vec![&vec![0_u8; bytes]]))
}

#[test]
fn a_dictionary_of_a_long_text_is_not_repeated() {
    let properties = zstd().set_dictionary_page_size_limit(64 << 20);
    let parquet = parquet(one_text(2 << 20, 1000), properties);
    assert!(parquet.len() < 4000, "{}", parquet.len());
    check("x.parquet", &parquet, "read 1000 rows");
    check("x.arrow", &arrow(one_text(2 << 20, 800), Some(CompressionType::ZSTD)), "read 800 rows");
}

#[test]
fn texts_that_share_their_beginnings_are_added_up() {
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(1 << 20); 600]));
    let properties = zstd().set_dictionary_enabled(false).set_encoding(Encoding::DELTA_BYTE_ARRAY);
    check("x.parquet", &parquet(texts, properties), "at most");
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(1 << 10); 3000]));
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::LZ4_RAW,
        Compression::GZIP(GzipLevel::default()),
    ] {
        let properties = WriterProperties::builder().set_compression(codec).set_dictionary_enabled(false);
        for encoding in [Encoding::DELTA_BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY] {
            let parquet = parquet(Arc::clone(&texts), properties.clone().set_encoding(encoding));
            check("x.parquet", &parquet, "read 3000 rows");
        }
    }
}

#[test]
fn pages_and_buffers_that_unpack_to_much_are_refused() {
    check("x.parquet", &parquet(zeros(400 << 20), zstd().set_dictionary_enabled(false)), "at most");
    check("x.arrow", &arrow(zeros(400 << 20), Some(CompressionType::ZSTD)), "allowed are");
}

#[test]
fn lists_without_bytes_are_counted() {
    let nulls: ArrayRef = Arc::new(NullArray::new(400_000_000));
    let item = Arc::new(Field::new("item", DataType::Null, true));
    let lists: ArrayRef = Arc::new(FixedSizeListArray::new(item, 100_000_000, nulls, None));
    check("x.arrow", &arrow(lists, None), "elements in 1 rows");
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let (offsets, sizes) = (ScalarBuffer::from(vec![0; 4000]), ScalarBuffer::from(vec![5000; 4000]));
    let shared: ArrayRef = Arc::new(Int32Array::from(vec![7; 5000]));
    let views: ArrayRef = Arc::new(ListViewArray::new(item, offsets, sizes, shared, None));
    check("x.arrow", &arrow(views, None), "read 4000 rows");
}

#[test]
fn lines_and_records_have_bounds_however_they_are_packed() {
    let line = vec![b'a'; 64 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&line).unwrap();
    check("x.csv.gz", &gzip.finish().unwrap(), "refused");
    check("x.csv.zst", &zstd::encode_all(&line[..], 1).unwrap(), "refused");
    // A frame that wants to look back by 2 GiB.
    let mut wide = zstd::Encoder::new(Vec::new(), 1).unwrap();
    wide.window_log(30).unwrap();
    wide.write_all(b"label,x\n1,a\n").unwrap();
    let wide = wide.finish().unwrap();
    check("x.csv.zst", &wide, "refused");
    let length = (1_u64 << 40).to_le_bytes();
    let crc = crc32c::crc32c(&length).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    check("x.tfrecord", &[&length[..], &crc, b"abc"].concat(), "refused");
    check("x.pb", &[0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2], "refused");
}
