//! Records of CSV text through the whole reader: line feeds inside quotes in units of every size, packed and plain; quotes that
//! are not closed; headers that come again. Knows the crate's public API.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Decoder, Format, LINE_BYTES_MAX, Source, Unit};
use sanderling_inspect::{ProfileOptions, profile};
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, SampleError, Spec};

fn encoder() -> Arc<Encoder> {
    let spec: Spec = toml::from_str("[[feature]]\neach = [\"user\", \"note\"]\nsalt = \"\"").unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Arc::new(Encoder::new(&spec, &options).unwrap())
}

fn skip() -> DataConfig {
    DataConfig { on_bad_row: BadRowPolicy::Skip { max: u64::MAX }, ..DataConfig::default() }
}

struct Found {
    batch: Batch,
    bad: Vec<String>,
    headers: u64,
}

fn read(path: &Path, config: &DataConfig, unit_bytes: usize) -> Result<Found, SampleError> {
    let encoder = encoder();
    let bad_rows = Arc::new(BadRows::new(config.on_bad_row));
    let mut decoder = Decoder::new(Arc::clone(&encoder), Arc::clone(&bad_rows));
    let mut source =
        Source::open(&[path.display().to_string()], config, &encoder)?.with_unit_bytes(unit_bytes);
    let (mut batch, mut unit) = (encoder.new_batch(), Unit::default());
    while source.next_unit(&mut unit)? {
        decoder.decode(&unit, &mut batch)?;
    }
    let short = |message: String| message.rsplit('/').next().unwrap().to_string();
    let bad = bad_rows.messages().into_iter().map(short);
    Ok(Found { batch, bad: bad.collect(), headers: bad_rows.headers() })
}

fn written(folder: &Path, name: &str, text: &[u8]) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn key(text: &str) -> u64 {
    sanderling_sample::key::hash(text.as_bytes(), sanderling_sample::key::salt(""))
}

/// What a field looks like in a file, and what it means.
const NOTES: [(&str, &str); 7] = [
    ("ok", "ok"),
    ("\"seen by\n1,u1,staff\"", "seen by\n1,u1,staff"),
    ("\"a \"\"quoted\"\"\r\nword\"", "a \"quoted\"\r\nword"),
    ("\"\n\n\"", "\n\n"),
    ("\"a,b\"", "a,b"),
    ("5\" pipe", "5\" pipe"),
    ("\"\"\"\n\"\"\"", "\"\n\""),
];

#[test]
fn a_line_break_inside_quotes_is_one_record() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 200;
    for end in ["\n", "\r\n"] {
        let mut text = format!("label,\"user\",note{end}");
        for row in 0..rows {
            text += &format!("{},u{row},{}{end}", row % 3 / 2, NOTES[row % NOTES.len()].0);
        }
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text.as_bytes()).unwrap();
        let plain = written(folder.path(), "a.csv", text.as_bytes());
        let packed = written(folder.path(), "a.csv.gz", &gzip.finish().unwrap());
        for (path, unit_bytes) in [(&plain, 1), (&plain, 7), (&plain, 100), (&plain, 1 << 18), (&packed, 64)]
        {
            let found = read(path, &DataConfig::default(), unit_bytes).unwrap();
            let labels: Vec<f32> = (0..rows).map(|row| f32::from((row % 3 / 2) as u8)).collect();
            assert_eq!(found.batch.labels, labels, "{unit_bytes}");
            let notes: Vec<u64> = (0..rows).map(|row| key(NOTES[row % NOTES.len()].1)).collect();
            assert_eq!(found.batch.columns[1].keys, notes, "{unit_bytes}");
            let users: Vec<u64> = (0..rows).map(|row| key(&format!("u{row}"))).collect();
            assert_eq!(found.batch.columns[0].keys, users, "{unit_bytes}");
        }
        let seen = profile(&plain, &DataConfig::default(), &ProfileOptions::default()).unwrap();
        assert_eq!((seen.rows, seen.bad_rows, seen.label.unwrap().positives), (200, 0, 66));
        assert_eq!((seen.header, seen.columns[2].distinct), (Some(true), NOTES.len() as u64));
    }
}

#[test]
fn skipping_bad_rows_makes_no_rows_of_what_is_in_quotes() {
    let folder = tempfile::tempdir().unwrap();
    let text = "label,user,note\n1,u0,\"a\n0,u9,b\"\nx,u1,\"c\n0,u9,d\"\n1,u2,\"e\n0,u9,f\" g\n0,u3,h,\"i\n1,u9,j\"\n1,u4,k\n?\n";
    let path = written(folder.path(), "a.csv", text.as_bytes());
    for unit_bytes in [1, 30, 1 << 18] {
        let found = read(&path, &skip(), unit_bytes).unwrap();
        assert_eq!(found.batch.columns[0].keys, ["u0", "u4"].map(key), "{unit_bytes}");
        // Lines are those of the file.
        assert_eq!(
            found.bad,
            [
                "a.csv:4: column label: expected a number (or list the positive texts under [label]), found \"x\"",
                "a.csv:6: column note: expected a separator after the closing quote, found \" g\"",
                "a.csv:8: column 4: expected 3 columns, found 4 in \"0,u3,h,\\\"i\\n1,u9,j\\\"\"",
                "a.csv:11: column user: expected 3 columns, found 1 in \"?\"",
            ]
        );
    }
}

