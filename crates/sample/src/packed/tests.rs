//! Packed batches against their rows, and against arbitrary bytes.
#![allow(clippy::unwrap_used)] // in a test a panic is the report

use proptest::prelude::*;

use super::*;
use crate::batch::Batch;

/// Of each row the label, and per column the keys with their values.
type Row = (f32, Vec<Vec<(u64, f32)>>);

fn batch(weighted: &[bool], rows: &[Row]) -> Batch {
    let mut batch = Batch::new(weighted);
    for (label, columns) in rows {
        for (column, keys) in batch.columns.iter_mut().zip(columns) {
            keys.iter().for_each(|&(key, value)| column.push(key, value));
        }
        batch.close_row(*label, label + 1.0);
    }
    batch
}

prop_compose! {
    fn batches()(columns in 0..4_usize)(
        weighted in prop::collection::vec(any::<bool>(), columns),
        // With one key at least and at most, neighbours share their boundaries.
        rows in (1..3_usize).prop_flat_map(move |most| prop::collection::vec(
            (0..2_u8, prop::collection::vec(prop::collection::vec((any::<u64>(), -9.0..9.0_f32), most - 1..=most), columns)),
            0..12,
        )),
    ) -> Batch {
        batch(&weighted, &rows.into_iter().map(|(label, columns)| (f32::from(label), columns)).collect::<Vec<_>>())
    }
}

fn packed(rows: &Rows<'_>) -> PackedBuffer {
    let mut buffer = PackedBuffer::new();
    pack(rows, &mut buffer).unwrap();
    buffer
}

fn buffer(bytes: &[u8]) -> PackedBuffer {
    let mut buffer = PackedBuffer::new();
    buffer.resize(bytes.len()).copy_from_slice(bytes);
    buffer
}

/// The rows as a batch of their own, so that they can be compared.
fn copied(like: &Batch, rows: &Rows<'_>) -> Batch {
    let mut batch = Batch::like(like);
    batch.append(rows);
    batch
}

