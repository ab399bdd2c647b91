//! The compiled spec: turns the fields of one row into label, weight and keys. Knows no file format.

use std::sync::Arc;

use crate::batch::Batch;
use crate::compile::Compiled;
use crate::error::{FieldError, SampleError};
use crate::field::{Field, VALUE_ABS_MAX, WEIGHT_MAX, is_missing, number_of, wanted, with_text};
use crate::holdout::{Holdout, RowChoice, Side};
use crate::key;
use crate::note_name::NoteName;
use crate::spec::{FeatureKind, KeyRule, Label, Negatives, Spec};

/// The outcome for a row that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is in the batch.
    Kept,
    /// Negative down-sampling left it out, or it is on the other side of a holdout.
    Dropped,
}

/// Whether a file must have labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelUse {
    /// Training and evaluation: a row without a label is a bad row.
    Required,
    /// Prediction: labels may be missing, altogether or per row, and read as NaN.
    Optional,
}

/// Options of an encoder beside its spec.
#[derive(Clone, Copy, Debug)]
pub struct EncodeOptions<'a> {
    /// Texts that mean a missing value; the empty text always does.
    pub missing: &'a [String],
    /// Whether labels must be there.
    pub label: LabelUse,
    /// Whether `negatives.keep` applies (training only).
    pub down_sample: bool,
}

/// A compiled spec: immutable, shared by all decoding threads.
#[derive(Debug)]
pub struct Encoder {
    spec: Spec,
    input_columns: Vec<String>,
    label: Label,
    label_use: LabelUse,
    pub(crate) label_input: usize,
    pub(crate) weight_input: Option<usize>,
    negatives: Option<Negatives>,
    pub(crate) missing: Vec<Vec<u8>>,
    pub(crate) features: Vec<Compiled>,
    weighted: Vec<bool>,
    sparse_features: SparseFeatures,
    /// Rows held out for validation, or the others; `None`: all rows.
    choice: Option<RowChoice>,
}

/// The features that read the pairs of a libffm line.
#[derive(Debug)]
pub enum SparseFeatures {
    /// The first feature reads all fields.
    WholeLine,
    /// By field number; `NO_FEATURE` and larger numbers are not read.
    ByField(Vec<u32>),
}

/// In `SparseFeatures::ByField`: no feature reads the field.
pub const NO_FEATURE: u32 = u32::MAX;

impl SparseFeatures {
    fn of(spec: &Spec) -> SparseFeatures {
        let mut by_field = Vec::new();
        for (index, feature) in spec.feature.iter().enumerate() {
            for field in feature.fields().unwrap_or_default() {
                by_field.resize(by_field.len().max(field as usize + 1), NO_FEATURE);
                by_field[field as usize] = index as u32;
            }
        }
        if by_field.is_empty() { SparseFeatures::WholeLine } else { SparseFeatures::ByField(by_field) }
    }

    /// The feature that reads pairs of this field.
    #[inline]
    pub fn of_field(&self, field: u64) -> Option<usize> {
        match self {
            SparseFeatures::WholeLine => Some(0),
            SparseFeatures::ByField(features) => {
                let feature = *usize::try_from(field).ok().and_then(|field| features.get(field))?;
                (feature != NO_FEATURE).then_some(feature as usize)
            }
        }
    }
}

impl Encoder {
    /// Compiles a spec. Quantile features must have their boundaries (see `fit`).
    pub fn new(spec: &Spec, options: &EncodeOptions<'_>) -> Result<Self, SampleError> {
        let spec = spec.expand()?;
        if let Some(feature) = spec.unfitted().next() {
            return Err(SampleError::Spec(format!(
                "feature {:?}: quantile boundaries are not fitted yet",
                feature.name
            )));
        }
        let mut input_columns: Vec<String> = Vec::new();
        let mut input = |name: &str| {
            input_columns.iter().position(|column| column == name).unwrap_or_else(|| {
                input_columns.push(name.to_string());
                input_columns.len() - 1
            })
        };
        let label_input = input(&spec.label.column);
        let weight_input = spec.weight.as_ref().map(|weight| input(&weight.column));
        let features: Vec<Compiled> = spec
            .feature
            .iter()
            .map(|feature| {
                let inputs = feature.inputs().into_iter().map(&mut input).collect();
                Compiled::new(feature, inputs)
            })
            .collect();
        let weighted = features.iter().map(|feature| feature.weighted).collect();
        Ok(Encoder {
            input_columns,
            label: spec.label.clone(),
            label_use: options.label,
            label_input,
            weight_input,
            negatives: spec.negatives.clone().filter(|n| options.down_sample && n.keep < 1.0),
            missing: options.missing.iter().map(|text| text.clone().into_bytes()).collect(),
            features,
            weighted,
            sparse_features: SparseFeatures::of(&spec),
            choice: None,
            spec,
        })
    }

