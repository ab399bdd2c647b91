//! The compiled spec: turns the fields of one row into label, weight and keys. Knows no file format.

use std::io::Write;

use crate::batch::Batch;
use crate::error::{FieldError, SampleError, quote};
use crate::key;
use crate::spec::{DefaultField, Feature, FeatureKind, KeyRule, Label, Negatives, Pooling, Spec};

/// One field of a row, as text or as a columnar file types it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// No value (a null).
    Missing,
    /// Text, without quotes or surrounding blanks.
    Text(&'a [u8]),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// Several values, for multi-valued features.
    List(&'a [Field<'a>]),
}

/// What became of a row that could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is in the batch.
    Kept,
    /// Negative down-sampling left it out.
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

/// What the encoder is to do besides following the spec.
#[derive(Clone, Copy, Debug)]
pub struct EncodeOptions<'a> {
    /// Texts that mean a missing value; the empty text always does.
    pub missing: &'a [String],
    /// Whether labels must be there.
    pub label: LabelUse,
    /// Whether `negatives.keep` applies (training only).
    pub down_sample: bool,
}

/// A spec made ready: immutable, shared by all decoding threads.
#[derive(Debug)]
pub struct Encoder {
    input_columns: Vec<String>,
    label: Label,
    label_use: LabelUse,
    label_input: usize,
    weight_input: Option<usize>,
    negatives: Option<Negatives>,
    missing: Vec<Vec<u8>>,
    features: Vec<Compiled>,
    weighted: Vec<bool>,
}

#[derive(Debug)]
struct Compiled {
    kind: FeatureKind,
    inputs: Vec<usize>,
    rule: KeyRule,
    salt: u64,
    separator: u8,
    mean: bool,
    default_text: Option<Vec<u8>>,
    default_number: Option<f64>,
    boundaries: Vec<f64>,
    /// Key of a numeric feature's value, and of its being missing.
    value_key: u64,
    missing_key: u64,
}

/// Longest decimal text of an i64 or f64 that Rust prints without exponent tricks we would want to keep.
const NUMBER_TEXT_BYTES_MAX: usize = 344;

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
        let weighted = features.iter().map(Compiled::weighted).collect();
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
        })
    }

    /// Names of the input columns, in the order in which `encode_row` wants their fields.
    #[must_use]
    pub fn input_columns(&self) -> &[String] {
        &self.input_columns
    }

    /// Whether a file may lack this input column.
    #[must_use]
    pub fn is_optional(&self, input_column: usize) -> bool {
        input_column == self.label_input
            && self.label_use == LabelUse::Optional
            && !self.features.iter().any(|feature| feature.inputs.contains(&input_column))
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

    /// 1 for a positive number, 0 for a negative one, by the spec's threshold.
    #[inline]
    #[must_use]
    pub fn label(&self, number: f64) -> f32 {
        if number > self.label.threshold { 1.0 } else { 0.0 }
    }

    /// The label of a libsvm line from its text, where the spec lists positive texts.
    #[must_use]
    pub fn label_of_text(&self, text: &[u8]) -> Option<f32> {
        self.label_of(Field::Text(text)).ok()
    }

    /// Whether labels are compared as texts rather than numbers.
    #[must_use]
    pub fn label_is_text(&self) -> bool {
        !self.label.positive.is_empty()
    }

    /// The row's weight under negative down-sampling, or None if the row is to be left out.
    #[inline]
    #[must_use]
    pub fn keep(&self, label: f32, row_id: u64) -> Option<f32> {
        match &self.negatives {
            Some(negatives) if label == 0.0 => {
                let draw = key::hash(&row_id.to_le_bytes(), negatives.seed) >> 11;
                let kept = (draw as f64) < negatives.keep * (1u64 << 53) as f64;
                kept.then(|| (1.0 / negatives.keep) as f32)
            }
            _ => Some(1.0),
        }
    }

    /// Whether libsvm indices are keys as they are.
    #[must_use]
    pub fn libsvm_is_raw(&self) -> bool {
        self.features[0].rule == KeyRule::Raw
    }

    /// The key of a libsvm index.
    #[inline]
    #[must_use]
    pub fn libsvm_key(&self, index: u64) -> u64 {
        let feature = &self.features[0];
        match feature.rule {
            KeyRule::Raw => index,
            KeyRule::Hash => key::hash(&index.to_le_bytes(), feature.salt),
            KeyRule::Modulo(size) => key::hash(&index.to_le_bytes(), feature.salt) % size,
        }
    }

    /// Whether the spec reads libsvm pairs (one sparse feature) rather than columns.
    #[must_use]
    pub fn is_sparse(&self) -> bool {
        self.features.iter().any(|feature| feature.kind == FeatureKind::Sparse)
    }

    fn label_of(&self, field: Field<'_>) -> Result<f32, FieldError> {
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
            return Ok(self.label(number));
        }
        let positive = with_text(field, |text| self.label.positive.iter().any(|p| p.as_bytes() == text));
        match positive {
            Some(positive) => Ok(if positive { 1.0 } else { 0.0 }),
            None => Err(wanted(self.label_input, "one label", field)),
        }
    }

    fn weight_of(&self, input: usize, field: Field<'_>) -> Result<f32, FieldError> {
        let weight = number_of(field).filter(|weight| *weight >= 0.0).map(|weight| weight as f32);
        let weight = weight.filter(|weight| weight.is_finite());
        weight.ok_or_else(|| wanted(input, "a weight: a finite number, zero or more", field))
    }
}

