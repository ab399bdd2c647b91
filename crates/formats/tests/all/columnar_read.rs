//! Parquet and Arrow files against the rows they were written from: every type, projection, slices, compression, and
//! errors that name the file and the column. Knows no model and no text format.

mod errors;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array, LargeListArray,
    LargeStringArray, ListArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray,
    TimestampMillisecondArray, UInt64Array,
};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field as SchemaField, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression as PageCompression};
use parquet::file::properties::WriterProperties;
use sanderling_formats::columnar::{ColumnarFile, Place, ROWS_PER_BATCH_MAX, RecordEncoder};
use sanderling_formats::{BadRows, Compression, DataConfig, Decoder, Format, Source, Unit};
use sanderling_sample::{Batch, EncodeOptions, Encoder, Field, LabelUse, Rows, SampleError, Spec};
use tempfile::TempDir;

use errors::check_error;

fn encoder(toml: &str, label: LabelUse) -> Encoder {
    let spec: Spec = toml::from_str(toml).unwrap();
    let missing = [String::new(), "?".to_string()];
    Encoder::new(&spec, &EncodeOptions { missing: &missing, label, down_sample: false }).unwrap()
}

/// The ways to write a file, each with its name.
fn write(dir: &Path, name: &str, records: &[RecordBatch]) -> PathBuf {
    let path = dir.join(name);
    let schema = records[0].schema();
    let plain = name.trim_end_matches(".gz").trim_end_matches(".zst");
    let mut bytes = Vec::new();
    if plain.ends_with("parquet") {
        let pages = match plain {
            "snappy.parquet" => PageCompression::SNAPPY,
            "brotli.parquet" => PageCompression::BROTLI(BrotliLevel::default()),
            _ => PageCompression::UNCOMPRESSED,
        };
        let properties = WriterProperties::builder().set_compression(pages).build();
        let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties)).unwrap();
        records.iter().for_each(|batch| writer.write(batch).unwrap());
        writer.close().unwrap();
    } else {
        let codec = plain.contains("lz4").then_some(CompressionType::LZ4_FRAME);
        let codec = codec.or(plain.contains("zstd").then_some(CompressionType::ZSTD));
        let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
        if plain.ends_with("arrows") {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            records.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        } else {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &schema, options).unwrap();
            records.iter().for_each(|batch| writer.write(batch).unwrap());
            writer.finish().unwrap();
        }
    }
    if name.ends_with(".gz") {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&bytes).unwrap();
        bytes = packed.finish().unwrap();
    } else if name.ends_with(".zst") {
        bytes = zstd::encode_all(&bytes[..], 1).unwrap();
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

const WAYS: [&str; 10] = [
    "a.parquet",
    "snappy.parquet",
    "brotli.parquet",
    "a.parquet.gz",
    "a.arrow",
    "lz4.arrow",
    "a.arrow.zst",
    "a.arrows",
    "zstd.arrows",
    "a.arrows.gz",
];

fn open(path: &Path, encoder: &Encoder) -> Result<ColumnarFile, SampleError> {
    let format = Format::of_path(path).unwrap();
    ColumnarFile::open_records(path, format, Compression::of_path(path), encoder, None)
}

fn read(path: &Path, encoder: &Encoder) -> Result<Batch, SampleError> {
    let mut file = open(path, encoder)?;
    let (mut batch, mut records_encoder) = (encoder.new_batch(), RecordEncoder::default());
    loop {
        let first_row = file.rows_read() + 1;
        let Some(records) = file.next_records()? else { return Ok(batch) };
        assert!(records.num_rows() <= ROWS_PER_BATCH_MAX);
        let place = Place { path, first_row, first_row_id: first_row - 1 };
        records_encoder.encode(encoder, &records, place, &mut batch, |error, _| Err(error))?;
    }
}

/// What encoding the same rows by hand gives.
fn expected(encoder: &Encoder, rows: &[Vec<Field<'_>>]) -> Batch {
    let mut batch = encoder.new_batch();
    for (row, fields) in rows.iter().enumerate() {
        encoder.encode_row(fields, row as u64, &mut batch).unwrap();
    }
    batch
}

fn records(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<SchemaField> = columns
        .iter()
        .map(|(name, array)| SchemaField::new(*name, array.data_type().clone(), true))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, array)| array).collect())
        .unwrap()
}

