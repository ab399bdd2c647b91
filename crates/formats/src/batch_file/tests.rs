//! Batch files against the rows they were made of, against damage, and against specs that are not theirs.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use sanderling_sample::spec::Feature;
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, PackedBuffer, Rows, Spec};

use super::read::{BatchFile, Unpacker};
use super::*;
use crate::bad_rows::BadRows;
use crate::decoded::Decoded;
use crate::format::{BadRowPolicy, DataConfig};
use crate::reader::{Decoder, Reader, Source, Unit};

const SPEC: &str = "
[[feature]]
name = \"x\"
type = \"numeric\"
[[feature]]
name = \"tags\"
type = \"multi\"
table = \"t\"
[[feature]]
name = \"id\"
dim = 4
";
const WEIGHTED: [bool; 3] = [true, false, false];

struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, rows: &Batch, compression: BlockCompression, block_rows: usize) -> Vec<u8> {
        let options = BatchFileOptions { compression, overwrite: true };
        let mut out = BatchFileWriter::create(&self.path("a.batch"), &spec(SPEC), options).unwrap();
        for start in (0..rows.len()).step_by(block_rows) {
            out.write(&Rows::new(rows, start..rows.len().min(start + block_rows))).unwrap();
        }
        let written = out.finish().unwrap();
        let bytes = std::fs::read(self.path("a.batch")).unwrap();
        let blocks = rows.len().div_ceil(block_rows);
        assert_eq!((written.rows, written.blocks), (rows.len() as u64, blocks as u64));
        assert_eq!(written.bytes, bytes.len() as u64);
        bytes
    }

    /// Other bytes under the same name; those before are not cut, which would wait for the disk.
    fn replace(&self, bytes: &[u8]) {
        std::fs::remove_file(self.path("a.batch")).unwrap();
        std::fs::write(self.path("a.batch"), bytes).unwrap();
    }

    fn read(&self, encoder: &Arc<Encoder>) -> Result<Batch, SampleError> {
        let path = self.path("a.batch").to_string_lossy().into_owned();
        let mut reader = Reader::open(&[path], &DataConfig::default(), encoder)?;
        let mut batch = encoder.new_batch();
        while reader.next(&mut batch)? {}
        Ok(batch)
    }
}

fn spec(toml: &str) -> Spec {
    toml::from_str(toml).unwrap()
}

fn encoder(toml: &str) -> Arc<Encoder> {
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: true };
    Arc::new(Encoder::new(&spec(toml), &options).unwrap())
}

fn rows(count: u64) -> Batch {
    let mut batch = Batch::new(&WEIGHTED);
    for row in 0..count {
        batch.columns[0].push(7, row as f32 / 2.0);
        (0..row % 3).for_each(|tag| batch.columns[1].push(row * tag + 1, 1.0));
        batch.columns[2].push(row % 5, 1.0);
        batch.close_row((row % 2) as f32, 1.0 + (row % 4) as f32);
    }
    batch
}

prop_compose! {
    fn batches()(rows in prop::collection::vec(
        (any::<bool>(), -9.0..9.0_f32, prop::collection::vec(0..40_u64, 0..4), any::<u64>()), 0..60,
    )) -> Batch {
        let mut batch = Batch::new(&WEIGHTED);
        for (label, x, tags, id) in rows {
            batch.columns[0].push(3, x);
            tags.iter().for_each(|tag| batch.columns[1].push(*tag, 1.0));
            batch.columns[2].push(id, 1.0);
            batch.close_row(f32::from(u8::from(label)), 1.0);
        }
        batch
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(rows in batches(), block_rows in 1..40_usize, which in 0..3_usize) {
        let place = Place::new();
        place.write(&rows, BlockCompression::ALL[which].1, block_rows);
        prop_assert_eq!(place.read(&encoder(SPEC)).unwrap(), rows);
    }
}

#[test]
fn damage_is_refused_or_harmless() {
    let encoder = encoder(SPEC);
    let rows = rows(50);
    for (_, compression) in BlockCompression::ALL {
        let place = Place::new();
        let whole = place.write(&rows, compression, 20);
        for bytes in (0..whole.len()).map(|end| whole[..end].to_vec()) {
            place.replace(&bytes);
            let error = place.read(&encoder).unwrap_err().to_string();
            assert!(error.contains("a.batch"), "{error}");
        }
        let mut harmless = 0;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            place.replace(&bytes);
            match place.read(&encoder) {
                // Padding is not looked at.
                Ok(read) => {
                    assert_eq!(read, rows, "byte {at} of {}", whole.len());
                    harmless += usize::from(whole[at] == 0);
                }
                Err(SampleError::BadFile { .. }) => {}
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
        assert!(harmless < 5 * 64, "{harmless} bytes of {} do not count", whole.len());
    }
}

#[test]
fn the_bytes_are_those_of_the_description() {
    let place = Place::new();
    let bytes = place.write(&rows(4), BlockCompression::None, 3);
    let mut text = String::new();
    for (at, line) in bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|byte| *byte != 0)) {
        let _ = write!(text, "{:05x} ", at * 16);
        line.iter().for_each(|byte| _ = write!(text, " {byte:02x}"));
        text.push('\n');
    }
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rows.batch.hex");
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap());
}

