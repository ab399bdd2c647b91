//! libffm lines: the plain way against the careful one, fields and features, and every way to be wrong.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, Spec};

use crate::{BadRowPolicy, BadRows, Block, DataConfig, Format, Reader};

fn encoder(spec: &Spec, label: LabelUse) -> Arc<Encoder> {
    let options = EncodeOptions { missing: &[], label, down_sample: false };
    Arc::new(Encoder::new(spec, &options).unwrap())
}

/// Rows, and the messages of bad rows.
fn read(spec: &Spec, text: &str, label: LabelUse, isa: crate::Isa) -> (Batch, Vec<String>) {
    let (encoder, bad_rows) = (encoder(spec, label), BadRows::new(BadRowPolicy::Skip { max: u64::MAX }));
    let lines = crate::lines::Lines {
        encoder: &encoder,
        bad_rows: &bad_rows,
        path: Path::new("f"),
        row_id_base: 0,
        isa,
    };
    let mut batch = encoder.new_batch();
    super::decode(&lines, &Block::of_text(text.as_bytes(), 1), &mut Default::default(), &mut batch).unwrap();
    (batch, bad_rows.messages())
}

#[test]
fn a_feature_reads_the_pairs_of_its_fields() {
    let text = "1 0:5:1 1:7:0.5 0:6:2 9:9:9\n0 1:8:1\n";
    let (batch, bad) = read(&Spec::libffm([0, 1]), text, LabelUse::Required, crate::Isa::Scalar);
    assert!(bad.is_empty());
    assert_eq!(batch.labels, [1.0, 0.0]);
    assert_eq!((&batch.columns[0].keys[..], &batch.columns[0].offsets[..]), (&[5, 6][..], &[0, 2, 2][..]));
    assert_eq!(batch.columns[0].values, [1.0, 2.0]);
    assert_eq!((&batch.columns[1].keys[..], &batch.columns[1].offsets[..]), (&[7, 8][..], &[0, 1, 2][..]));
    assert_eq!(batch.columns[1].values, [0.5, 1.0]);
    // Without fields it is one bag, as libsvm text is.
    let (batch, _) = read(&Spec::libsvm(), text, LabelUse::Required, crate::Isa::Scalar);
    assert_eq!(
        (&batch.columns[0].keys[..], &batch.columns[0].offsets[..]),
        (&[5, 7, 6, 9, 8][..], &[0, 4, 5][..])
    );
    // Several fields may feed one feature.
    let spec: Spec = toml::from_str(
        "[[feature]]\nname = \"both\"\ntype = \"sparse\"\ncolumns = [\"field_9\", \"field_1\"]\nkey = \"hash\"",
    )
    .unwrap();
    let (batch, _) = read(&spec, text, LabelUse::Required, crate::Isa::Scalar);
    let key =
        |index: u64| sanderling_sample::key::hash(&index.to_le_bytes(), sanderling_sample::key::salt("both"));
    assert_eq!(batch.columns[0].keys, [key(7), key(9), key(8)]);
}

#[test]
fn lines_that_are_wrong_are_named() {
    let check = |line: &str, expected: &str| {
        let text = format!("1 0:5:1\n{line}\n0 1:8:1\n");
        let (batch, bad) = read(&Spec::libffm([0, 1]), &text, LabelUse::Required, crate::Isa::detect());
        assert_eq!(bad, [format!("f:2: {expected}")]);
        assert_eq!((&batch.labels[..], &batch.columns[0].keys[..]), (&[1.0, 0.0][..], &[5][..]), "{line}");
    };
    check("", "column 1: expected a row, found an empty line");
    check("x 0:5:1", "column 1: expected a label (a number), found \"x\"");
    check("0:5:1", "column 1: expected a label before the first field:index:value, found \"0:5:1\"");
    check("1 0:5:1 1:5:x", "column 3: expected field:index:value, found \"1:5:x\"");
    check("1 a:5:1", "column 2: expected field:index:value, found \"a:5:1\"");
    check("1 0:5:1:1", "column 2: expected field:index:value, found \"0:5:1:1\"");
    check(
        "1 0:5:1 7:1",
        "column 3: expected field:index:value (index:value is libsvm: set format = \"libsvm\"), found \"7:1\"",
    );
}

#[test]
fn a_libffm_file_that_is_read_as_libsvm_is_called_libffm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.svm");
    std::fs::write(&path, "1 0:5:1 1:7:0.5\n").unwrap();
    let encoder = encoder(&Spec::libsvm(), LabelUse::Required);
    let read = |config: &DataConfig| {
        let mut reader = Reader::open(&[path.display().to_string()], config, &encoder).unwrap();
        let mut batch = encoder.new_batch();
        reader.next(&mut batch).map(|_| batch.columns[0].keys.clone()).map_err(|error| error.to_string())
    };
    let error = read(&DataConfig::default()).unwrap_err();
    assert!(error.contains("field:index:value is libffm: set format = \"libffm\""), "{error}");
    assert_eq!(read(&DataConfig { format: Some(Format::Libffm), ..DataConfig::default() }).unwrap(), [5, 7]);
}

#[test]
fn a_line_may_lack_its_label_in_prediction() {
    let text = "0:5:1\n 1  0:6:1\t1:1:1 # a comment\r\n# another\n1 1:7:1\r\n";
    let (batch, bad) = read(&Spec::libffm([0, 1]), text, LabelUse::Optional, crate::Isa::detect());
    assert!(bad.is_empty(), "{bad:?}");
    assert!(batch.labels[0].is_nan());
    assert_eq!(batch.labels[1..], [1.0, 1.0]);
    assert_eq!(batch.columns[0].keys, [5, 6]);
    assert_eq!(batch.columns[1].keys, [1, 7]);
}

proptest! {
    #[test]
    fn the_plain_way_reads_what_the_careful_one_does(
        rows in proptest::collection::vec((any::<bool>(), proptest::collection::vec(
            (0_u64..5, any::<u64>(), 0_u32..7, "[0-9]{1,6}(\\.[0-9]{1,9})?"), 0..6)), 0..60),
    ) {
        let line = |blank: &str, (label, triples): &(bool, Vec<(u64, u64, u32, String)>)| {
            let triples = triples.iter().map(|(field, index, shift, value)| {
                format!("{blank}{field}:{}:{value}", index >> (8 * shift))
            });
            format!("{}{}\n", u8::from(*label), triples.collect::<String>())
        };
        let text = |blank: &str| rows.iter().map(|row| line(blank, row)).collect::<String>();
        let spec = Spec::libffm([0, 1, 3]);
        for isa in crate::Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let plain = read(&spec, &text(" "), LabelUse::Required, isa);
            let careful = read(&spec, &text("  "), LabelUse::Required, isa);
            prop_assert_eq!(plain, careful);
        }
    }
}
