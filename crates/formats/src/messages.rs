//! Blocks of protocol-buffer messages (tf.Example, or our own sample) decoded into the rows of a batch. Knows no file
//! and no compression.
//!
//! The messages are decoded by hand: `prost`, which serves the control protocol, would build for every row a map with
//! a string per name and a vector per value, of all features whether the spec reads them or not. Here a field stays
//! in the block, and a row costs no allocation. The tests compare this with `prost`.

mod example;
mod protobuf;
mod slots;

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use protobuf::{Cursor, Malformed};
use sanderling_sample::{Batch, Encoder, Fate, Field, SampleError};
use slots::Part;

pub use crate::format::Message;
use crate::lines::Lines;
use crate::records::{RecordBlock, WHOLE_RECORD};

/// Slots of a sample have indices up to this.
pub(crate) const SLOT_INDEX_MAX: u32 = 65_535;

/// The columns of a sample are `label`, and these prefixes with a slot index appended.
const LABEL: &str = "label";
const SPARSE: &str = "sparse_";
const DENSE: &str = "dense_";

/// The encoder's inputs by part of a message.
#[derive(Debug)]
pub(crate) struct Layout {
    inputs: Inputs,
    /// Per input: whether it is always a list; other inputs are one value, and a list only in a row with several.
    is_list: Vec<bool>,
}

#[derive(Debug)]
enum Inputs {
    Example(Names),
    Sample(Slots),
}

impl Layout {
    /// # Errors
    /// A spec that reads libsvm pairs, or a column that no sample has.
    pub(crate) fn open(message: Message, path: &Path, encoder: &Encoder) -> Result<Layout, SampleError> {
        if encoder.is_sparse() {
            let reason = format!(
                "{}: a feature of type \"sparse\" reads libsvm or libffm text; here features read columns by name",
                path.display()
            );
            return Err(SampleError::Settings(reason));
        }
        let columns = encoder.input_columns();
        let inputs = match message {
            Message::Example => Inputs::Example(Names::new(columns)),
            Message::Sample => Inputs::Sample(Slots::new(columns, path)?),
        };
        Ok(Layout { inputs, is_list: (0..columns.len()).map(|input| encoder.takes_list(input)).collect() })
    }
}

/// The input columns by name: open addressing, since every name of every row is looked up.
#[derive(Debug)]
struct Names {
    /// A power of two of slots, at most half of them in use.
    places: Vec<Option<(Box<[u8]>, u32)>>,
}

impl Names {
    fn new(names: &[String]) -> Names {
        let mut places = vec![None; (2 * names.len()).next_power_of_two()];
        let mask = places.len() - 1;
        for (input, name) in names.iter().enumerate() {
            let mut at = xxh3_64(name.as_bytes()) as usize & mask;
            while places[at].is_some() {
                at = (at + 1) & mask;
            }
            places[at] = Some((name.as_bytes().into(), input as u32));
        }
        Names { places }
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<usize> {
        let mask = self.places.len() - 1;
        let mut at = xxh3_64(name) as usize & mask;
        loop {
            match self.places.get(at)? {
                None => return None,
                Some((found, input)) if **found == *name => return Some(*input as usize),
                Some(_) => at = (at + 1) & mask,
            }
        }
    }
}

/// The input columns by index of their slots.
#[derive(Debug, Default)]
struct Slots {
    label: Option<usize>,
    sparse: Vec<Option<u32>>,
    dense: Vec<Option<u32>>,
}

impl Slots {
    fn new(columns: &[String], path: &Path) -> Result<Slots, SampleError> {
        let mut slots = Slots::default();
        for (input, column) in columns.iter().enumerate() {
            let (slots, index) = match (column.strip_prefix(SPARSE), column.strip_prefix(DENSE)) {
                _ if column == LABEL => {
                    slots.label = Some(input);
                    continue;
                }
                (Some(index), _) => (&mut slots.sparse, index),
                (_, Some(index)) => (&mut slots.dense, index),
                _ => return Err(no_such_column(path, column)),
            };
            let parsed = index.parse::<u32>().ok();
            let Some(at) = parsed.filter(|at| *at <= SLOT_INDEX_MAX && at.to_string() == index) else {
                return Err(no_such_column(path, column));
            };
            let at = at as usize;
            if slots.len() <= at {
                slots.resize(at + 1, None);
            }
            slots[at] = Some(input as u32);
        }
        Ok(slots)
    }
}

fn no_such_column(path: &Path, column: &str) -> SampleError {
    let reason = format!(
        "no column {column:?}: the columns of this format are {LABEL:?}, \"{SPARSE}<index>\" and \"{DENSE}<index>\" \
         with indices of 0 to {SLOT_INDEX_MAX}"
    );
    SampleError::BadFile { path: path.to_path_buf(), reason }
}

/// The values of one row; the memory is reused from row to row.
struct Values<'a> {
    elements: Vec<Field<'a>>,
    /// Per input, its range of elements.
    spans: Vec<(u32, u32)>,
}