#[test]
fn a_spec_must_encode_as_the_file_was_encoded() {
    let place = Place::new();
    place.write(&rows(10), BlockCompression::None, 4);
    let check = |toml: &str, expected: Result<&[usize], &str>| {
        let all = rows(10);
        match (place.read(&encoder(toml)), expected) {
            (Ok(read), Ok(columns)) => {
                assert_eq!(read.columns.len(), columns.len(), "{toml}");
                let same = read.columns.iter().zip(columns).all(|(column, at)| *column == all.columns[*at]);
                assert!(same, "{toml}: {columns:?}");
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{toml}\ngave {error}"),
            (got, expected) => panic!("{toml}\ngave {got:?}, not {expected:?}"),
        }
    };
    let feature = |name: &str, rest: &str| format!("[[feature]]\nname = \"{name}\"\n{rest}\n");
    let (x, id) = (feature("x", "type = \"numeric\""), feature("id", ""));
    check(SPEC, Ok(&[0, 1, 2]));
    check(&(id.clone() + &x), Ok(&[2, 0]));
    check(&feature("id", "dim = 8\ntable = \"other\"\nsalt = \"id\""), Ok(&[2]));
    check(
        &feature("id", "table = \"other\""),
        Err("feature \"id\": salt is \"id\" in the file and \"other\""),
    );
    check(&feature("id", "key = \"raw\""), Err("key is \"hash\" in the file and \"raw\" in the spec"));
    check(&feature("x", "type = \"log\""), Err("type is \"numeric\" in the file and \"log\""));
    check(&feature("x", "type = \"numeric\"\ncolumn = \"y\""), Err("columns is [\"x\"] in the file"));
    check(&feature("y", ""), Err("has no feature \"y\", but x, tags, id; convert the source again"));
    check(&("[label]\nthreshold = 2\n".to_string() + &id), Err("the labels: threshold is 0.0 in the file"));
    check(&("[weight]\ncolumn = \"w\"\n".to_string() + &id), Err("the weights"));
}

/// Also where it is only looked at: no run could use such a file.
#[test]
fn columns_have_values_as_their_types_say() {
    let check = |weighted: [bool; 3], expected: &str| {
        let place = Place::new();
        let mut rows = Batch::new(&weighted);
        rows.columns.iter_mut().for_each(|column| column.push(1, 1.0));
        rows.close_row(1.0, 1.0);
        place.write(&rows, BlockCompression::None, 1);
        let file = BatchFile::open_plain(&place.path("a.batch"), None).unwrap();
        let block = file.block_after(None).unwrap();
        let looked_at = file.load_all(&block, &mut Unpacker::default(), PackedBuffer::new()).map(drop);
        for error in [place.read(&encoder(SPEC)).unwrap_err(), looked_at.unwrap_err()] {
            assert!(error.to_string().contains(expected), "{error}, not {expected}");
        }
    };
    check([false, false, false], "the keys of \"x\" have no values, and by the spec they have values");
    check([true, true, false], "the keys of \"tags\" have values, and by the spec they have no values");
    check([true, false, true], "the keys of \"id\" have values");
}

/// Writers of such files follow the document.
#[test]
fn the_spec_in_the_document_is_one() {
    let document = include_str!("../../../../docs/batch-format.md");
    let (_, example) = document.split_once("```json").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let spec = serde_json::from_str::<Spec>(example).unwrap().expand().unwrap();
    let flags: Vec<bool> = spec.feature.iter().map(Feature::has_values).collect();
    assert_eq!(flags, [false, true, true, false]);
}

/// Such labels would break counts of positives and negatives.
#[test]
fn labels_are_positive_negative_or_none() {
    let place = Place::new();
    let mut all = rows(10);
    all.labels[4] = 2.0;
    place.write(&all, BlockCompression::None, 4);
    let error = place.read(&encoder(SPEC)).unwrap_err().to_string();
    assert!(error.contains("a.batch") && error.contains("block 2"), "{error}");
    assert!(error.contains("a label other than 0, 1 and NaN"), "{error}");
}

#[test]
fn rows_are_left_out_as_everywhere() {
    let place = Place::new();
    let mut all = rows(400);
    let down_sampled = SPEC.to_string() + "[negatives]\nkeep = 0.25\n";
    place.write(&all, BlockCompression::None, 100);
    let encoder_of_some = encoder(&down_sampled);
    let some = place.read(&encoder_of_some).unwrap();
    // The rule of every reader, by the number of the row.
    let mut expected = Batch::like(&all);
    for row in 0..400 {
        if let Some(weight) = encoder_of_some.keep(all.labels[row], row as u64 + 1) {
            expected.append(&Rows::new(&all, row..row + 1));
            *expected.weights.last_mut().unwrap() *= weight;
        }
    }
    assert_eq!(some, expected);
    assert!((220..290).contains(&some.len()), "{} rows of 400", some.len());
    all.labels[3] = f32::NAN;
    place.write(&all, BlockCompression::Zstd, 100);
    let error = place.read(&encoder(SPEC)).unwrap_err().to_string();
    assert!(error.ends_with("a.batch:4: column label: expected a label, found nothing"), "{error}");
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let read = place.read(&Arc::new(Encoder::new(&spec(SPEC), &options).unwrap())).unwrap();
    assert!(read.labels[3].is_nan() && read.len() == 400);
}

#[test]
fn rows_are_used_where_they_lie() {
    let place = Place::new();
    let (all, encoder) = (rows(126), encoder(SPEC));
    for (_, compression) in BlockCompression::ALL {
        place.write(&all, compression, 42);
        let path = place.path("a.batch").to_string_lossy().into_owned();
        let mut source = Source::open(&[path], &DataConfig::default(), &encoder).unwrap();
        let bad_rows = Arc::new(BadRows::new(BadRowPolicy::Fail));
        let mut decoder = Decoder::new(Arc::clone(&encoder), bad_rows);
        let (mut unit, mut decoded, mut read) =
            (Unit::default(), Decoded::new(&encoder), encoder.new_batch());
        let mut places = Vec::new();
        while source.next_unit(&mut unit).unwrap() {
            decoder.decode_in_place(&unit, &mut decoded).unwrap();
            assert!(decoded.is_packed());
            places.push(decoded.rows().keys(2).as_ptr().addr());
            read.append(&decoded.rows());
        }
        assert_eq!(read, all);
        // Mapped blocks lie one behind the other, unpacked ones in the same memory.
        let again = places[0] == places[1] && places[1] == places[2];
        assert_eq!(again, compression != BlockCompression::None, "{places:x?}");
    }
}

#[test]
fn files_that_cannot_be_mapped_or_replaced() {
    let place = Place::new();
    place.write(&rows(3), BlockCompression::None, 3);
    let (path, options) = (place.path("a.batch"), BatchFileOptions::default());
    let create = |path: &Path| BatchFileWriter::create(path, &spec(SPEC), options);
    let error = create(&path).err().unwrap().to_string();
    assert!(error.ends_with("a.batch: exists already; replace it with --force"), "{error}");
    // A file that is not finished leaves nothing behind.
    let mut out = create(&place.path("b.batch")).unwrap();
    out.write(&Rows::all(&rows(3))).unwrap();
    drop(out);
    assert_eq!(std::fs::read_dir(place.0.path()).unwrap().count(), 1);
    let open =
        |name: &str| BatchFile::open(&place.path(name), &encoder(SPEC), None).err().unwrap().to_string();
    std::fs::copy(&path, place.path("a.batch.gz")).unwrap();
    assert!(open("a.batch.gz").contains("unpack it into a file"));
    std::fs::write(place.path("empty.batch"), "").unwrap();
    assert!(open("empty.batch").contains("has 0 bytes, which is too short"));
    std::fs::write(place.path("short.batch"), "SNDLBTCH").unwrap();
    assert!(open("short.batch").contains("too short"));
    // A pipe without a writer.
    let pipe = place.path("pipe.batch");
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    assert!(open("pipe.batch").contains("a pipe has to be written into a file first"));
}