#[test]
fn a_quote_that_nothing_closes_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1,u,ok\n".repeat(1000);
    let path = written(folder.path(), "a.csv", format!("label,user,note\n{rows}0,u,\"x\n{rows}").as_bytes());
    for unit_bytes in [1, 100, 1 << 18] {
        let error = read(&path, &skip(), unit_bytes).err().unwrap().to_string();
        assert!(
            error.contains("a.csv:1002: column 3: expected a closing quote within 4194304 bytes"),
            "{error}"
        );
        assert!(error.contains("format = \"tsv\", separator = \",\""), "{error}");
    }
    // The rest of the file may be too long to look through.
    let long = "1,u,ok\n".repeat(LINE_BYTES_MAX / 7 + 1);
    let path = written(folder.path(), "b.csv", format!("label,user,note\n0,u,\"x\n{long}").as_bytes());
    let error = read(&path, &skip(), 1 << 18).err().unwrap().to_string();
    assert!(error.contains("b.csv:2: column 3: expected a closing quote within"), "{error}");
    // As the message says, quotes are plain text in TSV.
    let plain =
        DataConfig { format: Some(Format::Tsv), separator: Some(",".to_string()), ..DataConfig::default() };
    assert_eq!(read(&path, &plain, 1 << 18).unwrap().batch.len(), 1 + LINE_BYTES_MAX / 7 + 1);
}

#[test]
fn a_header_that_comes_again_is_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let columns = || Some(["label", "user", "note"].map(str::to_string).to_vec());
    for (format, separator) in [(Format::Csv, ","), (Format::Tsv, "\t")] {
        let text = "label,user,note\n1,a,x\n0,b,y\n\u{feff}label,user,note\r\n1,c,z\nlabel,user,note\n";
        let path = written(folder.path(), "a", text.replace(',', separator).as_bytes());
        let config = DataConfig { format: Some(format), ..DataConfig::default() };
        for unit_bytes in [1, 1 << 18] {
            for columns in [None, columns()] {
                let found = read(&path, &DataConfig { columns, ..config.clone() }, unit_bytes).unwrap();
                assert_eq!((found.batch.labels, found.headers, found.bad.len()), (vec![1.0, 0.0, 1.0], 2, 0));
            }
        }
        // The first of the files that were put together may have none.
        let text = text.strip_prefix("label,user,note\n").unwrap().replace(',', separator);
        let path = written(folder.path(), "b", text.as_bytes());
        let found = read(&path, &DataConfig { columns: columns(), ..config.clone() }, 1 << 18).unwrap();
        assert_eq!((found.batch.len(), found.headers), (3, 2));
    }
    let path =
        written(folder.path(), "a.csv", b"click,user,note\nyes,a,x\nno,b,y\nclick,user,note\nyes,c,x\n");
    let seen = profile(&path, &DataConfig::default(), &ProfileOptions::default()).unwrap();
    assert_eq!((seen.rows, seen.columns[0].distinct, seen.label.unwrap().positives), (3, 2, 2));
    assert_eq!(seen.note.as_deref(), Some("the header comes again 1 times, and is passed over"));
}

#[test]
fn separators_of_several_characters() {
    let folder = tempfile::tempdir().unwrap();
    let text = "label::user::note\n1::a:b::\"x::y\n\"\n0:::c::\n1::d\n1::\"e\" ::f\"\n1::\"g\":::h\n1::\"i\":::\n1::\"j\":k::\n";
    let path = written(folder.path(), "a.csv", text.as_bytes());
    let config = DataConfig { separator: Some("::".to_string()), ..skip() };
    for unit_bytes in [1, 1 << 18] {
        let found = read(&path, &config, unit_bytes).unwrap();
        assert_eq!(found.batch.labels, [1.0, 0.0, 1.0, 1.0, 1.0], "{:?}", found.bad);
        assert_eq!(found.batch.columns[0].keys, ["a:b", ":c", "e", "g", "i"].map(key));
        assert_eq!(found.batch.columns[1].keys, ["x::y\n", "", "f\"", ":h", ":"].map(key));
        assert_eq!(
            found.bad,
            [
                "a.csv:5: column note: expected 3 columns, found 2 in \"1::d\"",
                "a.csv:9: column user: expected a separator after the closing quote, found \":\"",
            ]
        );
    }
    let plain = written(folder.path(), "ratings.dat", b"1::1193::5\n1::661::3\n2::914::3\n");
    let seen = profile(&plain, &DataConfig::default(), &ProfileOptions::default()).unwrap();
    assert_eq!((seen.separator.as_deref(), seen.header, seen.columns.len()), (Some("::"), Some(false), 3));
    let long = DataConfig { separator: Some(":".repeat(17)), ..skip() };
    let error = read(&path, &long, 1).err().unwrap().to_string();
    assert!(error.contains("data.separator must be 1 to 16 ASCII characters"), "{error}");
}

#[test]
fn what_is_no_csv_is_called_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let csv = DataConfig { format: Some(Format::Csv), ..DataConfig::default() };
    let check = |name: &str, text: &str, config: &DataConfig, part: &str| {
        let path = written(folder.path(), name, text.as_bytes());
        let error = read(&path, config, 1 << 18).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    };
    let json = "{\"label\": 1, \"user\": \"a\"}\n";
    check("a.jsonl", json, &DataConfig::default(), "a.jsonl: is JSON, which is not read; convert it");
    check("a.txt", json, &csv, "a.txt: is JSON, which is not read; convert it");
    check("a.csv", "1 0:5:1 1:7:1\n0 0:3:1\n", &csv, "set format = \"libffm\"");
    check("a.csv", "1 5:1 7:1\n0 3:1\n", &csv, "set format = \"libsvm\"");
    check("a.csv", "1 5 9\n0 7\n", &csv, "are lists of ids, each of another length: write libsvm lines");
    for (text, part) in [(json, "is JSON"), ("1 5 9\n0 7\n", "its lines are lists of ids")] {
        let path = written(folder.path(), "a.dat", text.as_bytes());
        let error =
            profile(&path, &DataConfig::default(), &ProfileOptions::default()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