/// A column `x` of three rows, read as a feature of a type, must give these fields, in every way to write it.
#[allow(clippy::needless_pass_by_value)] // callers read better without the &
fn check(column: ArrayRef, kind: &str, fields: [Field<'_>; 3]) {
    let encoder = encoder(&format!("[[feature]]\nname = \"x\"\ntype = \"{kind}\""), LabelUse::Required);
    let labels: ArrayRef = Arc::new(Int8Array::from(vec![1, 0, 1]));
    let unused: ArrayRef = Arc::new(StringArray::from(vec!["never", "read", "this"]));
    let records = records(vec![("unused", unused), ("x", Arc::clone(&column)), ("label", labels)]);
    let rows: Vec<Vec<Field<'_>>> =
        fields.iter().zip([1, 0, 1]).map(|(field, label)| vec![Field::Int(label), *field]).collect();
    let expected = expected(&encoder, &rows);
    let dir = TempDir::new().unwrap();
    for way in WAYS {
        if way.contains("parquet") && !parquet_takes(&column) {
            continue;
        }
        let path = write(dir.path(), way, std::slice::from_ref(&records));
        let batch =
            read(&path, &encoder).unwrap_or_else(|error| panic!("{way}: {:?}: {error}", column.data_type()));
        assert_eq!(batch, expected, "{way}: {:?}", column.data_type());
    }
}

fn parquet_takes(column: &ArrayRef) -> bool {
    match column.data_type() {
        DataType::Null => false,
        DataType::Decimal128(_, scale) => *scale >= 0,
        _ => true,
    }
}

#[test]
fn every_type_reads_as_the_field_it_is() {
    let ints = [Field::Int(7), Field::Missing, Field::Int(-3)];
    check(Arc::new(Int8Array::from(vec![Some(7), None, Some(-3)])), "categorical", ints);
    check(Arc::new(Int32Array::from(vec![Some(7), None, Some(-3)])), "numeric", ints);
    check(Arc::new(Int64Array::from(vec![Some(7), None, Some(-3)])), "log", ints);
    check(
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        "numeric",
        [Field::Int(1), Field::Missing, Field::Int(0)],
    );
    check(
        Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])),
        "categorical",
        [Field::Text(b"true"), Field::Missing, Field::Text(b"false")],
    );
    let days = [Field::Int(7 * 86_400), Field::Missing, Field::Int(-3 * 86_400)];
    check(Arc::new(Date32Array::from(vec![Some(7), None, Some(-3)])), "numeric", days);
    let seconds = [Field::Float(0.007), Field::Missing, Field::Int(-3)];
    check(Arc::new(TimestampMillisecondArray::from(vec![Some(7), None, Some(-3000)])), "numeric", seconds);
    let floats = [Field::Float(0.5), Field::Missing, Field::Float(-2.0)];
    check(Arc::new(Float32Array::from(vec![Some(0.5), None, Some(-2.0)])), "numeric", floats);
    check(Arc::new(Float64Array::from(vec![Some(0.5), None, Some(-2.0)])), "categorical", floats);
    let decimals =
        Decimal128Array::from(vec![Some(50), None, Some(-200)]).with_precision_and_scale(9, 2).unwrap();
    check(Arc::new(decimals), "numeric", floats);
    let texts = [Field::Text(b"ab"), Field::Missing, Field::Text(b"cd")];
    let text = vec![Some("ab"), None, Some("cd")];
    check(Arc::new(StringArray::from(text.clone())), "categorical", texts);
    check(Arc::new(LargeStringArray::from(text.clone())), "categorical", texts);
    check(Arc::new(StringViewArray::from(text.clone())), "categorical", texts);
    check(Arc::new(text.iter().copied().collect::<DictionaryArray<Int32Type>>()), "categorical", texts);
    check(Arc::new(BinaryArray::from_opt_vec(vec![Some(b"ab"), None, Some(b"cd")])), "categorical", texts);
    let fixed = [Some(b"ab"), None, Some(b"cd")].into_iter();
    check(
        Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 2).unwrap()),
        "categorical",
        texts,
    );
    check(Arc::new(NullArray::new(3)), "categorical", [Field::Missing; 3]);
}

