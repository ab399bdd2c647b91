//! Encoding by column: one feature of many rows at a time.
//!
//! The keys and values equal those of [`Encoder::encode_row`] bit for bit, since both call the same functions for a field. Errors
//! are only counted here; the caller encodes the rows again, one by one, to learn them. It knows no file format.

use crate::batch::Column;
use crate::encode::Encoder;
use crate::field::{Field, is_missing};
use crate::spec::{FeatureKind, KeyRule};

impl Encoder {
    /// The input columns of a feature, as indices into [`Encoder::input_columns`].
    #[must_use]
    pub fn inputs(&self, feature: usize) -> &[usize] {
        &self.features[feature].inputs
    }

    /// The input column of a feature that has only one, and whose rows need no other.
    #[must_use]
    pub fn only_input(&self, feature: usize) -> Option<usize> {
        let feature = &self.features[feature];
        match feature.inputs[..] {
            [input] if !matches!(feature.kind, FeatureKind::Cross | FeatureKind::Sparse) => Some(input),
            _ => None,
        }
    }

    /// Whether a feature takes the elements of a list as keys.
    #[must_use]
    pub fn takes_elements(&self, feature: usize) -> bool {
        self.features[feature].kind == FeatureKind::Multi
    }

    /// Appends the labels of rows; `false` if one has none.
    #[must_use]
    pub fn encode_labels<'a>(&self, fields: impl Iterator<Item = Field<'a>>, labels: &mut Vec<f32>) -> bool {
        for field in fields {
            match self.label_of(field) {
                Ok(label) => labels.push(label),
                Err(_) => return false,
            }
        }
        true
    }

    /// Multiplies weights by those of the fields; `false` if a field is none.
    #[must_use]
    pub fn encode_weights<'a>(
        &self,
        input: usize,
        fields: impl Iterator<Item = Field<'a>>,
        weights: &mut [f32],
    ) -> bool {
        for (weight, field) in weights.iter_mut().zip(fields) {
            match self.weight_of(input, field) {
                Ok(factor) => *weight *= factor,
                Err(_) => return false,
            }
        }
        true
    }

    /// Appends a row per field to the column of a feature that has one input; the index of a field that does not encode
    /// goes to `bad`, and its row is unspecified.
    pub fn encode_fields<'a>(
        &self,
        feature: usize,
        fields: impl Iterator<Item = Field<'a>>,
        column: &mut Column,
        bad: &mut Vec<u32>,
    ) {
        let (feature, missing) = (&self.features[feature], &self.missing[..]);
        let input = feature.inputs.first().copied().unwrap_or_default();
        let fields = fields.enumerate();
        match feature.kind {
            FeatureKind::Numeric | FeatureKind::Log => {
                let first = column.keys.len();
                let numbers = fields.map(|(at, field)| {
                    feature.number(input, field, missing).unwrap_or_else(|_| {
                        bad.push(at as u32);
                        (0, 0.0)
                    })
                });
                for (key, value) in numbers {
                    column.keys.push(key);
                    column.values.push(value);
                }
                column.close_single_rows(first);
            }
            FeatureKind::Categorical if feature.rule != KeyRule::Raw => {
                let first = column.keys.len();
                column.keys.extend(fields.map(|(at, field)| {
                    feature.category(input, field, missing).ok().flatten().unwrap_or_else(|| {
                        bad.push(at as u32);
                        0
                    })
                }));
                column.close_single_rows(first);
            }
            _ => fields.for_each(|(at, field)| {
                let start = column.keys.len();
                if feature.field(input, field, missing, column).is_err() {
                    bad.push(at as u32);
                }
                feature.close_means(start, column);
                column.close_row();
            }),
        }
    }

    /// Appends a row per list element to a column: its key, or none if it is missing. The index of an element that does not
    /// encode goes to `bad`.
    pub fn encode_elements<'a>(
        &self,
        feature: usize,
        fields: impl Iterator<Item = Field<'a>>,
        column: &mut Column,
        bad: &mut Vec<u32>,
    ) {
        let (feature, missing) = (&self.features[feature], &self.missing[..]);
        let input = feature.inputs.first().copied().unwrap_or_default();
        for (at, field) in fields.enumerate() {
            if !is_missing(field, missing) {
                match feature.key(input, field) {
                    Ok(key) => column.push(key, 1.0),
                    Err(_) => bad.push(at as u32),
                }
            }
            column.close_row();
        }
    }

    /// Appends a row per list: the keys of its elements, which [`Encoder::encode_elements`] gave as rows. `None` is a
    /// missing list. Returns `false` if a row does not encode.
    #[must_use]
    pub fn encode_lists(
        &self,
        feature: usize,
        lists: impl Iterator<Item = Option<std::ops::Range<usize>>>,
        elements: &Column,
        column: &mut Column,
    ) -> bool {
        let (feature, missing) = (&self.features[feature], &self.missing[..]);
        let input = feature.inputs.first().copied().unwrap_or_default();
        for list in lists {
            let start = column.keys.len();
            match list.filter(|list| !list.is_empty()) {
                Some(list) => {
                    let keys = elements.offsets[list.start] as usize..elements.offsets[list.end] as usize;
                    column.keys.extend_from_slice(&elements.keys[keys]);
                    if column.is_weighted() {
                        column.values.resize(column.keys.len(), 1.0);
                    }
                }
                None => {
                    if feature.field(input, Field::Missing, missing, column).is_err() {
                        return false;
                    }
                }
            }
            feature.close_means(start, column);
            column.close_row();
        }
        true
    }

    /// Appends a row to the column of any feature, from the fields of all input columns; `false` if they do not encode.
    #[must_use]
    pub fn encode_feature(&self, feature: usize, fields: &[Field<'_>], column: &mut Column) -> bool {
        let is_encoded = self.features[feature].encode(fields, &self.missing, column).is_ok();
        column.close_row();
        is_encoded
    }
}

/// The encoded entries of a dictionary, for one feature.
#[derive(Debug)]
pub struct Entries {
    column: Column,
    is_single: bool,
    /// Sorted indices of entries that do not encode.
    bad: Vec<u32>,
}

impl Entries {
    /// Creates them from a column with a row per entry, and the sorted indices of entries that do not encode.
    #[must_use]
    pub fn new(mut column: Column, bad: Vec<u32>) -> Entries {
        let is_single = column.is_single();
        if is_single {
            // Only the keys are read.
            column.offsets = Vec::new();
        }
        Entries { column, is_single, bad }
    }

    /// Appends rows by the indices of their entries; `false` if one of these does not encode.
    #[must_use]
    pub fn append_to(&self, rows: &[u32], column: &mut Column) -> bool {
        if !self.bad.is_empty() && rows.iter().any(|row| self.bad.binary_search(row).is_ok()) {
            return false;
        }
        column.gather_rows(&self.column, rows, self.is_single);
        true
    }

    /// Bytes of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.column.bytes()
    }
}
