//! One compiled feature of a spec: turns the fields of its columns into keys and values. Knows no label and no other
//! feature.

use std::sync::Arc;

use crate::batch::Column;
use crate::error::FieldError;
use crate::field::{
    Field, VALUE_ABS_MAX, is_missing, number_or_time, raw_key, wanted, with_key_text, with_text,
};
use crate::key;
use crate::note_name::NoteName;
use crate::spec::{DefaultField, Feature, FeatureKind, KeyRule, Pooling};

/// The most keys that a cross makes of a row, for columns of several values each.
pub(crate) const CROSS_KEYS_MAX: usize = 1 << 16;
const CROSS_WANTED: &str = "at most 65536 combinations of the values of a cross";

const RAW_WANTED: &str = "a 64-bit integer (key = \"raw\"; key = \"hash\" takes any value)";

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) kind: FeatureKind,
    pub(crate) inputs: Vec<usize>,
    pub(crate) rule: KeyRule,
    pub(crate) salt: u64,
    separator: u8,
    /// Whether texts are split at the separator.
    splits: bool,
    /// Whether keys have values.
    pub(crate) weighted: bool,
    mean: bool,
    default_text: Option<Vec<u8>>,
    default_number: Option<f64>,
    boundaries: Vec<f64>,
    /// Whether a number beyond the range of f32 is clamped.
    pub(crate) clamps: bool,
    /// Keys of a numeric feature's value, and of a missing value.
    value_key: u64,
    missing_key: u64,
    /// The listener for texts of keys, and the number of this feature.
    pub(crate) noted: Option<(usize, Arc<dyn NoteName>)>,
}

impl Compiled {
    pub(crate) fn new(feature: &Feature, inputs: Vec<usize>) -> Self {
        let salt = key::salt(feature.salt());
        let (default_text, default_number) = match &feature.default {
            Some(DefaultField::Text(text)) => (Some(text.clone().into_bytes()), None),
            Some(DefaultField::Number(number)) => {
                (with_text(Field::Float(*number), <[u8]>::to_vec), Some(*number))
            }
            None => (None, None),
        };
        let value_key = feature.value_key();
        Compiled {
            kind: feature.kind,
            inputs,
            rule: feature.key_rule(),
            salt,
            separator: feature.separator.unwrap_or('|') as u8,
            splits: feature.kind == FeatureKind::Multi || feature.separator.is_some(),
            weighted: feature.has_values(),
            mean: feature.pooling == Pooling::Mean,
            default_text,
            default_number,
            boundaries: feature.boundaries.clone().unwrap_or_default(),
            clamps: false,
            value_key,
            missing_key: key::hash(b"missing", value_key),
            noted: None,
        }
    }