#[test]
fn hashed_ids_beyond_i64_keep_all_their_digits() {
    let ids = vec![u64::MAX, 3, 1 << 63];
    let texts =
        [Field::Text(b"18446744073709551615"), Field::Text(b"3"), Field::Text(b"9223372036854775808")];
    check(Arc::new(UInt64Array::from(ids)), "categorical", texts);
    check(
        Arc::new(UInt64Array::from(vec![Some(5), None, Some(6)])),
        "categorical",
        [Field::Int(5), Field::Missing, Field::Int(6)],
    );
}

#[test]
fn whole_decimals_keep_all_their_digits() {
    let decimals = |values: [Option<i128>; 3], digits, scale| -> ArrayRef {
        let values = Decimal128Array::from(values.to_vec());
        Arc::new(values.with_precision_and_scale(digits, scale).unwrap())
    };
    let small = [Some((1 << 53) + 1), None, Some(-3)];
    let ints = [Field::Int((1 << 53) + 1), Field::Missing, Field::Int(-3)];
    let raised = [Field::Text(b"900719925474099300"), Field::Missing, Field::Text(b"-300")];
    for (digits, scale, fields) in
        [(18, 0, ints), (20, 0, ints), (38, 0, ints), (16, -2, raised), (30, -2, raised)]
    {
        check(decimals(small, digits, scale), "categorical", fields);
    }
    let large = [Some(10_i128.pow(37)), Some(0), Some((1 << 64) - 1)];
    let texts = [
        Field::Text(b"10000000000000000000000000000000000000"),
        Field::Text(b"0"),
        Field::Text(b"18446744073709551615"),
    ];
    check(decimals(large, 38, 0), "categorical", texts);
    check(decimals([Some(0), Some(1), Some(2)], 30, -2), "categorical", [0, 100, 200].map(Field::Int));
}

/// Whether a value is missing does not depend on what else is in its slice of the column.
#[test]
fn ids_are_read_alike_in_all_slices_of_a_column() {
    let spec: Spec = toml::from_str("[[feature]]\nname = \"x\"\nkey = \"raw\"").unwrap();
    let missing = ["0".to_string()];
    let options = EncodeOptions { missing: &missing, label: LabelUse::Optional, down_sample: false };
    let encoder = Encoder::new(&spec, &options).unwrap();
    let ids: Vec<u64> = (0..ROWS_PER_BATCH_MAX as u64).chain([u64::MAX, 0]).collect();
    let decimals = Decimal128Array::from_iter_values(ids.iter().map(|id| i128::from(*id)));
    let decimals: ArrayRef = Arc::new(decimals.with_precision_and_scale(20, 0).unwrap());
    let dir = TempDir::new().unwrap();
    for column in [Arc::new(UInt64Array::from(ids.clone())), decimals] {
        for way in WAYS {
            let path = write(dir.path(), way, &[records(vec![("x", Arc::clone(&column))])]);
            assert_eq!(read(&path, &encoder).unwrap().columns[0].keys, ids, "{way}: {}", column.data_type());
        }
    }
}

