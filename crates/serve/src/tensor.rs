//! Named tensors of the Open Inference Protocol: datatypes, shapes, and values from JSON and from bytes.

use std::borrow::Cow;

use sanderling_sample::Field;

use crate::cell::Cell;
use crate::error::{ServeError, quoted};

/// The datatypes that inputs may have.
const DATATYPES: [&str; 12] = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BYTES",
];
/// Bytes of the length before each text.
const LENGTH_BYTES: usize = 4;

/// One input.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tensor<'a> {
    pub(crate) name: String,
    /// Length of the first dimension, the rows.
    pub(crate) rows: usize,
    /// Values per row: the product of the other dimensions.
    pub(crate) width: usize,
    pub(crate) values: Values<'a>,
}

/// Values of one datatype, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values<'a> {
    Texts(Vec<Cow<'a, [u8]>>),
    Ints(Vec<i64>),
    Unsigned(Vec<u64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
}

impl Values<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Texts(values) => values.len(),
            Values::Ints(values) => values.len(),
            Values::Unsigned(values) => values.len(),
            Values::Floats(values) => values.len(),
            Values::Bools(values) => values.len(),
        }
    }

    /// One value as a field.
    pub(crate) fn field(&self, at: usize) -> Field<'_> {
        match self {
            Values::Texts(values) => Field::Text(&values[at]),
            Values::Ints(values) => Field::Int(values[at]),
            Values::Unsigned(values) => Field::Unsigned(values[at]),
            Values::Floats(values) => Field::Float(values[at]),
            Values::Bools(values) => Field::Bool(values[at]),
        }
    }
}

impl<'a> Tensor<'a> {
    /// A tensor whose values are bytes: little-endian numbers, or texts with their lengths before them.
    pub(crate) fn of_bytes(
        name: &str,
        datatype: &str,
        shape: &[i64],
        bytes: &'a [u8],
    ) -> Result<Tensor<'a>, ServeError> {
        let values = match datatype {
            "BOOL" => Values::Bools(numbers(name, datatype, bytes, |[byte]: [u8; 1]| byte != 0)?),
            "UINT8" => Values::Unsigned(numbers(name, datatype, bytes, |[byte]: [u8; 1]| byte.into())?),
            "UINT16" => Values::Unsigned(numbers(name, datatype, bytes, |it| u16::from_le_bytes(it).into())?),
            "UINT32" => Values::Unsigned(numbers(name, datatype, bytes, |it| u32::from_le_bytes(it).into())?),
            "UINT64" => Values::Unsigned(numbers(name, datatype, bytes, u64::from_le_bytes)?),
            "INT8" => Values::Ints(numbers(name, datatype, bytes, |it| i8::from_le_bytes(it).into())?),
            "INT16" => Values::Ints(numbers(name, datatype, bytes, |it| i16::from_le_bytes(it).into())?),
            "INT32" => Values::Ints(numbers(name, datatype, bytes, |it| i32::from_le_bytes(it).into())?),
            "INT64" => Values::Ints(numbers(name, datatype, bytes, i64::from_le_bytes)?),
            "FP32" => Values::Floats(numbers(name, datatype, bytes, |it| f32::from_le_bytes(it).into())?),
            "FP64" => Values::Floats(numbers(name, datatype, bytes, f64::from_le_bytes)?),
            "BYTES" => Values::Texts(texts(name, bytes)?),
            _ => return Err(unknown_datatype(name, datatype)),
        };
        Tensor::new(name, shape, values)
    }

    /// A tensor whose values are JSON, flat or nested.
    pub(crate) fn of_json(
        name: &str,
        datatype: &str,
        shape: &[i64],
        data: &Cell<'a>,
    ) -> Result<Tensor<'a>, ServeError> {
        let mut cells = Vec::new();
        flatten(data, &mut cells);
        let wrong = |cell: &Cell<'_>, range: &str| {
            let found = match cell {
                Cell::Text(text) => quoted(text),
                Cell::Missing => "null".to_owned(),
                Cell::Float(number) => number.to_string(),
                other => format!("{other:?}"),
            };
            ServeError::invalid(format!("input {}: expected {datatype}{range}, found {found}", quoted(name)))
        };
        let ints = |least: i64, most: i64| {
            let int = |cell: &&Cell<'a>| match cell {
                Cell::Int(number) if (least..=most).contains(number) => Ok(*number),
                other => Err(wrong(other, &format!(" ({least} to {most})"))),
            };
            cells.iter().map(int).collect::<Result<Vec<i64>, _>>()
        };
        let unsigned = |most: u64| {
            let whole = |cell: &&Cell<'a>| match cell {
                Cell::Int(number) => u64::try_from(*number).ok().filter(|number| *number <= most),
                Cell::Unsigned(number) => Some(*number).filter(|number| *number <= most),
                _ => None,
            };
            let number =
                |cell: &&Cell<'a>| whole(cell).ok_or_else(|| wrong(cell, &format!(" (0 to {most})")));
            cells.iter().map(number).collect::<Result<Vec<u64>, _>>()
        };
        let float = |cell: &&Cell<'a>| match cell {
            Cell::Float(number) => Ok(*number),
            Cell::Int(number) => Ok(*number as f64),
            Cell::Unsigned(number) => Ok(*number as f64),
            other => Err(wrong(other, "")),
        };
        let text = |cell: &&Cell<'a>| match cell {
            Cell::Text(Cow::Borrowed(text)) => Ok(Cow::Borrowed(text.as_bytes())),
            Cell::Text(Cow::Owned(text)) => Ok(Cow::Owned(text.clone().into_bytes())),
            other => Err(wrong(other, ", a text")),
        };
        let boolean = |cell: &&Cell<'a>| match cell {
            Cell::Bool(is_true) => Ok(*is_true),
            other => Err(wrong(other, "")),
        };
        let values = match datatype {
            "BOOL" => Values::Bools(cells.iter().map(boolean).collect::<Result<_, _>>()?),
            "UINT8" => Values::Unsigned(unsigned(u8::MAX.into())?),
            "UINT16" => Values::Unsigned(unsigned(u16::MAX.into())?),
            "UINT32" => Values::Unsigned(unsigned(u32::MAX.into())?),
            "UINT64" => Values::Unsigned(unsigned(u64::MAX)?),
            "INT8" => Values::Ints(ints(i8::MIN.into(), i8::MAX.into())?),
            "INT16" => Values::Ints(ints(i16::MIN.into(), i16::MAX.into())?),
            "INT32" => Values::Ints(ints(i32::MIN.into(), i32::MAX.into())?),
            "INT64" => Values::Ints(ints(i64::MIN, i64::MAX)?),
            // As of bytes: a 32-bit float is widened.
            "FP32" => {
                let narrow = |cell| float(cell).map(|number| f64::from(number as f32));
                Values::Floats(cells.iter().map(narrow).collect::<Result<_, _>>()?)
            }
            "FP64" => Values::Floats(cells.iter().map(float).collect::<Result<_, _>>()?),
            "BYTES" => Values::Texts(cells.iter().map(text).collect::<Result<_, _>>()?),
            _ => return Err(unknown_datatype(name, datatype)),
        };
        Tensor::new(name, shape, values)
    }

    /// A tensor; its values must be as many as the shape says, and floating-point numbers finite.
    pub(crate) fn new(name: &str, shape: &[i64], values: Values<'a>) -> Result<Tensor<'a>, ServeError> {
        let invalid = |text: String| Err(ServeError::invalid(format!("input {}: {text}", quoted(name))));
        let lengths: Option<Vec<usize>> = shape.iter().map(|length| usize::try_from(*length).ok()).collect();
        let Some(lengths) = lengths.filter(|lengths| !lengths.is_empty() && lengths.len() <= DIMENSIONS_MAX)
        else {
            return invalid(format!("a shape has 1 to {DIMENSIONS_MAX} dimensions, each at least 0"));
        };
        let product = |lengths: &[usize]| lengths.iter().try_fold(1_usize, |all, it| all.checked_mul(*it));
        let (rows, width) = (lengths[0], product(&lengths[1..]));
        if width.and_then(|width| width.checked_mul(rows)) != Some(values.len()) {
            return invalid(format!("{} values, which is not the product of its shape", values.len()));
        }
        if let Values::Floats(numbers) = &values
            && let Some(at) = numbers.iter().position(|number| !number.is_finite())
        {
            let found = numbers[at];
            return invalid(format!(
                "value {at} is {found}; a missing number is an empty text in a tensor of BYTES"
            ));
        }
        Ok(Tensor { name: name.to_owned(), rows, width: width.unwrap_or_default(), values })
    }
}

