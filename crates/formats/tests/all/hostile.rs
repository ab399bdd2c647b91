//! Hostile files for every reader: cut short, empty, binary, not UTF-8, CRLF, endless lines, flipped bytes.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Float64Array, Int32Array, RecordBatch, StringArray};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression as PageCompression;
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use prost::Message;
use sanderling_formats::{BadRowPolicy, DataConfig, Format, LINE_BYTES_MAX, Reader};
use sanderling_inspect::{ProfileOptions, profile};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, SampleError, Spec};
use tempfile::TempDir;

/// Rows of the valid files.
const ROWS: usize = 40;

/// Every reader, and every way to pack a file.
const PLAIN: [&str; 11] = [
    "a.libsvm",
    "a.csv",
    "a.tsv",
    "a.criteo",
    "a.parquet",
    "snappy.parquet",
    "a.arrow",
    "lz4.arrow",
    "a.arrows",
    "a.tfrecord",
    "a.pb",
];
const PACKINGS: [&str; 3] = ["", ".gz", ".zst"];

fn names() -> impl Iterator<Item = String> {
    PLAIN.iter().flat_map(|plain| PACKINGS.iter().map(move |packing| format!("{plain}{packing}")))
}

fn format_of(name: &str) -> Format {
    Format::of_path(name).unwrap()
}

fn encoder(name: &str) -> Arc<Encoder> {
    let spec = match format_of(name) {
        Format::Libsvm => Spec::libsvm(),
        Format::Criteo => Spec::criteo(),
        _ => {
            let toml = "[[feature]]\nname = \"id\"\n[[feature]]\nname = \"x\"\ntype = \"numeric\"";
            let is_sample = format_of(name) == Format::Protobuf;
            let toml = toml.replace("id", if is_sample { "sparse_0" } else { "id" });
            toml::from_str(&toml.replace("\"x\"", if is_sample { "\"dense_0\"" } else { "\"x\"" })).unwrap()
        }
    };
    let missing = [String::new()];
    let options = EncodeOptions { missing: &missing, label: LabelUse::Required, down_sample: false };
    Arc::new(Encoder::new(&spec, &options).unwrap())
}

/// The lines of a valid text file, without line ends; the first is the header where there is one.
fn valid_lines(format: Format) -> Vec<String> {
    let separator = if format == Format::Csv { "," } else { "\t" };
    let row = |row: usize| match format {
        Format::Libsvm => format!("{} {}:1 {}:0.5", row % 2, row + 1, row + 100),
        Format::Criteo => {
            let counts = (0..13)
                .map(|i| if (row + i).is_multiple_of(5) { String::new() } else { (row * i).to_string() });
            let ids = (0..26).map(|i| format!("{:08x}", row * 31 + i));
            [(row % 2).to_string()].into_iter().chain(counts).chain(ids).collect::<Vec<_>>().join("\t")
        }
        _ => [(row % 2).to_string(), format!("id {row}"), format!("{row}.5")].join(separator),
    };
    let header =
        (!matches!(format, Format::Libsvm | Format::Criteo)).then(|| ["label", "id", "x"].join(separator));
    header.into_iter().chain((0..ROWS).map(row)).collect()
}

/// Whether the file is records one behind the other, of any number.
fn is_records(format: Format) -> bool {
    matches!(format, Format::TfRecord | Format::Protobuf)
}

fn valid_record(format: Format, row: usize) -> Vec<u8> {
    let (label, x) = ((row % 2) as f32, row as f32 + 0.5);
    if format == Format::TfRecord {
        let id = format!("id {}", row % 7);
        let features = [
            ("label", sanderling_testkit::messages::floats(&[label])),
            ("id", sanderling_testkit::messages::bytes(&[id.as_bytes()])),
            ("x", sanderling_testkit::messages::floats(&[x])),
        ];
        return sanderling_testkit::messages::tfrecord(
            &sanderling_testkit::messages::example(features).encode_to_vec(),
        );
    }
    let sparse = vec![sanderling_testkit::messages::SparseSlot { index: 0, keys: vec![row as u64 % 7] }];
    let dense = vec![sanderling_testkit::messages::DenseSlot { index: 0, values: vec![x] }];
    sanderling_testkit::messages::delimited(
        &sanderling_testkit::messages::Sample { label: Some(label), sparse, dense }.encode_to_vec(),
    )
}