/// The same instants, and the same truth values and decimals, in every type and format, and in text.
#[test]
fn one_instant_is_one_key_in_every_file() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Required);
    let labels: ArrayRef = Arc::new(Int8Array::from(vec![1, 0]));
    let dir = TempDir::new().unwrap();
    let keys = |source: &Path| {
        let config = DataConfig::default();
        let (encoder, bad_rows) = (
            Arc::new(self::encoder("[[feature]]\nname = \"x\"", LabelUse::Required)),
            BadRows::new(config.on_bad_row),
        );
        let mut source = Source::open(&[source.display().to_string()], &config, &encoder).unwrap();
        let mut decoder = Decoder::new(Arc::clone(&encoder), Arc::new(bad_rows));
        let (mut unit, mut batch) = (Unit::default(), encoder.new_batch());
        while source.next_unit(&mut unit).unwrap() {
            decoder.decode(&unit, &mut batch).unwrap();
        }
        batch.columns[0].keys.clone()
    };
    let ints = |values: [i64; 2]| -> ArrayRef { Arc::new(Int64Array::from(values.to_vec())) };
    let texts = |values: [&str; 2]| -> ArrayRef { Arc::new(StringArray::from(values.to_vec())) };
    let check = |text: [&str; 2], columns: &[(ArrayRef, DataType)]| {
        let path = dir.path().join("x.csv");
        std::fs::write(&path, format!("label,x\n1,{}\n0,{}\n", text[0], text[1])).unwrap();
        let expected = keys(&path);
        for (column, kind) in columns {
            let column = arrow_cast::cast(column, kind).unwrap();
            let records = records(vec![("label", Arc::clone(&labels)), ("x", column)]);
            for way in ["a.parquet", "a.arrow", "zstd.arrows"] {
                let path = write(dir.path(), way, std::slice::from_ref(&records));
                assert_eq!(keys(&path), expected, "{way}: {kind}");
                assert_eq!(read(&path, &encoder).unwrap().columns[0].keys, expected, "{way}: {kind}");
            }
        }
    };
    let seconds = [1_700_000_000, -86_400];
    let count = |per_second: i64| ints(seconds.map(|second| second * per_second));
    let zones = [None, Some("UTC"), Some("+02:00")].map(|zone| zone.map(Arc::from));
    let mut instants = Vec::new();
    for zone in zones {
        instants.push((count(1), DataType::Timestamp(TimeUnit::Second, zone.clone())));
        instants.push((count(1000), DataType::Timestamp(TimeUnit::Millisecond, zone.clone())));
        instants.push((count(1_000_000), DataType::Timestamp(TimeUnit::Microsecond, zone.clone())));
        instants.push((count(1_000_000_000), DataType::Timestamp(TimeUnit::Nanosecond, zone)));
    }
    check(["2023-11-14 22:13:20", "1969-12-31"], &instants);
    check(["2023-11-14T22:13:20.000Z", "1969-12-31 00:00:00"], &instants);
    let days = ["2023-11-14", "1969-12-31"];
    check(days, &[DataType::Date32, DataType::Date64].map(|kind| (texts(days), kind)));
    let decimals = ["12.50", "42.00"];
    let kinds = [DataType::Decimal128(10, 2), DataType::Decimal128(38, 10), DataType::Float64];
    check(["12.5", "42"], &kinds.map(|kind| (texts(decimals), kind)));
    check(["true", "false"], &[(ints([1, 0]), DataType::Boolean)]);
    check(["90.5", "-0.25"], &[(ints([90_500, -250]), DataType::Duration(TimeUnit::Millisecond))]);
    check(
        ["22:13:20.5", "00:00:00"],
        &[(ints([80_000_500_000, 0]), DataType::Time64(TimeUnit::Microsecond))],
    );
}

#[test]
fn a_truth_value_is_positive_by_any_text_for_it() {
    let dir = TempDir::new().unwrap();
    let labels: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
    let rows = records(vec![("label", labels), ("x", Arc::new(Int8Array::from(vec![1, 2])))]);
    let path = write(dir.path(), "a.parquet", &[rows]);
    for (positive, expected) in [
        ("", [1.0, 0.0]),
        ("\"true\"", [1.0, 0.0]),
        ("\"True\"", [1.0, 0.0]),
        ("\"1\"", [1.0, 0.0]),
        ("\"false\"", [0.0, 1.0]),
    ] {
        let spec = format!("label = {{ positive = [{positive}] }}\n[[feature]]\nname = \"x\"");
        assert_eq!(read(&path, &encoder(&spec, LabelUse::Required)).unwrap().labels, expected, "{positive}");
    }
    let other = encoder("label = { positive = [\"yes\"] }\n[[feature]]\nname = \"x\"", LabelUse::Required);
    check_error(&path, &other, &[":1:", "column label", "label.positive", "Boolean"]);
}

