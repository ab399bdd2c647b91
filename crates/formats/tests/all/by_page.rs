//! Parquet columns that are read by page against the parquet crate's arrays, encoded row by row: every type, page version,
//! codec, dictionary and run of nulls gives equal batches.

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, Float64Array, Int64Array, ListArray, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_schema::{DataType, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression as Codec, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use proptest::prelude::*;
use sanderling_formats::columnar::{ColumnarFile, Place, RecordEncoder, Records, encode_rows};
use sanderling_formats::{Compression, Format};
use sanderling_random::SplitMix64;
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, Spec};
use tempfile::TempDir;

/// Columns beside the label.
const COLUMNS: usize = 6;

fn encoder() -> Encoder {
    let each: Vec<String> = (0..COLUMNS).map(|at| format!("\"x{at}\"")).collect();
    let spec: Spec =
        toml::from_str(&format!("feature = [{{ each = [{}], type = \"multi\" }}]", each.join(", "))).unwrap();
    let missing = ["7".to_string()];
    Encoder::new(&spec, &EncodeOptions { missing: &missing, label: LabelUse::Required, down_sample: false })
        .unwrap()
}

/// The file by page and by column.
fn by_page(path: &Path, encoder: &Encoder) -> Result<Batch, String> {
    let mut file = ColumnarFile::open_records(path, Format::Parquet, Compression::None, encoder, None)
        .map_err(|error| error.to_string())?;
    let (mut batch, mut records_encoder) = (encoder.new_batch(), RecordEncoder::default());
    loop {
        let first_row = file.rows_read() + 1;
        let Some(records) = file.next_records().map_err(|error| error.to_string())? else { return Ok(batch) };
        let place = Place { path, first_row, first_row_id: first_row };
        records_encoder
            .encode(encoder, &records, place, &mut batch, |error, _| Err(error))
            .map_err(|error| error.to_string())?;
    }
}

/// The file as the parquet crate's arrays, row by row.
fn by_array(path: &Path, encoder: &Encoder) -> Batch {
    let mut file = ColumnarFile::open(path, Format::Parquet, Compression::None, encoder).unwrap();
    let mut batch = encoder.new_batch();
    while let Some(records) = file.next().unwrap() {
        let place = Place { path, first_row: 1, first_row_id: 1 };
        encode_rows(encoder, &Records::from(records), place, &mut batch, |error, _| Err(error)).unwrap();
    }
    batch
}

/// A column of a random type: runs of equal values, nulls here and there or for long.
fn column(random: &mut SplitMix64, rows: usize) -> ArrayRef {
    let (values, nulls) = ([2, 9, 5000][random.below(3) as usize], random.below(4));
    let (mut column, mut value) = (Vec::with_capacity(rows), None);
    let mut left = 0;
    for _ in 0..rows {
        if left == 0 {
            left = if random.below(3) == 0 { 1 + random.below(200) } else { 1 };
            value = (random.below(4) >= nulls).then(|| random.below(values) as i64 - 1);
        }
        left -= 1;
        column.push(value);
    }
    let ints: ArrayRef = Arc::new(Int64Array::from(column.clone()));
    let texts = || -> ArrayRef {
        let text = |value: i64| {
            if value % 3 == 0 { format!("ü, a longer text {value}") } else { value.to_string() }
        };
        Arc::new(column.iter().map(|value| value.map(text)).collect::<StringArray>())
    };
    use DataType as D;
    let to = |kind: D| cast(&ints, &kind).unwrap();
    let dictionary = |value: &D| D::Dictionary(Box::new(D::Int32), Box::new(value.clone()));
    match random.below(18) {
        0 => to(D::Int32),
        1 => to(D::Int8),
        2 => to(D::Int16),
        3 => to(D::UInt16),
        4 => cast(&to(D::Int32), &D::UInt32).unwrap(),
        5 => to(D::UInt64),
        6 => to(D::Float32),
        7 => Arc::new(
            column.iter().map(|value| value.map(|value| value as f64 / 4.0)).collect::<Float64Array>(),
        ),
        8 => to(D::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))),
        9 => cast(&to(D::Int32), &D::Date32).unwrap(),
        10 => cast(&cast(&to(D::Int32), &D::UInt16).unwrap(), &D::Boolean).unwrap(),
        11 => to(D::Decimal128(30, 2)),
        12 => {
            let lists = column
                .iter()
                .map(|value| value.map(|value| vec![Some(value as i32); value.rem_euclid(3) as usize]));
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))
        }
        13 => ints,
        16 => to(dictionary(&D::Int64)),
        17 => cast(&texts(), &dictionary(&D::Utf8)).unwrap(),
        14 => cast(&texts(), &D::Binary).unwrap(),
        _ => texts(),
    }
}

