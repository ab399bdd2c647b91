//! One feature of a spec made ready: turns the fields of its columns into keys and values. Knows no label and no
//! other feature.

use crate::batch::Column;
use crate::error::FieldError;
use crate::field::{Field, VALUE_ABS_MAX, is_missing, number_of, wanted, with_text};
use crate::key;
use crate::number::parse_u64;
use crate::spec::{DefaultField, Feature, FeatureKind, KeyRule, Pooling};

#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) kind: FeatureKind,
    pub(crate) inputs: Vec<usize>,
    pub(crate) rule: KeyRule,
    pub(crate) salt: u64,
    separator: u8,
    /// Whether keys have values.
    pub(crate) weighted: bool,
    mean: bool,
    default_text: Option<Vec<u8>>,
    default_number: Option<f64>,
    boundaries: Vec<f64>,
    /// Whether a number beyond the range of f32 is the last one within.
    pub(crate) clamps: bool,
    /// Key of a numeric feature's value, and of its being missing.
    value_key: u64,
    missing_key: u64,
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
            weighted: feature.has_values(),
            mean: feature.pooling == Pooling::Mean,
            default_text,
            default_number,
            boundaries: feature.boundaries.clone().unwrap_or_default(),
            clamps: false,
            value_key,
            missing_key: key::hash(b"missing", value_key),
        }
    }

    pub(crate) fn encode(
        &self,
        fields: &[Field<'_>],
        missing: &[Vec<u8>],
        column: &mut Column,
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
                    let part = if is_missing(field, missing) { self.missing_text() } else { field };
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
        if self.mean && self.weighted {
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
                match value.abs() < VALUE_ABS_MAX {
                    true => (self.value_key, value),
                    // The least means that there is none.
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

    fn category(
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

    /// What a missing text counts as.
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
    fn key(&self, input: usize, field: Field<'_>) -> Result<u64, FieldError> {
        if self.rule == KeyRule::Raw {
            let key = match field {
                Field::Unsigned(number) => Some(number),
                Field::Int(number) => u64::try_from(number).ok(),
                Field::Text(text) => parse_u64(text),
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

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
