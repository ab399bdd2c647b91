//! Every text reader against files that are torn, binary, empty, endless or absent: each either reads or fails with an
//! error that names the file, the line, the column and what was expected.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sanderling_formats::{BadRowPolicy, BadRows, DataConfig, Format, LINE_BYTES_MAX, Reader};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, SampleError, Spec};
use tempfile::TempDir;

const TEXT_FORMATS: [Format; 5] = [Format::Libsvm, Format::Libffm, Format::Csv, Format::Tsv, Format::Criteo];

fn encoder(format: Format) -> Arc<Encoder> {
    let spec = match format {
        Format::Libsvm => Spec::libsvm(),
        Format::Libffm => Spec::libffm([0, 1]),
        Format::Criteo => toml::from_str("[[feature]]\neach = [\"C1\", \"C26\"]").unwrap(),
        _ => toml::from_str("[[feature]]\neach = [\"a\", \"b\"]").unwrap(),
    };
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Arc::new(Encoder::new(&spec, &options).unwrap())
}

/// `rows` good lines with a header where the format wants one.
fn good(format: Format, rows: usize) -> String {
    let (header, row) = match format {
        Format::Libsvm => ("", "1 3:0.25 12345678:1\n".to_string()),
        Format::Libffm => ("", "1 0:3:0.25 1:12345678:1\n".to_string()),
        Format::Csv => ("label,a,b\n", "1,x,\"y,y\"\n".to_string()),
        Format::Criteo => ("", format!("1{}{}\n", "\t7".repeat(13), "\t68fd1e64".repeat(26))),
        _ => ("label\ta\tb\n", "1\tx\ty\n".to_string()),
    };
    header.to_string() + &row.repeat(rows)
}

/// Rows and bad rows, or the error's message without the folder.
fn read_all(
    folder: &TempDir,
    name: &str,
    config: &DataConfig,
    format: Format,
) -> Result<(usize, u64), String> {
    let path = folder.path().join(name).to_string_lossy().into_owned();
    let short = |error: SampleError| error.to_string().replace(&format!("{}/", folder.path().display()), "");
    let encoder = encoder(format);
    let config = DataConfig { format: Some(format), ..config.clone() };
    let mut reader = Reader::open(&[path], &config, &encoder).map_err(short)?;
    let mut batch = encoder.new_batch();
    while reader.next(&mut batch).map_err(short)? {}
    Ok((batch.len(), reader.bad_rows().count()))
}

