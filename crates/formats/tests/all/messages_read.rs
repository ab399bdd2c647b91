//! TFRecord and delimited samples against other writers and readers: Python's, `prost`, and the same rows as CSV. Knows
//! no model.

mod against_prost;
mod profiled;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use prost::Message;
use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Reader};
use sanderling_sample::{Batch, EncodeOptions, Encoder, Field, LabelUse, SampleError, Spec};
use sanderling_testkit::messages::{
    DenseSlot, Feature, Sample, SparseSlot, bytes, delimited, example, floats, ints, tfrecord,
};
use tempfile::TempDir;

fn encoder(toml: &str, label: LabelUse) -> Arc<Encoder> {
    let spec: Spec = toml::from_str(toml).unwrap();
    let missing = [String::new(), "?".to_string()];
    Arc::new(Encoder::new(&spec, &EncodeOptions { missing: &missing, label, down_sample: false }).unwrap())
}

fn write(dir: &Path, name: &str, plain: &[u8]) -> String {
    let path = dir.join(name);
    let packed = if name.ends_with(".gz") {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(plain).unwrap();
        packed.finish().unwrap()
    } else if name.ends_with(".zst") {
        zstd::encode_all(plain, 1).unwrap()
    } else {
        plain.to_vec()
    };
    std::fs::write(&path, packed).unwrap();
    path.to_str().unwrap().to_string()
}

/// The rows of a file, and the account of those that are bad.
fn read_with(path: &str, encoder: &Arc<Encoder>, bad_rows: BadRows) -> Result<(Batch, u64), SampleError> {
    let mut reader =
        Reader::with_bad_rows(&[path.to_string()], &DataConfig::default(), encoder, Arc::new(bad_rows))?;
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch)? {}
    Ok((batch, reader.bad_rows().count()))
}

fn read(path: &str, encoder: &Arc<Encoder>) -> Result<Batch, SampleError> {
    read_with(path, encoder, BadRows::new(BadRowPolicy::Fail)).map(|(batch, _)| batch)
}

const SKIP: BadRowPolicy = BadRowPolicy::Skip { max: u64::MAX };

/// Two records that the Python package `tfrecord` 1.14.6 wrote:
/// `{"label": 1, "id": ["a", "bc"], "n": [7, -1], "x": 0.5}` and `{"label": 0, "id": [""], "x": -1.5}`.
const PYTHON: &str = "\
    4800000000000000fe92489d0a460a0e0a056c6162656c12051a030a01010a140a016e120f1a0d0a0b07ffffffffffff\
    ffffff010a0d0a0178120812060a040000003f0a0f0a02696412090a070a01610a02626346d717c12d00000000000000\
    3c418afb0a2b0a0e0a056c6162656c12051a030a01000a0d0a0178120812060a040000c0bf0a0a0a02696412040a020a\
    00c4af9678";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn a_file_of_another_writer() {
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.tfrecord", &unhex(PYTHON));
    let spec = "feature = [{name = \"id\", type = \"multi\"}, {name = \"n\", type = \"multi\"}, \
                {name = \"x\", type = \"numeric\"}, {name = \"absent\"}]";
    let encoder = encoder(spec, LabelUse::Required);
    let rows = [
        [
            Field::Int(1),
            Field::List(&[Field::Text(b"a"), Field::Text(b"bc")]),
            Field::List(&[Field::Int(7), Field::Int(-1)]),
            Field::Float(0.5),
            Field::Missing,
        ],
        [Field::Int(0), Field::Missing, Field::Missing, Field::Float(-1.5), Field::Missing],
    ];
    let mut expected = encoder.new_batch();
    rows.iter().for_each(|row| _ = encoder.encode_row(row, 0, &mut expected).unwrap());
    assert_eq!(read(&path, &encoder).unwrap(), expected);
}

/// A row of the comparison with CSV; slots 0 and 1 are texts there, slot 0 of several values.
#[derive(Clone, Debug)]
struct Row {
    label: bool,
    several: Vec<u32>,
    one: Option<u32>,
    number: Option<i16>,
    count: u16,
}

fn row() -> impl Strategy<Value = Row> {
    let values = (
        any::<bool>(),
        proptest::collection::vec(any::<u32>(), 0..4),
        proptest::option::of(0_u32..9),
        proptest::option::of(any::<i16>()),
        any::<u16>(),
    );
    values.prop_map(|(label, several, one, number, count)| Row { label, several, one, number, count })
}

