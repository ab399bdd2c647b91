//! Any record against what `prost` reads in it, encoded by the rules of docs/configuration.md: pieces as any writer
//! may lay them out, and damaged ones. Knows no CSV.

use proptest::prelude::*;
use prost::Message;
use sanderling_formats::BadRows;
use sanderling_sample::{Field, LabelUse};
use tempfile::TempDir;

use super::{SKIP, encoder, read_with, write};
use sanderling_testkit::messages::{
    DenseSlot, EntriesExample, Example, Feature, Features, Kind, Sample, SparseSlot, UnpackedDense,
    UnpackedFeature, UnpackedFloats, UnpackedInts, UnpackedSample, UnpackedSparse, bytes, delimited, floats,
    ints, tfrecord,
};

/// What an Example holds, by the rules of `docs/configuration.md`, from what `prost` makes of it.
fn fields_of<'a>(
    example: &'a Example,
    column: &str,
    is_list: bool,
    values: &'a mut Vec<Field<'a>>,
) -> Field<'a> {
    let feature = example.features.as_ref().and_then(|features| features.feature.get(column));
    match feature.and_then(|feature| feature.kind.as_ref()) {
        None => {}
        Some(Kind::Bytes(list)) => values.extend(list.value.iter().map(|it| Field::Text(it))),
        Some(Kind::Floats(list)) => values.extend(list.value.iter().map(|it| Field::Float(f64::from(*it)))),
        Some(Kind::Ints(list)) => values.extend(list.value.iter().map(|it| Field::Int(*it))),
    }
    match &values[..] {
        [] => Field::Missing,
        [one] if !is_list => *one,
        several => Field::List(several),
    }
}

/// Reads one record and compares with what encoding `prost`'s reading of it gives. Where `prost` refuses, so may we:
/// we do not look into what the spec does not read.
fn check_example(record: &[u8]) {
    let spec = "[[feature]]\nname = \"several\"\ntype = \"multi\"\n[[feature]]\nname = \"one\"\n\
                [[feature]]\nname = \"x\"\ntype = \"numeric\"";
    let encoder = encoder(spec, LabelUse::Optional);
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.tfrecord", &tfrecord(record));
    let (batch, bad) = read_with(&path, &encoder, BadRows::new(SKIP)).unwrap();
    assert_eq!(batch.len() as u64 + bad, 1);
    let (Ok(example), Ok(_)) = (Example::decode(record), EntriesExample::decode(record)) else { return };
    let (mut label, mut several, mut one, mut x) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let fields = [
        fields_of(&example, "label", false, &mut label),
        fields_of(&example, "several", true, &mut several),
        fields_of(&example, "one", false, &mut one),
        fields_of(&example, "x", false, &mut x),
    ];
    let mut expected = encoder.new_batch();
    let encoded = encoder.encode_row(&fields, 0, &mut expected);
    assert_eq!(bad == 0, encoded.is_ok(), "{example:?}");
    // NaN is not equal to itself.
    assert_eq!(batch.columns, expected.columns, "{example:?}");
    assert_eq!(format!("{:?}", batch.labels), format!("{:?}", expected.labels), "{example:?}");
}

fn feature() -> impl Strategy<Value = Feature> {
    let text = proptest::collection::vec(any::<u8>(), 0..5);
    prop_oneof![
        2 => proptest::collection::vec(text, 0..4).prop_map(|texts| bytes(&texts.iter().map(Vec::as_slice).collect::<Vec<_>>())),
        2 => proptest::collection::vec(any::<f32>(), 0..4).prop_map(|values| floats(&values)),
        2 => proptest::collection::vec(any::<i64>(), 0..4).prop_map(|values| ints(&values)),
        1 => Just(Feature { kind: None }),
    ]
}

/// An Example in pieces, each as some writer might lay it out: what follows one another is merged by any reader.
fn record() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec!["label", "several", "one", "x", "other", ""]);
    let whole = proptest::collection::btree_map(name.clone().prop_map(String::from), feature(), 0..5)
        .prop_map(|feature| Example { features: Some(Features { feature }) }.encode_to_vec());
    let numbers = (
        name.clone(),
        proptest::option::of(proptest::collection::vec(any::<f32>(), 0..4)),
        proptest::option::of(proptest::collection::vec(any::<i64>(), 0..4)),
        any::<bool>(),
    );
    // One map entry by hand: lists that are not packed, perhaps two kinds, perhaps the key behind the value.
    let entry = numbers.prop_map(|(name, floats, ints, key_first)| {
        let value = UnpackedFeature {
            floats: floats.map(|value| UnpackedFloats { value }),
            ints: ints.map(|value| UnpackedInts { value }),
        };
        let nested = |field: u8, inner: &[u8]| [&[field << 3 | 2][..], &delimited(inner)].concat();
        let (key, value) = (nested(1, name.as_bytes()), nested(2, &value.encode_to_vec()));
        let entry = if key_first { [key, value].concat() } else { [value, key].concat() };
        nested(1, &nested(1, &entry))
    });
    // Unknown fields of every wire type.
    let unknown = prop::sample::select(vec![
        vec![0x10, 0x96, 0x01],
        vec![0x1d, 1, 2, 3, 4],
        vec![0x21, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0x2a, 2, 0xff, 0xff],
        vec![0x33, 0x08, 0x01, 0x34],
    ]);
    let piece = prop_oneof![3 => whole, 3 => entry, 1 => unknown];
    proptest::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// `prost` takes it for a length all the same; by the rules it is the start of a group, which has no end.
