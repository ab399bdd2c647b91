//! One field of a row of any format, as a number and as text. Knows no spec.

use std::io::Write;

use crate::error::{FieldError, quote};
use crate::missing::mark_of;
use crate::number::{parse_f64, parse_u64};
use crate::time::Time;

/// One field of a row, as text or with the type of a columnar file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// No value (a null).
    Missing,
    /// Text, without quotes or surrounding blanks.
    Text(&'a [u8]),
    /// An integer.
    Int(i64),
    /// An unsigned integer, perhaps beyond `Int`: a raw key.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A truth value: 1 or 0 as a number, `true` or `false` as a text.
    Bool(bool),
    /// A date, a time, a duration: seconds as a number.
    Time(Time),
    /// Several values, for multi-valued features.
    List(&'a [Field<'a>]),
}

/// Values of features are smaller than this: a table would refuse the gradients of larger ones without naming file
/// and line.
pub const VALUE_ABS_MAX: f32 = 1e15;
/// The largest weight of a row: a table would refuse the gradients of larger ones.
pub(crate) const WEIGHT_MAX: f64 = 1e12;

/// Longest decimal text of an i64 or f64 that Rust prints without exponent tricks we would want to keep.
const NUMBER_TEXT_BYTES_MAX: usize = 344;

#[inline]
pub(crate) fn is_missing(field: Field<'_>, missing: &[Vec<u8>]) -> bool {
    match field {
        Field::Missing => true,
        Field::Text(text) => text.is_empty() || missing.iter().any(|token| token == text),
        Field::Float(number) => number.is_nan(),
        _ => false,
    }
}

/// The field's number, if it has a finite one.
pub(crate) fn number_of(field: Field<'_>) -> Option<f64> {
    let number = match field {
        Field::Text(text) => parse_f64(text)?,
        Field::Int(number) => number as f64,
        Field::Unsigned(number) => number as f64,
        Field::Float(number) => number,
        Field::Bool(is_true) => f64::from(u8::from(is_true)),
        Field::Time(time) => time.as_seconds(),
        Field::Missing | Field::List(_) => return None,
    };
    number.is_finite().then_some(number)
}

/// The number of a numeric feature; the text of a date or time counts as its seconds.
pub(crate) fn number_or_time(field: Field<'_>) -> Option<f64> {
    number_of(field).or_else(|| match field {
        Field::Text(text) => Time::read(text).map(Time::as_seconds),
        _ => None,
    })
}

/// Whole floats up to this are exact: no other integer rounds to them.
const FLOAT_WHOLE_MAX: f64 = ((1_u64 << 53) - 1) as f64;

/// The field as a raw key: a whole number from -2^63 to 2^64 - 1; negative ones by their bits.
#[inline]
pub(crate) fn raw_key(field: Field<'_>) -> Option<u64> {
    match field {
        Field::Unsigned(number) => Some(number),
        Field::Int(number) => Some(number as u64),
        Field::Float(number) => whole(number),
        Field::Bool(is_true) => Some(is_true.into()),
        Field::Text(text) => parse_u64(text).or_else(|| raw_of_text(text)),
        Field::Missing | Field::Time(_) | Field::List(_) => None,
    }
}

/// The raw key of a text that is not an unsigned integer.
#[cold]
fn raw_of_text(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.parse::<i64>() {
        Ok(number) => Some(number as u64),
        // Whole floats, as tools write columns of integers with missing values: 42.0.
        Err(_) => parse_f64(text.as_bytes()).and_then(whole),
    }
}

fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && number.abs() <= FLOAT_WHOLE_MAX;
    is_whole.then_some(number as i64 as u64)
}

/// Calls `f` with the text that a text file would hold for the field; `None` for lists.
pub fn with_text<R>(field: Field<'_>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    match field {
        Field::Missing => Some(f(b"")),
        Field::Text(text) => Some(f(text)),
        Field::Int(number) => Some(with_decimal(number.unsigned_abs(), number < 0, f)),
        Field::Unsigned(number) => Some(with_decimal(number, false, f)),
        Field::Float(number) => {
            let mut buffer = [0u8; NUMBER_TEXT_BYTES_MAX];
            let room = buffer.len();
            let mut rest = &mut buffer[..];
            // A whole number has the same text in integer and float columns; zero has no sign.
            write!(rest, "{}", number + 0.0).ok()?;
            let written = room - rest.len();
            Some(f(&buffer[..written]))
        }
        Field::Bool(is_true) => Some(f(if is_true { b"true" } else { b"false" })),
        Field::Time(time) => Some(time.with_text(f)),
        Field::List(_) => None,
    }
}

/// Calls `f` with the text that is hashed into a key: the field's text, or for a time its normalised text.
#[inline]
pub(crate) fn with_key_text<R>(field: Field<'_>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    match field {
        Field::Text(text) if Time::may_be(text) => Some(match Time::read(text) {
            Some(time) => time.with_text(f),
            None => f(text),
        }),
        other => with_text(other, f),
    }
}

/// The decimal text of an integer. Ids take this path, one per key, for which the formatting machinery is too slow.
fn with_decimal<R>(magnitude: u64, negative: bool, f: impl FnOnce(&[u8]) -> R) -> R {
    // 20 digits, or 19 and a sign.
    let mut buffer = [b'-'; 20];
    let (mut rest, mut at) = (magnitude, buffer.len());
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    f(&buffer[at - usize::from(negative)..])
}

pub(crate) fn wanted(column: usize, expected: &str, field: Field<'_>) -> FieldError {
    let mut expected = expected.to_string();
    if let Field::Text(text) = field
        && mark_of(text).is_some()
    {
        expected += " (list texts that mean no value in data.missing)";
    }
    FieldError { column, expected, found: shown(field) }
}

/// At most this many characters of a number are shown in an error.
const NUMBER_SHOWN_MAX: usize = 24;

/// A field as an error message shows it: printable and short.
pub(crate) fn shown(field: Field<'_>) -> String {
    match field {
        Field::Text(text) => quote(text),
        Field::Missing => "nothing".to_string(),
        Field::Float(number) => shown_number(number),
        Field::List(parts) => format!("a list of {}", parts.len()),
        Field::Int(_) | Field::Unsigned(_) | Field::Bool(_) | Field::Time(_) => {
            with_text(field, |text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
        }
    }
}

/// A number as a message shows it: with an exponent if it has many digits.
#[must_use]
pub fn shown_number(number: f64) -> String {
    let plain = number.to_string();
    if plain.len() <= NUMBER_SHOWN_MAX { plain } else { format!("{number:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_messages_are_short() {
        assert_eq!(shown(Field::Float(1e300)), "1e300");
        assert_eq!(shown(Field::Float(-0.1)), "-0.1");
        assert_eq!(shown(Field::Float(f64::MIN_POSITIVE)), "2.2250738585072014e-308");
        assert_eq!(shown(Field::Text(&[b'x'; 500])).len(), 45);
        let error = wanted(0, "a finite number", Field::Text(b"\\N"));
        assert!(error.expected.contains("data.missing"), "{error:?}");
    }

    #[test]
    fn integers_as_text() {
        for number in [0, 1, -1, 9, 10, -10, 1234567890, i64::MAX, i64::MIN] {
            let text = with_text(Field::Int(number), <[u8]>::to_vec).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
        for number in [0, 10, u64::MAX] {
            let text = with_text(Field::Unsigned(number), <[u8]>::to_vec).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), number.to_string());
        }
    }
}
