//! Rows held out of the training input for validation: which ones, and how the moment of a split by time is found.
//! Knows no file format and no training.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::FieldError;
use crate::field::{Field, number_or_time, wanted, with_key_text};
use crate::key;

/// Samples of a column from which the moment of a split is taken; more are thinned out.
const SAMPLES_MAX: usize = 1 << 20;
/// Seed of the draw by the value of a column: every run holds out the same users.
const HASH_SEED: u64 = 0x686f_6c64_6f75_7431;

/// A share of the training rows that is held out for validation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holdout {
    /// Share of the rows, above 0 and below 1.
    #[serde(default = "default_fraction")]
    pub fraction: f64,
    /// How the rows are chosen.
    pub by: HoldoutBy,
    /// The column of `hash` and `time`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    /// `time`: rows with a larger number are held out; by default fitted to the training input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<f64>,
}

fn default_fraction() -> f64 {
    0.1
}

/// How rows are held out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HoldoutBy {
    /// By the hash of a column: all rows of a user are on one side.
    Hash,
    /// The latest rows by a column of numbers or times; without a column, the last rows of the input.
    Time,
    /// By chance, by the row's position and the seed.
    Random,
}

impl Holdout {
    /// Why the settings are invalid, if they are.
    pub fn check(&self) -> Result<(), String> {
        if !(self.fraction > 0.0 && self.fraction < 1.0) {
            return Err(format!("fraction = {}: must be above 0 and below 1", self.fraction));
        }
        match (self.by, &self.column, self.after) {
            (HoldoutBy::Hash, None, _) => {
                Err("by = \"hash\" needs a column, such as that of the users".to_owned())
            }
            (HoldoutBy::Random, Some(_), _) => {
                Err("by = \"random\" takes no column; by = \"hash\" does".to_owned())
            }
            (HoldoutBy::Hash | HoldoutBy::Random, _, Some(_)) => {
                Err("after is for by = \"time\" alone".to_owned())
            }
            (HoldoutBy::Time, _, Some(after)) if !after.is_finite() => {
                Err(format!("after = {after}: must be finite"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the moment of the split is still to be found.
    #[must_use]
    pub fn is_unfitted(&self) -> bool {
        self.by == HoldoutBy::Time && self.after.is_none()
    }
}

/// A side of the split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Rows to train on.
    Train,
    /// Rows that are held out.
    Valid,
}

/// The choice of an encoder between rows.
#[derive(Debug)]
pub(crate) struct RowChoice {
    rule: Rule,
    /// The input column that decides; `None`: the row's position.
    input: Option<usize>,
    side: Side,
}

#[derive(Debug)]
enum Rule {
    /// Held out if the hash is below.
    Below { threshold: u64, seed: u64 },
    /// Held out if the number is larger.
    After(f64),
    /// No row is chosen; numbers are noted.
    Note(Mutex<Samples>),
}

impl RowChoice {
    /// One side of a holdout, whose column, if it has one, is at `input`.
    pub(crate) fn new(holdout: &Holdout, input: Option<usize>, seed: u64, side: Side) -> RowChoice {
        // A share of the 53 upper bits, which a float holds exactly.
        let threshold = (holdout.fraction * (1_u64 << 53) as f64) as u64;
        let rule = match (holdout.by, holdout.after) {
            (HoldoutBy::Hash, _) => Rule::Below { threshold, seed: HASH_SEED },
            (HoldoutBy::Random, _) => Rule::Below { threshold, seed: seed ^ HASH_SEED },
            (HoldoutBy::Time, after) => Rule::After(after.unwrap_or(f64::INFINITY)),
        };
        RowChoice { rule, input, side }
    }

    /// Notes the numbers of a column, or the positions of rows.
    pub(crate) fn noting(input: Option<usize>) -> RowChoice {
        RowChoice { rule: Rule::Note(Mutex::default()), input, side: Side::Train }
    }

    /// The input column that decides.
    pub(crate) fn input(&self) -> Option<usize> {
        self.input
    }

    /// Whether a row is chosen by its position; true where a column decides.
    #[inline]
    pub(crate) fn has_position(&self, row_id: u64) -> bool {
        self.input.is_some() || self.has(row_id as f64, || key::hash(&row_id.to_le_bytes(), self.seed()))
    }

    /// Whether a row is chosen by the field of its column; true where the position decides.
    pub(crate) fn has_field<'a>(&self, fields: impl Fn(usize) -> Field<'a>) -> Result<bool, FieldError> {
        let Some(input) = self.input else { return Ok(true) };
        let field = fields(input);
        if let Rule::Below { .. } = self.rule {
            let hash = with_key_text(field, |text| key::hash(text, self.seed()));
            let hash = hash.ok_or_else(|| wanted(input, "one value to hold rows out by", field))?;
            return Ok(self.has(0.0, || hash));
        }
        let number = number_or_time(field);
        let number = number.ok_or_else(|| wanted(input, "a number or a time to hold rows out by", field))?;
        Ok(self.has(number, || key::hash(&number.to_bits().to_le_bytes(), HASH_SEED)))
    }

    fn seed(&self) -> u64 {
        match self.rule {
            Rule::Below { seed, .. } => seed,
            _ => HASH_SEED,
        }
    }

    #[inline]
    fn has(&self, number: f64, hash: impl FnOnce() -> u64) -> bool {
        let is_held_out = match &self.rule {
            Rule::Below { threshold, .. } => hash() >> 11 < *threshold,
            Rule::After(after) => number > *after,
            Rule::Note(samples) => {
                samples.lock().unwrap_or_else(PoisonError::into_inner).note(number);
                return false;
            }
        };
        is_held_out == (self.side == Side::Valid)
    }

    /// The number that so large a share of the noted ones exceeds; `None` if they are all alike.
    pub(crate) fn split(&self, fraction: f64) -> Option<f64> {
        let Rule::Note(samples) = &self.rule else { return None };
        samples.lock().unwrap_or_else(PoisonError::into_inner).split(fraction)
    }
}

/// Numbers of a column, evenly thinned out.
#[derive(Debug, Default)]
struct Samples {
    numbers: Vec<f64>,
    seen: u64,
    /// One of `1 << shift` numbers is kept.
    shift: u32,
}

impl Samples {
    fn note(&mut self, number: f64) {
        if self.seen & ((1 << self.shift) - 1) == 0 {
            if self.numbers.len() == SAMPLES_MAX {
                let mut at = 0;
                self.numbers.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.shift += 1;
            }
            if self.seen & ((1 << self.shift) - 1) == 0 {
                self.numbers.push(number);
            }
        }
        self.seen += 1;
    }

    fn split(&mut self, fraction: f64) -> Option<f64> {
        self.numbers.sort_unstable_by(f64::total_cmp);
        let (first, last) = (*self.numbers.first()?, *self.numbers.last()?);
        let held_out = ((self.numbers.len() as f64 * fraction).round() as usize).max(1);
        let at = self.numbers.len().checked_sub(held_out + 1).map_or(first, |at| self.numbers[at]);
        // Rows of one moment stay together; the last moment alone may be more than the share.
        let before = self.numbers.partition_point(|number| *number < last);
        if at < last { Some(at) } else { before.checked_sub(1).map(|before| self.numbers[before]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_splits() {
        for (numbers, fraction, expected) in [
            ((0..100).map(f64::from).collect::<Vec<_>>(), 0.1, Some(89.0)),
            ((0..100).rev().map(f64::from).collect(), 0.25, Some(74.0)),
            (vec![1.0, 2.0], 0.1, Some(1.0)),
            (vec![1.0, 2.0, 2.0, 2.0], 0.1, Some(1.0)),
            (vec![5.0; 9], 0.1, None),
            (vec![], 0.1, None),
        ] {
            let mut samples = Samples::default();
            numbers.iter().for_each(|number| samples.note(*number));
            assert_eq!(samples.split(fraction), expected, "{numbers:?}");
        }
        let mut many = Samples::default();
        let rows = 5 * SAMPLES_MAX;
        (0..rows).for_each(|row| many.note(row as f64));
        assert!(many.numbers.len() <= SAMPLES_MAX);
        let split = many.split(0.1).unwrap_or_default() / rows as f64;
        assert!((split - 0.9).abs() < 1e-4, "{split}");
    }

    #[test]
    fn sides_are_disjoint_and_whole() {
        let check = |by, column: Option<&str>, after, expected: f64| {
            let holdout = Holdout { fraction: 0.2, by, column: column.map(str::to_owned), after };
            assert_eq!(holdout.check(), Ok(()));
            let input = column.map(|_| 0);
            let [train, valid] =
                [Side::Train, Side::Valid].map(|side| RowChoice::new(&holdout, input, 7, side));
            let mut held_out = 0;
            for row in 0..20_000_u64 {
                let user = row / 10;
                let has = |choice: &RowChoice| {
                    choice.has_position(row) && choice.has_field(|_| Field::Unsigned(user)).unwrap()
                };
                assert_ne!(has(&train), has(&valid), "{by:?}, row {row}");
                held_out += u64::from(has(&valid));
                if by == HoldoutBy::Hash {
                    let text = user.to_string();
                    let of_text = valid.has_field(|_| Field::Text(text.as_bytes())).unwrap();
                    assert_eq!(has(&valid), of_text, "one value, whatever its type");
                }
            }
            let share = held_out as f64 / 20_000.0;
            assert!((share - expected).abs() < 0.03, "{by:?}: {share}");
        };
        check(HoldoutBy::Random, None, None, 0.2);
        check(HoldoutBy::Hash, Some("user"), None, 0.2);
        check(HoldoutBy::Time, Some("time"), Some(1499.0), 0.25);
        check(HoldoutBy::Time, None, Some(14_999.0), 0.25);
    }

    #[test]
    fn settings_that_make_no_sense() {
        let base = Holdout { fraction: 0.1, by: HoldoutBy::Time, column: None, after: None };
        let (column, after) = (Some("c".to_owned()), Some(1.0));
        for (holdout, expected) in [
            (Holdout { fraction: 1.0, ..base.clone() }, "fraction = 1: must be above 0 and below 1"),
            (Holdout { by: HoldoutBy::Hash, ..base.clone() }, "needs a column"),
            (Holdout { by: HoldoutBy::Random, column: column.clone(), ..base.clone() }, "takes no column"),
            (Holdout { by: HoldoutBy::Hash, column, after, ..base.clone() }, "after is for"),
            (Holdout { after: Some(f64::NAN), ..base }, "must be finite"),
        ] {
            let error = holdout.check().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