/// Rows as CSV, as TFRecord (integers where `as_ints`, else texts), as samples.
fn three_ways(rows: &[Row], as_ints: bool) -> [(&'static str, Vec<u8>); 3] {
    let mut csv = b"label,sparse_0,sparse_1,dense_0,dense_7\n".to_vec();
    let (mut records, mut samples) = (Vec::new(), Vec::new());
    for row in rows {
        let Row { label, several, one, number, count } = row;
        let text = |number: &Option<String>| number.clone().unwrap_or_default();
        let quarter = number.map(|number| f32::from(number) / 4.0);
        let joined: Vec<String> = several.iter().map(u32::to_string).collect();
        let cells = [
            u8::from(*label).to_string(),
            joined.join("|"),
            text(&one.map(|one| one.to_string())),
            text(&quarter.map(|quarter| quarter.to_string())),
            count.to_string(),
        ];
        csv.extend_from_slice((cells.join(",") + "\n").as_bytes());

        let keys = |keys: &[u32]| {
            if as_ints {
                ints(&keys.iter().map(|&key| i64::from(key)).collect::<Vec<_>>())
            } else {
                let texts: Vec<String> = keys.iter().map(u32::to_string).collect();
                bytes(&texts.iter().map(String::as_bytes).collect::<Vec<_>>())
            }
        };
        let mut features = vec![
            ("label", ints(&[i64::from(*label)])),
            ("sparse_0", keys(several)),
            ("dense_7", floats(&[f32::from(*count)])),
            ("not in the spec", bytes(&[b"x", b"y"])),
        ];
        features.extend(one.map(|one| ("sparse_1", keys(&[one]))));
        features.extend(quarter.map(|quarter| ("dense_0", floats(&[quarter]))));
        records.extend(tfrecord(&example(features).encode_to_vec()));

        let sparse =
            |index, keys: &[u32]| SparseSlot { index, keys: keys.iter().map(|&it| it.into()).collect() };
        let sample = Sample {
            label: Some(f32::from(u8::from(*label))),
            sparse: one
                .iter()
                .map(|one| sparse(1, &[*one]))
                .chain([sparse(0, several), sparse(40_000_000, &[1]), sparse(5, &[2])])
                .collect(),
            dense: quarter
                .iter()
                .map(|quarter| DenseSlot { index: 0, values: vec![*quarter] })
                .chain([DenseSlot { index: 7, values: vec![f32::from(*count)] }])
                .collect(),
        };
        samples.extend(delimited(&sample.encode_to_vec()));
    }
    [("csv", csv), ("tfrecord", records), ("pb", samples)]
}

const ALL_KINDS: &str = "
    [weight]
    column = \"dense_7\"
    [[feature]]
    name = \"sparse_0\"
    type = \"multi\"
    pooling = \"mean\"
    [[feature]]
    name = \"ready\"
    column = \"sparse_0\"
    type = \"multi\"
    key = \"raw\"
    [[feature]]
    each = [\"sparse_1\"]
    key = { modulo = 5 }
    [[feature]]
    name = \"raw\"
    column = \"sparse_1\"
    key = \"raw\"
    [[feature]]
    columns = [\"sparse_1\", \"dense_7\"]
    type = \"cross\"
    [[feature]]
    name = \"dense_0\"
    type = \"numeric\"
    [[feature]]
    name = \"log\"
    column = \"dense_0\"
    type = \"log\"
    default = 3
    [[feature]]
    name = \"dense_7\"
    type = \"quantile\"
    boundaries = [10.0, 1000.0]";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_same_rows_as_csv_give_the_same_batches(
        rows in proptest::collection::vec(row(), 0..60), repeat in prop_oneof![9 => Just(1), 1 => Just(150)],
        as_ints in any::<bool>(), packing in prop::sample::select(vec!["", ".gz", ".zst"]),
    ) {
        let rows: Vec<Row> = std::iter::repeat_n(rows, repeat).flatten().collect();
        let encoder = encoder(ALL_KINDS, LabelUse::Required);
        let dir = TempDir::new().unwrap();
        let batches = three_ways(&rows, as_ints).map(|(extension, plain)| {
            read(&write(dir.path(), &format!("a.{extension}{packing}"), &plain), &encoder).unwrap()
        });
        prop_assert_eq!(batches[0].len(), rows.len());
        prop_assert_eq!(&batches[0], &batches[1]);
        prop_assert_eq!(&batches[0], &batches[2]);
    }
}

#[test]
fn keys_of_64_bits_are_kept() {
    let keys = [0, 1, (1 << 63) - 1, 1 << 63, u64::MAX];
    let sample = Sample {
        label: Some(1.0),
        sparse: vec![SparseSlot { index: 3, keys: keys.to_vec() }],
        dense: Vec::new(),
    };
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.pb", &delimited(&sample.encode_to_vec()));
    let spec = |key: &str| format!("feature = [{{name = \"sparse_3\", type = \"multi\", key = \"{key}\"}}]");
    let raw = read(&path, &encoder(&spec("raw"), LabelUse::Required)).unwrap();
    assert_eq!(raw.columns[0].keys, keys);
    let texts = keys.map(|key| key.to_string()).join("|");
    let csv = write(dir.path(), "a.csv", format!("label,sparse_3\n1,{texts}\n").as_bytes());
    let hashed = encoder(&spec("hash"), LabelUse::Required);
    assert_eq!(read(&path, &hashed).unwrap(), read(&csv, &hashed).unwrap());
}

/// Three records of which the second is as bad as given, under every policy. `message` must be part of the error.
fn check_bad_row(
    name: &str,
    frame: fn(&[u8]) -> Vec<u8>,
    good: &[u8],
    bad: &[u8],
    spec: &str,
    message: &str,
) {
    let encoder = encoder(spec, LabelUse::Required);
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), name, &[&frame(good)[..], bad, &frame(good)].concat());
    let error = read(&path, &encoder).unwrap_err().to_string();
    assert!(error.contains(&format!("{name}:2: ")) && error.contains(message), "{error}");
    let (batch, count) = read_with(&path, &encoder, BadRows::new(SKIP)).unwrap();
    assert_eq!((batch.len(), count), (2, 1));
    let none = BadRows::new(BadRowPolicy::Skip { max: 0 });
    let error = read_with(&path, &encoder, none).unwrap_err().to_string();
    assert!(error.contains("more than 0 bad rows") && error.contains(message), "{error}");
    let (batch, _) = read_with(&path, &encoder, BadRows::new(SKIP).placeholder(true)).unwrap();
    assert_eq!(batch.labels.iter().map(|label| label.is_nan()).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn bad_records_go_to_the_policy() {
    let spec = "[[feature]]\nname = \"x\"\ntype = \"numeric\"";
    let good = example([("label", ints(&[1])), ("x", floats(&[0.5]))]).encode_to_vec();
    let check = |bad: &[u8], message| check_bad_row("a.tfrecord", tfrecord, &good, bad, spec, message);
    let of = |features: Vec<(&'static str, Feature)>| tfrecord(&example(features).encode_to_vec());
    let mut torn = tfrecord(&good);
    torn[15] ^= 1;
    check(&torn, "column (the record): expected checksum");
    check(&tfrecord(b"garbage"), "column (the record): expected");
    check(&tfrecord(b""), "column label: expected a label, found nothing");
    check(&of(vec![("x", floats(&[0.5]))]), "column label: expected a label, found nothing");
    check(
        &of(vec![("label", ints(&[1])), ("x", bytes(&[b"abc"]))]),
        "column x: expected a finite number, found \"abc\"",
    );
    check(&of(vec![("label", ints(&[1])), ("x", floats(&[1.0, 2.0]))]), "found a list of 2");
    check(
        &tfrecord(&good[..good.len() - 1]),
        "a length within what is left of the message, found none at byte",
    );

    let spec = "[[feature]]\nname = \"sparse_1\"";
    let sample = |label, sparse: &[(u32, &[u64])]| {
        let sparse =
            sparse.iter().map(|(index, keys)| SparseSlot { index: *index, keys: keys.to_vec() }).collect();
        Sample { label, sparse, dense: Vec::new() }.encode_to_vec()
    };
    let good = sample(Some(1.0), &[(1, &[5])]);
    let check = |bad: &[u8], message| check_bad_row("a.pb", delimited, &good, &delimited(bad), spec, message);
    check(b"garbage", "column (the record): expected");
    check(&sample(None, &[]), "column label: expected a label, found nothing");
    check(&sample(Some(1.0), &[(1, &[5, 6])]), "column sparse_1: expected one value, not a list");
    check(&sample(Some(1.0), &[(1, &[5]), (2, &[1]), (1, &[6])]), "each slot at most once");
    check(&good[..good.len() - 1], "a length within what is left of the message");
    check(&[0x12, 5, 0x08, 1, 0x12, 1, 9], "8 bytes");
}

#[test]
fn a_file_cut_anywhere_gives_its_whole_rows_or_an_error() {
    let rows: Vec<Row> = (0..5)
        .map(|n| Row {
            label: n % 2 == 0,
            several: vec![n; n as usize],
            one: Some(n),
            number: None,
            count: 7,
        })
        .collect();
    let encoder = encoder(ALL_KINDS, LabelUse::Required);
    let dir = TempDir::new().unwrap();
    for (extension, whole) in &three_ways(&rows, true)[1..] {
        let all = read(&write(dir.path(), &format!("a.{extension}"), whole), &encoder).unwrap();
        let mut complete = 0;
        for cut in 0..=whole.len() {
            let path = write(dir.path(), &format!("a.{extension}"), &whole[..cut]);
            match read_with(&path, &encoder, BadRows::new(SKIP)) {
                Ok((batch, bad)) => {
                    assert_eq!((batch.len(), bad), (complete, 0), "{extension} cut at {cut}");
                    assert_eq!(batch.labels, all.labels[..complete]);
                    complete += 1;
                }
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.contains(&format!("a.{extension}:{complete}: ")), "cut at {cut}: {error}");
                    assert!(error.contains("cut short"), "cut at {cut}: {error}");
                }
            }
            let packed = zstd::encode_all(&whole[..], 1).unwrap();
            if cut < packed.len() {
                let path = dir.path().join(format!("a.{extension}.zst"));
                std::fs::write(&path, &packed[..cut]).unwrap();
                assert!(read(path.to_str().unwrap(), &encoder).is_err(), "{extension}.zst cut at {cut}");
            }
        }
        assert_eq!(complete, rows.len() + 1, "{extension}: a cut between two records is no error");
    }
}