fn write(folder: &TempDir, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Reads a file under `fail` and `skip`; expects these rows, or a failure whose message has this part. Under `skip`
/// the good rows before and after must all be there.
fn check(format: Format, content: &[u8], expected: Result<usize, &str>, skipped: Option<(usize, u64)>) {
    let folder = tempfile::tempdir().unwrap();
    write(&folder, "f", content);
    let fail = read_all(&folder, "f", &DataConfig::default(), format);
    match (&fail, expected) {
        (Ok(found), Ok(rows)) => assert_eq!(*found, (rows, 0), "{format}"),
        (Err(message), Err(part)) => {
            assert!(message.contains(part), "{format}: {message:?} lacks {part:?}");
            assert!(message.starts_with('f'), "{format}: {message:?} names no file");
        }
        _ => panic!("{format}: {fail:?}, expected {expected:?}"),
    }
    if let Some(skipped) = skipped {
        let skip = DataConfig { on_bad_row: BadRowPolicy::Skip { max: u64::MAX }, ..DataConfig::default() };
        assert_eq!(read_all(&folder, "f", &skip, format), Ok(skipped), "{format}");
    }
}

#[test]
fn good_files_read_in_every_packing() {
    for format in TEXT_FORMATS {
        let folder = tempfile::tempdir().unwrap();
        // More than a block, so that lines are carried over.
        let text = good(format, 50_000);
        write(&folder, "plain", text.as_bytes());
        write(&folder, "a.gz", &gzip(text.as_bytes()));
        write(&folder, "b.zst", &zstd::encode_all(text.as_bytes(), 1).unwrap());
        write(&folder, "unnamed", &gzip(text.as_bytes()));
        for name in ["plain", "a.gz", "b.zst", "unnamed", "?.*"] {
            let rows = if name == "?.*" { 100_000 } else { 50_000 };
            assert_eq!(
                read_all(&folder, name, &DataConfig::default(), format),
                Ok((rows, 0)),
                "{format} {name}"
            );
        }
    }
}

#[test]
fn line_ends_of_every_kind() {
    for format in TEXT_FORMATS {
        let text = good(format, 3);
        check(format, text.as_bytes(), Ok(3), Some((3, 0)));
        check(format, text.trim_end().as_bytes(), Ok(3), Some((3, 0)));
        check(format, text.replace('\n', "\r\n").as_bytes(), Ok(3), Some((3, 0)));
        check(format, format!("{text}\n\r\n\n").as_bytes(), Ok(3), Some((3, 0)));
        check(format, format!("\u{feff}{text}").as_bytes(), Ok(3), Some((3, 0)));
        let line = text.lines().count() + 1;
        let row = text.lines().last().unwrap();
        let message = format!("f:{line}: column ");
        check(format, format!("{text}\n{row}").as_bytes(), Err(&message), Some((4, 1)));
        check(format, format!("{text}\n{row}").as_bytes(), Err("expected a row, found an empty line"), None);
    }
}

#[test]
fn what_is_no_text_is_named_and_refused() {
    let utf16 =
        |bytes: fn(u16) -> [u8; 2], text: &str| -> Vec<u8> { text.encode_utf16().flat_map(bytes).collect() };
    let little = utf16(u16::to_le_bytes, "\u{feff}label,a,b\n1,x,y\n");
    let big = utf16(u16::to_be_bytes, "\u{feff}label,a,b\n1,x,y\n");
    let rows: [(&[u8], Result<usize, &str>); 12] = [
        (b"BZh91AY&SY\x83\xa5,label", Err("is packed by bzip2, which is not read; unpack it first")),
        (b"BZh9\x17\x72\x45\x38\x50\x90\0\0\0\0", Err("is packed by bzip2")),
        (b"\xfd7zXZ\0\0\x04\xe6\xd6", Err("is packed by xz")),
        (b"\x04\x22\x4d\x18\x64\x40\xa7", Err("is packed by lz4")),
        (b"PK\x03\x04\x14\0\0\0\x08\0", Err("is packed by zip")),
        (b"7z\xbc\xaf\x27\x1c\0\x04", Err("is packed by 7z")),
        (&little, Err("is UTF-16 by its first bytes")),
        (&big, Err("iconv -f UTF-16 -t UTF-8")),
        (
            b"PAR1\x15\x04\x15\x10",
            Err("is Parquet by its content; name it .parquet, or give the format, parquet"),
        ),
        (b"ARROW1\0\0\xff\xff\xff\xff", Err("is Arrow by its content")),
        (b"SNDLBTCH\x01\0\0\0", Err("is a batch file by its content; name it .batch")),
        // Text that begins like one of them.
        (b"BZh9,PAR1,7z\n1,2,3\n", Err("no column")),
    ];
    for format in [Format::Csv, Format::Tsv] {
        for (content, expected) in rows {
            check(format, content, expected, None);
        }
    }
    check(Format::Libsvm, rows[0].0, rows[0].1, None);
}

#[test]
fn empty_files() {
    let no_header = "f: is empty; expected a first line that names the columns";
    for (format, expected) in [
        (Format::Libsvm, Ok(0)),
        (Format::Csv, Err(no_header)),
        (Format::Tsv, Err(no_header)),
        (Format::Criteo, Ok(0)),
    ] {
        check(format, b"", expected, None);
    }
}

#[test]
fn rows_that_break_off() {
    for (format, end, message) in [
        (
            Format::Libsvm,
            "1 3:0.25 12:",
            "f:3: column 3: expected a finite number after the colon, found \"12:\"",
        ),
        (Format::Csv, "1,x", "f:4: column b: expected 3 columns, found 2 in \"1,x\""),
        (Format::Csv, "1,x,y,z", "f:4: column 4: expected 3 columns, found 4 in"),
        (Format::Tsv, "1\tx", "f:4: column b: expected 3 columns, found 2 in \"1\\tx\""),
        (Format::Criteo, "1\t\t", "f:3: column I3: expected 40 columns, found 3 in \"1\\t\\t\""),
    ] {
        check(format, (good(format, 2) + end).as_bytes(), Err(message), Some((2, 1)));
        let then_good = good(format, 2) + end + "\n" + good(format, 1).lines().last().unwrap();
        check(format, then_good.as_bytes(), Err(message), Some((3, 1)));
    }
    let open = (good(Format::Csv, 2) + "1,x,\"y").into_bytes();
    check(
        Format::Csv,
        &open,
        Err("f:4: column b: expected a closing quote before the end of the file"),
        Some((2, 1)),
    );
}

#[test]
fn bytes_that_are_no_text() {
    let binary: Vec<u8> =
        (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect();
    for (format, message) in [
        (Format::Libsvm, "f:1: column 1: expected a label"),
        (Format::Csv, "f: no column \"label\" among"),
        (Format::Tsv, "f: no column \"label\" among"),
        (Format::Criteo, "f:1: column I1: expected 40 columns, found 1 in"),
    ] {
        check(format, &binary, Err(message), None);
    }
    // Not UTF-8, and NUL: bytes like any other in a field, wrong in a number.
    check(Format::Csv, b"label,a,b\n1,\xff\xfe,\0\n", Ok(1), Some((1, 0)));
    check(Format::Tsv, b"label\ta\tb\n1\t\xc3\x28\t\0\n", Ok(1), Some((1, 0)));
    check(Format::Csv, b"label,a,b\n\xff,x,y\n", Err("f:2: column label: expected a number"), Some((0, 1)));
    check(Format::Libsvm, b"1 1:\0\n1 1:1\n", Err("f:1: column 2: expected a finite number"), Some((1, 1)));
    check(Format::Libsvm, b"1 \xff\xfe:1\n", Err("found \"\\xff\\xfe:1\""), Some((0, 1)));
}

#[test]
fn very_long_lines() {
    let pairs = |count: usize| format!("1{}\n", " 12345678:1".repeat(count));
    check(Format::Libsvm, (pairs(100_000) + &pairs(1)).as_bytes(), Ok(2), None);
    let endless = good(Format::Libsvm, 1) + &pairs(LINE_BYTES_MAX / 10);
    check(Format::Libsvm, endless.as_bytes(), Err("f:2: column 1: expected a line of at most"), None);
    let wide = good(Format::Csv, 1) + "1,x," + &"y".repeat(1 << 20) + "\n1,x,y";
    check(Format::Csv, wide.as_bytes(), Ok(3), None);
    let endless = good(Format::Csv, 1) + &"y".repeat(LINE_BYTES_MAX + 2);
    check(Format::Csv, endless.as_bytes(), Err("f:3: column 1: expected a line of at most"), None);
    check(
        Format::Tsv,
        "y".repeat(LINE_BYTES_MAX + 2).as_bytes(),
        Err("f:1: column 1: expected a line"),
        None,
    );
}

#[test]
fn packings_that_are_broken() {
    for format in TEXT_FORMATS {
        let folder = tempfile::tempdir().unwrap();
        let text: String = good(format, 20_000);
        let packed = gzip(text.as_bytes());
        write(&folder, "torn.gz", &packed[..packed.len() / 2]);
        let packed = zstd::encode_all(text.as_bytes(), 1).unwrap();
        write(&folder, "torn.zst", &packed[..packed.len() / 2]);
        let mut garbage = packed.clone();
        garbage.iter_mut().skip(6).for_each(|byte| *byte ^= 0x5a);
        write(&folder, "garbage.zst", &garbage);
        write(&folder, "plain.gz", text.as_bytes());
        write(&folder, "empty.zst", b"");
        for (name, part) in [
            ("torn.gz", "torn.gz: cannot be read on, somewhere after line "),
            ("torn.zst", "torn.zst: cannot be read on, somewhere after line "),
            ("garbage.zst", "garbage.zst: cannot be read on, somewhere after line "),
            ("plain.gz", "plain.gz: is named as Gzip but does not start like it"),
            ("empty.zst", "empty.zst: is named as Zstd but does not start like it"),
        ] {
            // Skipping bad rows does not skip bad files.
            let skip =
                DataConfig { on_bad_row: BadRowPolicy::Skip { max: u64::MAX }, ..DataConfig::default() };
            let message = read_all(&folder, name, &skip, format).unwrap_err();
            assert!(message.starts_with(part), "{format}: {message}");
        }
    }
}

#[test]
fn names_that_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    for (name, part) in [
        ("absent.csv", "absent.csv: No such file"),
        ("*.csv", "*.csv: no file matches this pattern"),
        ("folder", "folder: is a folder without data files"),
        ("***", "***: "),
    ] {
        let message = read_all(&folder, name, &DataConfig::default(), Format::Csv).unwrap_err();
        assert!(message.starts_with(part), "{message}");
    }
    let open = |patterns: &[&str]| {
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_string()).collect();
        Reader::open(&patterns, &DataConfig::default(), &encoder(Format::Csv))
            .err()
            .map(|error| error.to_string())
    };
    let unnamed = write(&folder, "data.txt", b"").to_string_lossy().into_owned();
    assert!(
        open(&[&unnamed]).unwrap().contains("set data.format, or --format, to one of libsvm, libffm, csv")
    );
    assert!(open(&["-"]).unwrap().contains("set data.format"));
    assert!(open(&["-", "-"]).unwrap().contains("only once"));
    assert!(open(&[]).unwrap().contains("no input files"));
}