/// Dimensions of a tensor at most.
const DIMENSIONS_MAX: usize = 8;

fn unknown_datatype(name: &str, datatype: &str) -> ServeError {
    let (name, datatype) = (quoted(name), quoted(datatype));
    ServeError::invalid(format!("input {name}: no datatype {datatype}; there are {}", DATATYPES.join(", ")))
}

/// The values of nested lists in order.
fn flatten<'c, 'a>(cell: &'c Cell<'a>, to: &mut Vec<&'c Cell<'a>>) {
    match cell {
        Cell::List(cells) => cells.iter().for_each(|cell| flatten(cell, to)),
        cell => to.push(cell),
    }
}

fn numbers<T, const BYTES: usize>(
    name: &str,
    datatype: &str,
    bytes: &[u8],
    number: impl Fn([u8; BYTES]) -> T,
) -> Result<Vec<T>, ServeError> {
    let (whole, rest) = bytes.as_chunks::<BYTES>();
    if !rest.is_empty() {
        let (name, bytes) = (quoted(name), bytes.len());
        return Err(ServeError::invalid(format!("input {name}: {bytes} bytes are no whole {datatype}")));
    }
    Ok(whole.iter().map(|chunk| number(*chunk)).collect())
}

fn texts<'a>(name: &str, mut bytes: &'a [u8]) -> Result<Vec<Cow<'a, [u8]>>, ServeError> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let parts = bytes.split_first_chunk::<LENGTH_BYTES>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
        });
        let Some((text, rest)) = parts else {
            let text = format!("text {} is longer than the bytes of the input", texts.len());
            return Err(ServeError::invalid(format!("input {}: {text}", quoted(name))));
        };
        texts.push(Cow::Borrowed(text));
        bytes = rest;
    }
    Ok(texts)
}

#[cfg(test)]
mod tests;