    /// Encodes one side of a holdout alone; `seed` is that of a draw by chance.
    #[must_use]
    pub fn on_side(mut self, holdout: &Holdout, seed: u64, side: Side) -> Self {
        let input = holdout.column.as_deref().map(|column| self.input_of(column));
        self.choice = Some(RowChoice::new(holdout, input, seed, side));
        self
    }

    /// Encodes no row and notes the numbers that decide a holdout by time, for [`Encoder::split`].
    #[must_use]
    pub fn noting_moments(mut self, holdout: &Holdout) -> Self {
        let input = holdout.column.as_deref().map(|column| self.input_of(column));
        self.choice = Some(RowChoice::noting(input));
        self
    }

    /// The number that so large a share of the noted ones exceeds; `None` if they are all alike.
    #[must_use]
    pub fn split(&self, fraction: f64) -> Option<f64> {
        self.choice.as_ref()?.split(fraction)
    }

    fn input_of(&mut self, column: &str) -> usize {
        self.input_columns.iter().position(|other| other == column).unwrap_or_else(|| {
            self.input_columns.push(column.to_owned());
            self.input_columns.len() - 1
        })
    }

    /// The column by which rows are held out, which a file must have; `None` if their positions decide.
    #[must_use]
    pub fn holdout_column(&self) -> Option<&str> {
        Some(&self.input_columns[self.choice.as_ref()?.input()?])
    }