proptest! {
    #[test]
    fn what_is_packed_is_found(all in batches(), from in 0..12_usize, to in 0..12_usize) {
        let (from, to) = (from.min(to).min(all.len()), from.max(to).min(all.len()));
        let rows = Rows::new(&all, from..to);
        let buffer = packed(&rows);
        prop_assert!(buffer.bytes().as_ptr().cast::<[u64; 8]>().addr().is_multiple_of(PACKED_ALIGN_BYTES));
        prop_assert!(buffer.len() <= packed_bytes_max(&rows));
        let bytes = buffer.bytes().to_vec();
        let found = PackedBatch::parse(buffer).unwrap();
        prop_assert_eq!(copied(&all, &rows), copied(&all, &found.rows()));
        prop_assert_eq!(found.columns(), all.columns.len());
        // A part of it, packed again, is the part of the original.
        let half = found.len() / 2;
        let part = copied(&all, &found.rows().slice(half..found.len()));
        prop_assert_eq!(&part, &copied(&all, &rows.slice(half..rows.len())));
        let again = packed(&found.rows());
        prop_assert_eq!(again.bytes(), &bytes[..]);
        let mut out = vec![0xff; packed_bytes_max(&rows)];
        let written = pack_into(&rows, &mut out).unwrap();
        prop_assert_eq!(&out[..written], &bytes[..]);
        // Memory that held another batch holds this one as well.
        let mut again = found.into_buffer();
        pack(&Rows::all(&all), &mut again).unwrap();
        let found = PackedBatch::parse(again).unwrap();
        prop_assert_eq!(&copied(&all, &found.rows()), &all);
    }

    #[test]
    fn damage_is_refused_or_harmless(all in batches(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let whole = packed(&Rows::all(&all));
        let mut bytes = whole.bytes().to_vec();
        let cut = at.index(bytes.len());
        prop_assert!(PackedBatch::parse(buffer(&bytes[..cut])).is_err());
        bytes[cut] ^= flip;
        if let Ok(found) = PackedBatch::parse(buffer(&bytes)) {
            // Whatever it says now, all of it can be read.
            let rows = found.rows();
            for column in 0..rows.columns() {
                let keys: usize = rows.offsets(column).windows(2).map(|ends| (ends[1] - ends[0]) as usize).sum();
                prop_assert_eq!(keys, rows.keys(column).len());
                prop_assert!(rows.values(column).is_none_or(|values| values.len() == keys));
            }
        }
    }
}

#[test]
fn what_was_never_packed() {
    let rows: [Row; 2] = [(0.0, vec![vec![(1, 0.5)], vec![]]), (1.0, vec![vec![(2, 1.5)], vec![(3, 0.0)]])];
    let good = packed(&Rows::all(&batch(&[true, false], &rows))).bytes().to_vec();
    // Header, entries, labels, weights, then boundaries, keys and values of the first column.
    let check = |at: usize, word: u32, expected: PackedError| {
        let mut bytes = good.clone();
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        assert_eq!(PackedBatch::parse(buffer(&bytes)).unwrap_err(), expected, "{at}: {word:#x}");
    };
    let number = |what, column| PackedError::Number { what, column };
    let length = |needed| PackedError::Length { needed, found: good.len() as u64 };
    check(0, 7, PackedError::Magic);
    check(4, 2, PackedError::Version(2));
    check(8, u32::MAX, length(128 + 4 * ((1 << 32) - 1_u64).next_multiple_of(16)));
    check(8, 17, PackedError::Offsets { column: 0 });
    check(12, u32::MAX, PackedError::TooMany { what: "columns", found: u64::from(u32::MAX), max: 4096 });
    check(12, 1, length(good.len() as u64 - 2 * 64));
    check(64, u32::MAX, PackedError::Offsets { column: 0 });
    check(68, 7, PackedError::Flags { column: 0, flags: 7 });
    check(68, 2, PackedError::Flags { column: 0, flags: 2 });
    check(76, 2, PackedError::Flags { column: 1, flags: 2 });
    for label in [f32::INFINITY, 2.0, -1.0, 0.5, f32::MIN_POSITIVE] {
        check(128, label.to_bits(), number("a label other than 0, 1 and NaN", None));
    }
    for weight in [f32::NAN, -1.0, f32::INFINITY] {
        check(192, weight.to_bits(), number("a weight that is below 0 or not finite", None));
    }
    check(256, 1, PackedError::Offsets { column: 0 });
    check(260, 3, PackedError::Offsets { column: 0 });
    check(384, f32::NAN.to_bits(), number("a value that is not a finite number", Some(0)));
    let longer = [&good[..], &[0; 64]].concat();
    let error = PackedBatch::parse(buffer(&longer)).unwrap_err();
    assert_eq!(error, PackedError::Length { needed: good.len() as u64, found: longer.len() as u64 });
    assert_eq!(PackedBatch::parse(buffer(&[])).unwrap_err(), PackedError::Length { needed: 64, found: 0 });
}

proptest! {
    /// Columns that are left out have no keys in any row; the others are as they were.
    #[test]
    fn columns_are_left_out(all in batches(), left_out in prop::collection::btree_set(0..4_u32, 0..4)) {
        let rows = Rows::all(&all);
        let empty: Vec<u32> = left_out.into_iter().collect();
        let mut bytes = vec![0xee; packed_bytes_max(&rows) + 4 * (128 + 4 * (rows.len() + 1))];
        let length = pack_without(&rows, &empty, &mut bytes).expect("fits");
        let found = PackedBatch::parse(buffer(&bytes[..length])).expect("packed");
        let found = found.rows();
        prop_assert_eq!((found.labels().len(), found.columns()), (rows.len(), rows.columns()));
        for column in 0..rows.columns() {
            prop_assert_eq!(found.values(column).is_some(), rows.values(column).is_some());
            if empty.contains(&(column as u32)) {
                prop_assert!(found.keys(column).is_empty() && found.offsets(column).iter().all(|&at| at == 0));
            } else {
                prop_assert_eq!(found.keys(column), rows.keys(column));
                prop_assert_eq!(found.offsets(column), rows.offsets(column));
            }
        }
    }
}