    pub(crate) fn encode(
        &self,
        fields: &[Field<'_>],
        missing: &[Vec<u8>],
        column: &mut Column,
    ) -> Result<(), FieldError> {
        let start = column.keys.len();
        if self.kind == FeatureKind::Cross {
            self.cross(&self.inputs, self.salt, fields, missing, start, column)?;
        } else {
            for &input in &self.inputs {
                self.field(input, fields[input], missing, column)?;
            }
        }
        self.close_means(start, column);
        Ok(())
    }

    /// Appends the keys of one field, of features of all types except crosses.
    #[inline(always)]
    pub(crate) fn field(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
        column: &mut Column,
    ) -> Result<(), FieldError> {
        match self.kind {
            FeatureKind::Numeric | FeatureKind::Log | FeatureKind::Quantile => {
                let (key, value) = self.number(input, field, missing)?;
                column.push(key, value);
            }
            FeatureKind::Categorical => {
                if let Some(key) = self.category(input, field, missing)? {
                    column.push(key, 1.0);
                }
            }
            FeatureKind::Multi => self.parts(input, field, missing, column)?,
            FeatureKind::Cross | FeatureKind::Sparse => {}
        }
        Ok(())
    }

    /// Sets the values of a row whose keys are pooled by their mean; its keys begin at `start`.
    #[inline]
    pub(crate) fn close_means(&self, start: usize, column: &mut Column) {
        if self.mean && self.weighted {
            let keys = column.keys.len() - start;
            column.values[start..].fill(1.0 / keys.max(1) as f32);
        }
    }

    /// Crosses the remaining columns, starting from the key of those before: one key per combination of values.
    fn cross(
        &self,
        inputs: &[usize],
        key: u64,
        fields: &[Field<'_>],
        missing: &[Vec<u8>],
        start: usize,
        column: &mut Column,
    ) -> Result<(), FieldError> {
        let Some((&input, rest)) = inputs.split_first() else {
            let key = if let KeyRule::Modulo(size) = self.rule { key % size } else { key };
            column.push(key, 1.0);
            return Ok(());
        };
        let mut with = |part: Field<'_>| {
            if column.keys.len() - start >= CROSS_KEYS_MAX {
                return Err(wanted(input, CROSS_WANTED, fields[input]));
            }
            let key = with_key_text(part, |text| key::hash(text, key))
                .ok_or_else(|| wanted(input, "values, not lists of lists", fields[input]))?;
            self.cross(rest, key, fields, missing, start, column)
        };
        let mut is_one_missing = true;
        match fields[input] {
            field if is_missing(field, missing) => {}
            Field::List(parts) => {
                for part in parts.iter().filter(|part| !is_missing(**part, missing)) {
                    is_one_missing = false;
                    with(*part)?;
                }
            }
            Field::Text(text) if self.splits => {
                for part in text.split(|byte| *byte == self.separator).map(<[u8]>::trim_ascii) {
                    if !is_missing(Field::Text(part), missing) {
                        is_one_missing = false;
                        with(Field::Text(part))?;
                    }
                }
            }
            one => {
                is_one_missing = false;
                with(one)?;
            }
        }
        if is_one_missing { with(self.missing_text()) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn number(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
    ) -> Result<(u64, f32), FieldError> {
        let number = if is_missing(field, missing) {
            match self.default_number {
                Some(number) => number,
                None => return Ok((self.missing_key, 1.0)),
            }
        } else {
            number_or_time(field).ok_or_else(|| wanted(input, "a finite number", field))?
        };
        Ok(match self.kind {
            FeatureKind::Log => (self.value_key, (number.signum() * number.abs().ln_1p()) as f32),
            FeatureKind::Quantile => {
                let bucket = self.boundaries.partition_point(|boundary| *boundary < number);
                (key::hash(&(bucket as u64).to_le_bytes(), self.value_key), 1.0)
            }
            _ => {
                let value = number as f32;
                match value.abs() < VALUE_ABS_MAX {
                    true => (self.value_key, value),
                    // The smallest f32 stands for a missing value.
                    false if self.clamps => (self.value_key, value.clamp(f32::MIN.next_up(), f32::MAX)),
                    false => {
                        let expected =
                            "a number below 1e15 in size (type = \"log\" or \"quantile\" takes larger ones)";
                        return Err(wanted(input, expected, field));
                    }
                }
            }
        })
    }

    #[inline]
    pub(crate) fn category(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
    ) -> Result<Option<u64>, FieldError> {
        if !is_missing(field, missing) {
            return self.key(input, field).map(Some);
        }
        if self.rule == KeyRule::Raw && self.default_text.is_none() {
            return Ok(None);
        }
        self.key(input, self.missing_text()).map(Some)
    }

    /// The field that stands for a missing text.
    fn missing_text(&self) -> Field<'_> {
        Field::Text(self.default_text.as_deref().unwrap_or_default())
    }

    fn parts(
        &self,
        input: usize,
        field: Field<'_>,
        missing: &[Vec<u8>],
        column: &mut Column,
    ) -> Result<(), FieldError> {
        if is_missing(field, missing) || matches!(field, Field::List([])) {
            if let Some(text) = &self.default_text {
                column.push(self.key(input, Field::Text(text))?, 1.0);
            }
            return Ok(());
        }
        match field {
            Field::Text(text) => {
                for part in text.split(|byte| *byte == self.separator).map(<[u8]>::trim_ascii) {
                    // As in a list of a columnar file.
                    if !is_missing(Field::Text(part), missing) {
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
    pub(crate) fn key(&self, input: usize, field: Field<'_>) -> Result<u64, FieldError> {
        if self.rule == KeyRule::Raw {
            return raw_key(field).ok_or_else(|| wanted(input, RAW_WANTED, field));
        }
        with_key_text(field, |text| self.key_of_text(text))
            .ok_or_else(|| wanted(input, "one value, not a list (type = \"multi\" takes lists)", field))
    }

    #[inline(always)]
    fn key_of_text(&self, text: &[u8]) -> u64 {
        let hash = key::hash(text, self.salt);
        let key = if let KeyRule::Modulo(size) = self.rule { hash % size } else { hash };
        if let Some((feature, noted)) = &self.noted {
            noted.note(*feature, key, text);
        }
        key
    }
}

#[cfg(test)]
mod tests;