impl Compiled {
    fn new(feature: &Feature, inputs: Vec<usize>) -> Self {
        let salt = key::salt(feature.salt());
        let (default_text, default_number) = match &feature.default {
            Some(DefaultField::Text(text)) => (Some(text.clone().into_bytes()), None),
            Some(DefaultField::Number(number)) => {
                (with_text(Field::Float(*number), <[u8]>::to_vec), Some(*number))
            }
            None => (None, None),
        };
        // A table may be shared by several numeric features: their keys carry the feature's name.
        let own = key::hash(feature.name.as_bytes(), salt);
        Compiled {
            kind: feature.kind,
            inputs,
            rule: feature.key_rule(),
            salt,
            separator: feature.separator.unwrap_or('|') as u8,
            mean: feature.pooling == Pooling::Mean,
            default_text,
            default_number,
            boundaries: feature.boundaries.clone().unwrap_or_default(),
            value_key: own,
            missing_key: key::hash(b"missing", own),
        }
    }

    fn weighted(&self) -> bool {
        match self.kind {
            FeatureKind::Numeric | FeatureKind::Log | FeatureKind::Sparse => true,
            FeatureKind::Quantile | FeatureKind::Cross => false,
            FeatureKind::Categorical => self.mean && self.inputs.len() > 1,
            FeatureKind::Multi => self.mean,
        }
    }