#[test]
fn an_entry_that_says_it_is_a_group_is_refused() {
    let record = Example { features: Some(Features { feature: [("x".to_owned(), floats(&[1.0]))].into() }) };
    let mut record = record.encode_to_vec();
    assert_eq!(record[2], 1 << 3 | 2);
    record[2] = 1 << 3 | 3;
    assert!(Example::decode(&record[..]).is_ok() && EntriesExample::decode(&record[..]).is_err());
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.tfrecord", &tfrecord(&record));
    let encoder = encoder("[[feature]]\nname = \"x\"\ntype = \"numeric\"", LabelUse::Optional);
    let (batch, bad) = read_with(&path, &encoder, BadRows::new(SKIP)).unwrap();
    assert_eq!((batch.len(), bad), (0, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn an_example_reads_as_prost_reads_it(record in record()) {
        check_example(&record);
    }

    #[test]
    fn a_damaged_example_reads_as_prost_reads_it(
        record in record(), flips in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let mut record = record;
        for (at, bits) in flips {
            if !record.is_empty() {
                let at = at.index(record.len());
                record[at] ^= bits;
            }
        }
        check_example(&record);
    }

    #[test]
    fn a_sample_reads_as_prost_reads_it(
        label in proptest::option::of(any::<f32>()),
        keys in proptest::collection::vec(any::<u64>(), 0..5), number in proptest::option::of(any::<f32>()),
        unpacked in any::<bool>(), flip in proptest::option::of((any::<prop::sample::Index>(), 1..=255_u8)),
    ) {
        let values: Vec<f32> = number.into_iter().collect();
        let mut record = Sample { label, ..Sample::default() }.encode_to_vec();
        record.extend(if unpacked {
            let sparse = vec![UnpackedSparse { index: 0, keys }];
            UnpackedSample { sparse, dense: vec![UnpackedDense { index: 3, values }] }.encode_to_vec()
        } else {
            let sparse = vec![SparseSlot { index: 0, keys }];
            Sample { label: None, sparse, dense: vec![DenseSlot { index: 3, values }] }.encode_to_vec()
        });
        if let Some((at, bits)) = flip && !record.is_empty() {
            let at = at.index(record.len());
            record[at] ^= bits;
        }
        check_sample(&record);
    }
}

fn check_sample(record: &[u8]) {
    let spec = "[[feature]]\nname = \"sparse_0\"\ntype = \"multi\"\nkey = \"raw\"\n\
                [[feature]]\nname = \"dense_3\"\ntype = \"numeric\"";
    let encoder = encoder(spec, LabelUse::Optional);
    let dir = TempDir::new().unwrap();
    let path = write(dir.path(), "a.pb", &delimited(record));
    let (batch, bad) = read_with(&path, &encoder, BadRows::new(SKIP)).unwrap();
    assert_eq!(batch.len() as u64 + bad, 1);
    let Ok(sample) = Sample::decode(record) else { return };
    let zero = sample.sparse.iter().filter(|slot| slot.index == 0 && !slot.keys.is_empty()).count();
    let three = sample.dense.iter().filter(|slot| slot.index == 3 && !slot.values.is_empty()).count();
    if zero > 1 || three > 1 {
        assert_eq!(bad, 1, "a slot twice: {sample:?}");
        return;
    }
    let keys: Vec<Field<'_>> = sample
        .sparse
        .iter()
        .filter(|slot| slot.index == 0)
        .flat_map(|slot| slot.keys.iter().map(|key| Field::Unsigned(*key)))
        .collect();
    let numbers: Vec<Field<'_>> = sample
        .dense
        .iter()
        .filter(|slot| slot.index == 3)
        .flat_map(|slot| slot.values.iter().map(|value| Field::Float(f64::from(*value))))
        .collect();
    let fields = [
        sample.label.map_or(Field::Missing, |label| Field::Float(f64::from(label))),
        if keys.is_empty() { Field::Missing } else { Field::List(&keys) },
        match numbers[..] {
            [] => Field::Missing,
            [one] => one,
            _ => Field::List(&numbers),
        },
    ];
    let mut expected = encoder.new_batch();
    let encoded = encoder.encode_row(&fields, 0, &mut expected);
    assert_eq!(bad == 0, encoded.is_ok(), "{sample:?}");
    assert_eq!(batch.columns, expected.columns, "{sample:?}");
    assert_eq!(format!("{:?}", batch.labels), format!("{:?}", expected.labels), "{sample:?}");
}