#[test]
fn a_length_that_looks_like_the_magic_of_gzip_is_a_length() {
    let record = |padding: usize| {
        example([("label", ints(&[1])), ("x", floats(&[0.5])), ("pad", bytes(&[&vec![0; padding]]))])
            .encode_to_vec()
    };
    let padding = 0x8b1f - record(35_000).len() + 35_000;
    assert_eq!(record(padding).len(), 0x8b1f);
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.tfrecord", &tfrecord(&record(padding)));
    let encoder = encoder("[[feature]]\nname = \"x\"\ntype = \"numeric\"", LabelUse::Required);
    assert_eq!(read(&path, &encoder).unwrap().len(), 1);
}

#[test]
fn specs_that_do_not_fit() {
    let dir = TempDir::new().unwrap();
    let samples = write(dir.path(), "a.pb", b"");
    for column in ["user", "sparse_", "sparse_x", "sparse_01", "sparse_65536", "dense_-1", "dense_+1"] {
        let encoder = encoder(&format!("[[feature]]\nname = \"{column}\""), LabelUse::Required);
        let error = read(&samples, &encoder).unwrap_err().to_string();
        assert!(error.contains(&format!("no column \"{column}\"")), "{error}");
    }
    let libsvm = encoder("[[feature]]\nname = \"f\"\ntype = \"sparse\"", LabelUse::Required);
    for path in [samples, write(dir.path(), "a.tfrecord", b"")] {
        let error = read(&path, &libsvm).unwrap_err().to_string();
        assert!(error.contains("reads libsvm or libffm text") && error.contains(&path), "{error}");
    }
    // Nothing but the label may be anywhere else than in the message.
    let label =
        encoder("label = {column = \"dense_2\"}\nfeature = [{name = \"sparse_0\"}]", LabelUse::Required);
    let sample = Sample { dense: vec![DenseSlot { index: 2, values: vec![3.0] }], ..Sample::default() };
    let path = write(dir.path(), "b.pb", &delimited(&sample.encode_to_vec()));
    assert_eq!(read(&path, &label).unwrap().labels, [1.0]);
}