    fn encode(
        &self,
        fields: &[Field<'_>],
        missing: &[Vec<u8>],
        column: &mut crate::batch::Column,
    ) -> Result<(), FieldError> {
        let start = column.keys.len();
        match self.kind {
            FeatureKind::Numeric | FeatureKind::Log | FeatureKind::Quantile => {
                let input = self.inputs[0];
                let (key, value) = self.number(input, fields[input], missing)?;
                column.push(key, value);
            }
            FeatureKind::Cross => {
                let mut key = self.salt;
                for &input in &self.inputs {
                    let field = fields[input];
                    let part = if is_missing(field, missing) { Field::Text(b"") } else { field };
                    key = with_text(part, |text| key::hash(text, key))
                        .ok_or_else(|| wanted(input, "one value, not a list", field))?;
                }
                if let KeyRule::Modulo(size) = self.rule {
                    key %= size;
                }
                column.push(key, 1.0);
            }
            FeatureKind::Categorical => {
                for &input in &self.inputs {
                    if let Some(key) = self.category(input, fields[input], missing)? {
                        column.push(key, 1.0);
                    }
                }
            }
            FeatureKind::Multi => {
                for &input in &self.inputs {
                    self.parts(input, fields[input], missing, column)?;
                }
            }
            FeatureKind::Sparse => {}
        }
        if self.mean && self.weighted() {
            let keys = column.keys.len() - start;
            column.values[start..].fill(1.0 / keys.max(1) as f32);
        }
        Ok(())
    }

    fn number(&self, input: usize, field: Field<'_>, missing: &[Vec<u8>]) -> Result<(u64, f32), FieldError> {
        let number = if is_missing(field, missing) {
            match self.default_number {
                Some(number) => number,
                None => return Ok((self.missing_key, 1.0)),
            }
        } else {
            number_of(field).ok_or_else(|| wanted(input, "a finite number", field))?
        };
        Ok(match self.kind {
            FeatureKind::Log => (self.value_key, (number.signum() * number.abs().ln_1p()) as f32),
            FeatureKind::Quantile => {
                let bucket = self.boundaries.partition_point(|boundary| *boundary < number);
                (key::hash(&(bucket as u64).to_le_bytes(), self.value_key), 1.0)
            }
            _ => {
                let value = number as f32;
                if !value.is_finite() {
                    return Err(wanted(input, "a number within the range of f32", field));
                }
                (self.value_key, value)
            }
        })
    }

    fn category(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
    ) -> Result<Option<u64>, FieldError> {
        let field = match (is_missing(field, missing), &self.default_text) {
            (false, _) => field,
            (true, Some(text)) => Field::Text(text),
            (true, None) if self.rule == KeyRule::Raw => return Ok(None),
            (true, None) => Field::Text(b""),
        };
        self.key(input, field).map(Some)
    }

    fn parts(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
        column: &mut crate::batch::Column,
    ) -> Result<(), FieldError> {
        if is_missing(field, missing) {
            if let Some(text) = &self.default_text {
                column.push(self.key(input, Field::Text(text))?, 1.0);
            }
            return Ok(());
        }
        match field {
            Field::Text(text) => {
                for part in text.split(|byte| *byte == self.separator).map(<[u8]>::trim_ascii) {
                    if !part.is_empty() {
                        column.push(self.key(input, Field::Text(part))?, 1.0);
                    }
                }
            }
            Field::List(parts) => {
                for part in parts.iter().filter(|part| !is_missing(**part, missing)) {
                    column.push(self.key(input, *part)?, 1.0);
                }
            }
            one => column.push(self.key(input, one)?, 1.0),
        }
        Ok(())
    }

    #[inline]
    fn key(&self, input: usize, field: Field<'_>) -> Result<u64, FieldError> {
        if self.rule == KeyRule::Raw {
            let key = match field {
                Field::Int(number) => u64::try_from(number).ok(),
                Field::Text(text) => key::raw(text),
                _ => None,
            };
            return key.ok_or_else(|| wanted(input, "an unsigned integer (key = \"raw\")", field));
        }
        let hash = with_text(field, |text| key::hash(text, self.salt))
            .ok_or_else(|| wanted(input, "one value, not a list (type = \"multi\" takes lists)", field))?;
        Ok(match self.rule {
            KeyRule::Modulo(size) => hash % size,
            _ => hash,
        })
    }
}

#[inline]
fn is_missing(field: Field<'_>, missing: &[Vec<u8>]) -> bool {
    match field {
        Field::Missing => true,
        Field::Text(text) => text.is_empty() || missing.iter().any(|token| token == text),
        Field::Float(number) => number.is_nan(),
        _ => false,
    }
}

/// The field's number, if it has a finite one.
fn number_of(field: Field<'_>) -> Option<f64> {
    let number = match field {
        Field::Text(text) => parse_number(text)?,
        Field::Int(number) => number as f64,
        Field::Float(number) => number,
        Field::Missing | Field::List(_) => return None,
    };
    number.is_finite().then_some(number)
}

/// A decimal number; short integers take a fast path.
fn parse_number(text: &[u8]) -> Option<f64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_digit) {
        let number = digits.iter().fold(0u64, |n, digit| n * 10 + u64::from(digit - b'0')) as f64;
        return Some(if negative { -number } else { number });
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Calls `f` with the field as the text that a text file would hold; None for lists.
fn with_text<R>(field: Field<'_>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut buffer = [0u8; NUMBER_TEXT_BYTES_MAX];
    let room = buffer.len();
    let mut rest = &mut buffer[..];
    match field {
        Field::Missing => return Some(f(b"")),
        Field::Text(text) => return Some(f(text)),
        Field::Int(number) => write!(rest, "{number}").ok()?,
        // A whole number reads the same from an integer and from a float column.
        Field::Float(number) => write!(rest, "{number}").ok()?,
        Field::List(_) => return None,
    }
    let written = room - rest.len();
    Some(f(&buffer[..written]))
}

fn wanted(column: usize, expected: &str, field: Field<'_>) -> FieldError {
    let found = match field {
        Field::Text(text) => quote(text),
        Field::Missing => "nothing".to_string(),
        Field::Int(number) => number.to_string(),
        Field::Float(number) => number.to_string(),
        Field::List(parts) => format!("a list of {}", parts.len()),
    };
    FieldError { column, expected: expected.to_string(), found }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Weight;

    fn encoder(toml: &str, label: LabelUse, down_sample: bool) -> Encoder {
        let spec: Spec = toml::from_str(toml).unwrap();
        let missing = ["".to_string(), "?".to_string()];
        Encoder::new(&spec, &EncodeOptions { missing: &missing, label, down_sample }).unwrap()
    }

    /// Encodes one row whose first field is the label "1" and gives back the keys and values of the only feature.
    fn encode(feature: &str, fields: &[Field<'_>]) -> Result<(Vec<u64>, Vec<f32>), FieldError> {
        let encoder = encoder(&format!("[[feature]]\nname = \"f\"\n{feature}"), LabelUse::Required, false);
        let mut row = vec![Field::Text(b"1")];
        row.extend_from_slice(fields);
        let mut batch = encoder.new_batch();
        encoder.encode_row(&row, 0, &mut batch)?;
        assert_eq!(batch.len(), 1);
        let column = &batch.columns[0];
        Ok((column.keys.clone(), column.values.clone()))
    }

    fn hashed(text: &str) -> u64 {
        key::hash(text.as_bytes(), key::salt("f"))
    }

    #[test]
    fn kinds() {
        let text = |text: &'static str| Field::Text(text.as_bytes());
        let own = hashed("f");
        let missing = key::hash(b"missing", own);
        let bucket = |bucket: u64| key::hash(&bucket.to_le_bytes(), own);
        type Expected<'a> = Result<(Vec<u64>, Vec<f32>), &'a str>;
        let check = |feature: &str, fields: &[Field<'_>], expected: Expected<'_>| match (
            encode(feature, fields),
            expected,
        ) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected, "{feature} {fields:?}"),
            (Err(got), Err(part)) => assert!(got.expected.contains(part), "{feature}: {got:?}"),
            (got, expected) => panic!("{feature} {fields:?}: {got:?}, expected {expected:?}"),
        };
        check("", &[text("x")], Ok((vec![hashed("x")], vec![])));
        check("", &[text("?")], Ok((vec![hashed("")], vec![])));
        check("", &[Field::Missing], Ok((vec![hashed("")], vec![])));
        check("default = \"z\"", &[text("")], Ok((vec![hashed("z")], vec![])));
        check("", &[Field::Int(-42)], Ok((vec![hashed("-42")], vec![])));
        check("", &[Field::Float(42.0)], Ok((vec![hashed("42")], vec![])));
        check("", &[Field::List(&[])], Err("one value"));
        check("key = \"raw\"", &[text("42")], Ok((vec![42], vec![])));
        check("key = \"raw\"", &[Field::Int(42)], Ok((vec![42], vec![])));
        check("key = \"raw\"", &[text("4x")], Err("unsigned"));
        check("key = \"raw\"", &[Field::Int(-1)], Err("unsigned"));
        check("key = \"raw\"", &[text("")], Ok((vec![], vec![])));
        check("key = {modulo = 10}", &[text("x")], Ok((vec![hashed("x") % 10], vec![])));
        check("salt = \"s\"", &[text("x")], Ok((vec![key::hash(b"x", key::salt("s"))], vec![])));
        check("type = \"multi\"", &[text("a| b||")], Ok((vec![hashed("a"), hashed("b")], vec![])));
        check("type = \"multi\"", &[text("")], Ok((vec![], vec![])));
        check(
            "type = \"multi\"\nseparator = \",\"\npooling = \"mean\"",
            &[text("a,b")],
            Ok((vec![hashed("a"), hashed("b")], vec![0.5, 0.5])),
        );
        check(
            "type = \"multi\"",
            &[Field::List(&[Field::Int(1), Field::Missing, Field::Text(b"b")])],
            Ok((vec![hashed("1"), hashed("b")], vec![])),
        );
        check("type = \"numeric\"", &[text("-2.5")], Ok((vec![own], vec![-2.5])));
        check("type = \"numeric\"", &[text("1e3")], Ok((vec![own], vec![1000.0])));
        check("type = \"numeric\"", &[text("")], Ok((vec![missing], vec![1.0])));
        check("type = \"numeric\"\ndefault = 7", &[text("?")], Ok((vec![own], vec![7.0])));
        check("type = \"numeric\"", &[text("inf")], Err("finite"));
        check("type = \"numeric\"", &[text("nan")], Err("finite"));
        check("type = \"numeric\"", &[text("1e300")], Err("f32"));
        check("type = \"numeric\"", &[text("4O")], Err("finite number"));
        check("type = \"log\"", &[text("0")], Ok((vec![own], vec![0.0])));
        check("type = \"log\"", &[Field::Int(-1)], Ok((vec![own], vec![-(2f64.ln() as f32)])));
        let quantile = "type = \"quantile\"\nboundaries = [1.0, 2.0]";
        for (field, key) in
            [("0", bucket(0)), ("1", bucket(0)), ("1.5", bucket(1)), ("9", bucket(2)), ("", missing)]
        {
            check(quantile, &[text(field)], Ok((vec![key], vec![])));
        }
        let cross = key::hash(b"y", key::hash(b"x", key::salt("f")));
        check(
            "type = \"cross\"\ncolumns = [\"a\", \"b\"]",
            &[text("x"), text("y")],
            Ok((vec![cross], vec![])),
        );
        check(
            "columns = [\"a\", \"b\"]\npooling = \"mean\"",
            &[text("x"), text("y")],
            Ok((vec![hashed("x"), hashed("y")], vec![0.5, 0.5])),
        );
    }

    #[test]
    fn labels_and_weights() {
        let spec =
            "[label]\npositive = [\">50K\", \">50K.\"]\n[weight]\ncolumn = \"w\"\n[[feature]]\nname = \"f\"";
        let strict = encoder(spec, LabelUse::Required, false);
        assert_eq!(strict.input_columns(), ["label", "w", "f"]);
        let mut batch = strict.new_batch();
        let mut row = |encoder: &Encoder, label: &'static str, weight: &'static str| {
            let fields = [label, weight, "x"].map(|text| Field::Text(text.as_bytes()));
            encoder
                .encode_row(&fields, 0, &mut batch)
                .map(|_| (batch.labels.last().copied(), batch.weights.last().copied()))
        };
        assert_eq!(row(&strict, ">50K.", "2"), Ok((Some(1.0), Some(2.0))));
        assert_eq!(row(&strict, "<=50K", "0.5"), Ok((Some(0.0), Some(0.5))));
        assert_eq!(row(&strict, "", "1").unwrap_err().expected, "a label");
        assert_eq!(row(&strict, ">50K", "-1").unwrap_err().column, 1);
        let lenient = encoder(spec, LabelUse::Optional, false);
        assert!(lenient.is_optional(0) && !lenient.is_optional(1));
        assert!(row(&lenient, "?", "1").unwrap().0.unwrap().is_nan());
        let numbers =
            encoder("[label]\nthreshold = 3.5\n[[feature]]\nname = \"f\"", LabelUse::Required, false);
        assert_eq!((numbers.label(4.0), numbers.label(3.5)), (1.0, 0.0));
    }

    #[test]
    fn down_sampling_keeps_the_share_and_the_total_weight_of_negatives() {
        let spec = "[negatives]\nkeep = 0.1\n[[feature]]\nname = \"f\"";
        let (all, some) = (encoder(spec, LabelUse::Required, false), encoder(spec, LabelUse::Required, true));
        let rows = 100_000;
        assert_eq!((0..rows).filter_map(|row| all.keep(0.0, row)).count() as u64, rows);
        let kept: Vec<f32> = (0..rows).filter_map(|row| some.keep(0.0, row)).collect();
        assert!((kept.len() as f64 / rows as f64 - 0.1).abs() < 0.005, "{}", kept.len());
        assert!(kept.iter().all(|weight| *weight == 10.0));
        assert!((0..rows).all(|row| some.keep(1.0, row) == Some(1.0)));
    }

    #[test]
    fn a_bad_row_leaves_the_batch_as_it_was() {
        let spec = "[[feature]]\neach = [\"a\"]\n[[feature]]\neach = [\"n\"]\ntype = \"numeric\"";
        let encoder = encoder(spec, LabelUse::Required, false);
        let mut batch = encoder.new_batch();
        let fields = [Field::Int(1), Field::Text(b"x"), Field::Text(b"2")];
        encoder.encode_row(&fields, 0, &mut batch).unwrap();
        let before = batch.clone();
        let fields = [Field::Int(1), Field::Text(b"x"), Field::Text(b"two")];
        let error = encoder.encode_row(&fields, 0, &mut batch).unwrap_err();
        assert_eq!((error.column, error.found.as_str()), (2, "\"two\""));
        assert_eq!(batch, before);
        let weight = Some(Weight { column: "w".to_string() });
        assert!(Spec { weight, ..Spec::default() }.expand().is_err());
    }
}
