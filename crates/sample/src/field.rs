//! One field of a row, whatever file it came from, as a number and as text. Knows no spec.

use std::io::Write;

use crate::error::{FieldError, quote};
use crate::number::parse_f64;

/// One field of a row, as text or as a columnar file types it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field<'a> {
    /// No value (a null).
    Missing,
    /// Text, without quotes or surrounding blanks.
    Text(&'a [u8]),
    /// An integer.
    Int(i64),
    /// An unsigned integer, perhaps beyond what `Int` holds: a ready key.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// Several values, for multi-valued features.
    List(&'a [Field<'a>]),
}

/// Values of features are smaller than this in size: gradients of a minibatch of larger ones would be refused by a table, which
/// knows neither file nor line.
pub(crate) const VALUE_ABS_MAX: f32 = 1e15;
/// The largest weight of a row, for the same reason.
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
        Field::Missing | Field::List(_) => return None,
    };
    number.is_finite().then_some(number)
}

/// Calls `f` with the field as the text that a text file would hold; None for lists.
pub(crate) fn with_text<R>(field: Field<'_>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    match field {
        Field::Missing => Some(f(b"")),
        Field::Text(text) => Some(f(text)),
        Field::Int(number) => Some(with_decimal(number.unsigned_abs(), number < 0, f)),
        Field::Unsigned(number) => Some(with_decimal(number, false, f)),
        Field::Float(number) => {
            let mut buffer = [0u8; NUMBER_TEXT_BYTES_MAX];
            let room = buffer.len();
            let mut rest = &mut buffer[..];
            // A whole number reads the same from an integer and from a float column.
            write!(rest, "{number}").ok()?;
            let written = room - rest.len();
            Some(f(&buffer[..written]))
        }
        Field::List(_) => None,
    }
}

/// The decimal text of an integer. Ids come this way, one per key, where the formatting machinery would be the slowest
/// part.
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
    let found = match field {
        Field::Text(text) => quote(text),
        Field::Missing => "nothing".to_string(),
        Field::Int(number) => number.to_string(),
        Field::Unsigned(number) => number.to_string(),
        Field::Float(number) => number.to_string(),
        Field::List(parts) => format!("a list of {}", parts.len()),
    };
    FieldError { column, expected: expected.to_string(), found }
}

#[cfg(test)]
mod tests {
    use super::*;

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
