//! Requests for rows and their answers as bytes, for clients without a parser of JSON. docs/serving.md has the layout.

use sanderling_sample::Field;

use crate::error::{ServeError, listed, quoted};
use crate::lookup::{Found, Items, halves_of};
use crate::models::ServedModel;
use crate::work::{Answer, Asked};

/// The first bytes of an answer.
const MAGIC: &[u8; 4] = b"SROW";
/// Bytes of an answer before the places of absent rows.
const HEAD_BYTES: usize = 28;
/// Datatypes of weights by their number in an answer.
pub(crate) const DTYPES: [&str; 2] = ["f32", "f16"];
/// Bytes of the length before a value.
const LENGTH_BYTES: usize = 4;

/// The content of the body of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// Keys of 8 bytes.
    Keys,
    /// Texts, each with its length before it.
    Values,
}

impl Input {
    /// The input of a name in a query.
    pub(crate) fn named(name: &str) -> Result<Input, ServeError> {
        match name {
            "keys" => Ok(Input::Keys),
            "values" => Ok(Input::Values),
            name => Err(ServeError::invalid(format!("no input {}; there are keys, values", quoted(name)))),
        }
    }
}

/// Whether a datatype by name is the half; an empty name means 32-bit floats.
pub(crate) fn is_half(name: &str) -> Result<bool, ServeError> {
    match DTYPES.iter().position(|dtype| *dtype == name) {
        Some(at) => Ok(at == 1),
        None if name.is_empty() => Ok(false),
        None => Err(ServeError::invalid(format!("no dtype {}; there are {}", quoted(name), listed(DTYPES)))),
    }
}

/// Appends the keys or values of a body.
pub(crate) fn add(
    items: &mut Items,
    model: &ServedModel,
    asked: &Asked,
    table: &str,
    feature: &str,
    input: Input,
    bytes: &[u8],
) -> Result<(), ServeError> {
    match input {
        Input::Keys => {
            let (keys, rest) = bytes.as_chunks();
            asked.check_keys(items.len() + keys.len())?;
            if !rest.is_empty() {
                return Err(ServeError::invalid(format!("{} bytes: keys have 8 bytes each", bytes.len())));
            }
            keys.iter().for_each(|key| items.add(&[u64::from_le_bytes(*key)]));
            Ok(())
        }
        Input::Values => {
            let values = values_of(bytes)?;
            asked.check_keys(items.len() + values.len())?;
            items.add_values(model, table, feature, values.into_iter().map(Field::Text))
        }
    }
}

/// The values of a body.
fn values_of(bytes: &[u8]) -> Result<Vec<&[u8]>, ServeError> {
    let (mut values, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let value = rest.split_first_chunk::<LENGTH_BYTES>().and_then(|(length, after)| {
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            after.split_at_checked(length)
        });
        let Some((value, after)) = value else {
            let text = format!("value {} is cut: a length of 4 bytes comes before each", values.len());
            return Err(ServeError::invalid(text));
        };
        values.push(value);
        rest = after;
    }
    Ok(values)
}

/// The answer of these rows.
pub(crate) fn answer(model: &ServedModel, found: &Found, is_half: bool) -> Answer {
    Answer::octets(encode(model.version, found, is_half))
}

fn encode(version: u64, found: &Found, is_half: bool) -> Vec<u8> {
    let weight_bytes = if is_half { 2 } else { 4 };
    let length = HEAD_BYTES + found.absent.len() * 4 + found.weights.len() * weight_bytes;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(MAGIC);
    for number in [u32::from(is_half), found.len() as u32, found.dim as u32] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(found.absent.len() as u32).to_le_bytes());
    bytes.extend_from_slice(bytemuck::cast_slice(&found.absent));
    match is_half {
        false => bytes.extend_from_slice(bytemuck::cast_slice(&found.weights)),
        true => bytes.extend_from_slice(&halves_of(&found.weights)),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_values_or_an_error(bytes in prop::collection::vec(prop::sample::select(vec![0_u8, 1, 2, 255]), 0..40)) {
            if let Ok(values) = values_of(&bytes) {
                prop_assert_eq!(values.iter().map(|value| LENGTH_BYTES + value.len()).sum::<usize>(), bytes.len());
            }
        }
    }

    #[test]
    fn answers_have_the_documented_layout() {
        let found = Found { dim: 2, weights: vec![1.0, -2.0, 0.0, 0.0], absent: vec![1] };
        let head = b"SROW\0\0\0\0\x02\0\0\0\x02\0\0\0\x0c\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0";
        let weights = b"\0\0\x80\x3f\0\0\0\xc0\0\0\0\0\0\0\0\0";
        assert_eq!(encode(12, &found, false), [&head[..], weights].concat());
        let mut head = *head;
        head[4] = 1;
        assert_eq!(encode(12, &found, true), [&head[..], b"\0\x3c\0\xc0\0\0\0\0"].concat());
    }

    #[test]
    fn values_have_their_length_before_them() {
        let check = |bytes: &[u8], expected: Option<&[&[u8]]>| {
            assert_eq!(values_of(bytes).ok().as_deref(), expected, "{}", bytes.escape_ascii());
        };
        check(b"", Some(&[]));
        check(b"\x02\0\0\0ab\0\0\0\0\x01\0\0\0c", Some(&[b"ab", b"", b"c"]));
        check(b"\x03\0\0\0ab", None);
        check(b"\x01\0\0", None);
        check(b"\xff\xff\xff\xff", None);
    }
}
