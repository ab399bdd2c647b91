//! Encoding by column against encoding row by row: random specs and random tables give equal batches and equal errors.

use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray,
    NullArray, RecordBatch, RunArray, StringArray, TimestampMillisecondArray, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::cast;
use arrow_schema::{DataType, Field as SchemaField};
use proptest::prelude::*;
use sanderling_formats::columnar::{Place, RecordEncoder, Records, encode_rows};
use sanderling_random::SplitMix64;
use sanderling_sample::{Batch, EncodeOptions, Encoder, LabelUse, SampleError, Spec};

/// Columns of a table: enough for features to share some.
const COLUMNS: u64 = 6;
const TEXTS: [&str; 12] = [
    "",
    "?",
    "a",
    "b|c",
    "a||?| d",
    "7",
    "-3",
    "2.5",
    "1e300",
    "2026-11-28T04:56:36.000+0100",
    "03:56:36.500",
    "a text of more than twelve bytes",
];

struct Draw(SplitMix64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// Whether something with a chance of one in `of` happens.
    fn once_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    /// A column of `rows` scalars of a random type; rarely with values that no number is.
    fn scalars(&mut self, rows: usize, is_wild: bool) -> ArrayRef {
        let nulls = self.once_in(2);
        let values = |draw: &mut Draw, wild: i64| -> Vec<Option<i64>> {
            let value =
                |draw: &mut Draw| if is_wild && draw.once_in(40) { wild } else { draw.below(9) as i64 - 2 };
            (0..rows).map(|_| (!nulls || !draw.once_in(4)).then(|| value(draw))).collect()
        };
        match self.below(9) {
            0 => Arc::new(Int64Array::from(values(self, i64::MIN))),
            1 => {
                Arc::new(Int32Array::from_iter(values(self, -7).into_iter().map(|value| Some(value? as i32))))
            }
            2 => Arc::new(UInt64Array::from_iter(
                values(self, -1).into_iter().map(|value| Some(value? as u64)),
            )),
            3 => {
                let float = |value: i64| if value == i64::MAX { 1e300 } else { value as f64 / 2.0 };
                let floats = values(self, i64::MAX).into_iter().map(|value| Some(float(value?)));
                Arc::new(Float64Array::from_iter(floats))
            }
            4 => Arc::new(BooleanArray::from_iter(values(self, 0).into_iter().map(|value| Some(value? > 0)))),
            5 => Arc::new(TimestampMillisecondArray::from(values(self, 86_400_000))),
            6 if self.once_in(4) => Arc::new(NullArray::new(rows)),
            _ => {
                let texts = if is_wild { &TEXTS[..] } else { &TEXTS[5..8] };
                let chosen = (0..rows).map(|_| (!nulls || !self.once_in(4)).then(|| self.one(texts)));
                let chosen: Vec<Option<&str>> = chosen.collect();
                let kinds = [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, DataType::Binary];
                cast(&(Arc::new(StringArray::from(chosen)) as ArrayRef), &kinds[self.below(4) as usize])
                    .unwrap()
            }
        }
    }

    /// A column of a random type, perhaps encoded, perhaps of lists.
    fn column(&mut self, rows: usize, is_wild: bool, may_be_list: bool) -> ArrayRef {
        match self.below(6) {
            0 => self.dictionary(rows, is_wild),
            1 => {
                let mut ends: Vec<i32> = (1..rows as i32).filter(|_| self.once_in(3)).collect();
                ends.push(rows as i32);
                let values = self.scalars(ends.len(), is_wild);
                Arc::new(RunArray::<Int32Type>::try_new(&Int32Array::from(ends), &values).unwrap())
            }
            2 | 3 if may_be_list => {
                let lengths: Vec<usize> = (0..rows).map(|_| self.below(4) as usize).collect();
                let elements = lengths.iter().sum();
                let values = if self.once_in(3) {
                    self.dictionary(elements, is_wild)
                } else {
                    self.scalars(elements, is_wild)
                };
                let nulls =
                    self.once_in(2).then(|| (0..rows).map(|_| !self.once_in(4)).collect::<NullBuffer>());
                let item = Arc::new(SchemaField::new("item", values.data_type().clone(), true));
                Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), values, nulls))
            }
            _ => self.scalars(rows, is_wild),
        }
    }

    fn dictionary(&mut self, rows: usize, is_wild: bool) -> ArrayRef {
        // Few entries are encoded once, many row by row.
        let entries = if self.once_in(2) { 1 + self.below(5) } else { 200 };
        let values = self.scalars(entries as usize, is_wild);
        let keys = (0..rows).map(|_| (!self.once_in(5)).then(|| self.below(entries) as i32));
        Arc::new(DictionaryArray::new(keys.collect::<Int32Array>(), values))
    }

    fn feature(&mut self, at: u64) -> String {
        let column = |draw: &mut Draw| format!("\"x{}\"", draw.below(COLUMNS));
        let kind = self.one(&["categorical", "categorical", "multi", "cross", "numeric", "log", "quantile"]);
        let several = kind == "cross" || ((kind == "categorical" || kind == "multi") && self.once_in(4));
        let columns = if several {
            let (a, b) = (column(self), column(self));
            format!("columns = [{a}, {b}]")
        } else {
            format!("column = {}", column(self))
        };
        let is_number = ["numeric", "log", "quantile"].contains(&kind);
        let mut toml = format!("[[feature]]\nname = \"f{at}\"\ntype = \"{kind}\"\n{columns}\n");
        if kind == "quantile" {
            toml += "boundaries = [-1.0, 0.5, 2.0]\n";
        }
        if !is_number {
            if self.once_in(3) && kind != "cross" {
                toml += "key = \"raw\"\n";
            } else if self.once_in(3) {
                toml += "key = { modulo = 5 }\n";
            }
            if self.once_in(3) {
                toml += "pooling = \"mean\"\n";
            }
            if self.once_in(3) && kind != "categorical" {
                toml += "separator = \"|\"\n";
            }
        }
        if self.once_in(3) {
            toml += if is_number { "default = 3.5\n" } else { "default = \"9\"\n" };
        }
        toml
    }

    fn spec(&mut self) -> String {
        let mut toml = String::new();
        toml += match self.below(3) {
            0 => "[label]\nthreshold = 1.0\n",
            1 => "[label]\npositive = [\"1\", \"2.5\", \"true\"]\n",
            _ => "",
        };
        if self.once_in(3) {
            toml += "[weight]\ncolumn = \"w\"\n";
        }
        if self.once_in(3) {
            toml += "[negatives]\nkeep = 0.4\n";
        }
        let features = 1 + self.below(5);
        toml + &(0..features).map(|at| self.feature(at)).collect::<String>()
    }
}

