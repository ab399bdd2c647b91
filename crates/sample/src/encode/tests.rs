//! Rows of fields through encoders of all kinds of features.

use super::*;
use crate::spec::Weight;

fn encoder(toml: &str, label: LabelUse, down_sample: bool) -> Encoder {
    let spec: Spec = toml::from_str(toml).unwrap();
    let missing = ["".to_string(), "?".to_string()];
    Encoder::new(&spec, &EncodeOptions { missing: &missing, label, down_sample }).unwrap()
}

/// Encodes one row whose first field is the label "1" and gives back the keys and values of the only feature.
fn encode(feature: &str, fields: &[Field<'_>]) -> Result<(Vec<u64>, Vec<f32>), FieldError> {
    let encoder = encoder(&format!("[[feature]]\nname = \"f\"\n{feature}"), LabelUse::Required, false);
    let mut row = vec![Field::Text(b"1")];
    row.extend_from_slice(fields);
    let mut batch = encoder.new_batch();
    encoder.encode_row(&row, 0, &mut batch)?;
    assert_eq!(batch.len(), 1);
    let column = &batch.columns[0];
    Ok((column.keys.clone(), column.values.clone()))
}

fn hashed(text: &str) -> u64 {
    key::hash(text.as_bytes(), key::salt("f"))
}

#[test]
fn kinds() {
    let text = |text: &'static str| Field::Text(text.as_bytes());
    let own = hashed("f");
    let missing = key::hash(b"missing", own);
    let bucket = |bucket: u64| key::hash(&bucket.to_le_bytes(), own);
    type Expected<'a> = Result<(Vec<u64>, Vec<f32>), &'a str>;
    let check = |feature: &str, fields: &[Field<'_>], expected: Expected<'_>| match (
        encode(feature, fields),
        expected,
    ) {
        (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{feature} {fields:?}"),
        (Err(got), Err(part)) => assert!(got.expected.contains(part), "{feature}: {got:?}"),
        (got, expected) => panic!("{feature} {fields:?}: {got:?}, expected {expected:?}"),
    };
    check("", &[text("x")], Ok((vec![hashed("x")], vec![])));
    check("", &[text("?")], Ok((vec![hashed("")], vec![])));
    check("", &[Field::Missing], Ok((vec![hashed("")], vec![])));
    check("default = \"z\"", &[text("")], Ok((vec![hashed("z")], vec![])));
    check("", &[Field::Int(-42)], Ok((vec![hashed("-42")], vec![])));
    check("", &[Field::Float(42.0)], Ok((vec![hashed("42")], vec![])));
    check("", &[Field::List(&[])], Err("one value"));
    check("key = \"raw\"", &[text("42")], Ok((vec![42], vec![])));
    check("key = \"raw\"", &[Field::Int(42)], Ok((vec![42], vec![])));
    check("key = \"raw\"", &[text("4x")], Err("64-bit integer"));
    check("key = \"raw\"", &[Field::Int(-1)], Ok((vec![u64::MAX], vec![])));
    check("key = \"raw\"", &[text("-1")], Ok((vec![u64::MAX], vec![])));
    check("key = \"raw\"", &[text("-9223372036854775808")], Ok((vec![1 << 63], vec![])));
    check("key = \"raw\"", &[Field::Float(42.0)], Ok((vec![42], vec![])));
    check("key = \"raw\"", &[text("42.0")], Ok((vec![42], vec![])));
    check("key = \"raw\"", &[Field::Float(-2.0)], Ok((vec![u64::MAX - 1], vec![])));
    for no_id in [Field::Float(1.5), Field::Float(2f64.powi(53)), Field::Float(1e300), text("x"), text("1.5")]
    {
        check("key = \"raw\"", &[no_id], Err("key = \"hash\""));
    }
    check("key = \"raw\"", &[text("")], Ok((vec![], vec![])));
    check("key = {modulo = 10}", &[text("x")], Ok((vec![hashed("x") % 10], vec![])));
    check("salt = \"s\"", &[text("x")], Ok((vec![key::hash(b"x", key::salt("s"))], vec![])));
    check("type = \"multi\"", &[text("a| b||")], Ok((vec![hashed("a"), hashed("b")], vec![])));
    check("type = \"multi\"", &[text("")], Ok((vec![], vec![])));
    check("type = \"multi\"", &[text("?|a")], Ok((vec![hashed("a")], vec![])));
    check("type = \"multi\"", &[Field::List(&[text("?"), text("a")])], Ok((vec![hashed("a")], vec![])));
    check(
        "type = \"multi\"\nseparator = \",\"\npooling = \"mean\"",
        &[text("a,b")],
        Ok((vec![hashed("a"), hashed("b")], vec![0.5, 0.5])),
    );
    check(
        "type = \"multi\"",
        &[Field::List(&[Field::Int(1), Field::Missing, Field::Text(b"b")])],
        Ok((vec![hashed("1"), hashed("b")], vec![])),
    );
    check("type = \"numeric\"", &[text("-2.5")], Ok((vec![own], vec![-2.5])));
    check("type = \"numeric\"", &[text("1e3")], Ok((vec![own], vec![1000.0])));
    check("type = \"numeric\"", &[text("")], Ok((vec![missing], vec![1.0])));
    check("type = \"numeric\"\ndefault = 7", &[text("?")], Ok((vec![own], vec![7.0])));
    check("type = \"numeric\"", &[text("inf")], Err("finite"));
    check("type = \"numeric\"", &[text("nan")], Err("finite"));
    check("type = \"numeric\"", &[text("1e300")], Err("below 1e15"));
    check("type = \"numeric\"", &[text("4O")], Err("finite number"));
    check("type = \"log\"", &[text("0")], Ok((vec![own], vec![0.0])));
    check("type = \"log\"", &[Field::Int(-1)], Ok((vec![own], vec![-(2f64.ln() as f32)])));
    let quantile = "type = \"quantile\"\nboundaries = [1.0, 2.0]";
    for (field, key) in
        [("0", bucket(0)), ("1", bucket(0)), ("1.5", bucket(1)), ("9", bucket(2)), ("", missing)]
    {
        check(quantile, &[text(field)], Ok((vec![key], vec![])));
    }
    let cross = key::hash(b"y", key::hash(b"x", key::salt("f")));
    check("type = \"cross\"\ncolumns = [\"a\", \"b\"]", &[text("x"), text("y")], Ok((vec![cross], vec![])));
    check(
        "type = \"cross\"\ncolumns = [\"a\", \"b\"]\ndefault = \"x\"",
        &[text("?"), text("y")],
        Ok((vec![cross], vec![])),
    );
    for absent in [Field::List(&[]), Field::Missing] {
        check("type = \"multi\"\ndefault = \"a\"", &[absent], Ok((vec![hashed("a")], vec![])));
        check("type = \"multi\"", &[absent], Ok((vec![], vec![])));
    }
    check(
        "columns = [\"a\", \"b\"]\npooling = \"mean\"",
        &[text("x"), text("y")],
        Ok((vec![hashed("x"), hashed("y")], vec![0.5, 0.5])),
    );
}

#[test]
fn labels_and_weights() {
    let spec =
        "[label]\npositive = [\">50K\", \">50K.\"]\n[weight]\ncolumn = \"w\"\n[[feature]]\nname = \"f\"";
    let strict = encoder(spec, LabelUse::Required, false);
    assert_eq!(strict.input_columns(), ["label", "w", "f"]);
    let mut batch = strict.new_batch();
    let mut row = |encoder: &Encoder, label: &'static str, weight: &'static str| {
        let fields = [label, weight, "x"].map(|text| Field::Text(text.as_bytes()));
        encoder
            .encode_row(&fields, 0, &mut batch)
            .map(|_| (batch.labels.last().copied(), batch.weights.last().copied()))
    };
    assert_eq!(row(&strict, ">50K.", "2"), Ok((Some(1.0), Some(2.0))));
    assert_eq!(row(&strict, "<=50K", "0.5"), Ok((Some(0.0), Some(0.5))));
    assert_eq!(row(&strict, "", "1").unwrap_err().expected, "a label");
    assert_eq!(row(&strict, ">50K", "-1").unwrap_err().column, 1);
    let lenient = encoder(spec, LabelUse::Optional, false);
    assert!(lenient.is_optional(0) && !lenient.is_optional(1));
    assert!(row(&lenient, "?", "1").unwrap().0.unwrap().is_nan());
    let numbers = encoder("[label]\nthreshold = 3.5\n[[feature]]\nname = \"f\"", LabelUse::Required, false);
    assert_eq!((numbers.label(4.0), numbers.label(3.5)), (1.0, 0.0));
}

#[test]
fn down_sampling_keeps_the_share_and_the_total_weight_of_negatives() {
    let spec = "[negatives]\nkeep = 0.1\n[[feature]]\nname = \"f\"";
    let (all, some) = (encoder(spec, LabelUse::Required, false), encoder(spec, LabelUse::Required, true));
    let rows = 100_000;
    assert_eq!((0..rows).filter_map(|row| all.keep(0.0, row)).count() as u64, rows);
    let kept: Vec<f32> = (0..rows).filter_map(|row| some.keep(0.0, row)).collect();
    assert!((kept.len() as f64 / rows as f64 - 0.1).abs() < 0.005, "{}", kept.len());
    assert!(kept.iter().all(|weight| *weight == 10.0));
    assert!((0..rows).all(|row| some.keep(1.0, row) == Some(1.0)));
}

#[test]
fn a_bad_row_leaves_the_batch_as_it_was() {
    let spec = "[[feature]]\neach = [\"a\"]\n[[feature]]\neach = [\"n\"]\ntype = \"numeric\"";
    let encoder = encoder(spec, LabelUse::Required, false);
    let mut batch = encoder.new_batch();
    let fields = [Field::Int(1), Field::Text(b"x"), Field::Text(b"2")];
    encoder.encode_row(&fields, 0, &mut batch).unwrap();
    let before = batch.clone();
    let fields = [Field::Int(1), Field::Text(b"x"), Field::Text(b"two")];
    let error = encoder.encode_row(&fields, 0, &mut batch).unwrap_err();
    assert_eq!((error.column, error.found.as_str()), (2, "\"two\""));
    assert_eq!(batch, before);
    let weight = Some(Weight { column: "w".to_string() });
    assert!(Spec { weight, ..Spec::default() }.expand().is_err());
}