fn properties(random: &mut SplitMix64) -> WriterProperties {
    let codecs = [
        Codec::UNCOMPRESSED,
        Codec::SNAPPY,
        Codec::ZSTD(ZstdLevel::default()),
        Codec::GZIP(GzipLevel::default()),
        Codec::BROTLI(BrotliLevel::default()),
        Codec::LZ4_RAW,
        Codec::LZ4,
    ];
    let codec = codecs[random.below(7) as usize];
    let mut properties = WriterProperties::builder()
        .set_compression(codec)
        .set_max_row_group_row_count(Some(1 + random.below(9000) as usize))
        .set_write_batch_size(1 + random.below(300) as usize)
        .set_data_page_row_count_limit(1 + random.below(9000) as usize)
        .set_dictionary_page_size_limit([64, 4096, 1 << 20][random.below(3) as usize]);
    // The second version has encodings of texts that files with the abandoned LZ4 lack.
    if random.below(3) == 0 && codec != Codec::LZ4 {
        properties = properties.set_writer_version(WriterVersion::PARQUET_2_0);
    }
    for column in 0..COLUMNS {
        let name = format!("x{column}");
        if random.below(4) == 0 {
            properties = properties.set_column_dictionary_enabled(name.into(), false);
        }
    }
    properties.build()
}

fn table(random: &mut SplitMix64) -> RecordBatch {
    let rows = [1, 50, 4096, 9000][random.below(4) as usize] + random.below(40) as usize;
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| row % 2)));
    let columns = (0..COLUMNS).map(|at| (format!("x{at}"), column(random, rows), true));
    RecordBatch::try_from_iter_with_nullable(
        [("label".to_string(), labels, false)].into_iter().chain(columns),
    )
    .unwrap()
}

fn write(path: &Path, records: &RecordBatch, properties: WriterProperties) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, records.schema(), Some(properties)).unwrap();
    writer.write(records).unwrap();
    writer.close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn pages_encode_as_arrays_do(seed: u64) {
        let mut random = SplitMix64::new(seed);
        let (dir, encoder) = (TempDir::new().unwrap(), encoder());
        let path = dir.path().join("a.parquet");
        write(&path, &table(&mut random), properties(&mut random));
        prop_assert_eq!(by_page(&path, &encoder).unwrap(), by_array(&path, &encoder));
    }

    /// Damage is an error, or other values; never a panic, and never more rows.
    #[test]
    fn damaged_pages_are_errors(seed: u64, damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut random = SplitMix64::new(seed);
        let (dir, encoder) = (TempDir::new().unwrap(), encoder());
        let path = dir.path().join("a.parquet");
        let records = table(&mut random);
        write(&path, &records, properties(&mut random));
        let mut bytes = std::fs::read(&path).unwrap();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        std::fs::write(&path, bytes).unwrap();
        match by_page(&path, &encoder) {
            Ok(batch) => prop_assert!(batch.len() <= records.num_rows()),
            Err(error) => prop_assert!(error.contains("a.parquet"), "{}", error),
        }
    }
}

/// A page in an encoding that the column does not declare: the file is read as arrays from there on.
#[test]
fn pages_of_undeclared_encodings_are_read() {
    let (dir, encoder) = (TempDir::new().unwrap(), encoder());
    let path = dir.path().join("a.parquet");
    let mut random = SplitMix64::new(7);
    let ints = |random: &mut SplitMix64| -> ArrayRef {
        Arc::new((0..20_000).map(|_| Some(random.below(1000) as i64)).collect::<Int64Array>())
    };
    let columns = (0..COLUMNS).map(|at| (format!("x{at}"), ints(&mut random)));
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values((0..20_000).map(|row| row % 2)));
    let records =
        RecordBatch::try_from_iter([("label".to_string(), labels)].into_iter().chain(columns)).unwrap();
    let properties = WriterProperties::builder()
        .set_column_dictionary_enabled("x3".into(), false)
        .set_column_encoding("x3".into(), Encoding::DELTA_BINARY_PACKED);
    write(&path, &records, properties.build());
    let expected = by_array(&path, &encoder);
    assert_eq!(by_page(&path, &encoder).unwrap(), expected);
    let pages = |path: &Path| {
        let mut file =
            ColumnarFile::open_records(path, Format::Parquet, Compression::None, &encoder, None).unwrap();
        // Debug output names the variant of each column.
        format!("{:?}", file.next_records().unwrap().unwrap()).matches("Flat(").count()
    };
    assert_eq!(pages(&path), COLUMNS);
    let mut bytes = std::fs::read(&path).unwrap();
    // A list of two encodings: runs (3) and DELTA_BINARY_PACKED (5), as zigzag numbers. It becomes runs and plain.
    let footer =
        bytes.len() - 8 - u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
    let lists: Vec<usize> = (footer..bytes.len() - 2)
        .filter(|at| {
            [[0x25, 0x06, 0x0a], [0x25, 0x0a, 0x06]].contains(&bytes[*at..][..3].try_into().unwrap())
        })
        .collect();
    assert_eq!(lists.len(), 1);
    for byte in &mut bytes[lists[0]..][1..3] {
        *byte = if *byte == 0x0a { 0 } else { *byte };
    }
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(pages(&path), 0);
    assert_eq!(by_page(&path, &encoder).unwrap(), expected);
}
