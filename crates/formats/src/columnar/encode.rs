//! Encodes the cells of records by column: each entry of a dictionary once, lists by their offsets. Rows that need
//! more (crosses, errors) are walked one by one. Knows no file format.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;

use sanderling_sample::{Batch, Column, Encoder, Entries, Fate, Field, SampleError, Time};

use super::cells::{Cells, cells_of, is_text};
use super::flat::Piece;
use super::{bad_file, guarded};

/// Rows per entry from which on the entries of a dictionary are encoded once, not each row by itself.
const ROWS_PER_ENTRY: f64 = 0.5;

/// Some rows of a file, one column per input column of the encoder; not decoded yet where that can wait.
#[derive(Clone, Debug)]
pub struct Records {
    pub(super) rows: usize,
    pub(super) columns: Vec<RawColumn>,
    /// The columns' types in the file.
    pub(super) schema: SchemaRef,
}

#[derive(Clone, Debug)]
pub(super) enum RawColumn {
    Array(ArrayRef),
    Flat(Piece),
}

impl Records {
    /// Number of rows.
    #[must_use]
    pub fn num_rows(&self) -> usize {
        self.rows
    }
}

impl From<RecordBatch> for Records {
    fn from(batch: RecordBatch) -> Records {
        let columns = batch.columns().iter().map(|column| RawColumn::Array(Arc::clone(column))).collect();
        Records { rows: batch.num_rows(), columns, schema: batch.schema() }
    }
}

/// The place of records in the input.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The file.
    pub path: &'a Path,
    /// The file row of the first row, from 1.
    pub first_row: u64,
    /// The position of the first row in the whole input, which decides about down-sampling.
    pub first_row_id: u64,
}

/// Encodes records. One per thread: it keeps the keys of the last dictionaries.
#[derive(Debug, Default)]
pub struct RecordEncoder {
    /// Per feature the dictionary of its column.
    dictionaries: Vec<Option<Dictionary>>,
    rows: Vec<u32>,
    bad: Vec<u32>,
    walked: u64,
}

#[derive(Debug)]
struct Dictionary {
    source: ArrayRef,
    rows_seen: usize,
    entries: Option<Entries>,
}

impl RecordEncoder {
    /// How many times the rows of records were encoded one by one, because one of them did not encode.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Appends the rows of records to a batch; their columns run parallel to the encoder's input columns.
    ///
    /// A row that does not encode is passed to `on_bad`, which returns the error to stop, or accounts for it and may
    /// close a placeholder row in the batch.
    ///
    /// # Errors
    /// Errors of `on_bad`; `BadFile` if a column does not convert at all.
    pub fn encode(
        &mut self,
        encoder: &Encoder,
        records: &Records,
        place: Place<'_>,
        batch: &mut Batch,
        on_bad: impl FnMut(SampleError, &mut Batch) -> Result<(), SampleError>,
    ) -> Result<(), SampleError> {
        let columns = convert(encoder, records, place)?;
        let before = batch.len();
        if self.by_column(encoder, &columns, records.rows, place.first_row_id, batch) {
            return Ok(());
        }
        batch.truncate(before);
        self.walked += 1;
        by_row(encoder, &columns, records, place, batch, on_bad)
    }

    /// Appends all rows, or returns `false` if one of them does not encode and leaves the batch unspecified.
    fn by_column(
        &mut self,
        encoder: &Encoder,
        columns: &[Cells],
        rows: usize,
        first_row_id: u64,
        batch: &mut Batch,
    ) -> bool {
        let before = batch.len();
        let fields = |input: usize| (0..rows).map(move |row| columns[input].field(row, &[]));
        if is_list(&columns[encoder.label_input()])
            || !encoder.encode_labels(fields(encoder.label_input()), &mut batch.labels)
        {
            return false;
        }
        let Some(chosen) = choose(encoder, columns, first_row_id, before, batch) else { return false };
        let chosen = Chosen { rows: chosen.as_deref(), len: batch.labels.len() - before };
        if let Some(input) = encoder.weight_input() {
            let fields = chosen.iter().map(|row| columns[input].field(row, &[]));
            if is_list(&columns[input])
                || !encoder.encode_weights(input, fields, &mut batch.weights[before..])
            {
                return false;
            }
        }
        self.dictionaries.resize_with(batch.columns.len(), || None);
        (0..batch.columns.len()).all(|feature| {
            let column = &mut batch.columns[feature];
            match encoder.only_input(feature).map(|input| &columns[input]) {
                Some(Cells::List { .. }) if !encoder.takes_elements(feature) => {
                    feature_by_row(encoder, feature, columns, chosen, column)
                }
                Some(cells) => self.feature_by_column(encoder, feature, cells, chosen, column),
                None => feature_by_row(encoder, feature, columns, chosen, column),
            }
        })
    }

