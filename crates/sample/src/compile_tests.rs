//! Keys and values against the description that other programs derive them from.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use serde_json::Value;

use super::*;
use crate::batch::Batch;
use crate::spec::Spec;

/// The table of test vectors in the document, which were computed by another implementation (`python-xxhash`).
const DOCUMENT: &str = include_str!("../../../docs/keys.md");

/// A row of the table: the feature as inline TOML, the fields as JSON, the keys (in hexadecimal) with their values.
fn check(feature: &str, fields: &str, expected: &str) {
    let spec: Spec = toml::from_str(&format!("feature = [{feature}]")).unwrap();
    let feature = spec.expand().unwrap().feature.remove(0);
    let fields: Vec<Value> = serde_json::from_str(fields).unwrap();
    let fields: Vec<Field<'_>> = fields.iter().map(field).collect();
    let compiled = Compiled::new(&feature, (0..fields.len()).collect());
    let missing = ["", "?"].map(|text| text.as_bytes().to_vec());
    let mut batch = Batch::new(&[feature.has_values()]);
    let column = &mut batch.columns[0];
    compiled.encode(&fields, &missing, column).unwrap();
    let found = column.keys.iter().enumerate().map(|(at, key)| {
        let value = if feature.has_values() { format!(" {}", column.values[at]) } else { String::new() };
        format!("{key:016x}{value}")
    });
    let found = found.collect::<Vec<_>>().join(", ");
    assert_eq!(found, expected, "{feature:?} of {fields:?}");
}

fn field(value: &Value) -> Field<'_> {
    match value {
        Value::Null => Field::Missing,
        Value::String(text) => Field::Text(text.as_bytes()),
        Value::Number(number) => match number.as_i64() {
            Some(number) => Field::Int(number),
            None => Field::Float(number.as_f64().unwrap()),
        },
        other => panic!("{other}"),
    }
}

#[test]
fn keys_are_those_of_the_description() {
    let mut rows = 0;
    for line in DOCUMENT.lines().filter(|line| line.starts_with("| `{")) {
        let cells: Vec<&str> =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
        let [feature, fields, expected] = cells[..] else { panic!("{line}") };
        check(feature, fields, expected);
        rows += 1;
    }
    assert!(rows >= 20, "{rows} vectors were found");
}