/// The valid file before packing.
fn valid(name: &str) -> Vec<u8> {
    let format = format_of(name);
    if format.is_text() {
        return (valid_lines(format).join("\n") + "\n").into_bytes();
    }
    if is_records(format) {
        return (0..ROWS).flat_map(|row| valid_record(format, row)).collect();
    }
    let labels: ArrayRef = Arc::new(Int32Array::from_iter_values((0..ROWS as i32).map(|row| row % 2)));
    let ids: Vec<String> = (0..ROWS).map(|row| format!("id {}", row % 7)).collect();
    let ids: ArrayRef = match format {
        Format::Parquet => Arc::new(StringArray::from(ids)),
        _ => Arc::new(ids.iter().map(String::as_str).collect::<DictionaryArray<Int32Type>>()),
    };
    let x: ArrayRef = Arc::new(Float64Array::from_iter_values((0..ROWS).map(|row| row as f64 + 0.5)));
    let records = RecordBatch::try_from_iter([("label", labels), ("id", ids), ("x", x)]).unwrap();
    let mut bytes = Vec::new();
    if format == Format::Parquet {
        let pages =
            if name.contains("snappy") { PageCompression::SNAPPY } else { PageCompression::UNCOMPRESSED };
        let properties = WriterProperties::builder().set_compression(pages).build();
        let mut writer = ArrowWriter::try_new(&mut bytes, records.schema(), Some(properties)).unwrap();
        writer.write(&records).unwrap();
        writer.close().unwrap();
        return bytes;
    }
    let codec = name.contains("lz4").then_some(CompressionType::LZ4_FRAME);
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    if name.contains("arrows") {
        let mut writer = StreamWriter::try_new_with_options(&mut bytes, &records.schema(), options).unwrap();
        writer.write(&records).unwrap();
        writer.finish().unwrap();
    } else {
        let mut writer = FileWriter::try_new_with_options(&mut bytes, &records.schema(), options).unwrap();
        writer.write(&records).unwrap();
        writer.finish().unwrap();
    }
    bytes
}

fn packed(name: &str, plain: &[u8]) -> Vec<u8> {
    if name.ends_with(".gz") {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(plain).unwrap();
        packed.finish().unwrap()
    } else if name.ends_with(".zst") {
        let mut packed = zstd::Encoder::new(Vec::new(), 1).unwrap();
        packed.include_checksum(true).unwrap();
        packed.write_all(plain).unwrap();
        packed.finish().unwrap()
    } else {
        plain.to_vec()
    }
}

/// What reading gave: the rows, and how many bad ones were counted.
struct Outcome {
    batch: Batch,
    bad: u64,
}

/// Reads a file of these bytes. An error must name the file, and is given back as its text. Whatever comes, profiling
/// the file must end, too.
fn read(dir: &Path, name: &str, bytes: &[u8], policy: BadRowPolicy) -> Result<Outcome, String> {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    let encoder = encoder(name);
    let config = DataConfig { on_bad_row: policy, missing: vec![String::new()], ..DataConfig::default() };
    let mut batch = encoder.new_batch();
    let result = (|| -> Result<u64, SampleError> {
        let mut reader = Reader::open(&[path.to_str().unwrap().to_string()], &config, &encoder)?;
        while reader.next(&mut batch)? {}
        Ok(reader.bad_rows().count())
    })();
    let named = |error: &SampleError| {
        let text = error.to_string();
        assert!(text.contains(name), "{text:?} does not name {name}");
        text
    };
    if let Err(error) = profile(&path, &config, &ProfileOptions::default()) {
        named(&error);
    }
    for column in &batch.columns {
        assert_eq!(column.offsets.len(), batch.len() + 1);
        assert_eq!(column.offsets.last().copied().unwrap() as usize, column.keys.len());
    }
    result.map(|bad| Outcome { batch, bad }).map_err(|error| named(&error))
}

const SKIP: BadRowPolicy = BadRowPolicy::Skip { max: u64::MAX };