#[test]
fn bad_rows_are_counted_bounded_and_held_by_placeholders() {
    let folder = tempfile::tempdir().unwrap();
    let text = "1 1:1\nx\n0 2:1\ny\nz\n";
    let path = write(&folder, "f.svm", text.as_bytes());
    let encoder = encoder(Format::Libsvm);
    let read = |bad_rows: Arc<BadRows>| {
        let config = DataConfig::default();
        let paths = [path.to_string_lossy().into_owned()];
        let mut reader = Reader::with_bad_rows(&paths, &config, &encoder, bad_rows).unwrap();
        let mut batch = encoder.new_batch();
        while reader.next(&mut batch)? {}
        Ok::<_, SampleError>(batch)
    };
    let skip = |max| BadRows::new(BadRowPolicy::Skip { max });
    let bad_rows = Arc::new(skip(3));
    let batch = read(Arc::clone(&bad_rows)).unwrap();
    assert_eq!((batch.labels.as_slice(), bad_rows.count()), (&[1.0, 0.0][..], 3));
    assert_eq!(bad_rows.messages().len(), 3);
    let message = read(Arc::new(skip(2))).unwrap_err().to_string();
    assert!(
        message.starts_with("more than 2 bad rows; the last: ") && message.contains(":5: column 1"),
        "{message}"
    );
    let batch = read(Arc::new(skip(3).placeholder(true))).unwrap();
    assert_eq!(
        batch.labels.iter().map(|label| label.is_nan()).collect::<Vec<_>>(),
        [false, true, false, true, true]
    );
    assert_eq!(batch.columns[0].offsets, [0, 1, 1, 2, 2, 2]);
}