#[test]
fn errors_of_ready_keys_name_the_type_and_what_to_do() {
    let raw = encoder("[[feature]]\nname = \"x\"\nkey = \"raw\"", LabelUse::Optional);
    let dir = TempDir::new().unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![-1, i64::MIN, 7]));
    let path = write(dir.path(), "a.parquet", &[records(vec![("x", ids)])]);
    assert_eq!(read(&path, &raw).unwrap().columns[0].keys, [u64::MAX, 1 << 63, 7]);
    for (column, found) in [
        (Arc::new(Float64Array::from(vec![1e300])) as ArrayRef, "1e300 (of type Float64)"),
        (Arc::new(TimestampMillisecondArray::from(vec![0])), "1970-01-01 (of type Timestamp(ms))"),
        (Arc::new(StringArray::from(vec!["u7"])), "found \"u7\""),
    ] {
        let path = write(dir.path(), "a.parquet", &[records(vec![("x", column)])]);
        check_error(&path, &raw, &[found, "key = \"hash\""]);
    }
}

#[test]
fn a_cross_crosses_the_values_of_lists() {
    let cross =
        encoder("[[feature]]\nname = \"x\"\ntype = \"cross\"\ncolumns = [\"a\", \"b\"]", LabelUse::Optional);
    let lists = vec![Some(vec![Some(4), None, Some(9)]), None];
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["u", "u"]));
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.parquet", &[records(vec![("a", texts), ("b", lists)])]);
    let found = read(&path, &cross).unwrap();
    let pair = |b: Field<'static>| vec![Field::Missing, Field::Text(b"u"), b];
    let apart = expected(&cross, &[pair(Field::Int(4)), pair(Field::Int(9)), pair(Field::Missing)]);
    assert_eq!(found.columns[0].keys, apart.columns[0].keys);
    assert_eq!(Rows::new(&found, 0..1).keys(0).len(), 2);
}

#[test]
fn lists_are_multi_valued_features() {
    let parts = [Field::Int(4), Field::Missing, Field::Int(9)];
    let rows = [Field::List(&parts), Field::Missing, Field::List(&[])];
    let lists = vec![Some(vec![Some(4), None, Some(9)]), None, Some(vec![])];
    check(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists.clone())), "multi", rows);
    check(Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists)), "multi", rows);
    let pairs = vec![Some(vec![Some(4), Some(9)]), None, Some(vec![Some(1), None])];
    check(
        Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2)),
        "multi",
        [
            Field::List(&[Field::Int(4), Field::Int(9)]),
            Field::Missing,
            Field::List(&[Field::Int(1), Field::Missing]),
        ],
    );
}

#[test]
fn long_files_come_in_slices_and_lists_stay_with_their_rows() {
    let rows = 2 * ROWS_PER_BATCH_MAX + 17;
    let encoder = encoder("[[feature]]\nname = \"x\"\ntype = \"multi\"\nkey = \"raw\"", LabelUse::Required);
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| row % 2)));
    let list =
        |row: i32| (row % 7 != 0).then(|| (0..row % 5).map(|part| Some(row * 10 + part)).collect::<Vec<_>>());
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>((0..rows as i32).map(list)));
    let whole = records(vec![("label", labels), ("x", lists)]);
    let halves = [whole.slice(0, 5000), whole.slice(5000, rows - 5000)];
    let dir = TempDir::new().unwrap();
    for way in WAYS {
        let batch = read(&write(dir.path(), way, &halves), &encoder).unwrap();
        assert_eq!(batch.len(), rows, "{way}");
        for row in 0..rows {
            let keys = Rows::new(&batch, row..row + 1).keys(0);
            let wanted: Vec<u64> =
                list(row as i32).unwrap_or_default().into_iter().flatten().map(|key| key as u64).collect();
            assert_eq!(keys, wanted, "{way}: row {row}");
            assert_eq!(batch.labels[row], (row % 2) as f32, "{way}: row {row}");
        }
    }
}