    /// Whether a row is on the side of the holdout that is encoded, as far as its column decides.
    ///
    /// # Errors
    /// The field has no number, or is a list.
    #[inline]
    pub fn has_field<'a>(&self, fields: impl Fn(usize) -> Field<'a>) -> Result<bool, FieldError> {
        self.choice.as_ref().map_or(Ok(true), |choice| choice.has_field(fields))
    }

    /// Clamps numbers beyond the range of f32 to the largest ones, for numbers that are only compared.
    #[must_use]
    pub fn clamping(mut self) -> Self {
        self.features.iter_mut().for_each(|feature| feature.clamps = true);
        self
    }

    /// Tells the texts of hashed keys, by the number of their feature, whenever a row is encoded.
    #[must_use]
    pub fn noting(mut self, noted: &Arc<dyn NoteName>) -> Self {
        for (number, feature) in self.features.iter_mut().enumerate() {
            feature.noted = Some((number, Arc::clone(noted)));
        }
        self
    }

    /// The spec, with one entry per feature.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Per feature, whether its keys carry values.
    #[must_use]
    pub fn weighted(&self) -> &[bool] {
        &self.weighted
    }

    /// Whether a row must have a label.
    #[must_use]
    pub fn label_use(&self) -> LabelUse {
        self.label_use
    }

    /// Whether all rows with these labels are kept with unchanged weights.
    #[must_use]
    pub fn keeps_all(&self, labels: &[f32]) -> bool {
        let is_labelled = self.label_use == LabelUse::Optional || !labels.iter().any(|label| label.is_nan());
        self.negatives.is_none() && self.choice.is_none() && is_labelled
    }

    /// Names of the input columns, in the order of the fields of `encode_row`.
    #[must_use]
    pub fn input_columns(&self) -> &[String] {
        &self.input_columns
    }

    /// The input column of the label.
    #[must_use]
    pub fn label_input(&self) -> usize {
        self.label_input
    }

    /// The input column of the rows' weights.
    #[must_use]
    pub fn weight_input(&self) -> Option<usize> {
        self.weight_input
    }

    /// Whether a file may lack this input column.
    #[must_use]
    pub fn is_optional(&self, input_column: usize) -> bool {
        input_column == self.label_input
            && self.label_use == LabelUse::Optional
            && !self.features.iter().any(|feature| feature.inputs.contains(&input_column))
    }

    /// Whether this input column holds lists: a feature of type `multi` reads it.
    pub fn takes_list(&self, input_column: usize) -> bool {
        let is_multi = |feature: &&Compiled| feature.kind == FeatureKind::Multi;
        self.features.iter().filter(is_multi).any(|feature| feature.inputs.contains(&input_column))
    }

    /// An empty batch of the shape that this spec gives.
    #[must_use]
    pub fn new_batch(&self) -> Batch {
        Batch::new(&self.weighted)
    }

    /// Appends one row to the batch, or leaves the batch as it was. `fields` runs parallel to `input_columns`;
    /// `row_id` is the row's position in the input and decides, with the seed, about down-sampling.
    pub fn encode_row(
        &self,
        fields: &[Field<'_>],
        row_id: u64,
        batch: &mut Batch,
    ) -> Result<Fate, FieldError> {
        debug_assert_eq!(fields.len(), self.input_columns.len());
        let label = self.label_of(fields[self.label_input])?;
        let Some(mut weight) = self.keep(label, row_id) else {
            return Ok(Fate::Dropped);
        };
        if !self.has_field(|input| fields[input])? {
            return Ok(Fate::Dropped);
        }
        if let Some(input) = self.weight_input {
            weight *= self.weight_of(input, fields[input])?;
        }
        for (feature, column) in self.features.iter().zip(&mut batch.columns) {
            if let Err(error) = feature.encode(fields, &self.missing, column) {
                batch.abandon_row();
                return Err(error);
            }
        }
        batch.close_row(label, weight);
        Ok(Fate::Kept)
    }

    /// 1 for a positive number, 0 for a negative one, by the spec's threshold; of a regression the number.
    #[inline]
    #[must_use]
    pub fn label(&self, number: f64) -> f32 {
        if self.label.number {
            return number as f32;
        }
        if number > self.label.threshold { 1.0 } else { 0.0 }
    }

    /// The label of a libsvm line from its text, if the spec lists positive texts.
    #[must_use]
    pub fn label_of_text(&self, text: &[u8]) -> Option<f32> {
        self.label_of(Field::Text(text)).ok()
    }

    /// The row's weight under negative down-sampling; `None` if the row is left out, or held out by its position.
    #[inline]
    #[must_use]
    pub fn keep(&self, label: f32, row_id: u64) -> Option<f32> {
        if self.choice.as_ref().is_some_and(|choice| !choice.has_position(row_id)) {
            return None;
        }
        match &self.negatives {
            Some(negatives) if label == 0.0 => {
                let draw = key::hash(&row_id.to_le_bytes(), negatives.seed) >> 11;
                let kept = (draw as f64) < negatives.keep * (1u64 << 53) as f64;
                kept.then(|| (1.0 / negatives.keep) as f32)
            }
            _ => Some(1.0),
        }
    }

    /// Whether libsvm indices are used as keys directly.
    #[must_use]
    pub fn libsvm_is_raw(&self) -> bool {
        self.features[0].rule == KeyRule::Raw
    }

    /// The key of a libsvm index.
    #[inline]
    #[must_use]
    pub fn libsvm_key(&self, index: u64) -> u64 {
        self.sparse_key(0, index)
    }

    /// The key of an index of a sparse feature.
    #[inline]
    pub fn sparse_key(&self, feature: usize, index: u64) -> u64 {
        let feature = &self.features[feature];
        match feature.rule {
            KeyRule::Raw => index,
            KeyRule::Hash => key::hash(&index.to_le_bytes(), feature.salt),
            KeyRule::Modulo(size) => key::hash(&index.to_le_bytes(), feature.salt) % size,
        }
    }

    /// The features that read sparse pairs.
    pub fn sparse_features(&self) -> &SparseFeatures {
        &self.sparse_features
    }

    /// Whether the spec reads libsvm or libffm pairs (sparse features) rather than columns.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.features.iter().any(|feature| feature.kind == FeatureKind::Sparse)
    }

    pub(crate) fn label_of(&self, field: Field<'_>) -> Result<f32, FieldError> {
        if is_missing(field, &self.missing) {
            return match self.label_use {
                LabelUse::Optional => Ok(f32::NAN),
                LabelUse::Required => Err(wanted(self.label_input, "a label", field)),
            };
        }
        if self.label.positive.is_empty() {
            let number = number_of(field).ok_or_else(|| {
                wanted(self.label_input, "a number (or list the positive texts under [label])", field)
            })?;
            if self.label.number && number.abs() >= f64::from(VALUE_ABS_MAX) {
                return Err(wanted(self.label_input, "a number below 1e15 in size", field));
            }
            return Ok(self.label(number));
        }
        if let Field::Bool(is_true) = field {
            return self.label_of_bool(is_true);
        }
        let positive = with_text(field, |text| self.label.positive.iter().any(|p| p.as_bytes() == text));
        match positive {
            Some(positive) => Ok(if positive { 1.0 } else { 0.0 }),
            None => Err(wanted(self.label_input, "one label", field)),
        }
    }

    /// The label of a boolean, by the texts that tools write for it.
    fn label_of_bool(&self, is_true: bool) -> Result<f32, FieldError> {
        let is_listed = |texts: [&str; 3]| {
            self.label.positive.iter().any(|text| texts.iter().any(|other| text.eq_ignore_ascii_case(other)))
        };
        let (on_true, on_false) = (is_listed(["true", "1", "t"]), is_listed(["false", "0", "f"]));
        if !on_true && !on_false {
            let expected = "a text that label.positive lists (of this column \"true\" or \"false\")";
            return Err(wanted(self.label_input, expected, Field::Bool(is_true)));
        }
        let is_positive = if is_true { on_true } else { on_false };
        Ok(f32::from(u8::from(is_positive)))
    }

    pub(crate) fn weight_of(&self, input: usize, field: Field<'_>) -> Result<f32, FieldError> {
        let weight = number_of(field).filter(|weight| (0.0..=WEIGHT_MAX).contains(weight));
        let weight = weight.map(|weight| weight as f32);
        weight.ok_or_else(|| wanted(input, "a weight: a number from 0 to 1e12", field))
    }
}

#[cfg(test)]
mod tests;
