//! Footers that are nested too deep, declare too many columns, or are damaged.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;

use super::*;

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// An element of a schema, with these bytes between its name and its number of children, which ends the fields.
fn element(more: &[u8], children: u64) -> Vec<u8> {
    let name = [0x48, 1, b'x'];
    [&name[..], more, &[0x05, 10], &varint(children * 2)[..], &[0]].concat()
}

/// A footer whose schema has these elements.
fn footer(elements: &[Vec<u8>]) -> Vec<u8> {
    let count = varint(elements.len() as u64);
    let (head, tail) = ([0x15_u8, 2, 0x19, 0xfc], [0x16_u8, 0, 0x19, 0x0c, 0]);
    [&head[..], &count[..], &elements.concat()[..], &tail[..]].concat()
}

/// So many groups, each the only child of the one before, and a column in the last one.
fn nested(groups: usize) -> Vec<u8> {
    let mut elements = vec![element(&[], 1); groups];
    elements.push(element(&[], 0));
    footer(&elements)
}

fn is_too_deep(footer: &[u8]) -> bool {
    check(footer).is_err_and(|reason| reason.contains("deeper than 100 levels"))
}

#[test]
fn a_schema_may_be_so_deep_and_no_deeper() {
    for groups in [0, 1, 2, SCHEMA_DEPTH_MAX] {
        assert_eq!(check(&nested(groups)), Ok(()), "{groups}");
    }
    for groups in [SCHEMA_DEPTH_MAX + 1, 8000, 100_000] {
        assert!(is_too_deep(&nested(groups)), "{groups}");
    }
    // Wide is not deep.
    let mut wide = vec![element(&[], 5000)];
    wide.extend((0..5000).flat_map(|_| [element(&[], 1), element(&[], 0)]));
    assert_eq!(check(&footer(&wide)), Ok(()));
}

#[test]
fn a_group_has_no_more_columns_than_there_are() {
    let elements = |children| footer(&[element(&[], children), element(&[], 0)]);
    assert_eq!(check(&elements(1)), Ok(()));
    for children in [2, i32::MAX as u64] {
        let reason = check(&elements(children)).unwrap_err();
        assert!(reason.contains(&format!("{children} columns")), "{reason}");
    }
}

#[test]
fn whatever_stands_there_ends_the_walk() {
    for whole in [nested(5), nested(SCHEMA_DEPTH_MAX + 1)] {
        for cut in 0..whole.len() {
            let _ = check(&whole[..cut]);
        }
    }
    let whole = nested(5);
    for at in 0..whole.len() {
        for byte in 0..=255 {
            let mut changed = whole.clone();
            changed[at] = byte;
            let _ = check(&changed);
        }
    }
    // An unknown field of nested structures, or of any number of booleans.
    let mut unknown = vec![0x9c_u8; 100_000];
    assert_eq!(check(&unknown), Ok(()));
    unknown = [&[0x99_u8, 0xf1][..], &varint(i32::MAX as u64)[..], &nested(101)[..]].concat();
    let _ = check(&unknown);
}

/// As bytes may be made to hide what comes after them.
#[test]
fn fields_are_followed_whatever_they_claim_to_be() {
    let fields: [&[u8]; 10] = [
        // Its type as a structure, a text and a double, which are read as the number that it is.
        &[0x0c, 2, 2],
        &[0x08, 2, 2],
        &[0x07, 2, 2],
        // Fields that are unknown: a structure, a list of texts, a map, a double.
        &[0x0c, 40, 0x15, 2, 0x1c, 0, 0],
        &[0x09, 40, 0x28, 1, b'a', 0],
        &[0x0b, 40, 1, 0x85, 1, b'a', 2],
        &[0x07, 40, 1, 2, 3, 4, 5, 6, 7, 8],
        // Logical types: a decimal whose scale claims to be a double, a time in microseconds, one that is unknown.
        &[0x0c, 20, 0x5c, 0x17, 2, 0x15, 4, 0, 0],
        &[0x0c, 20, 0x7c, 0x11, 0x1c, 0x2c, 0, 0, 0, 0],
        &[0x0c, 20, 0x0c, 80, 0x15, 2, 0, 0],
    ];
    for more in fields {
        let mut elements = vec![element(more, 1); SCHEMA_DEPTH_MAX];
        elements.push(element(more, 0));
        assert_eq!(check(&footer(&elements)), Ok(()), "{more:?}");
        elements.insert(0, element(more, 1));
        assert!(is_too_deep(&footer(&elements)), "{more:?}");
    }
    assert!(check(&[0x59, 0x0c]).is_err_and(|reason| reason.contains("its schema comes after")));
}

/// The footer that the parquet crate writes for columns of many types, and one within so many structures.
fn written(structures: usize) -> Vec<u8> {
    let texts = DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)));
    let types = [
        DataType::Int8,
        DataType::UInt32,
        DataType::Utf8,
        DataType::Date32,
        DataType::Float16,
        DataType::Decimal128(10, 2),
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Millisecond, None),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        DataType::FixedSizeBinary(16),
        texts,
        (0..structures).fold(DataType::Float32, |inner, _| {
            DataType::Struct(Fields::from(vec![Field::new("x", inner, true)]))
        }),
    ];
    let fields: Vec<Field> =
        types.into_iter().enumerate().map(|(at, kind)| Field::new(format!("c{at}"), kind, true)).collect();
    let mut bytes = Vec::new();
    let writer = ArrowWriter::try_new(&mut bytes, Arc::new(Schema::new(fields)), None).unwrap();
    writer.close().unwrap();
    let (body, tail) = bytes.split_at(bytes.len() - TAIL_BYTES);
    let length = u32::from_le_bytes(tail[..4].try_into().unwrap()) as usize;
    body[body.len() - length..].to_vec()
}

#[test]
fn what_is_written_is_followed_to_its_end() {
    // With the root.
    assert_eq!(check(&written(SCHEMA_DEPTH_MAX - 1)), Ok(()));
    assert!(is_too_deep(&written(SCHEMA_DEPTH_MAX)));
}