/// Rows that a text has: its lines, without the header and without the empty lines at the end.
fn rows_present(format: Format, text: &[u8]) -> usize {
    let mut lines: Vec<&[u8]> = text.split(|&byte| byte == b'\n').collect();
    while lines.last().is_some_and(|line| line.is_empty() || *line == b"\r") {
        lines.pop();
    }
    lines.len().saturating_sub(usize::from(!matches!(format, Format::Libsvm | Format::Criteo)))
}

#[test]
fn valid_files_give_all_their_rows() {
    let dir = TempDir::new().unwrap();
    for name in names() {
        let outcome = read(dir.path(), &name, &packed(&name, &valid(&name)), BadRowPolicy::Fail).unwrap();
        assert_eq!((outcome.batch.len(), outcome.bad), (ROWS, 0), "{name}");
        assert_eq!(outcome.batch.labels.iter().sum::<f32>(), ROWS as f32 / 2.0, "{name}");
    }
}

#[test]
fn a_cut_file_gives_an_error_or_whole_rows() {
    check_cuts(names().filter(|name| PLAIN.contains(&name.as_str())));
}

#[test]
fn a_cut_file_that_is_compressed_gives_an_error_or_whole_rows() {
    check_cuts(names().filter(|name| !PLAIN.contains(&name.as_str())));
}

fn check_cuts(names: impl Iterator<Item = String>) {
    let dir = TempDir::new().unwrap();
    for name in names {
        let whole = valid(&name);
        let expected = read(dir.path(), &name, &packed(&name, &whole), SKIP).unwrap().batch;
        let bytes = packed(&name, &whole);
        for cut in 0..bytes.len() {
            if cut % 7 != 0 && cut + 40 < bytes.len() && cut > 40 {
                continue;
            }
            let format = format_of(&name);
            let (text, records) = (format.is_text(), is_records(format));
            match read(dir.path(), &name, &bytes[..cut], SKIP) {
                Err(_) => {}
                // Only plain text can be cut without a trace; then each line read or counted is one that is there.
                Ok(outcome) if text && bytes.len() == whole.len() => {
                    let present = rows_present(format_of(&name), &bytes[..cut]);
                    assert_eq!(outcome.batch.len() + outcome.bad as usize, present, "{name} cut at {cut}");
                    let sure = outcome.batch.len().saturating_sub(1);
                    assert_eq!(outcome.batch.labels[..sure], expected.labels[..sure], "{name} cut at {cut}");
                }
                // And records, between two of them.
                Ok(outcome) if records && bytes.len() == whole.len() => {
                    let complete = outcome.batch.len();
                    let expected_cut: usize = (0..complete).map(|row| valid_record(format, row).len()).sum();
                    assert_eq!((cut, outcome.bad), (expected_cut, 0), "{name}");
                    assert_eq!(outcome.batch.labels[..], expected.labels[..complete], "{name}");
                }
                Ok(outcome) if cut == 0 && (text || records) => assert_eq!(outcome.batch.len(), 0, "{name}"),
                Ok(outcome) => panic!("{name} cut at {cut} gave {} rows", outcome.batch.len()),
            }
        }
    }
}

#[test]
fn empty_content_is_no_rows_or_an_error() {
    let dir = TempDir::new().unwrap();
    for name in names() {
        for bytes in [Vec::new(), packed(&name, b"")] {
            match read(dir.path(), &name, &bytes, BadRowPolicy::Fail) {
                Ok(outcome) => {
                    let format = format_of(&name);
                    let may_be = matches!(format, Format::Libsvm | Format::Criteo) || is_records(format);
                    assert!(may_be, "{name}");
                    assert_eq!(outcome.batch.len(), 0, "{name}");
                }
                Err(error) => assert!(!error.is_empty()),
            }
        }
    }
}

/// Content that is of no format: every reader must refuse it, or count each of its lines as bad.
fn check_refused(content: &[u8]) {
    let dir = TempDir::new().unwrap();
    for name in names() {
        let bytes = packed(&name, content);
        assert!(read(dir.path(), &name, &bytes, BadRowPolicy::Fail).is_err(), "{name}");
        if let Ok(outcome) = read(dir.path(), &name, &bytes, SKIP) {
            let format = format_of(&name);
            if is_records(format) {
                assert!(outcome.batch.is_empty() && outcome.bad > 0, "{name}");
                continue;
            }
            let present = rows_present(format, content);
            assert_eq!((outcome.batch.len(), outcome.bad as usize), (0, present), "{name}");
        }
    }
}