#[test]
fn labels_may_be_absent_when_predicting() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Optional);
    let dir = TempDir::new().unwrap();
    for way in WAYS {
        let path = write(dir.path(), way, &[records(vec![("x", Arc::new(Int32Array::from(vec![1, 2])))])]);
        let batch = read(&path, &encoder).unwrap();
        assert_eq!(batch.len(), 2);
        assert!(batch.labels.iter().all(|label| label.is_nan()), "{way}");
    }
}

#[test]
fn a_file_without_rows_is_fine() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Required);
    let none: ArrayRef = Arc::new(Int32Array::from(Vec::<i32>::new()));
    let dir = TempDir::new().unwrap();
    for way in WAYS {
        let path =
            write(dir.path(), way, &[records(vec![("x", Arc::clone(&none)), ("label", Arc::clone(&none))])]);
        assert_eq!(read(&path, &encoder).unwrap().len(), 0, "{way}");
    }
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn labels_and_numbers(rows: i32) -> RecordBatch {
    let labels: ArrayRef = Arc::new((0..rows).map(|row| Some(row % 2)).collect::<Int32Array>());
    let numbers: ArrayRef = Arc::new((0..rows).map(Some).collect::<Int32Array>());
    records(vec![("label", labels), ("x", numbers)])
}

#[test]
fn what_comes_by_a_pipe_is_read_like_the_file() {
    let encoder = encoder("[[feature]]\nname = \"x\"", LabelUse::Required);
    let dir = TempDir::new().unwrap();
    for way in ["a.parquet", "a.parquet.gz", "a.arrow", "a.arrows"] {
        let path = write(dir.path(), way, &[labels_and_numbers(30_000)]);
        let (expected, bytes) = (read(&path, &encoder).unwrap(), std::fs::read(&path).unwrap());
        let piped = dir.path().join(format!("piped-{way}"));
        pipe(&piped);
        std::thread::scope(|scope| {
            // It fails if nobody reads, which is seen below.
            scope.spawn(|| _ = File::options().write(true).open(&piped).unwrap().write_all(&bytes));
            assert_eq!(read(&piped, &encoder).unwrap(), expected, "{way}");
        });
    }
}

#[test]
fn what_has_to_be_copied_is_copied_while_it_is_wanted() {
    let encoder = Arc::new(encoder("[[feature]]\nname = \"x\"", LabelUse::Required));
    let dir = TempDir::new().unwrap();
    let check = |path: &Path, asked_max: usize| {
        let name = [path.to_string_lossy().into_owned()];
        let asked = AtomicUsize::new(0);
        let wanted = Arc::new(move || asked.fetch_add(1, Ordering::Relaxed) < asked_max);
        let source = Source::open(&name, &DataConfig::default(), &encoder).unwrap();
        let found = source.while_wanted(wanted).next_unit(&mut Unit::default());
        assert!(matches!(found, Err(SampleError::Unwanted)), "{name:?}, {asked_max}: {found:?}");
    };
    for way in ["a.parquet.gz", "a.arrow.zst", "a.arrows.gz"] {
        let path = write(dir.path(), way, &[labels_and_numbers(300_000)]);
        // Before the copy is begun, and in its middle.
        (0..3).for_each(|asked_max| check(&path, asked_max));
    }
    for silent in ["silent.parquet", "silent.arrow"] {
        pipe(&dir.path().join(silent));
        check(&dir.path().join(silent), 3);
    }
}

#[test]
fn a_file_may_move_to_another_thread() {
    fn is_send<T: Send>() {}
    is_send::<ColumnarFile>();
}