impl<'a> Values<'a> {
    /// Reads the values of the inputs and skips all others.
    #[inline]
    fn read(&mut self, inputs: &Inputs, record: &'a [u8]) -> Result<(), Malformed> {
        let Values { elements, spans } = self;
        elements.clear();
        spans.fill((0, 0));
        match inputs {
            Inputs::Example(names) => example::each_entry(record, |name, entry| {
                if let Some(input) = names.find(name) {
                    let from = elements.len();
                    example::values(entry, elements)?;
                    spans[input] = (from as u32, elements.len() as u32);
                }
                Ok(())
            }),
            Inputs::Sample(slots) => slots::each_part(record, |part| {
                let from = elements.len();
                let (of, index, bytes) = match part {
                    Part::Label(label) => {
                        if let Some(input) = slots.label {
                            elements.push(Field::Float(f64::from(label)));
                            spans[input] = (from as u32, elements.len() as u32);
                        }
                        return Ok(());
                    }
                    Part::Sparse(index, bytes) => (&slots.sparse, index, bytes),
                    Part::Dense(index, bytes) => (&slots.dense, index, bytes),
                };
                let Some(input) = of.get(index as usize).copied().flatten() else { return Ok(()) };
                let span = &mut spans[input as usize];
                if span.0 != span.1 {
                    return Err(Cursor::new(bytes).malformed("each slot at most once"));
                }
                match part {
                    Part::Sparse(..) => slots::keys(bytes, elements)?,
                    _ => slots::numbers(bytes, elements)?,
                }
                *span = (from as u32, elements.len() as u32);
                Ok(())
            }),
        }
    }
}

/// An empty vector of another lifetime with the same allocation.
fn emptied<'a>(mut fields: Vec<Field<'_>>) -> Vec<Field<'a>> {
    fields.clear();
    // Collecting an empty iterator over elements of equal size keeps the allocation.
    fields.into_iter().map(|_| Field::Missing).collect()
}

/// Appends the rows of a block.
pub(crate) fn decode(
    lines: &Lines<'_>,
    layout: &Layout,
    block: &RecordBlock,
    batch: &mut Batch,
) -> Result<(), SampleError> {
    let columns = lines.encoder.input_columns();
    let mut values = Values { elements: Vec::new(), spans: vec![(0, 0); columns.len()] };
    let mut kept: Vec<Field<'static>> = Vec::with_capacity(columns.len());
    for (number, record) in block.records() {
        let bad = |column: &str, expected: String, found: String| {
            let (path, column) = (lines.path.to_path_buf(), column.to_string());
            SampleError::BadRow { path, line: number, column, expected, found }
        };
        let read = record.map_err(|(computed, stored)| {
            let expected = format!("checksum {computed:08x} behind the data");
            bad(WHOLE_RECORD, expected, format!("{stored:08x} (damaged)"))
        });
        let read = read.and_then(|record| {
            values.read(&layout.inputs, record).map_err(|malformed| {
                let found = format!("none at byte {} of {}", malformed.offset_in(record), record.len());
                bad(WHOLE_RECORD, malformed.expected.to_string(), found)
            })
        });
        if let Err(error) = read {
            lines.bad_rows.reject(error, batch)?;
            continue;
        }
        let mut row: Vec<Field<'_>> = emptied(kept);
        row.extend(values.spans.iter().zip(&layout.is_list).map(|(&(from, to), &is_list)| {
            match &values.elements[from as usize..to as usize] {
                [] => Field::Missing,
                [one] if !is_list => *one,
                several => Field::List(several),
            }
        }));
        let encoded = lines.encoder.encode_row(&row, lines.row_id_base + number, batch);
        kept = emptied(row);
        match encoded {
            Ok(Fate::Kept | Fate::Dropped) => {}
            Err(error) => {
                let column = columns.get(error.column).map_or("", String::as_str);
                lines.bad_rows.reject(bad(column, error.expected, error.found), batch)?;
            }
        }
    }
    Ok(())
}

/// Calls `on` with the name and the values of every column of a record, for callers without a spec.
///
/// A repeated column replaces the earlier one. An error contains the expected and the found text.
pub fn each_column<'a>(
    message: Message,
    record: &'a [u8],
    values: &mut Vec<Field<'a>>,
    mut on: impl FnMut(&[u8], &[Field<'a>]),
) -> Result<(), (String, String)> {
    let mut name = String::new();
    let read = match message {
        Message::Example => example::each_entry(record, |name, entry| {
            values.clear();
            example::values(entry, values)?;
            on(name, values);
            Ok(())
        }),
        Message::Sample => slots::each_part(record, |part| {
            values.clear();
            name.clear();
            match part {
                Part::Label(label) => {
                    name.push_str(LABEL);
                    values.push(Field::Float(f64::from(label)));
                }
                Part::Sparse(index, bytes) => {
                    name.push_str(SPARSE);
                    name.push_str(&index.to_string());
                    slots::keys(bytes, values)?;
                }
                Part::Dense(index, bytes) => {
                    name.push_str(DENSE);
                    name.push_str(&index.to_string());
                    slots::numbers(bytes, values)?;
                }
            }
            on(name.as_bytes(), values);
            Ok(())
        }),
    };
    read.map_err(|malformed| {
        let found = format!("none at byte {} of {}", malformed.offset_in(record), record.len());
        (malformed.expected.to_string(), found)
    })
}
