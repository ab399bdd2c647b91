//! The delimited reader against the plain cutting of each line by itself.

use std::io::Cursor;
use std::path::Path;

use proptest::prelude::*;

use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

use super::*;
use crate::bad_rows::BadRows;
use crate::blocks::LineBlocks;
use crate::format::{BadRowPolicy, DataConfig, Format};
use crate::quotes::Quotes;
use crate::scan::Isa;

fn encoder() -> Encoder {
    let spec = "[[feature]]\neach = [\"a\", \"b\"]\nsalt = \"\"\n[label]\npositive = [\"1\"]";
    let spec: Spec = toml::from_str(spec).unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Required, down_sample: false };
    Encoder::new(&spec, &options).unwrap()
}

fn open(text: &[u8], format: Format, config: &DataConfig) -> Result<(Layout, LineBlocks), SampleError> {
    let mut lines = LineBlocks::new(Box::new(Cursor::new(text.to_vec())), Path::new("x"));
    Layout::open(&mut lines, Path::new("x"), format, config, &encoder()).map(|layout| (layout, lines))
}

fn named(format: Format) -> Layout {
    let columns = Some(["label", "a", "skipped", "b"].map(str::to_string).to_vec());
    open(b"", format, &DataConfig { columns, ..DataConfig::default() }).unwrap().0
}

/// Decodes a text with every instruction set, compares with the plain cutting, gives rows and messages.
fn check(layout: &Layout, text: &[u8]) -> (Batch, Vec<String>) {
    let encoder = encoder();
    let (mut expected, mut messages) = (encoder.new_batch(), Vec::new());
    for (line, text) in records(layout, text) {
        let is_empty = text.is_empty() || text == b"\r";
        let fields = layout.split(text).ok().filter(|fields| fields.len() == layout.names.len() && !is_empty);
        let row = fields.and_then(|fields| {
            let fields = [0, 1, 3].map(|column: usize| Field::Text(&fields[column]));
            encoder.encode_row(&fields, line, &mut expected).ok()
        });
        if row.is_none() {
            expected.close_row(f32::NAN, f32::NAN);
            messages.push(format!("x:{line}: "));
        }
    }
    let mut result = None;
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let bad_rows = BadRows::new(BadRowPolicy::Skip { max: u64::MAX }).placeholder(true);
        let lines =
            Lines { encoder: &encoder, bad_rows: &bad_rows, path: Path::new("x"), row_id_base: 0, isa };
        let mut batch = encoder.new_batch();
        decode(&lines, layout, &Block::of_text(text, 1), &mut Vec::new(), &mut batch).unwrap();
        let shown = text.escape_ascii().to_string();
        assert_eq!(format!("{batch:?}"), format!("{expected:?}"), "{isa:?} {shown}");
        assert_eq!(bad_rows.count() as usize, messages.len(), "{isa:?} {shown}");
        for (message, start) in bad_rows.messages().iter().zip(&messages) {
            assert!(message.starts_with(start), "{message} does not start with {start}");
        }
        result = Some((batch, bad_rows.messages()));
    }
    result.unwrap()
}

/// The records of a text, each with the number of its first line.
fn records<'a>(layout: &Layout, text: &'a [u8]) -> Vec<(u64, &'a [u8])> {
    let quotes = Quotes { separator: layout.separator.clone(), comment: layout.comment };
    let (mut rest, mut line, mut records) = (text.strip_suffix(b"\n").unwrap_or(text), 1, Vec::new());
    loop {
        let end = match layout.quotes {
            true => quotes.first_end(rest).end,
            false => rest.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1),
        };
        if end == 0 {
            records.extend((!text.is_empty()).then_some((line, rest)));
            return records;
        }
        records.push((line, &rest[..end - 1]));
        line += rest[..end].iter().filter(|&&byte| byte == b'\n').count() as u64;
        rest = &rest[end..];
    }
}

fn keys(fields: [&str; 2]) -> Vec<u64> {
    fields
        .map(|field| sanderling_sample::key::hash(field.as_bytes(), sanderling_sample::key::salt("")))
        .to_vec()
}

#[test]
fn lines_that_read() {
    let rows = [
        (Format::Csv, "1,x,,y", ["x", "y"]),
        (Format::Csv, "1, State-gov , -, y\r", ["State-gov", "y"]),
        (Format::Csv, "1,\"x\",\"a,b\",\"y\"", ["x", "y"]),
        (Format::Csv, " \"1\" , \"x,\"\"y\"\"\" ,, \"\" \r", ["x,\"y\"", ""]),
        (Format::Csv, "1,\"x\r\ny\n\",\"\n\",\"\n\"\"\n\"\r", ["x\r\ny\n", "\n\"\n"]),
        (Format::Csv, "1,5\" pipe,,\"\"\"\"", ["5\" pipe", "\""]),
        (Format::Csv, "1,\u{e9},\u{0},\t", ["\u{e9}", "\t"]),
        (Format::Tsv, "1\t x\t\t\"y\r", [" x", "\"y"]),
    ];
    for (format, line, fields) in rows {
        let (batch, messages) = check(&named(format), line.as_bytes());
        assert_eq!(messages, [""; 0], "{line:?}");
        assert_eq!(
            batch.columns.iter().flat_map(|column| column.keys.clone()).collect::<Vec<_>>(),
            keys(fields),
            "{line:?}"
        );
    }
}