    fn feature_by_column(
        &mut self,
        encoder: &Encoder,
        feature: usize,
        cells: &Cells,
        chosen: Chosen<'_>,
        column: &mut Column,
    ) -> bool {
        match cells {
            Cells::List { offsets, nulls, values, len } => {
                let mut elements = Column::new(false);
                let all = Chosen { rows: None, len: *len };
                if !self.scalars(encoder, feature, Part::Elements, values, all, &mut elements) {
                    return false;
                }
                let list = |row: usize| {
                    let is_there = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
                    let place = |at: usize| (offsets[at] - offsets[0]) as usize;
                    is_there.then(|| place(row)..place(row + 1))
                };
                encoder.encode_lists(feature, chosen.iter().map(list), &elements, column)
            }
            scalars => self.scalars(encoder, feature, Part::Rows, scalars, chosen, column),
        }
    }

    /// Appends a row per chosen cell.
    fn scalars(
        &mut self,
        encoder: &Encoder,
        feature: usize,
        part: Part,
        cells: &Cells,
        chosen: Chosen<'_>,
        column: &mut Column,
    ) -> bool {
        if let Cells::Parts(parts) = cells {
            let (mut start, mut first) = (0, 0);
            return parts.iter().all(|(end, cells)| {
                let here = chosen.within(&mut first, start..*end);
                let rows: Option<Vec<u32>> =
                    here.rows.map(|rows| rows.iter().map(|row| row - start as u32).collect());
                start = *end;
                let here = Chosen { rows: rows.as_deref(), len: here.len };
                self.scalars(encoder, feature, part, cells, here, column)
            });
        }
        if let Cells::Indexed { rows, values, dictionary } = cells
            && let Some(entries) =
                known(&mut self.dictionaries[feature], encoder, feature, part, values, dictionary, chosen.len)
        {
            let Some(chosen) = chosen.rows else { return entries.append_to(rows, column) };
            self.rows.clear();
            self.rows.extend(chosen.iter().map(|row| rows[*row as usize]));
            return entries.append_to(&self.rows, column);
        }
        self.bad.clear();
        encode_cells(encoder, feature, part, cells, chosen, column, &mut self.bad);
        self.bad.is_empty()
    }
}

/// The entries of a dictionary, encoded, and behind them a missing one; `None` while that does not pay.
fn known<'a>(
    known: &'a mut Option<Dictionary>,
    encoder: &Encoder,
    feature: usize,
    part: Part,
    values: &Cells,
    source: &ArrayRef,
    rows: usize,
) -> Option<&'a Entries> {
    if !known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.source, source)) {
        *known = None;
    }
    let known =
        known.get_or_insert_with(|| Dictionary { source: Arc::clone(source), rows_seen: 0, entries: None });
    known.rows_seen = known.rows_seen.saturating_add(rows);
    if known.entries.is_none() && known.rows_seen as f64 >= source.len() as f64 * ROWS_PER_ENTRY {
        let (mut column, mut bad) =
            (Column::new(encoder.weighted()[feature] && part == Part::Rows), Vec::new());
        let all = Chosen { rows: None, len: source.len() };
        encode_cells(encoder, feature, part, values, all, &mut column, &mut bad);
        let entries = bad.len();
        encode_cells(
            encoder,
            feature,
            part,
            &Cells::Null,
            Chosen { rows: None, len: 1 },
            &mut column,
            &mut bad,
        );
        bad[entries..].iter_mut().for_each(|at| *at += source.len() as u32);
        known.entries = Some(Entries::new(column, bad));
    }
    known.entries.as_ref()
}