/// All numbers of a batch by their bits: labels may be NaN.
fn bits(batch: &Batch) -> impl PartialEq + std::fmt::Debug + use<> {
    let of = |floats: &[f32]| floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>();
    let columns =
        batch.columns.iter().map(|column| (column.keys.clone(), of(&column.values), column.offsets.clone()));
    (of(&batch.labels), of(&batch.weights), columns.collect::<Vec<_>>())
}

/// Encodes a random table both ways; returns the number of its slices, and of those that were encoded by column.
fn check(seed: u64) -> (u64, u64) {
    let mut draw = Draw(SplitMix64::new(seed));
    let toml = draw.spec();
    let spec: Spec = toml::from_str(&toml).unwrap();
    let label = if draw.once_in(3) { LabelUse::Optional } else { LabelUse::Required };
    let missing: &[String] = if draw.once_in(2) { &["?".to_string(), "7".to_string()] } else { &[] };
    let encoder = Encoder::new(&spec, &EncodeOptions { missing, label, down_sample: true }).unwrap();
    // Most tables fit the spec, so that most columns are encoded without an error.
    let is_wild = draw.once_in(3);
    let rows = 1 + draw.below(120) as usize;
    let columns = encoder.input_columns().iter().enumerate().map(|(input, name)| {
        let is_special = name == "label" || name == "w";
        let column: ArrayRef = if is_special && !draw.once_in(8) {
            Arc::new(Int64Array::from_iter_values((0..rows).map(|_| draw.below(3) as i64)))
        } else {
            draw.column(rows, is_wild, !is_special && (is_wild || encoder.takes_list(input)))
        };
        (name.clone(), column)
    });
    let columns: Vec<(String, ArrayRef)> = columns.collect();
    let records = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, column)| (name, column, true)),
    )
    .unwrap();
    let placeholder = draw.once_in(2);
    let (mut by_column, mut by_row) = (encoder.new_batch(), encoder.new_batch());
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    let mut records_encoder = RecordEncoder::default();
    let (mut start, mut slices) = (0, 0);
    while start < rows {
        slices += 1;
        let slice = Records::from(records.slice(start, (1 + draw.below(50) as usize).min(rows - start)));
        let place = Place {
            path: Path::new("x.arrow"),
            first_row: 1 + start as u64,
            first_row_id: 1000 + start as u64,
        };
        let count = |errors: &mut Vec<String>, error: SampleError, batch: &mut Batch| {
            errors.push(error.to_string());
            if placeholder {
                batch.close_row(f32::NAN, f32::NAN);
            }
            Ok(())
        };
        records_encoder
            .encode(&encoder, &slice, place, &mut by_column, |error, batch| count(&mut found, error, batch))
            .unwrap();
        encode_rows(&encoder, &slice, place, &mut by_row, |error, batch| count(&mut expected, error, batch))
            .unwrap();
        start += slice.num_rows();
    }
    assert_eq!(found, expected, "{toml}\n{records:?}");
    assert!(bits(&by_column) == bits(&by_row), "{toml}\n{records:?}\n{by_column:?}\n{by_row:?}");
    (slices, slices - records_encoder.walked())
}

#[test]
fn most_tables_are_encoded_by_column() {
    let counts: Vec<(u64, u64)> = (0..200).map(check).collect();
    let (slices, by_column) = counts.into_iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(by_column * 2 > slices, "{by_column} of {slices}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    #[test]
    fn columns_encode_as_rows_do(seed: u64) {
        check(seed);
    }
}