#[test]
fn real_files_read_in_full() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let spec = |toml: &str| -> Arc<Encoder> {
        let options =
            EncodeOptions { missing: &["?".to_string()], label: LabelUse::Required, down_sample: false };
        Arc::new(Encoder::new(&toml::from_str(toml).unwrap(), &options).unwrap())
    };
    let adult = "age workclass fnlwgt education education_num marital occupation relationship race sex gain loss hours \
        country income";
    let columns = Some(adult.split(' ').map(str::to_string).collect());
    let adult =
        DataConfig { format: Some(Format::Csv), columns, comment: Some('|'), ..DataConfig::default() };
    let income = spec(
        "[label]\ncolumn = \"income\"\npositive = [\">50K\", \">50K.\"]\n[[feature]]\nname = \"country\"\n\
         [[feature]]\nname = \"age\"\ntype = \"numeric\"",
    );
    let criteo = DataConfig { format: Some(Format::Criteo), ..DataConfig::default() };
    let clicks =
        spec("[[feature]]\neach = [\"I1\", \"I13\"]\ntype = \"log\"\n[[feature]]\neach = [\"C1\", \"C26\"]");
    let apps = spec("[[feature]]\neach = [\"user\", \"city\"]\nkey = \"raw\"");
    for (file, config, encoder, rows, positives) in [
        ("adult/adult.data", &adult, &income, 32_561, 7_841.0),
        ("adult/adult.test", &adult, &income, 16_281, 3_846.0),
        ("criteo_80k/criteo_80k.tsv", &criteo, &clicks, 80_000, 17_960.0),
        ("frappe_x1/train.csv", &DataConfig::default(), &apps, 202_027, f32::NAN),
    ] {
        let path = shared.join(file);
        if !path.exists() {
            println!("skipped: {} is not there", path.display());
            continue;
        }
        let mut reader = Reader::open(&[path.to_string_lossy().into_owned()], config, encoder).unwrap();
        let mut batch = encoder.new_batch();
        while reader.next(&mut batch).unwrap() {}
        assert_eq!(batch.len(), rows, "{file}");
        assert_eq!(reader.source().bytes_read(), reader.source().bytes_total().unwrap(), "{file}");
        let found: f32 = batch.labels.iter().sum();
        assert!(positives.is_nan() || (found - positives).abs() < 0.003 * positives, "{file}: {found}");
    }
}