/// The meaning of scalar cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A cell is a row.
    Rows,
    /// A cell is an element of a list.
    Elements,
}

/// The rows that are encoded.
#[derive(Clone, Copy, Debug)]
struct Chosen<'a> {
    /// Their indices; `None` for all.
    rows: Option<&'a [u32]>,
    len: usize,
}

impl<'a> Chosen<'a> {
    /// The chosen rows within a range; `first` counts the chosen rows before it.
    fn within(self, first: &mut usize, range: std::ops::Range<usize>) -> Chosen<'a> {
        let Some(rows) = self.rows else { return Chosen { rows: None, len: range.len() } };
        let rows = &rows[*first..];
        let rows = &rows[..rows.partition_point(|row| (*row as usize) < range.end)];
        *first += rows.len();
        Chosen { rows: Some(rows), len: rows.len() }
    }

    #[inline]
    fn iter(self) -> impl Iterator<Item = usize> + use<'a> {
        (0..self.len).map(move |at| self.rows.map_or(at, |rows| rows[at] as usize))
    }
}

/// Removes the labels from `before` on whose rows down-sampling or a holdout leaves out, and appends the weights of the others.
/// The rows kept, or `None` within if all are; `None` where a row has to be looked at by itself.
#[expect(clippy::option_option, reason = "the outer one is a failure, the inner one all rows")]
fn choose(
    encoder: &Encoder,
    columns: &[Cells],
    first_row_id: u64,
    before: usize,
    batch: &mut Batch,
) -> Option<Option<Vec<u32>>> {
    let rows = batch.labels.len() - before;
    if encoder.keeps_all(&batch.labels[before..]) {
        batch.weights.resize(before + rows, 1.0);
        return Some(None);
    }
    let mut kept = Vec::with_capacity(rows);
    for row in 0..rows {
        let label = batch.labels[before + row];
        if let Some(weight) = encoder.keep(label, first_row_id + row as u64) {
            // A list has no element here: it is an error of its row.
            if !encoder.has_field(|input| columns[input].field(row, &[])).ok()? {
                continue;
            }
            batch.labels[before + kept.len()] = label;
            batch.weights.push(weight);
            kept.push(row as u32);
        }
    }
    batch.labels.truncate(before + kept.len());
    Some(Some(kept))
}

fn is_list(cells: &Cells) -> bool {
    matches!(cells, Cells::List { .. })
}

/// Appends a row per chosen cell, by a loop for the type of the cells.
fn encode_cells(
    encoder: &Encoder,
    feature: usize,
    part: Part,
    cells: &Cells,
    chosen: Chosen<'_>,
    column: &mut Column,
    bad: &mut Vec<u32>,
) {
    macro_rules! encode {
        ($field:expr) => {
            match part {
                Part::Rows => encoder.encode_fields(feature, chosen.iter().map($field), column, bad),
                Part::Elements => encoder.encode_elements(feature, chosen.iter().map($field), column, bad),
            }
        };
    }
    macro_rules! encode_array {
        ($array:expr, $field:expr) => {{
            let (array, field) = ($array, $field);
            encode!(|row| if array.is_null(row) { Field::Missing } else { field(array.value(row)) })
        }};
    }
    match cells {
        Cells::Null => encode!(|_| Field::Missing),
        Cells::Int(array) => encode_array!(array, Field::Int),
        Cells::Unsigned(array) => encode_array!(array, Field::Unsigned),
        Cells::Float(array) => encode_array!(array, Field::Float),
        Cells::Bool(array) => encode_array!(array, Field::Bool),
        Cells::Fixed(array) => encode_array!(array, Field::Text),
        Cells::Text(array) => encode_array!(array, Field::Text),
        Cells::LargeText(array) => encode_array!(array, Field::Text),
        Cells::ViewText(array) => encode_array!(array, Field::Text),
        Cells::Days(array) => encode_array!(array, |day| Field::Time(Time::of_day(day as i32))),
        Cells::Time { counts, kind, per_second } => {
            encode_array!(counts, |count| Field::Time(Time::of(*kind, count, *per_second)));
        }
        Cells::Digits(_) | Cells::Indexed { .. } | Cells::Parts(_) | Cells::List { .. } => {
            encode!(|row| cells.field(row, &[]));
        }
    }
}