#[test]
fn binary_content_is_refused() {
    let noise: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    check_refused(&noise);
    check_refused(&[0u8; 3000]);
    check_refused(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    check_refused(b"PAR1");
    check_refused(b"ARROW1\0\0");
    check_refused(&[0xff; 64]);
}

/// A Parquet file without rows whose schema is so many groups within each other, around a column.
fn nested_parquet(groups: usize) -> Vec<u8> {
    let name = [0x48, 1, b'x'];
    let group = [&name[..], &[0x15, 2, 0]].concat();
    let mut count = Vec::new();
    prost::encoding::encode_varint(groups as u64 + 1, &mut count);
    // The version, and the list of elements; then no rows and no row groups.
    let head = [&[0x15_u8, 2, 0x19, 0xfc][..], &count[..]].concat();
    let footer = [&head[..], &group.repeat(groups)[..], &name[..], &[0, 0x16, 0, 0x19, 0x0c, 0]].concat();
    let length = (footer.len() as u32).to_le_bytes();
    [&b"PAR1"[..], &footer[..], &length[..], b"PAR1"].concat()
}

/// Decoding goes from group to group by calling itself: with so many, the stack would overflow.
#[test]
fn groups_within_groups_without_end_are_refused() {
    let dir = TempDir::new().unwrap();
    for packing in PACKINGS {
        let name = format!("a.parquet{packing}");
        for (groups, is_too_deep) in [(50, false), (8000, true), (200_000, true)] {
            let bytes = packed(&name, &nested_parquet(groups));
            let Err(error) = read(dir.path(), &name, &bytes, BadRowPolicy::Fail) else {
                panic!("{name} of {groups} groups was read")
            };
            assert_eq!(error.contains("nested deeper"), is_too_deep, "{groups}: {error}");
        }
    }
}

#[test]
fn one_format_under_the_name_of_another_is_refused() {
    let dir = TempDir::new().unwrap();
    for name in names() {
        for other in PLAIN {
            if format_of(other) == format_of(&name) {
                continue;
            }
            let bytes = packed(&name, &valid(other));
            let result = read(dir.path(), &name, &bytes, BadRowPolicy::Fail);
            assert!(result.is_err(), "{other} read as {name}");
        }
        // Compressed without saying so is fine for the text readers; said without being so is not.
        if name.ends_with(".gz") || name.ends_with(".zst") {
            assert!(
                read(dir.path(), &name, &valid(&name), BadRowPolicy::Fail).is_err(),
                "{name} is not packed"
            );
        }
    }
}

#[test]
fn carriage_returns_change_nothing() {
    let dir = TempDir::new().unwrap();
    for name in names().filter(|name| format_of(name).is_text()) {
        let lines = valid_lines(format_of(&name));
        let expected = read(dir.path(), &name, &packed(&name, &valid(&name)), BadRowPolicy::Fail).unwrap();
        for text in [lines.join("\r\n") + "\r\n", lines.join("\r\n"), lines.join("\n") + "\n\r\n\n"] {
            let bytes = packed(&name, text.as_bytes());
            let outcome = read(dir.path(), &name, &bytes, BadRowPolicy::Fail).unwrap();
            assert_eq!(outcome.batch, expected.batch, "{name}");
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_values_or_errors() {
    let dir = TempDir::new().unwrap();
    for name in names().filter(|name| format_of(name).is_text()) {
        let format = format_of(&name);
        let mut text = valid(&name);
        text.extend_from_slice(match format {
            Format::Libsvm => b"1 \xff\xfe:1\n".as_slice(),
            Format::Csv => b"1,\xff\xfe,1\n",
            Format::Tsv => b"1\t\xff\xfe\t1\n",
            _ => b"1\t\xc3\x28\n",
        });
        let outcome = read(dir.path(), &name, &packed(&name, &text), SKIP).unwrap();
        // Text features are bytes; the other two do not parse.
        let fine = usize::from(matches!(format, Format::Csv | Format::Tsv));
        assert_eq!((outcome.batch.len(), outcome.bad as usize), (ROWS + fine, 1 - fine), "{name}");
    }
}

#[test]
fn long_lines_are_read_and_endless_ones_refused() {
    let dir = TempDir::new().unwrap();
    for name in names().filter(|name| format_of(name).is_text()) {
        let format = format_of(&name);
        let separator = if format == Format::Csv { "," } else { "\t" };
        let line = |bytes: usize| match format {
            Format::Libsvm => "1".to_string() + &" 12345:1".repeat(bytes / 8),
            Format::Criteo => {
                let mut fields = vec![String::new(); 40];
                (fields[0], fields[39]) = ("1".to_string(), "v".repeat(bytes));
                fields.join("\t")
            }
            _ => ["1".to_string(), "v".repeat(bytes), "1".to_string()].join(separator),
        };
        let with = |bytes: usize| [valid(&name), line(bytes).into_bytes(), b"\n".to_vec()].concat();
        let outcome = read(dir.path(), &name, &packed(&name, &with(1 << 20)), BadRowPolicy::Fail).unwrap();
        assert_eq!(outcome.batch.len(), ROWS + 1, "{name}");
        let error = read(dir.path(), &name, &packed(&name, &with(LINE_BYTES_MAX + 100)), SKIP).err().unwrap();
        assert!(error.contains(&LINE_BYTES_MAX.to_string()), "{error}");
    }
}

#[test]
fn empty_lines_inside_are_bad_rows() {
    let dir = TempDir::new().unwrap();
    for name in names().filter(|name| format_of(name).is_text()) {
        let mut lines = valid_lines(format_of(&name));
        lines.insert(20, String::new());
        let bytes = packed(&name, (lines.join("\n") + "\n").as_bytes());
        let outcome = read(dir.path(), &name, &bytes, SKIP).unwrap();
        assert_eq!((outcome.batch.len(), outcome.bad), (ROWS, 1), "{name}");
        let error = read(dir.path(), &name, &bytes, BadRowPolicy::Fail).err().unwrap();
        assert!(error.contains(":21:"), "{error}");
    }
}

/// A change to a file's bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(prop::sample::Index, u8),
    Delete(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Repeat(prop::sample::Index, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => (at(), 1..=255u8).prop_map(|(at, bits)| Mutation::Flip(at, bits)),
        1 => (at(), 1..20usize).prop_map(|(at, count)| Mutation::Delete(at, count)),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        1 => (at(), 1..50usize).prop_map(|(at, count)| Mutation::Repeat(at, count)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match mutation {
        Mutation::Flip(at, bits) => bytes[at.index(len)] ^= bits,
        Mutation::Delete(at, count) => drop(bytes.drain(at.index(len)..len.min(at.index(len) + count))),
        Mutation::Insert(at, more) => drop(bytes.splice(at.index(len)..at.index(len), more.iter().copied())),
        Mutation::Repeat(at, count) => {
            let range = at.index(len)..len.min(at.index(len) + count);
            bytes.extend_from_within(range);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// The content changes, then it is packed: the readers behind the decompressor see it.
    #[test]
    fn changed_content_is_read_or_refused(
        which in 0..PLAIN.len() * PACKINGS.len(), mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        let name = names().nth(which).unwrap();
        let format = format_of(&name);
        let mut content = valid(&name);
        mutations.iter().for_each(|mutation| mutate(&mut content, mutation));
        let dir = TempDir::new().unwrap();
        if let Ok(outcome) = read(dir.path(), &name, &packed(&name, &content), SKIP) {
            // A libsvm comment line is no row.
            if format.is_text() && !(format == Format::Libsvm && content.contains(&b'#')) {
                prop_assert_eq!(outcome.batch.len() + outcome.bad as usize, rows_present(format, &content));
            } else if format == Format::Parquet {
                prop_assert_eq!(outcome.batch.len() + outcome.bad as usize, ROWS);
            }
        }
    }

    /// The packed file changes.
    #[test]
    fn changed_files_are_read_or_refused(
        which in 0..PLAIN.len() * PACKINGS.len(), mutations in prop::collection::vec(mutation(), 1..4),
    ) {
        let name = names().nth(which).unwrap();
        let mut bytes = packed(&name, &valid(&name));
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        let dir = TempDir::new().unwrap();
        let _ = read(dir.path(), &name, &bytes, SKIP);
    }
}
