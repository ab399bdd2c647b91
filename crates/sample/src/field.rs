//! One field of a row, whatever file it came from, as a number and as text. Knows no spec.

use std::io::Write;

use crate::error::{FieldError, quote};

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
        Field::Text(text) => parse_number(text)?,
        Field::Int(number) => number as f64,
        Field::Unsigned(number) => number as f64,
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
pub(crate) fn with_text<R>(field: Field<'_>, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    let mut buffer = [0u8; NUMBER_TEXT_BYTES_MAX];
    let room = buffer.len();
    let mut rest = &mut buffer[..];
    match field {
        Field::Missing => return Some(f(b"")),
        Field::Text(text) => return Some(f(text)),
        Field::Int(number) => write!(rest, "{number}").ok()?,
        Field::Unsigned(number) => write!(rest, "{number}").ok()?,
        // A whole number reads the same from an integer and from a float column.
        Field::Float(number) => write!(rest, "{number}").ok()?,
        Field::List(_) => return None,
    }
    let written = room - rest.len();
    Some(f(&buffer[..written]))
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