/// Appends the rows of a feature that needs several input columns, or all elements of a list, at a time.
fn feature_by_row(
    encoder: &Encoder,
    feature: usize,
    columns: &[Cells],
    chosen: Chosen<'_>,
    column: &mut Column,
) -> bool {
    let inputs = encoder.inputs(feature);
    let elements: Vec<Vec<Field<'_>>> = inputs.iter().map(|&input| columns[input].elements()).collect();
    let mut fields = vec![Field::Missing; columns.len()];
    chosen.iter().all(|row| {
        for (&input, elements) in inputs.iter().zip(&elements) {
            fields[input] = columns[input].field(row, elements);
        }
        encoder.encode_feature(feature, &fields, column)
    })
}

/// Decodes each column, and casts it to the layout of its type.
fn convert(encoder: &Encoder, records: &Records, place: Place<'_>) -> Result<Vec<Cells>, SampleError> {
    let names = encoder.input_columns();
    debug_assert_eq!(records.columns.len(), names.len());
    guarded(place.path, "converting", || {
        for column in &records.columns {
            if let RawColumn::Flat(piece) = column {
                piece.unpack_unless_busy();
            }
        }
        let columns = records.columns.iter().zip(names);
        let cells = columns.map(|(column, name)| match column {
            RawColumn::Array(array) => {
                cells_of(array).map_err(|error| bad_file(place.path, format!("column {name:?}: {error}")))
            }
            RawColumn::Flat(piece) => piece.cells().map_err(|reason| {
                let rows = place.first_row.saturating_sub(1);
                bad_file(place.path, format!("damaged after row {rows}: column {name:?}: {reason}"))
            }),
        });
        cells.collect::<Result<Vec<Cells>, SampleError>>()
    })
}

/// Appends the rows of records like [`RecordEncoder::encode`], one by one: the reference for the encoding by column.
///
/// # Errors
/// As [`RecordEncoder::encode`].
pub fn encode_rows(
    encoder: &Encoder,
    records: &Records,
    place: Place<'_>,
    batch: &mut Batch,
    on_bad: impl FnMut(SampleError, &mut Batch) -> Result<(), SampleError>,
) -> Result<(), SampleError> {
    by_row(encoder, &convert(encoder, records, place)?, records, place, batch, on_bad)
}

fn by_row(
    encoder: &Encoder,
    columns: &[Cells],
    records: &Records,
    place: Place<'_>,
    batch: &mut Batch,
    mut on_bad: impl FnMut(SampleError, &mut Batch) -> Result<(), SampleError>,
) -> Result<(), SampleError> {
    let elements: Vec<Vec<Field<'_>>> = columns.iter().map(Cells::elements).collect();
    let mut fields = vec![Field::Missing; columns.len()];
    for row in 0..records.rows {
        for ((field, column), elements) in fields.iter_mut().zip(columns).zip(&elements) {
            *field = column.field(row, elements);
        }
        match encoder.encode_row(&fields, place.first_row_id + row as u64, batch) {
            Ok(Fate::Kept | Fate::Dropped) => {}
            Err(error) => {
                let error = SampleError::BadRow {
                    path: place.path.to_path_buf(),
                    line: place.first_row + row as u64,
                    column: encoder.input_columns().get(error.column).cloned().unwrap_or_default(),
                    expected: error.expected,
                    found: match records.schema.fields().get(error.column).map(|field| field.data_type()) {
                        Some(kind) if !is_text(kind) => format!("{} (of type {kind})", error.found),
                        _ => error.found,
                    },
                };
                on_bad(error, batch)?;
            }
        }
    }
    Ok(())
}