#[test]
fn lines_that_do_not() {
    let rows = [
        ("1,x,y", "x:1: column b: expected 4 columns, found 3 in \"1,x,y\""),
        ("1,x,y,z,", "x:1: column 5: expected 4 columns, found 5 in \"1,x,y,z,\""),
        ("\n1,x,,y", "x:1: column label: expected a row, found an empty line"),
        (
            "1,\"x,,y",
            "x:1: column a: expected a closing quote before the end of the file, found \"\\\"x,,y\"",
        ),
        ("1,\"x\" z,,y", "x:1: column a: expected a separator after the closing quote, found \" z\""),
        (",x,,y", "x:1: column label: expected a label, found nothing"),
    ];
    for (line, message) in rows {
        assert_eq!(check(&named(Format::Csv), line.as_bytes()).1, [message], "{line:?}");
    }
}

/// Of a file of one column, too, where it might be a missing value.
#[test]
fn an_empty_line_is_bad_however_lines_end() {
    let spec: Spec = toml::from_str("[[feature]]\nname = \"x\"").unwrap();
    let options = EncodeOptions { missing: &[], label: LabelUse::Optional, down_sample: false };
    let encoder = Encoder::new(&spec, &options).unwrap();
    for (format, empty) in [(Format::Csv, "\"\""), (Format::Tsv, "-")] {
        for end in ["\n", "\r\n"] {
            let text = ["x", "a", "", empty, "b", ""].join(end);
            let mut lines = LineBlocks::new(Box::new(Cursor::new(text.into_bytes())), Path::new("x"));
            let layout =
                Layout::open(&mut lines, Path::new("x"), format, &DataConfig::default(), &encoder).unwrap();
            let (mut block, mut batch) = (Block::default(), encoder.new_batch());
            assert!(lines.next_block(&mut block).unwrap());
            let bad_rows = BadRows::new(BadRowPolicy::Skip { max: u64::MAX });
            let isa = Isa::detect();
            let lines =
                Lines { encoder: &encoder, bad_rows: &bad_rows, path: Path::new("x"), row_id_base: 0, isa };
            decode(&lines, &layout, &block, &mut Vec::new(), &mut batch).unwrap();
            let expected = ["x:3: column x: expected a row, found an empty line"];
            assert_eq!((batch.len(), bad_rows.messages().as_slice()), (3, &expected.map(String::from)[..]));
        }
    }
}

#[test]
fn headers() {
    let columns = |names: &[&str]| Some(names.iter().map(ToString::to_string).collect::<Vec<_>>());
    let config = DataConfig::default;
    let full = &["label", "a", "b"][..];
    type Row<'a> = (&'a str, DataConfig, Result<(&'a [&'a str], u64), &'a str>);
    let rows: [Row<'_>; 18] = [
        ("label,a,b\n", config(), Ok((full, 2))),
        ("\u{feff}label, \"a\" ,b\r\n1,2,3", config(), Ok((full, 2))),
        ("b,x,a,label", config(), Ok((&["b", "x", "a", "label"], 2))),
        (
            "1,2,3\n",
            config(),
            Err(
                "no column \"label\" among \"1\", \"2\", \"3\"; if the file has no header, give data.columns, or --columns",
            ),
        ),
        ("größe,a\n", config(), Err("no column \"label\" among \"größe\", \"a\";")),
        (
            "label;a;b\n",
            config(),
            Err("among \"label;a;b\"; one column only: is data.separator right? if the file"),
        ),
        ("label,a,a,b\n", config(), Err("two columns are named \"a\"")),
        ("", config(), Err("is empty; expected a first line that names the columns")),
        ("label,\"a,b\n", config(), Err("x:1: column 2: expected a closing quote")),
        ("1,2,3\n", DataConfig { columns: columns(full), ..config() }, Ok((full, 1))),
        ("label,a,b\n", DataConfig { columns: columns(full), ..config() }, Ok((full, 2))),
        ("x,y,z\n", DataConfig { columns: columns(full), header: Some(true), ..config() }, Ok((full, 2))),
        (
            "x,y\n",
            DataConfig { columns: columns(full), header: Some(true), ..config() },
            Err("the header has 2 columns"),
        ),
        ("b,label,a\n", DataConfig { columns: columns(full), ..config() }, Err("in another order")),
        (
            "b,label,a\n",
            DataConfig { columns: columns(full), header: Some(true), ..config() },
            Err("in another order"),
        ),
        ("", DataConfig { header: Some(false), ..config() }, Ok((&[], 1))),
        ("|x\n|y\nlabel,a,b\n", DataConfig { comment: Some('|'), ..config() }, Ok((full, 4))),
        ("label;a;b\n", DataConfig { separator: Some(";".to_string()), ..config() }, Ok((full, 2))),
    ];
    for (text, config, expected) in rows {
        match (open(text.as_bytes(), Format::Csv, &config), expected) {
            (Ok((layout, lines)), Ok((names, next_line))) => {
                assert_eq!(
                    (layout.names, lines.next_line()),
                    (columns(names).unwrap(), next_line),
                    "{text:?}"
                );
            }
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text:?}: {error}"),
            (found, expected) => {
                panic!("{text:?}: {:?}, expected {expected:?}", found.err().map(|e| e.to_string()))
            }
        }
    }
    // Of a header that is not UTF-8 the bytes are shown that are there.
    let latin = open(b"gr\xf6\xdfe,a\n", Format::Csv, &config()).err().unwrap().to_string();
    assert!(latin.contains("among \"gr\\xf6\\xdfe\", \"a\";"), "{latin}");
    let wrong = DataConfig { separator: Some("\u{e9}".to_string()), ..config() };
    assert!(open(b"", Format::Csv, &wrong).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_instruction_set_cuts_as_the_plain_way_does(text in "[1ab,\" \r\n\t\u{e9}]{0,120}",
        rows in "(1,[ab]{0,3},(\"([b,]|\"\"){0,4}\")?, ?\"?c\"?\r?\n){0,20}") {
        for format in [Format::Csv, Format::Tsv] {
            check(&named(format), text.as_bytes());
            check(&named(format), rows.as_bytes());
        }
    }
}
