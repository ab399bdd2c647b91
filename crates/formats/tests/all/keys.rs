//! Keys and values against the description that other programs derive them from.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int32Array, Int64Array, StringArray};
use arrow_schema::{DataType, TimeUnit};
use sanderling_formats::columnar::{Cells, cells_of};
use sanderling_sample::{EncodeOptions, Encoder, Field, LabelUse, Spec};
use serde_json::Value;

/// The table of test vectors in the document, which were computed by another implementation (`python-xxhash`).
const DOCUMENT: &str = include_str!("../../../../docs/keys.md");

/// A row of the table: the feature as inline TOML, the fields as JSON, the keys (in hexadecimal) with their values.
fn check(feature: &str, fields: &str, expected: &str) {
    let spec: Spec = toml::from_str(&format!("feature = [{feature}]")).unwrap();
    let feature = spec.expand().unwrap().feature.remove(0);
    let fields: Vec<Value> = serde_json::from_str(fields).unwrap();
    let fields: Vec<Field<'_>> = fields.iter().map(field).collect();
    let spec = Spec { feature: vec![feature.clone()], ..Spec::default() };
    let missing = ["", "?"].map(str::to_string);
    let options = EncodeOptions { missing: &missing, label: LabelUse::Optional, down_sample: false };
    let encoder = Encoder::new(&spec, &options).unwrap();
    let row: Vec<Field<'_>> = [Field::Missing].into_iter().chain(fields.iter().copied()).collect();
    let mut batch = encoder.new_batch();
    encoder.encode_row(&row, 0, &mut batch).unwrap();
    let column = &batch.columns[0];
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
        Value::Bool(is_true) => Field::Bool(*is_true),
        Value::Object(typed) => {
            let (kind, value) = typed.iter().next().unwrap();
            typed_field(kind, value)
        }
        other => panic!("{other}"),
    }
}

/// The field of a column of this type, by the readers of columnar files.
fn typed_field<'a>(kind: &str, value: &Value) -> Field<'a> {
    let unit = |name: &str| match name {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        other => panic!("{other}"),
    };
    let (name, arguments) = kind.trim_end_matches([']', ')']).split_once(['[', '(']).unwrap_or((kind, ""));
    let arguments: Vec<&str> = arguments.split(", ").collect();
    let to = match name {
        "date32" => DataType::Date32,
        "date64" => DataType::Date64,
        "timestamp" => DataType::Timestamp(unit(arguments[0]), arguments.get(1).map(|zone| Arc::from(*zone))),
        "time32" => DataType::Time32(unit(arguments[0])),
        "time64" => DataType::Time64(unit(arguments[0])),
        "duration" => DataType::Duration(unit(arguments[0])),
        "decimal64" => DataType::Decimal64(arguments[0].parse().unwrap(), arguments[1].parse().unwrap()),
        "decimal128" => DataType::Decimal128(arguments[0].parse().unwrap(), arguments[1].parse().unwrap()),
        "bool" => DataType::Boolean,
        other => panic!("{other}"),
    };
    let column: ArrayRef = match value {
        Value::String(text) => Arc::new(StringArray::from(vec![text.as_str()])),
        Value::Bool(is_true) => Arc::new(BooleanArray::from(vec![*is_true])),
        number if matches!(to, DataType::Date32 | DataType::Time32(_)) => {
            Arc::new(Int32Array::from(vec![number.as_i64().unwrap() as i32]))
        }
        number => Arc::new(Int64Array::from(vec![number.as_i64().unwrap()])),
    };
    let column = arrow_cast::cast(&column, &to).unwrap();
    // A field borrows from its column.
    let cells: &'a Cells = Box::leak(Box::new(cells_of(&column).unwrap()));
    cells.field(0, &[])
}

#[test]
fn keys_are_those_of_the_description() {
    let mut vectors: Vec<[String; 3]> = Vec::new();
    for line in DOCUMENT.lines().filter(|line| line.starts_with("| `{") || line.starts_with("|  | ")) {
        let cells: Vec<&str> =
            line.trim_end_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '|', '`'])).collect();
        let [feature, fields, keys] = cells[..] else { panic!("{line}") };
        if !feature.is_empty() {
            vectors.push([feature, fields, keys].map(str::to_owned));
        } else if let Some([_, whole_fields, whole_keys]) = vectors.last_mut() {
            whole_fields.push_str(fields);
            whole_keys.push_str(if whole_keys.is_empty() { "" } else { ", " });
            whole_keys.push_str(keys);
        }
    }
    assert!(vectors.len() >= 60, "{} vectors were found", vectors.len());
    for [feature, fields, keys] in &vectors {
        check(feature, fields, keys);
    }
}
